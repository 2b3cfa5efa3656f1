//! Receiving, from a port or from the members of a set in turn.

use crate::error::{Error, ReceiveError};
use crate::message::{Name, Received};
use crate::port::{Content, Letter, Place};
use crate::right::{Entry, Target};
use crate::slab::NONE;
use crate::space::Space;

impl Space {
    /// Takes the oldest message of a port; of a set, the members with messages take turns.
    ///
    /// # Errors
    /// [`ReceiveError::WouldBlock`] when nothing is queued; [`Error::InSet`] for a member of a set.
    pub fn receive(&mut self, from: Name) -> Result<Received, ReceiveError> {
        let port = self.receiving_port(from)?;
        let Some(letter) = port.and_then(|port| self.take_first(port)) else {
            return Err(ReceiveError::WouldBlock);
        };
        let port = port.expect("a letter came from it");
        let received = self.open(port, letter);
        if self.ports[port].queued > 0 {
            self.wake_receiver(port);
        }
        self.settle();
        Ok(received)
    }

    /// The port whose message would be received next.
    pub(crate) fn receiving_port(&mut self, from: Name) -> Result<Option<u32>, Error> {
        match self.entry(from)? {
            Entry::Set(set) => Ok(Some(self.sets[set].oldest).filter(|&port| port != NONE)),
            Entry::Port {
                target: Target::Port(port),
                receive: true,
                ..
            } => match self.ports[port].set {
                NONE => Ok(Some(port)),
                _ => Err(Error::InSet),
            },
            Entry::Port { .. } | Entry::Once(_) | Entry::Dead { .. } => Err(Error::InvalidRight),
        }
    }

    fn take_first(&mut self, port: u32) -> Option<Letter> {
        let member = self.ports[port].set != NONE;
        if member {
            self.ready_remove(port);
        }
        let letter = self.dequeue(port);
        if member && self.ports[port].queued > 0 {
            self.ready_push(port);
        }
        letter
    }

    fn open(&mut self, port: u32, letter: Letter) -> Received {
        let Content::Parcel(parcel) = letter.content else {
            unreachable!("handovers are queued at forwarders only");
        };
        if let Some(export) = letter.from {
            self.credit_back(export);
        }
        self.trash(letter.to);
        let Place::Named(name) = self.ports[port].place else {
            unreachable!("only named ports are received from");
        };
        let it = &mut self.ports[port];
        let sequence = it.sequence;
        it.sequence = sequence.wrapping_add(1);
        Received {
            port: Name(self.names.key(name).to_bits()),
            sequence,
            sender: parcel.sender,
            id: parcel.id,
            reply: parcel.reply.map(|right| self.copy_out(right)),
            bytes: parcel.bytes,
            rights: parcel
                .rights
                .into_iter()
                .map(|right| self.copy_out(right))
                .collect(),
            descriptors: parcel.descriptors,
            memory: parcel.memory,
        }
    }
}
