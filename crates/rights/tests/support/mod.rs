//! What several tests use.
#![allow(dead_code)]

use farpage_rights::{Disposition, Give, Memory, MemoryKind, Name, Output, Space, Waiter, Woken};

pub fn give(name: Name, how: Disposition) -> Give {
    Give::new(name, how)
}

pub fn make_send(name: Name) -> Give {
    give(name, Disposition::MakeSend)
}

pub fn make_send_once(name: Name) -> Give {
    give(name, Disposition::MakeSendOnce)
}

pub fn copy_send(name: Name) -> Give {
    give(name, Disposition::CopySend)
}

pub fn move_send(name: Name) -> Give {
    give(name, Disposition::MoveSend)
}

pub fn move_send_once(name: Name) -> Give {
    give(name, Disposition::MoveSendOnce)
}

pub fn move_receive(name: Name) -> Give {
    give(name, Disposition::MoveReceive)
}

pub fn lent(handle: u64, length: u64) -> Memory {
    let kind = MemoryKind::Lent;
    Memory {
        kind,
        handle,
        length,
    }
}

pub fn donated(handle: u64, length: u64) -> Memory {
    let kind = MemoryKind::Donated;
    Memory {
        kind,
        handle,
        length,
    }
}

/// Who is woken by the outputs that are there.
pub fn woken(space: &mut Space) -> Vec<(u64, Woken)> {
    let outputs = std::iter::from_fn(|| space.poll_output());
    let woken = outputs.filter_map(|output| match output {
        Output::Wake {
            waiter: Waiter(waiter),
            why,
        } => Some((waiter, why)),
        Output::Frame { .. }
        | Output::Introduce { .. }
        | Output::Offered { .. }
        | Output::Close(_)
        | Output::Unused(_) => None,
    });
    woken.collect()
}
