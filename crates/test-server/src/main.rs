//! `farpage-test-server`: serves a folder over HTTP, as slow as a network would be.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use farpage_test_server::{Server, Speed};

const USAGE: &str = "\
farpage-test-server [--listen 127.0.0.1:0] [--latency-ms N] [--mb-per-s N] DIR

  serves the files of DIR with ranges; prints its address when it listens
  --latency-ms N   before the first byte of each answer
  --mb-per-s N     of each connection";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("farpage-test-server: {cause}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut speed = Speed::default();
    let mut folder = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--listen" => address = value()?.parse().map_err(|e| format!("--listen: {e}"))?,
            "--latency-ms" => speed.latency = Duration::from_secs_f64(number(&value()?)? / 1e3),
            "--mb-per-s" => match number(&value()?)? {
                0.0 => return Err("--mb-per-s 0 would never send anything".into()),
                rate => speed.bytes_per_s = Some(((rate * 1e6) as u64).max(1)),
            },
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            path => folder = Some(path.to_owned()),
        }
    }
    let folder = folder.ok_or("no folder given")?;
    let server = Server::listen(address, folder.as_ref(), speed, false)
        .map_err(|cause| format!("cannot listen on {address}: {cause}; take another address"))?;
    println!("http://{}/", server.address());
    let _ = std::io::stdout().flush();
    server.wait();
    Ok(())
}

fn number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|e| format!("'{text}': {e}"))?;
    if (0.0..1e9).contains(&number) {
        Ok(number)
    } else {
        Err(format!("'{text}' is out of range"))
    }
}
