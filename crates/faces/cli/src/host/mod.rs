//! Commands that ask the host kernel: what it shares, and how it does.

pub mod figures;
pub mod gc;
pub mod list;
pub mod locks;
pub mod ports;
mod silent;
pub mod top;
pub mod trace;
pub mod web;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use farpage_client::{Error, Host, default_socket};

/// Which host kernel is meant.
#[derive(Args, Debug)]
pub struct WhichHost {
    /// The host kernel that listens there
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl WhichHost {
    /// Asks it. Who asks is told while it does not answer.
    ///
    /// # Errors
    /// When it does not answer, or says no.
    pub fn ask<T>(&self, ask: impl FnOnce(&Host) -> Result<T, Error>) -> Result<T> {
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        let told = silent::watch(&socket);
        let host = Host::connect(&socket)?;
        host.status()?;
        drop(told);
        Ok(ask(&host)?)
    }
}
