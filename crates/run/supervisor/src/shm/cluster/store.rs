//! What tasks of this host do to names: the store is asked, and all hosts do it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use farpage_host::Object;
use farpage_membership::{Consistency, ControlError, Description, Scheduler};
use farpage_object::shm::Ipc;
use farpage_server::{Figures, HaveError, Observer, Wish};
use farpage_sys::{Errno, ipc, lock};
use farpage_text::size::human;

use super::super::cost::Counted;
use super::name::Name;
use super::shown::{Shown, hide, identity, name_of};
use super::{BYTES_MAX, ClusterNames, NAMES_MAX, PATIENCE, State, uid};

const ENOSPC: i32 = 28;

impl ClusterNames {
    /// Nothing came of what a connection has begun to make.
    pub(super) fn made_nothing(&self, from: u64) {
        let begun = lock(&self.state).begun.remove(&from);
        if let Some(number) = begun {
            self.unname(number);
        }
    }

    /// A name is about to be made at this host: it is taken in the cluster, or shown here when there is
    /// one.
    pub(super) fn take(&self, from: u64, name: &Name) -> Result<(), Errno> {
        {
            let state = lock(&self.state);
            let is_taken = |state: &mut State| state.taking.contains(name);
            let waited = self.shown.wait_while(state, is_taken);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            state.taking.insert(name.clone());
        }
        let taken = self.take_alone(from, name);
        lock(&self.state).taking.remove(name);
        self.shown.notify_all();
        taken
    }

    /// The same, while no other task of this host asks for the name.
    fn take_alone(&self, from: u64, name: &Name) -> Result<(), Errno> {
        let cluster = self.cluster()?;
        let wish = Wish {
            bytes: BYTES_MAX,
            unit_bytes: self.unit_bytes,
            scheduler: Scheduler::Distributed,
            replicas: self.replicas,
            hold_us: None,
            stale_us: None,
            consistency: Consistency::Strict,
            stays: false,
            note: "0".into(),
        };
        let named = lock(&self.state)
            .all
            .values()
            .filter(|shown| shown.name.is_some())
            .count();
        if named >= NAMES_MAX {
            self.say(&format!(
                "cannot make {}: the cluster has {NAMES_MAX} names of shared memory; remove some",
                name.stored()
            ));
            return Err(Errno(ENOSPC));
        }
        let began = Instant::now();
        loop {
            match cluster.make(&name.stored(), uid(), &wish) {
                Ok(number) => return self.begins(from, number),
                Err(HaveError::Control(ControlError::Exists(id))) => {
                    let is_anothers =
                        |(_, known): &(Option<String>, Description)| known.uid != uid();
                    if cluster.state().objects.get(&id.0).is_some_and(is_anothers) {
                        return Err(Errno::EACCES);
                    }
                    if self.is_shown(id.0) {
                        return Ok(());
                    }
                    if self.is_nobodys(id.0) {
                        return self.begins(from, id.0);
                    }
                }
                Err(error) => return Err(self.says_why("make", name, &error)),
            }
            if began.elapsed() > PATIENCE {
                self.say(&format!(
                    "cannot make {}: another host has it, and it cannot be shown here",
                    name.stored()
                ));
                return Err(Errno::EIO);
            }
        }
    }

