//! Where pages go that do not fit into memory, and the process that may be put in its place.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farpage_client::Refusal;
use farpage_default_pager::manager::paging::{PagingFile, PagingProcess, PagingSpace};
use farpage_default_pager::manager::{About, Manager, Outside};
use farpage_port::Sender;

use super::{Service, failed, identity};

/// Tells of the paging space of this process.
pub(super) type AboutPagingSpace = Box<dyn Fn() -> PagingSpace + Send>;

impl Service {
    /// Has `tell` answer who asks how full the paging space is.
    #[must_use]
    pub fn with_paging_space_told(
        mut self,
        tell: impl Fn() -> PagingSpace + Send + 'static,
    ) -> Self {
        self.about_paging_space = Some(Box::new(tell));
        self
    }

    /// Lets processes of this user be the default pager, in `manager`, which is the paging space.
    #[must_use]
    pub fn with_default_memory_manager(mut self, manager: Arc<Manager>) -> Self {
        self.paging_space = Arc::clone(&manager) as _;
        self.manager = Some(manager);
        self
    }

    /// Who keeps what does not fit decides over all that this process has: only its own user and root
    /// may.
    pub(super) fn set_default_memory_manager(
        &self,
        caller: Sender,
        calls: &OwnedFd,
        life: OwnedFd,
        about: About,
    ) -> Result<(), Refusal> {
        let (uid, pid) = identity(caller);
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(Refusal::NotYours("the default pager".into()));
        }
        let Some(manager) = &self.manager else {
            return Err(Refusal::Failed(
                "its default pager cannot be exchanged".into(),
            ));
        };
        let outside = Outside::new(pid, about, calls, life);
        let set = outside.and_then(|outside| manager.set_default_memory_manager(outside));
        set.map_err(|error| failed(&error))
    }

    /// How full the paging space is, wherever it is.
    pub(crate) fn paging_space(&self) -> Option<PagingSpace> {
        let own = || self.about_paging_space.as_ref().map(|tell| tell());
        let Some(manager) = &self.manager else {
            return own();
        };
        let state = manager.state();
        let space = match &state.outside {
            None => own()?,
            Some(outside) => of_process(outside),
        };
        Some(PagingSpace {
            is_moving: state.is_moving,
            died: state.lost,
            unreadable_pages: state.unreadable,
            ..space
        })
    }
}

fn of_process(outside: &Outside) -> PagingSpace {
    let space = outside.space();
    let folders = outside.about().folders.iter();
    let files = space.files.iter().zip(folders);
    let files = files.map(|(file, folder)| PagingFile {
        folder: folder.clone(),
        used_bytes: file.used_bytes,
        limit_bytes: file.limit_bytes,
        is_full: file.is_full,
        write_error: file.write_error,
    });
    PagingSpace {
        compressed_bytes: space.compressed_bytes,
        compressed_max_bytes: space.compressed_max_bytes,
        files: files.collect(),
        process: Some(PagingProcess {
            pid: outside.pid(),
            wired: outside.about().wired.clone(),
            is_late: outside.is_late(),
        }),
        ..PagingSpace::default()
    }
}
