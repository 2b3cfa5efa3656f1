//! The way through to glibc.

use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file::File;
use crate::lend;
use crate::real::Real;
use crate::slots::{self, COUNT};

unsafe extern "C" {
    static stdin: *mut File;
}

/// What the function does with its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It may read, write or move.
    Uses,
    /// The same, with `stdin`.
    UsesStdin,
    /// It closes it, or opens another in its place.
    Ends,
}

/// A function of glibc's that is gone through to.
#[repr(C)]
pub struct Entry {
    /// Its address, once known. `forward` reads it.
    known: AtomicUsize,
    real: Real,
    act: Act,
}

impl Entry {
    pub const fn new(name: &'static CStr, act: Act) -> Self {
        Self {
            known: AtomicUsize::new(0),
            real: Real::new(name),
            act,
        }
    }
}

/// Makes the stream glibc's own, and returns where to go on.
pub unsafe extern "C" fn enter(file: *mut File, entry: &Entry) -> usize {
    let address = entry.real.address();
    entry.known.store(address, Ordering::Relaxed);
    let file = match entry.act {
        // SAFETY: the C library's own variable.
        Act::UsesStdin => unsafe { stdin },
        Act::Uses | Act::Ends => file,
    };
    if file.is_null() || COUNT.load(Ordering::Relaxed) == 0 || slots::find(file).is_none() {
        return address;
    }
    // SAFETY: C's promise: an open stream.
    unsafe { lend::settle_locked(file) };
    if entry.act == Act::Ends {
        slots::forget(file);
    }
    address
}

/// Calls `enter` with all that the function was called with put aside, and goes on where it says.
/// `r10` is the stream, `r11` the entry.
#[unsafe(naked)]
pub unsafe extern "C" fn slowly() {
    naked_asm!(
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r10",
        "mov rsi, r11",
        "call {enter}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "jmp r11",
        enter = sym enter,
    )
}
