//! Names of the cluster as they are shown at this host: an empty file, or a segment of System V.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use farpage_host::Object;
use farpage_membership::Description;
use farpage_object::shm::Ipc;
use farpage_server::{Observer, Woken};
use farpage_sys::file::{self, Fd};
use farpage_sys::{ipc, lock};

use super::super::FOLDER;
use super::name::Name;
use super::{ClusterNames, PATIENCE, State, uid};

/// A name of the cluster as it is at this host.
#[derive(Default)]
pub(super) struct Shown {
    /// `None`: it was removed.
    pub(super) name: Option<Name>,
    pub(super) bytes: u64,
    /// What of it goes from host to host together.
    pub(super) unit_bytes: u64,
    /// The empty file, opened for this process alone, and which it is.
    pub(super) file: Option<(File, (u64, u64))>,
    pub(super) segment: Option<u32>,
    /// It could not be shown.
    pub(super) is_hidden: bool,
    /// This host has made it.
    pub(super) is_own: bool,
    /// This host does not hold it any more.
    pub(super) is_released: bool,
    /// It is opened here.
    pub(super) object: Option<Arc<Object>>,
}

/// By what a name is shown at this host.
#[derive(Clone, Copy)]
pub(super) struct At {
    file: Option<(u64, u64)>,
    segment: Option<u32>,
}

impl Shown {
    /// It is shown, and was not removed meanwhile.
    pub(super) fn is_there(&self) -> bool {
        let is_linked =
            |(own, _): &(File, (u64, u64))| own.metadata().is_ok_and(|of| of.nlink() > 0);
        self.file.as_ref().is_some_and(is_linked)
            || self
                .segment
                .is_some_and(|segment| !ipc::is_removed(segment))
    }

    /// No task of this host can get at it any more.
    pub(super) fn is_unused(&self) -> bool {
        let is_alone =
            |(own, _): &(File, (u64, u64))| file::is_alone(Fd(own.as_raw_fd())) == Ok(true);
        self.name.is_none()
            && self
                .object
                .as_ref()
                .is_none_or(|object| !object.is_mapped())
            && self.file.as_ref().is_none_or(is_alone)
            && self.segment.is_none_or(ipc::is_gone)
    }

    pub(super) fn place(&self) -> At {
        At {
            file: self.file.as_ref().map(|(_, key)| *key),
            segment: self.segment,
        }
    }
}

impl State {
    /// An object is shown at this host, unless it is already.
    pub(super) fn shows(
        &mut self,
        number: u64,
        file: Option<(File, (u64, u64))>,
        segment: Option<u32>,
    ) {
        let known = self.all.entry(number).or_default();
        if let (None, Some((file, key))) = (&known.file, file) {
            self.files.insert(key, number);
            known.file = Some((file, key));
        }
        if let (None, Some(segment)) = (known.segment, segment) {
            self.segments.insert(segment, number);
            known.segment = Some(segment);
        }
    }
}

impl ClusterNames {
    /// The number of the cluster's object that a file shows.
    pub(super) fn number_of(&self, file: &OwnedFd) -> Option<u64> {
        let key = identity(file)?;
        let find = |state: &State| state.files.get(&key).copied();
        self.number(find, |shown| shown.file.is_none(), || name_of(file))
    }

    /// The number of the cluster's object that a segment shows.
    pub(super) fn number_of_segment(&self, segment: u32) -> Option<u64> {
        let find = |state: &State| state.segments.get(&segment).copied();
        let name = || ipc::key_of(segment).ok().map(Name::Segment);
        self.number(find, |shown| shown.segment.is_none(), name)
    }

