//! What comes from other hosts for ports of this one.

use std::time::Duration;

use farpage_port::link::{Draft, Region, Sealed};
use farpage_port::{Lent, Memory, Message, Right, SendError};
use farpage_rights::netports::{Head, Kind, Packet, Stay, Taken, Violation, units};
use farpage_sys::Errno;

use super::{Inner, Kept, State};

/// As many rights as a message has, and the one to answer to.
const RIGHTS_MAX: usize = 65;
const PIECES_MAX: usize = 64;
const BYTES_MAX: u32 = 64 << 10;
const FOLLOWS_MAX: u64 = (64 << 20) + BYTES_MAX as u64;

impl Inner {
    /// A packet of another host's server.
    pub(super) fn came(
        &self,
        state: &mut State,
        from: Stay,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let Some(stay) = state.stay.as_mut().filter(|stay| stay.table.hears(from)) else {
            return Ok(());
        };
        let (packet, rest) = Packet::decode(bytes).map_err(|_| Violation::Garbled)?;
        let Packet::Message { to, ref head, .. } = packet else {
            stay.table.handle(from, &packet)?;
            return Ok(());
        };
        check(head)?;
        let mut rights = self.take(state, from, head)?;
        let Some(stay) = &mut state.stay else {
            return Ok(());
        };
        if !stay.table.handle(from, &packet)? {
            return Ok(());
        }
        let cost = units(head.follows().unwrap_or(u64::MAX));
        let (inside, rest) = rest.split_at(head.bytes as usize);
        let reply = head.has_reply.then(|| rights.remove(0));
        match memory(head, rest) {
            Ok(memory) => {
                let message = Message {
                    id: head.id,
                    bytes: inside.to_vec(),
                    reply,
                    rights,
                    descriptors: Vec::new(),
                    memory,
                };
                self.deliver(state, to, from, cost, message);
            }
            Err(errno) => {
                farpage_sys::say!(
                    "farpage: a message of another host is dropped: no memory for what came with it \
                     ({errno})"
                );
                stay.table.taken(to, from, cost);
            }
        }
        Ok(())
    }

    /// The rights of a message, as the receiver gets them.
    fn take(&self, state: &mut State, from: Stay, head: &Head) -> Result<Vec<Right>, Violation> {
        let mut rights = Vec::new();
        for right in &head.rights {
            let Some(stay) = &mut state.stay else {
                return Ok(rights);
            };
            let taken = stay.table.take(from, *right)?;
            rights.push(match taken {
                Taken::Dead => Right::Dead,
                Taken::Own(number) => match state.rights.get(&number) {
                    Some(Kept::Send(real)) => Right::Send(real.right.clone()),
                    Some(Kept::Once(_)) | None => Right::Dead,
                },
                Taken::OwnOnce(number) => match state.rights.remove(&number) {
                    Some(Kept::Once(right)) => Right::SendOnce(right),
                    Some(Kept::Send(_)) | None => Right::Dead,
                },
                Taken::Proxy(port, Kind::Send) => Right::Send(self.local_send(state, port)),
                Taken::Proxy(port, Kind::Once) => Right::SendOnce(self.local_once(state, port)),
            });
        }
        Ok(rights)
    }

    /// Sends a message to a port of this host's, or keeps it until there is room.
    fn deliver(&self, state: &mut State, to: u64, from: Stay, cost: u32, message: Message) {
        if let Some(Kept::Once(_)) = state.rights.get(&to) {
            if let Some(Kept::Once(right)) = state.rights.remove(&to) {
                // Who does not wait any more is not answered.
                let _ = right.send(message);
            }
            return;
        }
        let Some(Kept::Send(real)) = state.rights.get_mut(&to) else {
            return;
        };
        if !real.waiting.is_empty() {
            real.waiting.push_back((from, cost, message));
            return;
        }
        match real.right.send(message, Some(Duration::ZERO)) {
            Err(refused) if refused.error == SendError::TimedOut => {
                real.waiting.push_back((from, cost, *refused.message));
                self.flush(state, to);
            }
            Ok(()) | Err(_) => {
                if let Some(stay) = &mut state.stay {
                    stay.table.taken(to, from, cost);
                }
            }
        }
    }
}

/// Refuses what no message can be.
fn check(head: &Head) -> Result<(), Violation> {
    let follows = head.follows().ok_or(Violation::Garbled)?;
    let is_empty = |piece: &farpage_rights::netports::MemoryHead| piece.is_lent && piece.bytes == 0;
    if head.rights.len() > RIGHTS_MAX - usize::from(!head.has_reply)
        || (head.has_reply && head.rights.is_empty())
        || head.memory.len() > PIECES_MAX
        || head.bytes > BYTES_MAX
        || follows > FOLLOWS_MAX
        || head.memory.iter().any(is_empty)
    {
        return Err(Violation::Garbled);
    }
    Ok(())
}

/// The memory of a message, from its bytes.
fn memory(head: &Head, mut bytes: &[u8]) -> Result<Vec<Memory>, Errno> {
    let mut all = Vec::new();
    for piece in &head.memory {
        let (of, rest) = bytes.split_at(piece.bytes as usize);
        bytes = rest;
        all.push(match piece.is_lent {
            false => {
                let mut draft = Draft::create(c"farpage-message", of.len())?;
                draft.copy_from_slice(of);
                Memory::Donated(Sealed::new(draft)?.into())
            }
            true => {
                let mut region = Region::create(of.len())?;
                region.copy_from_slice(of);
                // Its only other owner is the receiver, from now on.
                Memory::Lent(Lent::new(&region, 0..of.len()).0)
            }
        });
    }
    Ok(all)
}
