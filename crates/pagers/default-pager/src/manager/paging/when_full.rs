//! `--when-full`: what becomes of programs that need room when paging space has none, and the word
//! about it.

use std::io::IsTerminal;
use std::time::Duration;

use farpage_object::Control;
use farpage_text::size::{human, human_time};

use super::{PagingFileListed, SpillSet, named};

/// Without a terminal nobody may see that a program waits: it does so no longer than this.
const UNSEEN: Duration = Duration::from_secs(3600);
/// It is said after so long: paging space that is full for a moment is no matter.
const TOLD_AFTER_NS: u64 = 200_000_000;

/// What becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// They are killed at once.
    Kill,
    /// They wait: for so long at most, or until there is room.
    Wait(Option<Duration>),
}

impl WhenFull {
    /// What holds where nothing is said.
    pub fn unless_said() -> Self {
        let seen = std::io::stderr().is_terminal();
        Self::Wait((!seen).then_some(UNSEEN))
    }

    /// Reads `kill`, `wait` or `wait=10m`.
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || "give kill, wait, or wait=TIME, such as wait=90s, wait=10m or wait=2h".to_string();
        match text.split_once('=') {
            None if text == "kill" => Ok(Self::Kill),
            None if text == "wait" => Ok(Self::Wait(None)),
            Some(("wait", time)) => {
                let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
                let read = |(unit, seconds)| Some((time.strip_suffix(unit)?, seconds));
                let (number, seconds) = units.into_iter().find_map(read).ok_or_else(wrong)?;
                let number: f64 = number.parse().map_err(|_| wrong())?;
                let time = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
                match time.is_zero() {
                    true => Err("to wait for no time is kill".into()),
                    false => Ok(Self::Wait(Some(time))),
                }
            }
            _ => Err(wrong()),
        }
    }

    /// As the control block has it.
    pub fn patience_ns(self) -> u64 {
        match self {
            Self::Kill => 0,
            Self::Wait(Some(time)) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            Self::Wait(None) => u64::MAX,
        }
    }

    /// How long those who touch new pages of shared memory wait. `None`: as a host kernel has it by
    /// itself.
    pub fn patience_of_shared(self) -> Option<Duration> {
        match self {
            Self::Kill => None,
            Self::Wait(time) => Some(time.unwrap_or(Duration::MAX)),
        }
    }
}

/// Sees when programs of a run begin to wait for room, and when they go on.
#[derive(Default)]
pub struct Watched {
    /// For how long they wait now, if that was told.
    told_ns: Option<u64>,
    /// How often they have waited.
    pub times: u64,
    /// And for how long before now.
    past_ns: u64,
}

impl Watched {
    /// Looks once. Returns what is to be said.
    pub fn look(&mut self, control: &Control, spill: &SpillSet) -> Option<String> {
        let now_ns = farpage_sys::time::now_ns();
        match (control.full.lasts_ns(now_ns), self.told_ns) {
            (Some(lasts_ns), None) if lasts_ns >= TOLD_AFTER_NS => {
                self.told_ns = Some(lasts_ns);
                self.times += 1;
                Some(begins(control, spill))
            }
            (Some(lasts_ns), Some(told_ns)) => {
                if lasts_ns < told_ns {
                    // One has ended, and the others wait anew.
                    self.past_ns += told_ns;
                }
                self.told_ns = Some(lasts_ns);
                None
            }
            (None, Some(told_ns)) => {
                self.told_ns = None;
                self.past_ns += told_ns;
                Some(format!(
                    "farpage: there is room in paging space again; what waited goes on after {}",
                    human_time(told_ns)
                ))
            }
            (_, None) => None,
        }
    }

    /// For how long programs have waited, in all.
    pub fn waited_ns(&self) -> u64 {
        self.past_ns + self.told_ns.unwrap_or(0)
    }

    /// For how long programs wait now.
    pub fn waits_ns(&self) -> Option<u64> {
        self.told_ns
    }
}

fn begins(control: &Control, spill: &SpillSet) -> String {
    let mut files = spill.list();
    files.retain(PagingFileListed::is_there);
    let used: u64 = files.iter().map(|file| file.used_bytes).sum();
    let dirs = files
        .iter()
        .map(|file| named(&file.dir.display(), file.trouble()));
    let dirs: Vec<String> = dirs.collect();
    let patience_ns = control
        .full
        .patience_ns
        .load(std::sync::atomic::Ordering::Relaxed);
    let end = match patience_ns {
        u64::MAX => String::new(),
        most => format!("; after {} a process is killed", human_time(most)),
    };
    let pid = std::process::id();
    format!(
        "farpage: paging space is full, with {} in {}: who needs room waits{end}. Make room there, or: \
         farpage spill add DIR --pid {pid}",
        human(used),
        dirs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_them_is_read() {
        let wait = |seconds| Ok(WhenFull::Wait(Some(Duration::from_secs(seconds))));
        assert_eq!(WhenFull::parse("kill"), Ok(WhenFull::Kill));
        assert_eq!(WhenFull::parse("wait"), Ok(WhenFull::Wait(None)));
        assert_eq!(WhenFull::parse("wait=90s"), wait(90));
        assert_eq!(WhenFull::parse("wait=1.5m"), wait(90));
        assert_eq!(WhenFull::parse("wait=2h"), wait(7200));
        for wrong in [
            "",
            "Kill",
            "kill=2s",
            "wait=",
            "wait=s",
            "wait=5",
            "wait=-1s",
            "wait=nans",
            "wait=5d",
            "wait=5é",
        ] {
            let why = WhenFull::parse(wrong).unwrap_err();
            assert!(
                why.contains("give kill, wait, or wait=TIME"),
                "{wrong}: {why}"
            );
        }
        assert!(WhenFull::parse("wait=0s").unwrap_err().contains("is kill"));
    }

    #[test]
    fn it_is_told_once_and_again_when_there_is_room() {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        let spill = SpillSet::new(control);
        let patience = WhenFull::Wait(Some(Duration::from_secs(60))).patience_ns();
        control
            .full
            .patience_ns
            .store(patience, std::sync::atomic::Ordering::Relaxed);
        let mut watched = Watched::default();
        assert_eq!(watched.look(control, &spill), None);
        let now = farpage_sys::time::now_ns;
        control.full.finds_none(now() - 900_000_000);
        assert!(!control.full.finds_none(now()));
        let said = watched.look(control, &spill).expect("it is told");
        assert!(said.contains("paging space is full"), "{said}");
        assert!(said.contains("after 60.0 s a process is killed"), "{said}");
        assert_eq!(watched.look(control, &spill), None, "once");
        assert!(watched.waits_ns().is_some());
        // As if nobody had looked since.
        let other = Box::leak(Box::new(farpage_sys::control::create().unwrap()));
        let said = watched.look(other.1, &spill).expect("it is told");
        assert!(said.contains("there is room"), "{said}");
        assert_eq!(watched.times, 1);
        assert!(
            watched.waited_ns() >= 800_000_000,
            "{}",
            watched.waited_ns()
        );
    }
}
