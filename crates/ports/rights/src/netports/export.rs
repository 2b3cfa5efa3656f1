//! Rights of this host's that others hold.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::netports::packet::{Kind, Packet, Ref, Stay};
use crate::netports::table::{Output, Table, Taken, VAIN_MAX, Violation, WINDOW};

/// A right of this host's.
#[derive(Debug)]
pub(crate) struct Export {
    kind: Kind,
    state: State,
    holders: BTreeMap<Stay, Holder>,
    /// It has a name, by which any host may find it.
    is_named: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The shell has the right.
    Live,
    /// The port is dead, or the right was used: the entry waits for its holders' releases.
    Spent,
    /// It was never there, as far as is known.
    Vain,
}

/// A host that has it.
#[derive(Debug, Default)]
struct Holder {
    /// How often it was given it and has not released it.
    times: u64,
    /// Units of messages that it may not send again yet: those under way, and those owed.
    used: u32,
    /// Units of messages that were taken, of which it has not been told.
    owed: u32,
    /// It waits to be told.
    drains: bool,
}

impl Export {
    fn new(kind: Kind, state: State) -> Self {
        Self {
            kind,
            state,
            holders: BTreeMap::new(),
            is_named: false,
        }
    }

    pub(crate) fn has_holders(&self) -> bool {
        !self.holders.is_empty()
    }
}

impl Table {
    fn held(&mut self, by: Stay, number: u64) -> Result<&mut Export, Violation> {
        let export = self.exports.get_mut(&number);
        let export = export.filter(|export| export.holders.contains_key(&by));
        export.ok_or(Violation::NotHeld)
    }

    pub(crate) fn give_own(&mut self, to: Stay, number: u64, kind: Kind) -> Ref {
        let export = self.exports.entry(number);
        let export = export.or_insert_with(|| Export::new(kind, State::Live));
        if export.state != State::Live {
            return Ref::Dead;
        }
        export.holders.entry(to).or_default().times += 1;
        Ref::Mine { number, kind }
    }

    /// A send right of this host's has a name from now on, or no more.
    pub fn name(&mut self, number: u64, is_named: bool) {
        if is_named {
            let export = self.exports.entry(number);
            let export = export.or_insert_with(|| Export::new(Kind::Send, State::Live));
            export.is_named = true;
        } else if let Some(export) = self.exports.get_mut(&number) {
            export.is_named = false;
            self.free_export(number);
        }
    }

    /// A port of this host's is dead. Whether its right had a name, which is to be taken away.
    pub fn died(&mut self, number: u64) -> bool {
        let Some(export) = self.exports.get_mut(&number) else {
            return false;
        };
        if export.state != State::Live {
            return false;
        }
        export.state = State::Spent;
        let was_named = core::mem::take(&mut export.is_named);
        let holders: Vec<Stay> = export.holders.keys().copied().collect();
        self.put(Output::Drop(number));
        for holder in holders {
            self.send(holder, Packet::Gone { number });
        }
        self.free_export(number);
        was_named
    }

    /// Whether the shell is to keep a right.
    #[must_use]
    pub fn keeps(&self, number: u64) -> bool {
        let export = self.exports.get(&number);
        export.is_some_and(|export| export.state == State::Live)
    }

    /// An entry that nobody needs goes.
    pub(crate) fn free_export(&mut self, number: u64) {
        let Some(export) = self.exports.get(&number) else {
            return;
        };
        if export.has_holders() || export.is_named {
            return;
        }
        if export.state == State::Live {
            self.put(Output::Drop(number));
        }
        self.exports.remove(&number);
    }

    pub(crate) fn message_came(
        &mut self,
        from: Stay,
        to: u64,
        units: u32,
        released: u64,
    ) -> Result<bool, Violation> {
        let export = self.held(from, to)?;
        let is_live = export.state == State::Live;
        match export.kind {
            Kind::Once => {
                if is_live {
                    // The shell takes the right for the message, and so need not drop it.
                    export.state = State::Spent;
                }
                self.released(from, to, released)?;
            }
            Kind::Send => {
                if released != 0 {
                    return Err(Violation::Contradiction);
                }
                let holder = export.holders.entry(from).or_default();
                holder.used += units;
                holder.drains = false;
                if holder.used > WINDOW {
                    return Err(Violation::NoRoom);
                }
            }
        }
        Ok(is_live)
    }

