//! What is done at each fork of a process that has libc.

use core::ffi::c_int;

use crate::view::places;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// Has `prepare` called before each fork from now on, `parent` and `child` after it. Call once.
///
/// A child keeps the places of views first, which the handlers of others could else take.
///
/// # Panics
/// When libc has no memory to note it: a child would go on with what it cannot use.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    places::watch();
    register(prepare, parent, child);
}

/// As [`at_fork`]. Handlers of children are called in the order of their registration.
pub(crate) fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions take nothing and live as long as the process.
    let failed = unsafe { pthread_atfork(prepare, parent, child) };
    assert_eq!(failed, 0, "no memory for fork handlers");
}
