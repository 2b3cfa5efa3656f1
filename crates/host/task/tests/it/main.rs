//! Tasks: their nine operations, what children inherit, and the model.

mod exec;
mod fork;
mod model;
mod operations;
mod support;
mod tasks;