    /// What `find` finds. What has this name and is about to be shown, so that it `is_not_yet`, is waited
    /// for: who came between its making and that must not have it for something else.
    fn number(
        &self,
        find: impl Fn(&State) -> Option<u64>,
        is_not_yet: impl Fn(&Shown) -> bool,
        name: impl Fn() -> Option<Name>,
    ) -> Option<u64> {
        let state = lock(&self.state);
        if let Some(number) = find(&state) {
            return Some(number);
        }
        let name = Some(name()?);
        let is_early = |state: &mut State| {
            let mut of_name = state.all.values().filter(|shown| shown.name == name);
            find(state).is_none() && of_name.any(|shown| is_not_yet(shown) && !shown.is_hidden)
        };
        let waited = self.shown.wait_timeout_while(state, PATIENCE, is_early);
        find(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Shows a file of the cluster at this host.
    fn show_file(&self, path: &str) -> Option<(File, (u64, u64))> {
        let at = PathBuf::from(FOLDER).join(path);
        if let Some(folder) = at.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let made = match options.open(&at) {
            Ok(made) => made,
            Err(error) => {
                let why = match error.kind() {
                    ErrorKind::AlreadyExists => "another file is there; remove it".into(),
                    _ => error.to_string(),
                };
                self.say(&format!(
                    "cannot show shared memory of the cluster at {}: {why}",
                    at.display()
                ));
                return None;
            }
        };
        let key = identity(&made)?;
        let made = OwnedFd::from(made);
        match self
            .kept()
            .and_then(|kept| lock(&kept).made_file(&made, true))
        {
            Ok(own) => Some((own.into(), key)),
            Err(errno) => {
                self.say(&format!("cannot show {}: {errno:?}", at.display()));
                let _ = fs::remove_file(at);
                None
            }
        }
    }

    /// Shows a segment of the cluster at this host.
    fn show_segment(&self, key: u32, bytes: u64) -> Option<u32> {
        match ipc::make_segment(key, bytes) {
            Ok(number) => {
                if let Ok(kept) = self.kept() {
                    lock(&kept).made_ipc(Ipc::Segment, number);
                }
                Some(number)
            }
            Err(errno) => {
                self.say(&format!(
                    "cannot show segment {key:#010x} of the cluster: {}; ipcs -m lists what this host has",
                    std::io::Error::from_raw_os_error(errno.0)
                ));
                None
            }
        }
    }
}

impl Observer for ClusterNames {
    fn say(&self, what: &str) {
        farpage_sys::say!("farpage: {what}");
    }

    fn object_changed(&self, number: u64, name: Option<&str>, described: &Description) {
        if described.uid != uid() {
            return;
        }
        let name = name.and_then(Name::from_stored);
        let bytes = described.note.parse().unwrap_or(0);
        let is_own = self
            .cluster()
            .is_ok_and(|cluster| cluster.is_home(described));
        let mut state = lock(&self.state);
        if name.is_none() && !state.all.contains_key(&number) {
            return;
        }
        let (is_linked, is_over) = (state.linking.contains(&number), state.is_over);
        let known = state.all.entry(number).or_default();
        (known.bytes, known.is_own) = (bytes, is_own);
        known.unit_bytes = described.page_bytes;
        let before = std::mem::replace(&mut known.name, name.clone());
        let place = known.place();
        let size_of = known
            .file
            .as_ref()
            .and_then(|(file, _)| file.try_clone().ok());
        drop(state);
        let (mut file, mut segment, mut is_hidden) = (None, None, false);
        match (&before, &name) {
            (Some(name), None) => hide(name, place),
            (Some(Name::File(from)), Some(Name::File(to))) if from != to => {
                rename(from, to, place, is_linked);
            }
            _ if is_over => {}
            (_, Some(Name::File(path))) if place.file.is_none() && !is_own => {
                file = self.show_file(path);
                is_hidden = file.is_none();
            }
            (_, Some(Name::Segment(key))) if place.segment.is_none() && !is_own && bytes > 0 => {
                segment = self.show_segment(*key, bytes);
                is_hidden = segment.is_none();
            }
            _ => {}
        }
        let sized = size_of.as_ref().or(file.as_ref().map(|(file, _)| file));
        if let Some(file) = sized
            && file.metadata().is_ok_and(|about| about.len() != bytes)
        {
            let _ = file.set_len(bytes);
        }
        let mut state = lock(&self.state);
        state.shows(number, file, segment);
        state.all.entry(number).or_default().is_hidden |= is_hidden;
        self.shown.notify_all();
    }

    fn object_removed(&self, number: u64) {
        self.counts(number);
        let mut state = lock(&self.state);
        let gone = state.all.remove(&number);
        state.files.retain(|_, of| *of != number);
        state.segments.retain(|_, of| *of != number);
        drop(state);
        if let Some(shown) = gone
            && let Some(name) = &shown.name
        {
            hide(name, shown.place());
        }
        self.shown.notify_all();
    }

    fn sysv_wakes(&self, thread: Woken) {
        self.calls.wake(thread);
    }

    fn wake(&self, number: u64, offset: u64, count: u32) {
        // It fails when this process ends.
        let _ = lock(&self.waker).send((number, offset, count));
    }
}

pub(super) fn identity(file: &impl AsFd) -> Option<(u64, u64)> {
    let status = rustix::fs::fstat(file).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Where a file or a folder is.
pub(super) fn path_of(file: &OwnedFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The name of a file, if it can have one.
pub(super) fn name_of(file: &OwnedFd) -> Option<Name> {
    Name::of_path(&path_of(file)?)
}

/// What shows a name is removed, if it is what this process knows.
pub(super) fn hide(name: &Name, place: At) {
    match name {
        Name::File(path) => {
            let at = PathBuf::from(FOLDER).join(path);
            let is_it = |about: &fs::Metadata| place.file == Some((about.dev(), about.ino()));
            if fs::symlink_metadata(&at).as_ref().is_ok_and(is_it) {
                let _ = fs::remove_file(at);
            }
        }
        Name::Segment(_) => {
            if let Some(number) = place.segment {
                let _ = ipc::remove_segment(number);
            }
        }
    }
}

/// A file has another name; it keeps the one before where a task is about to remove that.
fn rename(from: &str, to: &str, place: At, keeps: bool) {
    let folder = PathBuf::from(FOLDER);
    let (from, to) = (folder.join(from), folder.join(to));
    if place.file.is_some() && fs::hard_link(&from, to).is_ok() && !keeps {
        let _ = fs::remove_file(from);
    }
}
