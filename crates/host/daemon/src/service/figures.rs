//! What the host kernel tells of itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farpage_client::{Figures, Message, ObjectFigures, PagerFigures, Refusal};
use farpage_object::{PAGE_BYTES, Times};
use farpage_port::{Name, Sender};

use super::{Entry, Held, Service};

/// Messages that are told at a time at most.
const MESSAGES_MAX: usize = 512;
/// Objects whose messages are kept at a time at most: those of one take half a MiB.
const TRACED_MAX: usize = 16;
/// They are kept so long after they were last asked for.
const TRACED_FOR: Duration = Duration::from_secs(5);

impl Service {
    pub(crate) fn tell_figures(&self, caller: Sender) -> Figures {
        let (mut objects, mut pagers) = (Vec::new(), BTreeMap::new());
        for entry in self.visible(caller) {
            let figures = entry.object.figures();
            let count = pagers.len() as u32;
            let (number, all) = pagers.entry(entry.pager()).or_insert((count, Vec::new()));
            let pages = |pages: u64| pages * PAGE_BYTES as u64;
            objects.push(ObjectFigures {
                number: entry.object.number().0,
                name: entry.name.clone(),
                bytes: entry.bytes,
                uid: entry.uid,
                pid: entry.pid,
                mapped_by: counted(&entry.mapped_by),
                resident_bytes: pages(figures.resident),
                dirty_bytes: pages(figures.dirty),
                aside_bytes: pages(figures.aside),
                wired_bytes: pages(figures.wired),
                ram_bytes: entry.object.most_bytes(),
                paged_in_bytes: pages(figures.brought),
                paged_out_bytes: pages(figures.taken),
                failed: figures.failed,
                faults: figures.faults.0,
                pager: *number,
            });
            all.push(figures.pager);
        }
        objects.sort_by(|one, other| (&one.name, one.number).cmp(&(&other.name, other.number)));
        let mut pagers: Vec<_> = pagers.into_iter().collect();
        pagers.sort_by_key(|(_, (number, _))| *number);
        let pagers = pagers
            .into_iter()
            .map(|(name, (_, all))| together(name, &all));
        let no_room = self.objects.no_room();
        Figures {
            at_ns: now_ns(),
            pid: std::process::id(),
            ram_bytes: self.ram_bytes,
            resident_bytes: self.objects.resident_bytes(),
            objects_all: self.objects.objects().len() as u64,
            pagers: pagers.collect(),
            objects,
            paging_space: self.paging_space(),
            no_room: no_room.map(|no_room| (no_room.since_ns, no_room.refused)),
        }
    }

    pub(crate) fn tell_messages(
        &mut self,
        caller: Sender,
        name: &str,
        from: u64,
    ) -> Result<(u64, Vec<Message>), Refusal> {
        let gone = || Refusal::NotFound(name.into());
        let port = match self.named(name) {
            Ok((port, _)) => port,
            Err(Refusal::NotFound(_)) => self.of_cluster(name).ok_or_else(gone)?,
            Err(refusal) => return Err(refusal),
        };
        let entry = self.entry(port).ok_or_else(gone)?;
        entry.refuse_others(caller)?;
        self.keeps_messages_of(port)?;
        let entry = self.entry(port).ok_or_else(gone)?;
        let (first, events) = entry.object.trace(from, MESSAGES_MAX);
        let messages = events.into_iter().map(|event| Message {
            at_ns: event.at_ns,
            what: event.what.name().to_owned(),
            thread: event.thread,
            offset: event.pages.start.0 * PAGE_BYTES as u64,
            bytes: event.pages.bytes(),
            took_ns: event.took_ns,
            instruction: event.instruction,
        });
        Ok((first, messages.collect()))
    }

