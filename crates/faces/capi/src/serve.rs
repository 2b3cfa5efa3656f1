//! Memory that this process answers for, to all processes of the host.

use std::sync::Arc;
use std::time::Duration;

use farpage_client::pager::SourceObject;
use farpage_client::{Error, Host, Offered, Refusal, default_socket};

use crate::error::{
    FP_ARGUMENT, FP_DENIED, FP_KERNEL, FP_NOT_FOUND, FP_STALE, FP_TIMED_OUT, FP_UNREACHABLE,
    Failure, FpError, call,
};
use crate::pager::{FpPager, callbacks};

/// Pages that are brought in where one is wanted.
const CLUSTER_PAGES: u32 = 16;

/// What this process answers for. One thread at a time uses it.
pub struct FpServed {
    offered: Offered,
    _host: Host,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Absent(_) | Error::Refused(Refusal::NotFound(_) | Refusal::NotShared(_)) => {
                FP_NOT_FOUND
            }
            Error::NotOurs(..)
            | Error::Denied(..)
            | Error::Refused(
                Refusal::NotYours(_)
                | Refusal::Exists(_)
                | Refusal::Answered(..)
                | Refusal::Over(_),
            ) => FP_DENIED,
            Error::File { .. }
            | Error::Parents(_)
            | Error::Refused(
                Refusal::Name(_)
                | Refusal::Size(_)
                | Refusal::Differs(..)
                | Refusal::Unfit(_)
                | Refusal::Outside(_),
            ) => FP_ARGUMENT,
            Error::Refused(Refusal::Unkept) => FP_STALE,
            Error::Late(_) => FP_TIMED_OUT,
            Error::Refused(Refusal::Lock(refusal)) => crate::shared_locks::code(refusal),
            Error::Connect { .. } | Error::Call(_) | Error::Unlocked => FP_UNREACHABLE,
            _ => FP_KERNEL,
        };
        Self::new(code, error.to_string())
    }
}

/// Offers `pager->bytes` bytes, which the functions of `pager` answer for, to the host kernel
/// (`farpage up`): other processes of this user find them by `pager->name`. The table is copied.
/// They are read and written in pages, and with `write_at` modified pages come back; `sync` is
/// called when the host kernel lets go of them. This process must not map them itself. Who waits
/// for a page waits `patience_ms`, also for a program that died to be started again, then gets
/// SIGBUS; 0: until it comes. Run the program by `farpage pager serve`, which starts it again when
/// it dies. Returns NULL when it fails: FP_NOT_FOUND without a host kernel, FP_DENIED when another
/// program has the name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_serve_pager(
    pager: *const FpPager,
    patience_ms: u64,
    error: *mut FpError,
) -> *mut FpServed {
    let serve = || {
        // SAFETY: the header asks for NULL or a table that begins with its size.
        let source = unsafe { callbacks(pager) }?;
        let name = source.name().to_owned();
        let object = Arc::new(SourceObject::new(&name, source, CLUSTER_PAGES));
        let patience = (patience_ms > 0).then(|| Duration::from_millis(patience_ms));
        let host = Host::connect(&default_socket())?;
        let offered = host.offer(object, patience)?;
        Ok(Box::into_raw(Box::new(FpServed {
            offered,
            _host: host,
        })))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), serve) }
}

/// Waits for the end of the host kernel, for `timeout_ms` at most; UINT64_MAX: as long as it takes.
/// Returns 1 when it has ended, 0 when it lives, -1 when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_served_wait(
    served: *const FpServed,
    timeout_ms: u64,
    error: *mut FpError,
) -> i32 {
    let wait = || {
        // SAFETY: NULL, or what fp_serve_pager returned and nobody has freed.
        let served = unsafe { served.as_ref() };
        let served = served.ok_or_else(|| Failure::argument("served: it is NULL; give one"))?;
        let timeout = (timeout_ms < u64::MAX).then(|| Duration::from_millis(timeout_ms));
        Ok(i32::from(served.offered.wait(timeout)))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, -1, wait) }
}

/// Answers no more. What the host kernel has not handed over it keeps for a program that offers the
/// same again. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_served_free(served: *mut FpServed) {
    if !served.is_null() {
        // SAFETY: what fp_serve_pager returned, and nobody has freed.
        drop(unsafe { Box::from_raw(served) });
    }
}