    /// A message that came from a host was taken by its port, or went nowhere.
    pub fn taken(&mut self, number: u64, from: Stay, units: u32) {
        let Some(export) = self.exports.get_mut(&number) else {
            return;
        };
        // Holders of what is dead have been told, and count no more.
        let counts = export.kind == Kind::Send && export.state == State::Live;
        let holder = export.holders.get_mut(&from).filter(|_| counts);
        if let Some(holder) = holder {
            holder.owed += units;
            self.pay(number, from);
        }
    }

    /// Tells a holder what of its messages was taken, when that is half of what it may send.
    fn pay(&mut self, number: u64, to: Stay) {
        let export = self.exports.get_mut(&number);
        let Some(holder) = export.and_then(|export| export.holders.get_mut(&to)) else {
            return;
        };
        let least = if holder.drains { 1 } else { WINDOW / 2 };
        if holder.owed >= least {
            let units = core::mem::take(&mut holder.owed);
            holder.used -= units;
            self.send(to, Packet::Credit { number, units });
        }
    }

    pub(crate) fn drain_came(&mut self, from: Stay, number: u64) -> Result<(), Violation> {
        let export = self.held(from, number)?;
        if export.state == State::Live {
            export.holders.entry(from).or_default().drains = true;
            self.pay(number, from);
        }
        Ok(())
    }

    pub(crate) fn release_came(
        &mut self,
        from: Stay,
        number: u64,
        times: u64,
    ) -> Result<(), Violation> {
        match times {
            0 => Err(Violation::Count),
            times => self.released(from, number, times),
        }
    }

    fn released(&mut self, by: Stay, number: u64, times: u64) -> Result<(), Violation> {
        let export = self.held(by, number)?;
        let is_vain = export.state == State::Vain;
        let holder = export.holders.entry(by).or_default();
        holder.times = holder.times.checked_sub(times).ok_or(Violation::Count)?;
        if holder.times == 0 {
            export.holders.remove(&by);
            if let Some(peer) = self.peers.get_mut(&by).filter(|_| is_vain) {
                peer.vain -= 1;
            }
            self.free_export(number);
        }
        Ok(())
    }

    /// Whoever claims holds, also of what is not there, until it has released that.
    pub(crate) fn claim_came(&mut self, from: Stay, number: u64) -> Result<(), Violation> {
        let export = self.exports.entry(number);
        let export = export.or_insert_with(|| Export::new(Kind::Send, State::Vain));
        let is_new = !export.holders.contains_key(&from);
        export.holders.entry(from).or_default().times += 1;
        let state = export.state;
        if let Some(peer) = self.peers.get_mut(&from)
            && is_new
            && state == State::Vain
        {
            peer.vain += 1;
            if peer.vain > VAIN_MAX {
                return Err(Violation::Vain);
            }
        }
        let answer = match state {
            State::Live => Packet::Claimed { number },
            State::Spent | State::Vain => Packet::Gone { number },
        };
        self.send(from, answer);
        Ok(())
    }

    pub(crate) fn take_own(
        &mut self,
        from: Stay,
        number: u64,
        released: u64,
    ) -> Result<Taken, Violation> {
        let export = self.held(from, number)?;
        let taken = match (export.state, export.kind) {
            (State::Spent | State::Vain, _) => Taken::Dead,
            (State::Live, Kind::Send) => Taken::Own(number),
            (State::Live, Kind::Once) => {
                export.state = State::Spent;
                Taken::OwnOnce(number)
            }
        };
        if released > 0 {
            self.released(from, number, released)?;
        }
        Ok(taken)
    }

    /// A host is gone, and nobody will claim any more what it gave.
    pub(crate) fn releases_all(&mut self, of: Stay) {
        let numbers: Vec<u64> = self.exports.keys().copied().collect();
        for number in numbers {
            let export = self.exports.get_mut(&number);
            if export.is_some_and(|export| export.holders.remove(&of).is_some()) {
                self.free_export(number);
            }
        }
    }
}