    /// A connection has a name that it is about to show.
    fn begins(&self, from: u64, number: u64) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        if state.ended.contains(&from) {
            drop(state);
            self.unname(number);
            return Err(Errno::EIO);
        }
        state.begun.insert(from, number);
        Ok(())
    }

    /// True of a name of this host's that nobody is about to show: who made it has not heard that it did.
    fn is_nobodys(&self, number: u64) -> bool {
        let state = lock(&self.state);
        let is_begun = state.begun.values().any(|begun| *begun == number);
        let shown = state.all.get(&number);
        !is_begun && shown.is_some_and(|shown| shown.is_own && !shown.is_there())
    }

    /// Waits until a name is shown at this host, or removed. True when it is shown.
    fn is_shown(&self, number: u64) -> bool {
        let is_there = Shown::is_there;
        let state = lock(&self.state);
        let waiting = |state: &mut State| {
            let is_begun = state.begun.values().any(|begun| *begun == number);
            let shown = state.all.get(&number);
            let is_coming = |shown: &Shown| is_begun || !shown.is_own;
            shown.is_some_and(|shown| shown.name.is_some() && !is_there(shown) && is_coming(shown))
        };
        let waited = self.shown.wait_timeout_while(state, PATIENCE, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let shown = state.all.get(&number);
        shown.is_some_and(|shown| shown.name.is_some() && is_there(shown))
    }

    pub(super) fn made_file(&self, from: u64, file: &OwnedFd) -> Result<(), Errno> {
        let begun = lock(&self.state).begun.get(&from).copied();
        let Some(number) = begun else {
            return match self.number_of(file) {
                // It was there already, shown here.
                Some(_) => Ok(()),
                // It has no name, and stays this run's.
                None => lock(&*self.kept()?).made_file(file, false).map(drop),
            };
        };
        let own = File::from(lock(&*self.kept()?).made_file(file, true)?);
        let key = identity(&own).ok_or(Errno::EBADF)?;
        let mut state = lock(&self.state);
        state.begun.remove(&from);
        let known = state.all.entry(number).or_default();
        // What others have done to it since it was made.
        let _ = own.set_len(known.bytes);
        state.shows(number, Some((own, key)), None);
        let known = &state.all[&number];
        let place = known.place();
        let is_removed = known.name.is_none();
        self.shown.notify_all();
        drop(state);
        if is_removed && let Some(name) = name_of(file) {
            hide(&name, place);
        }
        Ok(())
    }

    /// Nothing is left of the name when it cannot be the cluster's.
    pub(super) fn made_segment(&self, number: u64, id: u32) -> Result<(), Errno> {
        let made = self.shows_segment(number, id);
        made.inspect_err(|_| self.unname(number))
    }

    fn shows_segment(&self, number: u64, id: u32) -> Result<(), Errno> {
        lock(&*self.kept()?).made_ipc(Ipc::Segment, id);
        let bytes = ipc::segment(id)?.bytes;
        lock(&self.state).shows(number, None, Some(id));
        self.shown.notify_all();
        self.resize(number, bytes)
    }

    pub(super) fn resize(&self, number: u64, bytes: u64) -> Result<(), Errno> {
        if bytes > BYTES_MAX {
            self.say(&format!(
                "shared memory of a cluster has {} at most, and was to have {}",
                human(BYTES_MAX),
                human(bytes)
            ));
            return Err(Errno::EFBIG);
        }
        let noted = self.cluster()?.note(number, &bytes.to_string());
        noted.map_err(|error| {
            self.say(&format!("cannot set a size for all hosts: {error}"));
            Errno::EIO
        })
    }

    pub(super) fn link(&self, number: u64, name: &Name) -> Result<(), Errno> {
        lock(&self.state).linking.insert(number);
        let renamed = self.cluster()?.rename(number, &name.stored());
        lock(&self.state).linking.remove(&number);
        match renamed {
            Ok(()) => Ok(()),
            Err(ControlError::Exists(id)) => {
                self.is_shown(id.0);
                Err(Errno::EEXIST)
            }
            Err(error) => Err(self.says_why("link", name, &error)),
        }
    }

    /// The object of a name, at this host.
    pub(super) fn open(&self, number: u64) -> Result<Arc<Object>, Errno> {
        if let Some(shown) = lock(&self.state).all.get(&number)
            && let Some(object) = &shown.object
        {
            return Ok(Arc::clone(object));
        }
        let object = self.cluster()?.open(number).map_err(|error| {
            self.say(&format!("cannot map shared memory of the cluster: {error}"));
            Errno::ENOMEM
        })?;
        lock(&*self.kept()?).begin_shared(&object);
        let mut state = lock(&self.state);
        state.numbers.insert(u64::from(object.number().0), number);
        let shown = state.all.entry(number).or_default();
        shown.object = Some(Arc::clone(&object));
        let unit_bytes = shown.unit_bytes;
        state.figures.entry(number).or_insert(Counted {
            unit_bytes,
            figures: Figures::default(),
        });
        Ok(object)
    }

    /// Tells the cluster of names that programs of this host have removed.
    pub(super) fn look_for_removed(&self) {
        let was_shown = |shown: &Shown| shown.file.is_some() || shown.segment.is_some();
        let is_removed =
            |shown: &Shown| shown.name.is_some() && was_shown(shown) && !shown.is_there();
        let removed: Vec<u64> = {
            let state = lock(&self.state);
            let removed = state.all.iter().filter(|(_, shown)| is_removed(shown));
            removed.map(|(number, _)| *number).collect()
        };
        removed.into_iter().for_each(|number| self.unname(number));
        self.tidy();
    }

    fn unname(&self, number: u64) {
        let name = lock(&self.state)
            .all
            .get(&number)
            .and_then(|shown| shown.name.clone());
        let (Some(name), Ok(cluster)) = (name, self.cluster()) else {
            return;
        };
        match cluster.unname(&name.stored()) {
            Ok(()) | Err(ControlError::NoName(_)) => {}
            Err(error) => drop(self.says_why("remove", &name, &error)),
        }
    }

    /// Lets go of objects that have no name, and that nobody has mapped.
    pub(super) fn tidy(&self) {
        let unused: Vec<u64> = {
            let mut state = lock(&self.state);
            let mut unused = Vec::new();
            for (number, shown) in &mut state.all {
                if !shown.is_released && shown.is_unused() {
                    (shown.object, shown.is_released) = (None, true);
                    unused.push(*number);
                }
            }
            unused
        };
        let Ok(cluster) = self.cluster() else { return };
        for number in unused {
            self.counts(number);
            // It is released with this host, else.
            let _ = cluster.release(number);
        }
    }
}
