//! `statfs` of `/dev/shm`: programs that ask whether there is room are told of what there is here.

use core::sync::atomic::Ordering;

use farpage_object::shm::{Ask, Kind, Shm};
use farpage_sys::Result;
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;

use super::connection::STATE;
use crate::{program, trap};

/// The beginning of `struct statfs`: what it is, bytes of a block, and blocks: all, free, and free for
/// everybody.
type Beginning = [u64; 5];

/// `statfs` and `fstatfs`.
pub(super) fn call(shm: &Shm, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [of, into, ..] = args;
    let status = match number {
        g::__NR_statfs => file::status_at(g::AT_FDCWD as isize as usize, of, 0),
        _ => file::status(Fd(of as i32)),
    };
    if status.ok()?.device != shm.device.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the program's own call.
    let asked = unsafe { trap::pass(number, args) };
    Some(asked.and_then(|done| {
        let [kind, block, all, free, _] = program::read::<Beginning>(into)?;
        let room = STATE.lock().ask(Ask::new(Kind::Room), None);
        let room = room.map_or(0, |(bytes, _)| bytes / block.max(1));
        let now = free.max(room);
        program::write(into, &[kind, block, all - free + now, now, now])?;
        Ok(done)
    }))
}
