//! What is done at each fork of a process that has libc.

use core::ffi::c_int;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// Has `prepare` called before each fork from now on, `parent` and `child` after it. Call once.
///
/// # Panics
/// When libc has no memory to note it: a child would go on with what it cannot use.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions take nothing and live as long as the process.
    let failed = unsafe { pthread_atfork(prepare, parent, child) };
    assert_eq!(failed, 0, "no memory for fork handlers");
}
