//! What waits for a peer to take it.

use std::collections::VecDeque;

use super::packet::Packet;

/// Bytes that a peer may be owed, what keeping them takes included.
const BYTES_MAX: usize = 64 << 20;
/// Descriptors that it may be owed, each of which is one of this process's.
const FDS_MAX: usize = 512;

/// Packets in order, and how much they are.
#[derive(Default)]
pub(super) struct Outbox {
    packets: VecDeque<Packet>,
    bytes: usize,
    fds: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// More is owed than a peer that takes nothing may be.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > BYTES_MAX || self.fds > FDS_MAX
    }

    pub(super) fn push_back(&mut self, packet: Packet) {
        self.count(&packet);
        self.packets.push_back(packet);
    }

    /// Puts back what could not be sent.
    pub(super) fn push_front(&mut self, packet: Packet) {
        self.count(&packet);
        self.packets.push_front(packet);
    }

    pub(super) fn pop_front(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        let (bytes, fds) = cost(&packet);
        self.bytes -= bytes;
        self.fds -= fds;
        Some(packet)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn count(&mut self, packet: &Packet) {
        let (bytes, fds) = cost(packet);
        self.bytes += bytes;
        self.fds += fds;
    }
}

/// Bytes and descriptors.
fn cost(packet: &Packet) -> (usize, usize) {
    let fds = packet.fds.len();
    (size_of::<Packet>() + packet.body.len(), fds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::packet::{Say, Sending};

    fn packet(bytes: usize, fds: usize) -> Packet {
        let open = |_| std::fs::File::open("/dev/null").unwrap().into();
        Packet {
            body: vec![0; bytes],
            fds: (0..fds).map(open).collect(),
            ..Packet::plain(Say::Parts.encode(), Sending::Plain)
        }
    }

    #[test]
    fn what_is_taken_is_owed_no_more() {
        let mut outbox = Outbox::default();
        outbox.push_back(packet(BYTES_MAX - 2 * size_of::<Packet>(), 0));
        outbox.push_back(packet(0, 16));
        assert!(!outbox.is_too_much());
        outbox.push_back(packet(0, 0));
        assert!(outbox.is_too_much());
        let first = outbox.pop_front().unwrap();
        assert!(!outbox.is_too_much());
        outbox.push_front(first);
        assert!(outbox.is_too_much());
        outbox.clear();
        assert!(!outbox.is_too_much() && outbox.is_empty());
        assert_eq!((outbox.bytes, outbox.fds), (0, 0));
    }

    #[test]
    fn descriptors_count_by_themselves() {
        let mut outbox = Outbox::default();
        for _ in 0..FDS_MAX / 16 {
            outbox.push_back(packet(0, 16));
        }
        assert!(!outbox.is_too_much());
        outbox.push_back(packet(0, 1));
        assert!(outbox.is_too_much());
    }
}
