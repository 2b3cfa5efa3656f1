//! Small worlds in every order, large ones by seed, and the six ways in which the scheduler of 1989
//! went wrong, each by name.

mod central;
mod crash;
mod group;
mod hot;
mod model;
mod named;
mod world;
