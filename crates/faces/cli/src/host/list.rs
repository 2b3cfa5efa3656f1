//! `farpage ls` and `farpage rm`: what the host kernel shares.

use anyhow::Result;
use clap::Args;
use farpage_client::{Figures, ObjectFigures};
use farpage_text::columns::{Side, columns};
use farpage_text::size::{human, human_time};

use super::WhichHost;
use crate::cluster::objects::tables;

/// List the shared memory of this host
///
/// Root sees that of all users. What has no name lives as long as processes that have it.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show the hosts and the objects of the cluster
    #[arg(long)]
    pub hosts: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Take the names of shared memory away
///
/// Processes that have the memory keep it; it is gone when the last of them is.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Names, as `farpage ls` shows them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// They are names of the cluster
    #[arg(long)]
    pub cluster: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Prints what there is.
///
/// # Errors
/// When no host kernel answers.
pub fn list(args: &LsArgs) -> Result<()> {
    if args.hosts {
        let listed = args.which.ask(|host| host.cluster())?;
        match args.json {
            true => outln!("{}", serde_json::to_string_pretty(&listed)?),
            false => out!("{}", tables(&listed)),
        }
        return Ok(());
    }
    if args.json {
        let listed = args.which.ask(|host| host.list())?;
        outln!("{}", serde_json::to_string_pretty(&listed)?);
        return Ok(());
    }
    let figures = args.which.ask(|host| host.figures())?;
    match figures.objects.is_empty() {
        true => outln!("no process of this host shares memory; for a cluster: farpage ls --hosts"),
        false => out!("{}", table(&figures.objects)),
    }
    out!("{}", memory(&figures));
    Ok(())
}

/// Takes names away.
///
/// # Errors
/// When no host kernel answers, or there is no such name.
pub fn remove(args: &RmArgs) -> Result<()> {
    let refused = args.which.ask(|host| {
        let unlinked = args.names.iter().map(|name| match args.cluster {
            true => host.unlink_shared(name),
            false => host.unlink(name),
        });
        let refused = unlinked.filter_map(|one| Some(one.err()?.to_string()));
        Ok(refused.collect::<Vec<String>>())
    })?;
    match refused.is_empty() {
        true => Ok(()),
        false => anyhow::bail!("{}", refused.join("\nfarpage: ")),
    }
}

/// What memory is in use, and whether there is any left, a line each.
pub fn memory(figures: &Figures) -> String {
    let compressed = figures
        .paging_space
        .as_ref()
        .map_or(0, |space| space.compressed_bytes);
    let mut text = format!(
        "{} of {} of RAM in use\n",
        human(figures.resident_bytes + compressed),
        human(figures.ram_bytes)
    );
    if let Some((since_ns, refused)) = figures.no_room {
        text += &format!(
            "paging space is full since {}: new objects are refused, programs that touch new pages \
             get SIGBUS ({refused} so far); remove objects (farpage rm), or make room where the \
             paging files are\n",
            human_time(since_ns)
        );
    }
    text
}

/// Processes that map an object, those that map it several times with how often.
pub fn mapped_by(object: &ObjectFigures) -> String {
    let processes = object.mapped_by.iter().map(|(pid, count)| match count {
        1 => pid.to_string(),
        count => format!("{pid} ({count} times)"),
    });
    let processes: Vec<String> = processes.collect();
    match processes.is_empty() {
        true => "-".into(),
        false => processes.join(" "),
    }
}

/// What an object has in memory, and may have when that is little: `3.00 MiB of 64.0 MiB`.
pub fn in_memory(object: &ObjectFigures) -> String {
    let most = object.ram_bytes.filter(|most| *most < object.bytes);
    let most = most.map_or(String::new(), |most| format!(" of {}", human(most)));
    human(object.resident_bytes) + &most
}

/// What an object is called where there is little room.
pub fn name(object: &ObjectFigures) -> &str {
    match object.name.as_str() {
        "" => "-",
        name => name,
    }
}

fn table(listed: &[ObjectFigures]) -> String {
    let head = ["NAME", "SIZE", "IN MEMORY", "MADE BY", "MAPPED BY"];
    let rows = listed.iter().map(|one| {
        [
            name(one).to_owned(),
            human(one.bytes),
            in_memory(one),
            one.pid.to_string(),
            mapped_by(one),
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
        let one = ObjectFigures {
            name: "grid".into(),
            bytes: 1 << 30,
            resident_bytes: 1 << 20,
            pid: 71,
            mapped_by: vec![(71, 1), (72, 2)],
            ram_bytes: Some(64 << 20),
            ..ObjectFigures::default()
        };
        let other = ObjectFigures {
            name: String::new(),
            ram_bytes: Some(2 << 30),
            mapped_by: Vec::new(),
            ..one.clone()
        };
        assert_eq!(
            table(&[other, one]),
            "NAME      SIZE             IN MEMORY  MADE BY  MAPPED BY\n\
             -     1.00 GiB              1.00 MiB       71  -\n\
             grid  1.00 GiB  1.00 MiB of 64.0 MiB       71  71 72 (2 times)\n"
        );
    }

    #[test]
    fn it_is_said_when_there_is_no_room() {
        let mut figures = Figures {
            ram_bytes: 16 << 20,
            resident_bytes: 12 << 20,
            ..Figures::default()
        };
        assert_eq!(memory(&figures), "12.0 MiB of 16.0 MiB of RAM in use\n");
        figures.no_room = Some((3_000_000_000, 7));
        let said = memory(&figures);
        assert!(
            said.contains("full since 3.00 s") && said.contains("(7 so far)"),
            "{said}"
        );
    }
}
