//! `farpage locks`, and what `farpage up` allows of them.

use std::fs;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_client::locks::{LentListed, LocksListed, ProcessLocks};
use farpage_daemon::locks::FramesTold;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::columns::{Side, columns};
use farpage_text::size::{Size, human};
use rustix::process::{Resource, getrlimit};

use super::WhichHost;

/// List the shared memory that processes have locked through the host kernel
///
/// What stays in memory (resident), and in its frames (pinned), by process; locks that are lent, and who has them.
/// Those of this user; root sees those of all.
#[derive(Args, Debug)]
pub struct LocksArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub which: WhichHost,
}

/// What may be locked.
#[derive(Args, Debug)]
pub struct LockingArgs {
    /// Shared memory that processes of one user may have locked [default: what `ulimit -l` says]
    ///
    /// Each page counts once, however many of them have locked it. Without a limit of Linux's, half of memory. A
    /// percentage is of memory.
    #[arg(long, value_name = "SIZE")]
    pub lock_limit: Option<String>,
    /// Who is told the frames of what it has locked, beside processes with CAP_SYS_ADMIN
    ///
    /// Users and, after `@`, groups, by name or number, with commas between; or `nobody`: not even those. Where memory
    /// lies is what attacks on its hardware begin with.
    #[arg(long, value_name = "WHO")]
    pub frames: Option<String>,
}

impl LockingArgs {
    /// Bytes that a user may have locked, and who is told frames.
    ///
    /// # Errors
    /// For what is no size, or nobody that there is.
    pub fn read(&self, memory: &MemoryLimit) -> Result<(u64, FramesTold)> {
        let limit = match &self.lock_limit {
            Some(text) => Size::parse("--lock-limit", text)?.of(memory.bytes()),
            None => getrlimit(Resource::Memlock)
                .current
                .unwrap_or(memory.bytes() / 2),
        };
        let frames = match &self.frames {
            Some(text) => told(text)?,
            None => FramesTold::default(),
        };
        Ok((limit, frames))
    }
}

fn told(text: &str) -> Result<FramesTold> {
    let mut told = FramesTold::default();
    if text == "nobody" {
        told.nobody = true;
        return Ok(told);
    }
    for who in text.split(',').map(str::trim) {
        match who.strip_prefix('@') {
            Some(group) => told.groups.push(number(group, "group", "/etc/group")?),
            None => told.users.push(number(who, "user", "/etc/passwd")?),
        }
    }
    Ok(told)
}

/// The number of a user or a group: itself, or the third word of its line.
fn number(who: &str, what: &str, file: &str) -> Result<u32> {
    if let Ok(number) = who.parse() {
        return Ok(number);
    }
    let all = fs::read_to_string(file).with_context(|| format!("cannot read '{file}'"))?;
    let line = all.lines().find_map(|line| {
        let mut words = line.split(':');
        (words.next() == Some(who)).then(|| words.nth(1))?
    });
    match line.and_then(|number| number.parse().ok()) {
        Some(number) if !who.is_empty() => Ok(number),
        _ => bail!(
            "there is no {what} '{who}' in {file}, which --frames names; give its number if it is known elsewhere, \
             or 'nobody' alone"
        ),
    }
}

/// Prints what there is.
///
/// # Errors
/// When no host kernel answers.
pub fn locks(args: &LocksArgs) -> Result<()> {
    let listed = args.which.ask(|host| host.locks())?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&listed)?),
        false => out!("{}", tables(&listed)),
    }
    Ok(())
}

