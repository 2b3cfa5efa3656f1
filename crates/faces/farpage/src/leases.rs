//! Leases on files: before somebody may write to one, whoever holds a lease on it is told and gives
//! way.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};

use farpage_sys::file::{self, Fd};
use farpage_sys::fork::AtFork;
use farpage_sys::{Errno, lease, process, pthread};

/// What counts on a file that stays as it is.
pub(crate) trait Leased: Send + Sync {
    /// The descriptor that holds the lease.
    fn lease(&self) -> &OwnedFd;

    /// True when the lease has been given up. All leases are held.
    fn is_over(&self) -> bool;

    /// Gets ready for the file to change, and gives the lease up. All leases are held: it is called
    /// for one at a time, and not while a fork goes on in another thread.
    fn give_way(&self);
}

/// All that are leased, and who is told when a lease is to be given up.
#[derive(Default)]
struct Leases {
    all: Vec<Weak<dyn Leased>>,
    /// The thread that waits for it, once there is one.
    guardian: Option<u32>,
}

static LEASES: Mutex<Leases> = Mutex::new(Leases {
    all: Vec::new(),
    guardian: None,
});

fn leases() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lease on `file` for what `make` makes of it.
///
/// # Errors
/// As [`lease::take`].
pub(crate) fn take<T: Leased + 'static>(
    file: BorrowedFd<'_>,
    make: impl FnOnce(OwnedFd) -> T,
) -> Result<Arc<T>, Errno> {
    FORKS.begin();
    // Held until it is listed: the guardian looks for those that are disturbed.
    let mut leases = leases();
    let guardian = leases.guardian()?;
    let leased = Arc::new(make(lease::take(file, guardian)?));
    leases.all.retain(|other| other.strong_count() > 0);
    let listed = Arc::downgrade(&leased);
    leases.all.push(listed);
    Ok(leased)
}

/// Does `what` while nobody gives way and no fork begins.
pub(crate) fn hold<T>(what: impl FnOnce() -> T) -> T {
    let _leases = leases();
    what()
}

fn is_disturbed(leased: &dyn Leased) -> bool {
    !leased.is_over() && !lease::is_undisturbed(leased.lease())
}

impl Leases {
    /// The thread that has others give way; begins it when there is none.
    fn guardian(&mut self) -> Result<u32, Errno> {
        if let Some(thread) = self.guardian {
            return Ok(thread);
        }
        let (tell, told) = mpsc::channel();
        let body = move || {
            let ready = lease::Told::new();
            let _ = tell.send(ready.as_ref().map(|_| process::thread_id()).map_err(|e| *e));
            let Ok(ready) = ready else { return };
            while ready.wait().is_ok() {
                leases().let_others_in();
            }
        };
        pthread::start(c"farpage-leases", body)?;
        let thread = told.recv().map_err(|_| Errno::EAGAIN)??;
        self.guardian = Some(thread);
        Ok(thread)
    }

    fn leased(&self) -> impl Iterator<Item = Arc<dyn Leased>> {
        let all = self.all.iter().filter_map(Weak::upgrade);
        all.filter(|leased| !leased.is_over())
    }

    fn let_others_in(&self) {
        for leased in self.leased().filter(|leased| is_disturbed(&**leased)) {
            leased.give_way();
        }
    }
}

/// What is held over a fork: leases of the child's own. What the parent gives up is given up for
/// all who have its descriptor.
struct Held {
    leases: MutexGuard<'static, Leases>,
    own: Vec<(Arc<dyn Leased>, OwnedFd)>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

static FORKS: AtFork = AtFork::new(before_fork, in_parent, in_child);

extern "C" fn before_fork() {
    use std::os::fd::AsFd;
    let leases = leases();
    let own = leases.leased().filter_map(|leased| {
        // Not this thread, which the signal would end: the guardian looks in vain.
        let told = leases.guardian.ok_or(Errno::ESRCH);
        match told.and_then(|told| lease::take(leased.lease().as_fd(), told)) {
            Ok(own) => Some((leased, own)),
            Err(_) => {
                // Somebody waits to write to it.
                leased.give_way();
                None
            }
        }
    });
    let own = own.collect();
    HELD.with(|place| *place.borrow_mut() = Some(Held { leases, own }));
}

extern "C" fn in_parent() {
    drop(HELD.with(|place| place.borrow_mut().take()));
}

extern "C" fn in_child() {
    FORKS.in_child();
    let Some(Held { mut leases, own }) = HELD.with(|place| place.borrow_mut().take()) else {
        return;
    };
    leases.guardian = None;
    for (leased, own) in own {
        // The number names the child's own lease from now on.
        let kept = file::keep(Fd(own.as_raw_fd()), Fd(leased.lease().as_raw_fd()));
        let guardian = kept.and_then(|()| leases.guardian());
        let told = guardian.and_then(|guardian| lease::tell(leased.lease(), guardian));
        if told.is_err() || is_disturbed(&*leased) {
            leased.give_way();
        }
    }
}
