//! What docs/locked.md promises of locked memory.

use std::fmt::Write;

use farpage::Hold;

use super::{Backing, Event, Outcome};

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It stays in its frames.
    Same,
    /// It stays in memory; the frames may be others.
    InMemory,
    /// Linux refuses it, by this error.
    Refused(&'static str),
    /// It is lost, and `check` says so.
    Detected,
    /// It is lost, and `check` cannot say so.
    Unseen,
    /// It cannot be locked.
    NotLocked,
    /// There is no such event.
    Nothing,
}

impl Promise {
    /// Whether an outcome keeps it. What does not happen here breaks none. What is refused leaves it as
    /// it was.
    #[must_use]
    pub fn is_kept_by(self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (_, Outcome::Failed(_)) => false,
            (_, Outcome::NotHere(_)) => true,
            (Self::Same, Outcome::Same | Outcome::Refused(_)) => true,
            (Self::InMemory, Outcome::Same | Outcome::Moved | Outcome::Refused(_)) => true,
            (Self::Refused(wanted), Outcome::Refused(errno)) => wanted == errno,
            (Self::Detected, Outcome::Detected) => true,
            (Self::Unseen, Outcome::Unseen(_)) => true,
            (Self::NotLocked, Outcome::NotLocked(_)) => true,
            _ => false,
        }
    }

    fn word(self) -> String {
        match self {
            Self::Same | Self::InMemory => "stays".into(),
            Self::Refused(errno) => format!("refused ({errno})"),
            Self::Detected => "`check` tells".into(),
            Self::Unseen => "lost".into(),
            Self::NotLocked => "is not locked".into(),
            Self::Nothing => "-".into(),
        }
    }
}

/// What is promised of a kind of memory under an event.
#[must_use]
pub fn promised(backing: Backing, hold: Hold, event: Event) -> Promise {
    let is_huge = matches!(backing, Backing::Huge | Backing::HugeMemfd);
    let is_shared = !matches!(backing, Backing::Private | Backing::Huge);
    let stays = match hold {
        Hold::Resident => Promise::InMemory,
        Hold::Pinned => Promise::Same,
    };
    // There is memory again where some was: frames tell.
    let another = match hold {
        Hold::Resident => Promise::Unseen,
        Hold::Pinned => Promise::Detected,
    };
    if backing == Backing::Secret {
        return Promise::NotLocked;
    }
    match event {
        Event::Pressure
        | Event::Compaction
        | Event::Migration
        | Event::Merging
        | Event::Collapse
        | Event::Fork => stays,
        Event::CollapseByAnother if !is_shared => Promise::Nothing,
        Event::CollapseByAnother if is_huge => stays,
        Event::CollapseByAnother => match hold {
            Hold::Resident => Promise::Detected,
            Hold::Pinned => Promise::Same,
        },
        // Huge pages are never locked as far as Linux is concerned.
        Event::DontNeed if is_huge => Promise::Detected,
        Event::DontNeed => Promise::Refused("EINVAL"),
        Event::DontNeedLocked | Event::Unmapped | Event::Replaced => Promise::Detected,
        // It is in the file still.
        Event::DontNeedLockedAndRead if is_shared => stays,
        Event::DontNeedLockedAndRead => another,
        Event::Hole | Event::HoleAndRead | Event::Truncation if !is_shared => Promise::Nothing,
        Event::Hole => Promise::Detected,
        Event::HoleAndRead => another,
        Event::Truncation if backing == Backing::SystemV => Promise::Nothing,
        Event::Truncation => Promise::Detected,
    }
}

/// All of it as docs/locked.md shows it: of what is resident only, and after a stroke, where it is another,
/// of what is pinned. Events that follow each other with the same promises share a line.
#[must_use]
pub fn table() -> String {
    const SHOWN: [(Backing, &str); 4] = [
        (Backing::Private, "private"),
        (Backing::Memfd, "shared"),
        (Backing::Huge, "huge page"),
        (Backing::HugeMemfd, "huge, shared"),
    ];
    let mut table = String::from("| what happens to it |");
    for (_, name) in SHOWN {
        write!(table, " {name} |").expect("text takes all");
    }
    table.push_str("\n|---|---|---|---|---|\n");
    let mut rows: Vec<(Vec<&str>, String)> = Vec::new();
    for event in Event::ALL {
        let mut cells = String::new();
        for (backing, _) in SHOWN {
            let resident = promised(backing, Hold::Resident, event).word();
            let pinned = promised(backing, Hold::Pinned, event).word();
            let cell = match resident == pinned {
                true => resident,
                false => format!("{resident} / {pinned}"),
            };
            write!(cells, " {cell} |").expect("text takes all");
        }
        match rows.last_mut() {
            Some((names, last)) if *last == cells => names.push(event.name()),
            Some(_) | None => rows.push((vec![event.name()], cells)),
        }
    }
    for (names, cells) in rows {
        writeln!(table, "| {} |{cells}", names.join("; ")).expect("text takes all");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_as_a_memory_file_but_for_its_size() {
        for event in Event::ALL {
            for hold in [Hold::Resident, Hold::Pinned] {
                let of = |backing| promised(backing, hold, event);
                let is_same = of(Backing::Memfd) == of(Backing::SystemV);
                assert_eq!(is_same, event != Event::Truncation, "{event:?}");
            }
        }
    }

    #[test]
    fn what_stays_in_memory_only_may_move_and_what_is_pinned_may_not() {
        assert!(Promise::InMemory.is_kept_by(&Outcome::Moved));
        assert!(!Promise::Same.is_kept_by(&Outcome::Moved));
        assert!(Promise::Same.is_kept_by(&Outcome::Refused("EAGAIN".into())));
        assert!(!Promise::Refused("EINVAL").is_kept_by(&Outcome::Refused("EAGAIN".into())));
        assert!(!Promise::Detected.is_kept_by(&Outcome::Unseen(String::new())));
        assert!(Promise::Detected.is_kept_by(&Outcome::NotHere(String::new())));
        assert!(!Promise::Unseen.is_kept_by(&Outcome::Failed(String::new())));
    }
}
