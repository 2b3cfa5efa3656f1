//! `farpage ls` and `farpage rm`: what the host kernel shares.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use farpage_services::{Host, Listed, default_socket};

use crate::columns::{Side, columns};
use crate::size::human;

/// List the shared memory of this host
///
/// Root sees that of all users. What has no name lives as long as processes that have it.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The host kernel that listens there
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Take the names of shared memory away
///
/// Processes that have the memory keep it; it is gone when the last of them is.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Names, as `farpage ls` shows them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// The host kernel that listens there
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

fn host(socket: Option<&PathBuf>) -> Result<Host> {
    let socket = socket.cloned().unwrap_or_else(default_socket);
    Ok(Host::connect(&socket)?)
}

/// Prints what there is.
///
/// # Errors
/// When no host kernel answers.
pub fn list(args: &LsArgs) -> Result<()> {
    let host = host(args.socket.as_ref())?;
    let (listed, status) = (host.list()?, host.status()?);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
        return Ok(());
    }
    print!("{}", table(&listed));
    println!(
        "{} of {} of RAM in use",
        human(status.resident_bytes),
        human(status.ram_bytes)
    );
    Ok(())
}

/// Takes names away.
///
/// # Errors
/// When no host kernel answers, or there is no such name.
pub fn remove(args: &RmArgs) -> Result<()> {
    let host = host(args.socket.as_ref())?;
    let mut refused = Vec::new();
    for name in &args.names {
        if let Err(error) = host.unlink(name) {
            refused.push(error.to_string());
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("{}", refused.join("\nfarpage: ")),
    }
}

fn table(listed: &[Listed]) -> String {
    let head = ["NAME", "SIZE", "IN MEMORY", "MADE BY", "MAPPED BY"];
    let rows = listed.iter().map(|one| {
        let pids: Vec<String> = one.mapped_by.iter().map(u32::to_string).collect();
        [
            if one.name.is_empty() {
                "-".into()
            } else {
                one.name.clone()
            },
            human(one.bytes),
            human(one.resident_bytes),
            one.pid.to_string(),
            if pids.is_empty() {
                "-".into()
            } else {
                pids.join(" ")
            },
        ]
    });
    let (left, right) = (Side::Left, Side::Right);
    columns([left, right, right, right, left], head, rows).join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_object() {
        let one = Listed {
            name: "grid".into(),
            bytes: 1 << 30,
            resident_bytes: 1 << 20,
            uid: 0,
            pid: 71,
            mapped_by: vec![71, 72],
        };
        let other = Listed {
            name: String::new(),
            mapped_by: Vec::new(),
            ..one.clone()
        };
        assert_eq!(
            table(&[other, one]),
            "NAME      SIZE  IN MEMORY  MADE BY  MAPPED BY\n\
             -     1.00 GiB   1.00 MiB       71  -\n\
             grid  1.00 GiB   1.00 MiB       71  71 72\n"
        );
    }
}
