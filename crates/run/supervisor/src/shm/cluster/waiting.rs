//! Threads of this host that may wait at a word of shared memory, and how those of others wake them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::AsRawFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use anyhow::Result;
use farpage_host::{Object, Objects, SpaceId};
use farpage_object::PageRange;
use farpage_object::shm::Ask;
use farpage_server::Observer;
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{futex, lock};

use super::{BYTES_MAX, ClusterNames, PAGE};

/// A byte of an object of the cluster.
type Place = (u64, u64);

/// Where threads of this host may wait. One that has gone on is among them until it is known: whether it
/// is asleep only Linux knows, which compares the word and lets it sleep at once.
#[derive(Default)]
pub(super) struct Waiting {
    /// By connection and thread.
    threads: HashMap<(u64, u64), Place>,
    /// How many at each place.
    places: HashMap<Place, u32>,
}

impl Waiting {
    /// A thread waits there, and nowhere else; or nowhere.
    pub(super) fn set(&mut self, thread: (u64, u64), place: Option<Place>) {
        let before = match place {
            Some(place) => self.threads.insert(thread, place),
            None => self.threads.remove(&thread),
        };
        if let Some(place) = place {
            *self.places.entry(place).or_default() += 1;
        }
        if let Some(before) = before
            && let Entry::Occupied(mut count) = self.places.entry(before)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// A connection has ended.
    pub(super) fn without(&mut self, connection: u64) {
        let of = self.threads.keys().filter(|(of, _)| *of == connection);
        let gone: Vec<(u64, u64)> = of.copied().collect();
        gone.into_iter().for_each(|thread| self.set(thread, None));
    }
}

/// Wakes threads of this host that others name, until nobody does any more.
pub(super) fn wake_all(names: &Weak<ClusterNames>, wakes: &Receiver<(u64, u64, u32)>) {
    let mut windows = Windows::default();
    for (number, offset, count) in wakes {
        let Some(names) = names.upgrade() else {
            return;
        };
        names.wake_here(&mut windows, number, offset, count);
    }
}

impl ClusterNames {
    /// Thread `thread` of connection `from` is about to wait at a byte of an object of this host's.
    pub fn waits(&self, from: u64, ask: Ask) {
        let mut state = lock(&self.state);
        let number = state.numbers.get(&ask.a).copied();
        let place = number.map(|number| (number, ask.b));
        state.waiting.set((from, ask.c), place);
    }

    /// Threads at other hosts are to go on.
    pub fn wake_others(&self, from: u64, ask: Ask) {
        let number = {
            let mut state = lock(&self.state);
            state.waiting.set((from, ask.d), None);
            state.numbers.get(&ask.a).copied()
        };
        if let (Some(number), Ok(cluster)) = (number, self.cluster()) {
            cluster.wake(number, ask.b, ask.c as u32);
        }
    }

    /// Wakes threads of this host.
    fn wake_here(&self, windows: &mut Windows, number: u64, offset: u64, count: u32) {
        let (object, is_named) = {
            let state = lock(&self.state);
            let all = &state.all;
            windows.retain(|number, window| {
                let shown = all.get(number);
                let stays = shown.is_some_and(|shown| shown.name.is_some());
                if !stays {
                    self.objects.detach(window.space);
                }
                stays
            });
            if !state.waiting.places.contains_key(&(number, offset)) {
                return;
            }
            let shown = state.all.get(&number);
            let is_named = shown.is_some_and(|shown| shown.name.is_some());
            (shown.and_then(|shown| shown.object.clone()), is_named)
        };
        let Some(object) = object else {
            return;
        };
        if let Entry::Vacant(new) = windows.entry(number) {
            match window(self.objects, &object) {
                Ok(window) => drop(new.insert(window)),
                Err(error) => return self.say(&format!("cannot wake threads: {error:#}")),
            }
        }
        futex::wake(windows[&number].view.half_word(offset as usize), count);
        // One without a name goes when nobody has it mapped.
        if !is_named && let Some(window) = windows.remove(&number) {
            self.objects.detach(window.space);
        }
    }
}

/// A mapping of an object in this process.
struct Window {
    view: View,
    space: SpaceId,
}

/// By the cluster's numbers.
type Windows = HashMap<u64, Window>;

fn window(objects: &'static Objects, object: &Arc<Object>) -> Result<Window> {
    let bytes = BYTES_MAX as usize;
    let view = View::map(Fd(object.file().as_raw_fd()), bytes, None)?;
    let space = objects.attach(view.faults()?)?;
    let pages = PageRange::new(0, BYTES_MAX / PAGE);
    objects
        .map(space, object, view.address(), pages)
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    Ok(Window { view, space })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_at_one_place_until_it_is_known_not_to() {
        let mut waiting = Waiting::default();
        let (here, there) = ((1, 0), (1, 64));
        waiting.set((7, 1), Some(here));
        waiting.set((7, 1), Some(here));
        waiting.set((7, 2), Some(here));
        waiting.set((8, 2), Some(there));
        assert_eq!((waiting.places[&here], waiting.places[&there]), (2, 1));
        waiting.set((7, 1), Some(there));
        waiting.set((7, 3), None);
        assert_eq!((waiting.places[&here], waiting.places[&there]), (1, 2));
        waiting.without(7);
        assert_eq!(waiting.places, HashMap::from([(there, 1)]));
        waiting.set((8, 2), None);
        assert!(waiting.places.is_empty() && waiting.threads.is_empty());
    }
}
