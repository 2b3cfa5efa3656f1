//! Names and rights: what goes into a message, and what comes out of one.

use crate::error::Error;
use crate::message::{Disposition, Give, Got, Name, Notice};
use crate::port::{Place, Port};
use crate::right::{Entry, Right, Target};
use crate::settle::notice;
use crate::slab::NONE;
use crate::space::Space;

impl Space {
    /// Checks that these rights can be given, one after the other, and changes nothing.
    pub(crate) fn check_gives(
        &mut self,
        gives: impl Iterator<Item = Give> + Clone,
    ) -> Result<(), (usize, Error)> {
        for (at, give) in gives.clone().enumerate() {
            let blame = |error| (at, error);
            let mut entry = self.entry(give.name).map_err(blame)?;
            // What those before it leave.
            for before in gives.clone().take(at) {
                if before.name == give.name {
                    take(&mut entry, before.how).map_err(blame)?;
                }
            }
            take(&mut entry, give.how).map_err(blame)?;
        }
        Ok(())
    }

    /// Takes a right that was checked.
    pub(crate) fn copy_in(&mut self, give: Give) -> Right {
        let index = give.name.key().index;
        match (give.how, self.names[index]) {
            (Disposition::CopySend, Entry::Port { target, .. }) => {
                self.hold(target);
                Right::Send(target)
            }
            (Disposition::MoveSend, Entry::Port { target, sends, .. }) => {
                if sends > 1 {
                    self.hold(target);
                }
                self.set_sends(index, sends - 1);
                Right::Send(target)
            }
            (Disposition::MakeSend, Entry::Port { target, .. }) => {
                let port = self.port_of(target);
                port.make_sends = port.make_sends.wrapping_add(1);
                port.sends += 1;
                Right::Send(target)
            }
            (Disposition::MakeSendOnce, Entry::Port { target, .. }) => {
                self.port_of(target).onces += 1;
                Right::Once(target)
            }
            (Disposition::MoveReceive, Entry::Port { target, .. }) => {
                let port = self.port_of(target);
                port.make_sends = 0;
                port.sequence = 0;
                let Target::Port(port) = target else {
                    unreachable!("checked by port_of");
                };
                self.part(port);
                self.unname_receive(index);
                Right::Receive(port)
            }
            (Disposition::MoveSendOnce, Entry::Once(target)) => {
                self.free_name(index, true);
                Right::Once(target)
            }
            (_, Entry::Dead { references }) => {
                if give.how != Disposition::CopySend {
                    self.drop_dead(index, references);
                }
                Right::Dead
            }
            (_, Entry::Port { .. } | Entry::Once(_) | Entry::Set(_)) => {
                unreachable!("the rights were checked")
            }
        }
    }

    fn drop_dead(&mut self, index: u32, references: u32) {
        match references - 1 {
            0 => self.free_name(index, false),
            references => self.names[index] = Entry::Dead { references },
        }
    }

    fn port_of(&mut self, target: Target) -> &mut Port {
        match target {
            Target::Port(port) => &mut self.ports[port],
            Target::Import(_) => unreachable!("receive rights are to ports here"),
        }
    }

    /// Gives a right a name.
    pub(crate) fn copy_out(&mut self, right: Right) -> Got {
        match right {
            Right::Dead => Got::Dead,
            Right::Send(target) | Right::Once(target) if self.is_dead(target) => {
                self.trash(right);
                Got::Dead
            }
            Right::Send(target) => self.copy_out_send(target),
            Right::Once(target) => Got::SendOnce(self.new_name(Entry::Once(target))),
            Right::Receive(port) => Got::Receive(self.name_receive(port)),
        }
    }

    fn copy_out_send(&mut self, target: Target) -> Got {
        let now = self.resolve(target);
        if now != target {
            let old = *self.name_of(target);
            if old != NONE {
                self.refresh(old);
            }
            self.hold(now);
            self.trash(Right::Send(target));
        }
        let index = *self.name_of(now);
        if index != NONE {
            let sends = self.sends(index);
            if sends > 0 {
                self.trash(Right::Send(now));
            }
            self.set_sends(index, sends.saturating_add(1));
            return Got::Send(Name(self.names.key(index).to_bits()));
        }
        let name = self.new_name(Entry::Port {
            target: now,
            receive: false,
            sends: 1,
        });
        *self.name_of(now) = name.key().index;
        Got::Send(name)
    }

    fn new_name(&mut self, entry: Entry) -> Name {
        Name(self.names.insert(entry).to_bits())
    }

    /// The name that a further send right to a target joins.
    fn name_of(&mut self, target: Target) -> &mut u32 {
        match target {
            Target::Port(port) => &mut self.ports[port].name,
            Target::Import(import) => &mut self.imports[import].name,
        }
    }