fn tables(listed: &LocksListed) -> String {
    if listed.processes.is_empty() {
        return "nothing is locked\n".into();
    }
    let mut lines = processes(&listed.processes);
    if !listed.lent.is_empty() {
        lines.push(String::new());
        lines.extend(lent(&listed.lent));
    }
    lines.push(String::new());
    lines.extend(listed.users.iter().map(|user| {
        let (bytes, most) = (human(user.bytes), human(listed.user_limit_bytes));
        format!("user {} has {bytes} of {most} locked", user.uid)
    }));
    let gone: u64 = listed.processes.iter().map(|one| one.gone).sum();
    if gone > 0 {
        lines.push(format!(
            "{gone} of the locks are of no more use: who shares the memory discarded some of it, or cut it off"
        ));
    }
    lines.join("\n") + "\n"
}

fn processes(listed: &[ProcessLocks]) -> Vec<String> {
    let head = ["MEMORY", "SIZE", "PROCESS", "RESIDENT", "PINNED", "LOCKS"];
    let rows = listed.iter().map(|one| {
        [
            one.segment.clone(),
            human(one.segment_bytes),
            one.pid.to_string(),
            or_none(one.resident_bytes),
            or_none(one.pinned_bytes),
            one.areas.to_string(),
        ]
    });
    let (left, right) = (Side::Left, Side::Right);
    columns([left, right, right, right, right, right], head, rows)
}

fn lent(listed: &[LentListed]) -> Vec<String> {
    let head = ["LENT", "MEMORY", "FROM BYTE", "SIZE", "HOW", "USERS"];
    let rows = listed.iter().map(|one| {
        let users: Vec<String> = one.users.iter().map(u32::to_string).collect();
        [
            one.name.clone(),
            one.segment.clone(),
            one.offset.to_string(),
            human(one.bytes),
            if one.is_pinned { "pinned" } else { "resident" }.to_owned(),
            users.join(" "),
        ]
    });
    let (left, right) = (Side::Left, Side::Right);
    columns([left, left, right, right, left, left], head, rows)
}

fn or_none(bytes: u64) -> String {
    match bytes {
        0 => "-".into(),
        bytes => human(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_client::locks::UserLocks;

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        let all = told("root, 7,@root,@12").unwrap();
        assert_eq!((all.users, all.groups), (vec![0, 7], vec![0, 12]));
        assert!(told("nobody").unwrap().nobody);
        let unknown = told("root,no such").unwrap_err().to_string();
        assert!(unknown.starts_with("there is no user 'no such' in /etc/passwd"));
        assert!(told("").is_err() && told("@").is_err() && told("-1").is_err());
    }

    #[test]
    fn tables_say_who_has_what() {
        let process = |pid, resident_bytes, pinned_bytes| ProcessLocks {
            segment: "memfd:grid".into(),
            segment_bytes: 16 << 20,
            pid,
            uid: 1000,
            resident_bytes,
            pinned_bytes,
            areas: 2,
            gone: 0,
        };
        let mut listed = LocksListed {
            processes: vec![process(71, 4096, 0), process(1234, 0, 1 << 20)],
            lent: vec![LentListed {
                name: "ring".into(),
                segment: "memfd:grid".into(),
                offset: 8192,
                bytes: 1 << 20,
                is_pinned: true,
                users: vec![71, 1234],
            }],
            users: vec![UserLocks {
                uid: 1000,
                bytes: (1 << 20) + 4096,
            }],
            user_limit_bytes: 8 << 20,
        };
        let table = "MEMORY          SIZE  PROCESS  RESIDENT    PINNED  LOCKS\n\
                     memfd:grid  16.0 MiB       71  4.00 KiB         -      2\n\
                     memfd:grid  16.0 MiB     1234         -  1.00 MiB      2\n\
                     \n\
                     LENT  MEMORY      FROM BYTE      SIZE  HOW     USERS\n\
                     ring  memfd:grid       8192  1.00 MiB  pinned  71 1234\n\
                     \n\
                     user 1000 has 1.00 MiB of 8.00 MiB locked\n";
        assert_eq!(tables(&listed), table);
        listed.processes[0].gone = 1;
        assert!(tables(&listed).ends_with("or cut it off\n"));
        assert_eq!(tables(&LocksListed::default()), "nothing is locked\n");
    }
}