    /// The object of the cluster of this name that somebody at this host has.
    fn of_cluster(&self, name: &str) -> Option<Name> {
        self.held.iter().find_map(|(port, held)| match held {
            Held::Object(entry) if entry.shared.is_some() && entry.name == name => Some(*port),
            Held::Object(_)
            | Held::Name(_)
            | Held::Mapping(_)
            | Held::Wired(_)
            | Held::Locked { .. }
            | Held::Process { .. } => None,
        })
    }

    fn entry(&self, port: Name) -> Option<&Entry> {
        match self.held.get(&port)? {
            Held::Object(entry) => Some(entry),
            Held::Name(_)
            | Held::Mapping(_)
            | Held::Wired(_)
            | Held::Locked { .. }
            | Held::Process { .. } => None,
        }
    }

    /// Makes room among the objects whose messages are kept.
    fn keeps_messages_of(&mut self, port: Name) -> Result<(), Refusal> {
        let now = Instant::now();
        let is_over = |at: &Instant| now.duration_since(*at) > TRACED_FOR;
        let over = self.traced.extract_if(.., |(_, at)| is_over(at));
        for (port, _) in over.collect::<Vec<_>>() {
            if let Some(Held::Object(entry)) = self.held.get(&port) {
                entry.object.stop_trace();
            }
        }
        if let Some((_, at)) = self.traced.iter_mut().find(|(other, _)| *other == port) {
            *at = now;
            return Ok(());
        }
        if self.traced.len() == TRACED_MAX {
            return Err(Refusal::Failed(format!(
                "messages of {TRACED_MAX} objects are kept already; end one farpage trace"
            )));
        }
        self.traced.push((port, now));
        Ok(())
    }

    /// Objects that the caller may see.
    pub(crate) fn visible(&self, caller: Sender) -> impl Iterator<Item = &Entry> {
        self.held.values().filter_map(move |held| match held {
            Held::Object(entry) if entry.refuse_others(caller).is_ok() => Some(entry),
            Held::Object(_)
            | Held::Name(_)
            | Held::Mapping(_)
            | Held::Wired(_)
            | Held::Locked { .. }
            | Held::Process { .. } => None,
        })
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Each process once, in order, and how often it is there.
fn counted(processes: &[u32]) -> Vec<(u32, u32)> {
    let mut counts = BTreeMap::new();
    for process in processes {
        *counts.entry(*process).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// One pager, of what it does for each object.
fn together(name: String, all: &[farpage_host::PagerFigures]) -> PagerFigures {
    let sum = |of: fn(&farpage_host::PagerFigures) -> u64| all.iter().map(of).sum();
    let times = all
        .iter()
        .fold(Times::default(), |sum, one| sum.and(&one.times));
    PagerFigures {
        name,
        objects: all.len() as u64,
        calls: sum(|one| one.calls),
        open: sum(|one| one.open),
        silent_ns: all.iter().map(|one| one.silent_ns).max().unwrap_or(0),
        errors: sum(|one| one.errors),
        last_error: all
            .iter()
            .find_map(|one| one.last_error)
            .map(|error| error.to_string()),
        times: times.0,
    }
}

#[cfg(test)]
mod tests {
    use farpage_client::SILENT_NS;

    use super::*;

    #[test]
    fn a_process_that_maps_twice_is_there_once_with_its_count() {
        assert_eq!(counted(&[7, 3, 7]), [(3, 1), (7, 2)]);
    }

    #[test]
    fn a_pager_is_as_silent_as_for_the_object_that_waits_longest() {
        let waits = farpage_host::PagerFigures {
            calls: 3,
            open: 1,
            silent_ns: SILENT_NS + 1,
            ..Default::default()
        };
        let idle = farpage_host::PagerFigures {
            calls: 4,
            ..Default::default()
        };
        let both = together("p".into(), &[idle.clone(), waits]);
        assert_eq!((both.calls, both.open, both.objects), (7, 1, 2));
        assert!(both.is_silent() && !together("q".into(), &[idle]).is_silent());
    }
}
