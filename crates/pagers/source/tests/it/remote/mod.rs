//! Object stores and web servers, with servers of others.

mod azure;
mod http;
mod nginx;
mod s3;
mod support;