    /// The receive right gets the name of its send right, if there is one.
    pub(crate) fn name_receive(&mut self, port: u32) -> Name {
        let index = self.ports[port].name;
        let index = if index == NONE {
            let entry = Entry::Port {
                target: Target::Port(port),
                receive: true,
                sends: 0,
            };
            self.new_name(entry).key().index
        } else {
            let Entry::Port { receive, .. } = &mut self.names[index] else {
                unreachable!("a port's name denotes it");
            };
            *receive = true;
            index
        };
        self.ports[port].name = index;
        self.ports[port].place = Place::Named(index);
        Name(self.names.key(index).to_bits())
    }

    /// The name no longer denotes a receive right, and nothing if that was all.
    pub(crate) fn unname_receive(&mut self, index: u32) {
        let Entry::Port { receive, sends, .. } = &mut self.names[index] else {
            unreachable!("it denotes a receive right");
        };
        *receive = false;
        if *sends == 0 {
            self.free_name(index, false);
        }
    }

    pub(crate) fn sends(&self, index: u32) -> u32 {
        match self.names[index] {
            Entry::Port { sends, .. } => sends,
            Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. } => 0,
        }
    }

    /// Sets the user references of a send right; with none left, the name goes unless it also
    /// denotes the receive right. The reference of the target is the caller's business.
    pub(crate) fn set_sends(&mut self, index: u32, left: u32) {
        let Entry::Port { receive, sends, .. } = &mut self.names[index] else {
            unreachable!("it denotes a send right");
        };
        *sends = left;
        if left > 0 {
            return;
        }
        if *receive {
            self.port_deleted(index);
        } else {
            self.free_name(index, true);
        }
    }

    /// Frees a name; its rights are the caller's business. Tells who asked for it.
    pub(crate) fn free_name(&mut self, index: u32, tell: bool) {
        if tell {
            self.port_deleted(index);
        }
        match self.names.remove(index) {
            Entry::Port { target, .. } => {
                let name = self.name_of(target);
                if *name == index {
                    *name = NONE;
                }
            }
            Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. } => {}
        }
    }

    fn port_deleted(&mut self, index: u32) {
        let name = Name(self.names.key(index).to_bits());
        let target = match self.names[index] {
            Entry::Port { target, .. } | Entry::Once(target) => target,
            Entry::Set(_) | Entry::Dead { .. } => return,
        };
        if let Some(request) = self.requests.remove(&(target, name)) {
            self.notify(request, notice(Notice::PortDeleted(name)));
        }
    }

    /// Sees whether what a name denotes is dead or stands elsewhere by now.
    pub(crate) fn refresh(&mut self, index: u32) {
        match self.names[index] {
            Entry::Port {
                target,
                receive: false,
                sends,
            } => {
                let now = self.resolve(target);
                if self.is_dead_there(now) {
                    self.forget_name(target, index);
                    self.names[index] = Entry::Dead { references: sends };
                    self.trash(Right::Send(target));
                } else if now != target {
                    self.retarget(index, target, now, sends);
                }
            }
            Entry::Once(target) if self.is_dead(target) => {
                self.names[index] = Entry::Dead { references: 1 };
                self.trash(Right::Once(target));
            }
            Entry::Port { .. } | Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. } => {}
        }
    }

    fn forget_name(&mut self, target: Target, index: u32) {
        let name = self.name_of(target);
        if *name == index {
            *name = NONE;
        }
    }

    fn retarget(&mut self, index: u32, target: Target, now: Target, sends: u32) {
        self.forget_name(target, index);
        if *self.name_of(now) == NONE {
            *self.name_of(now) = index;
        }
        let name = Name(self.names.key(index).to_bits());
        if let Some(request) = self.requests.remove(&(target, name)) {
            self.requests.insert((now, name), request);
        }
        self.hold(now);
        self.names[index] = Entry::Port {
            target: now,
            receive: false,
            sends,
        };
        self.trash(Right::Send(target));
    }
}

/// Takes a right off a copy of an entry.
fn take(entry: &mut Entry, how: Disposition) -> Result<(), Error> {
    use Disposition::{CopySend, MakeSend, MakeSendOnce, MoveReceive, MoveSend, MoveSendOnce};
    match (how, &mut *entry) {
        (CopySend, Entry::Port { sends: 1.., .. } | Entry::Dead { references: 1.. }) => Ok(()),
        (MoveSend, Entry::Port { sends, .. }) if *sends > 0 => {
            *sends -= 1;
            Ok(())
        }
        (MakeSend | MakeSendOnce, Entry::Port { receive: true, .. }) => Ok(()),
        (MoveReceive, Entry::Port { receive, .. }) if *receive => {
            *receive = false;
            Ok(())
        }
        (MoveSendOnce, Entry::Once(_)) => {
            *entry = Entry::Dead { references: 0 };
            Ok(())
        }
        (MoveSend | MoveSendOnce, Entry::Dead { references }) if *references > 0 => {
            *references -= 1;
            Ok(())
        }
        (CopySend | MoveSend | MoveSendOnce, Entry::Dead { .. }) => Err(Error::TooFew),
        (_, Entry::Port { .. } | Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. }) => {
            Err(Error::InvalidRight)
        }
    }
}
