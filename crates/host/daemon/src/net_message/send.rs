//! What programs of this host send to ports of others'.

use farpage_port::link::Frozen;
use farpage_port::{Memory, Received, Right};
use farpage_rights::netports::{Given, Head, MemoryHead, Packet, Port, Ref, units};

use super::{Inner, Known, OWED_BYTES_MAX, State};

/// Bytes of a piece of memory.
enum Piece {
    Mapped(Frozen),
    Copied(Vec<u8>),
    Nothing,
}

impl Piece {
    fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Copied(bytes) => bytes,
            Self::Nothing => &[],
        }
    }
}

/// The memory of a message, to be read; what was lent goes back when it is dropped.
fn read(memory: Vec<Memory>) -> Option<(Vec<MemoryHead>, Vec<Piece>)> {
    let (mut heads, mut pieces) = (Vec::new(), Vec::new());
    for one in memory {
        let bytes = one.bytes();
        let is_lent = matches!(one, Memory::Lent(_));
        pieces.push(match one {
            Memory::Donated(_) if bytes == 0 => Piece::Nothing,
            Memory::Donated(donated) => Piece::Mapped(donated.map().ok()?),
            Memory::Lent(lent) => {
                let mut copy = vec![0; lent.bytes()];
                lent.copy_to(0, &mut copy).ok()?;
                Piece::Copied(copy)
            }
        });
        heads.push(MemoryHead { is_lent, bytes });
    }
    Some((heads, pieces))
}

impl Inner {
    /// Sends on what a program has sent to a port of another host's. Of what cannot go there the
    /// program's Node has refused it before; what comes so nevertheless is dropped, which a caller
    /// hears.
    pub(super) fn forward(&self, state: &mut State, port: Port, received: Received) {
        let Received {
            id,
            bytes,
            reply,
            rights,
            descriptors,
            memory,
            ..
        } = received;
        let can_go = descriptors.is_empty()
            && !rights
                .iter()
                .any(|right| matches!(right, Right::Receive(_)));
        let Some((memory, pieces)) = read(memory).filter(|_| can_go) else {
            return self.is_lost(state, port);
        };
        let has_reply = reply.is_some();
        let mut refs = Vec::new();
        for right in reply.into_iter().chain(rights) {
            let known = self.known(state, right).unwrap_or(Known::Dead);
            refs.push(self.gives(state, port, known));
        }
        let head = Head {
            id,
            bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            has_reply,
            rights: refs,
            memory,
        };
        let cost = units(head.follows().unwrap_or(u64::MAX));
        // What the table says of the rights goes before.
        self.drain(state);
        let Some(stay) = &mut state.stay else {
            return;
        };
        if !stay.table.is_open(port) {
            // Its host has gone this moment.
            return;
        }
        let released = stay.table.sends(port, cost);
        let to = port.number;
        let packet = Packet::Message { to, released, head }.encode();
        let mut parts: Vec<&[u8]> = vec![&packet, &bytes];
        parts.extend(pieces.iter().map(Piece::get));
        stay.wire.send(port.home.0, &parts);
        let is_open = stay.table.is_open(port);
        let is_known = stay.table.knows(port);
        if stay.wire.owed_bytes(port.home.0) > OWED_BYTES_MAX {
            self.park(state, port.home);
        }
        if !is_known || state.is_once(port) {
            return state.forget(port);
        }
        if let Some(local) = state.local.get_mut(&port)
            && !is_open
            && local.in_set
        {
            self.set.remove(&local.port);
            local.in_set = false;
        }
    }

    /// What was sent cannot be sent on.
    fn is_lost(&self, state: &mut State, port: Port) {
        farpage_sys::say!(
            "farpage: a message to a port of another host is dropped: descriptors and receive rights \
             cannot go there, or there is no memory to read it"
        );
        if state.is_once(port) {
            state.is_unused(port);
        }
    }

    fn gives(&self, state: &mut State, to: Port, known: Known) -> Ref {
        let given = match known {
            Known::Proxy(port) => Given::Proxy(port),
            Known::Own(number, kind) => Given::Own(number, kind),
            Known::Dead => Given::Dead,
        };
        match &mut state.stay {
            Some(stay) => stay.table.give(to.home, given),
            None => Ref::Dead,
        }
    }
}

impl State {
    fn is_once(&self, port: Port) -> bool {
        let local = self.local.get(&port);
        local.is_some_and(|local| local.kind == farpage_rights::netports::Kind::Once)
    }
}
