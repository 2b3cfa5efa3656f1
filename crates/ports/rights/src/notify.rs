//! Notifications: each request is answered exactly once, by a send-once right.

use alloc::boxed::Box;

use crate::error::Error;
use crate::import::ImportState;
use crate::message::{Disposition, Give, Name, Notice};
use crate::port::{Letter, Parcel};
use crate::right::{Entry, Right, Target};
use crate::settle::notice;
use crate::space::Space;

/// What somebody wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// The port behind this send or send-once name dies.
    DeadName,
    /// Nobody holds a send right to this port; told at once if that is so and at least so many
    /// send rights were made. Cancelled when the receive right leaves the task.
    NoSenders {
        /// Send rights made.
        sync: u32,
    },
    /// This receive right is destroyed: it is sent along instead, with its queue. Cancelled when
    /// the receive right leaves the task.
    PortDestroyed,
}

impl Space {
    /// Asks for a notification, or cancels the request when `notify` is none; answers the
    /// send-once right of the request that was there before, under a name.
    ///
    /// # Errors
    /// [`Error::InvalidName`]; [`Error::InvalidRight`] when the name denotes no right of the kind,
    /// or the notification's right cannot be given; [`Error::NotSendOnce`].
    pub fn request(
        &mut self,
        name: Name,
        request: Request,
        notify: Option<Give>,
    ) -> Result<Option<Name>, Error> {
        let entry = self.entry(name)?;
        match notify.map(|give| give.how) {
            None | Some(Disposition::MakeSendOnce | Disposition::MoveSendOnce) => {}
            Some(
                Disposition::CopySend
                | Disposition::MoveSend
                | Disposition::MakeSend
                | Disposition::MoveReceive,
            ) => return Err(Error::NotSendOnce),
        }
        if notify.is_some_and(|give| give.name == name && matches!(entry, Entry::Once(_))) {
            return Err(Error::InvalidRight);
        }
        self.check_gives(notify.into_iter())
            .map_err(|(_, error)| error)?;
        let old = match request {
            Request::DeadName => self.request_dead_name(name, entry, notify)?,
            Request::NoSenders { sync } => self.request_no_senders(name, sync, notify)?,
            Request::PortDestroyed => {
                let port = self.receive_port(name)?;
                let old = self.port_destroyed.remove(&port);
                if let Some(give) = notify {
                    let right = self.copy_in(give);
                    self.port_destroyed.insert(port, right);
                }
                old
            }
        };
        let old = old.and_then(|right| self.copy_out(right).name());
        self.settle();
        Ok(old)
    }

    fn request_dead_name(
        &mut self,
        name: Name,
        entry: Entry,
        notify: Option<Give>,
    ) -> Result<Option<Right>, Error> {
        let target = match entry {
            Entry::Port { sends: 0, .. } | Entry::Set(_) => return Err(Error::InvalidRight),
            Entry::Port { target, .. } | Entry::Once(target) => target,
            Entry::Dead { .. } => {
                if let Some(give) = notify {
                    let right = self.copy_in(give);
                    self.name_died(name, right);
                }
                return Ok(None);
            }
        };
        let old = self.requests.remove(&(target, name));
        if let Some(give) = notify {
            let right = self.copy_in(give);
            self.requests.insert((target, name), right);
        }
        Ok(old)
    }

    fn request_no_senders(
        &mut self,
        name: Name,
        sync: u32,
        notify: Option<Give>,
    ) -> Result<Option<Right>, Error> {
        let port = self.receive_port(name)?;
        let old = self.no_senders.remove(&port);
        if let Some(give) = notify {
            let right = self.copy_in(give);
            self.no_senders.insert(port, right);
            let it = &self.ports[port];
            if it.sends == 0 && it.make_sends >= sync {
                self.no_senders_left(port);
            }
        }
        Ok(old)
    }

    pub(crate) fn no_senders_left(&mut self, port: u32) {
        if let Some(request) = self.no_senders.remove(&port) {
            let made = self.ports[port].make_sends;
            self.notify(request, notice(Notice::NoSenders(made)));
        }
    }

    /// A target is dead: names with a request turn dead now, all others when they are touched.
    pub(crate) fn dead_names(&mut self, target: Target) {
        let least = (target, Name(0));
        while let Some((&(of, name), _)) = self.requests.range(least..).next() {
            if of != target {
                return;
            }
            let request = self.requests.remove(&(of, name)).expect("found above");
            self.refresh(name.key().index);
            self.name_died(name, request);
        }
    }

    fn name_died(&mut self, name: Name, request: Right) {
        let Entry::Dead { references } = &mut self.names[name.key().index] else {
            unreachable!("what it denotes is dead");
        };
        *references = references.saturating_add(1);
        self.notify(request, notice(Notice::DeadName(name)));
    }

    /// Uses up a send-once right for a notification.
    pub(crate) fn notify(&mut self, request: Right, parcel: Parcel) {
        match request {
            Right::Once(target) => self.send_once(target, parcel, 0),
            Right::Dead => self.destroy_parcel(parcel),
            Right::Send(_) | Right::Receive(_) => unreachable!("requests hold send-once rights"),
        }
    }

    /// Uses up a send-once right for a message. It waits where the right is not accepted yet.
    pub(crate) fn send_once(&mut self, target: Target, parcel: Parcel, hops: u8) {
        let letter = |parcel| {
            let mut letter = Letter::new(parcel, Right::Dead);
            letter.hops = hops;
            letter
        };
        match target {
            Target::Port(port) => {
                self.ports[port].onces -= 1;
                self.enqueue(port, letter(parcel));
                self.free_port(port);
            }
            Target::Import(import) => match self.imports[import].state {
                ImportState::Dead => {
                    self.destroy_letter(letter(parcel));
                    self.trash(Right::Once(target));
                }
                ImportState::Live => {
                    self.transmit(import, parcel, hops);
                    self.import_used(import);
                }
                ImportState::Awaited { .. }
                | ImportState::Releasing
                | ImportState::Following
                | ImportState::Replaced(_) => {
                    self.imports[import].held = Some(Box::new(letter(parcel)));
                }
            },
        }
    }
}
