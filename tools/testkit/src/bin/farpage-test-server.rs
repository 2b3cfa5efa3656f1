//! `farpage-test-server`: serves a folder over HTTP, as slow as a network would be.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use farpage_testkit::server::{Answer, Server, Speed};

const USAGE: &str = "\
farpage-test-server [--listen 127.0.0.1:0] [--latency-ms N] [--mb-per-s N] [--rules] DIR

  serves the files of DIR with ranges; prints its address when it listens
  --latency-ms N   before the first byte of each answer
  --mb-per-s N     of each connection
  --rules          each line of the standard input is 'PATH ANSWER', from then on: right, whole,
                   silence, close, status N, tagged T, later N, shorter N, drop N; it is echoed";

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
    let (mut folder, mut heeds_rules) = (None, false);
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
            "--rules" => heeds_rules = true,
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            path => folder = Some(path.to_owned()),
        }
    }
    let folder = folder.ok_or("no folder given")?;
    let server = Server::listen(address, folder.as_ref(), speed, false)
        .map_err(|cause| format!("cannot listen on {address}: {cause}; take another address"))?;
    println!("http://{}/", server.address());
    let _ = std::io::stdout().flush();
    if heeds_rules {
        return rules(&server);
    }
    server.wait();
    Ok(())
}

/// Takes rules until the standard input ends.
fn rules(server: &Server) -> Result<(), String> {
    for line in std::io::stdin().lines() {
        let line = line.map_err(|cause| cause.to_string())?;
        let (path, answer) = line.split_once(' ').ok_or(format!("no rule: '{line}'"))?;
        server.always(path, answer_of(answer)?);
        println!("{line}");
        let _ = std::io::stdout().flush();
    }
    Ok(())
}

fn answer_of(text: &str) -> Result<Answer, String> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let count = || rest.parse().map_err(|e| format!("'{text}': {e}"));
    Ok(match name {
        "right" => Answer::Right,
        "whole" => Answer::Whole,
        "silence" => Answer::Silence,
        "close" => Answer::Close,
        "status" => Answer::Status(count()? as u16, Vec::new()),
        "tagged" => Answer::Tagged(rest.into()),
        "later" => Answer::Later(count()?),
        "shorter" => Answer::Shorter(count()?),
        "drop" => Answer::DropAfter(count()?),
        _ => return Err(format!("unknown answer '{name}'")),
    })
}

fn number(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|e| format!("'{text}': {e}"))?;
    if (0.0..1e9).contains(&number) {
        Ok(number)
    } else {
        Err(format!("'{text}' is out of range"))
    }
}
