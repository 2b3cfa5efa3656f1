//! Typed interfaces: declared once by [`interface!`](crate::interface), which makes a client and
//! the trait that a server implements.
//!
//! What travels: 12 bytes (a number made of the interface's name, its version, how it went), then
//! the arguments as postcard writes them. Rights, descriptors and memory travel beside. More than
//! 64 KiB, and at most 64 MiB, go as donated memory, which nobody need know. All that comes is
//! checked in full.

mod later;
mod wire;

use std::time::Duration;

pub use later::{Answer, pass_on};
/// Why something cannot be written into a message.
pub use postcard::Error as EncodeError;
pub use wire::{Both, Contents, Fd, Garbled, Incoming, Outgoing, Wire};

use crate::link::{Draft, Frozen, Sealed};
use crate::{CallError, Memory, Message, Received, Right, SendRight, Sender};

const HEAD_BYTES: usize = 12;
/// Bytes that go inside a message.
const INSIDE_MAX: usize = 64 << 10;
/// Bytes of arguments at most: who reads them makes values of them, in memory of its own, while
/// donated memory may cost its sender nothing.
const ARGUMENTS_MAX: usize = 64 << 20;

/// What an interface is known by.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// Its name; two interfaces should not share one.
    pub name: &'static str,
    /// Its version: to be raised whenever methods, arguments or answers change.
    pub version: u16,
    /// Its methods, in order.
    pub methods: &'static [&'static str],
}

impl Interface {
    /// The number of a method.
    ///
    /// # Panics
    /// When there is none of this name.
    #[must_use]
    pub const fn number(&self, method: &str) -> u32 {
        let mut number = 0;
        while number < self.methods.len() {
            if is_same(self.methods[number].as_bytes(), method.as_bytes()) {
                return number as u32;
            }
            number += 1;
        }
        panic!("no method of this name");
    }

    /// FNV-1a of the name: tells interfaces apart that were mixed up, and guards against nobody.
    const fn id(&self) -> u32 {
        let (name, mut at, mut id) = (self.name.as_bytes(), 0, 0x811c_9dc5u32);
        while at < name.len() {
            id = (id ^ name[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        id
    }

    fn head(&self, outcome: Outcome, in_memory: bool) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&self.id().to_le_bytes());
        head[4..6].copy_from_slice(&self.version.to_le_bytes());
        head[6] = outcome as u8;
        head[7] = u8::from(in_memory);
        head
    }
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// How a call went, as the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Outcome {
    Fine = 0,
    /// The server speaks another version or another interface: see the head.
    Other = 1,
    /// The arguments are not those of the method.
    Garbled = 2,
    NoMethod = 3,
    /// A proxy does not pass the call on.
    Refused = 4,
}

/// Why a method of an interface has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvokeError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The server speaks another version.
    #[error(
        "the server speaks version {theirs} of {interface}, this program version {ours}: update \
         the older"
    )]
    Version {
        /// The interface.
        interface: &'static str,
        /// Of this program.
        ours: u16,
        /// Of the server.
        theirs: u16,
    },
    /// The server speaks another interface.
    #[error("the right does not lead to a server of {0}")]
    Interface(&'static str),
    /// The server says that the arguments are garbled, or its answer is.
    #[error("the {0} of {1} cannot be read; both programs need the same declaration")]
    Garbled(&'static str, &'static str),
    /// A proxy between this program and the server does not pass the call on.
    #[error("the proxy of {0} refuses this call")]
    Refused(&'static str),
    /// An argument cannot be written.
    #[error("an argument cannot be written: {0}")]
    Encode(postcard::Error),
    /// Memory for a long argument cannot be had.
    #[error("no memory for a long argument: {0}; more than 64 MiB go as Contents or Memory")]
    Memory(farpage_sys::Errno),
}

impl Outgoing {
    /// Nothing yet, of this method.
    #[must_use]
    pub fn new(method: u32) -> Self {
        let message = Message::new(method);
        let bytes = vec![0; HEAD_BYTES];
        Self { bytes, message }
    }

    fn finish(mut self, of: &Interface, outcome: Outcome) -> Result<Message, farpage_sys::Errno> {
        let is_long = self.bytes.len() > INSIDE_MAX;
        self.bytes[..HEAD_BYTES].copy_from_slice(&of.head(outcome, is_long));
        if is_long {
            let rest = &self.bytes[HEAD_BYTES..];
            if rest.len() > ARGUMENTS_MAX {
                return Err(farpage_sys::Errno::E2BIG);
            }
            let mut draft = Draft::create(c"farpage-arguments", rest.len())?;
            draft.copy_from_slice(rest);
            let sealed = Sealed::new(draft)?.into();
            self.message.memory.insert(0, Memory::Donated(sealed));
            self.bytes.truncate(HEAD_BYTES);
        }
        self.message.bytes = self.bytes;
        Ok(self.message)
    }
}

/// A message taken apart.
struct Opened {
    version: u16,
    is_of: bool,
    outcome: u8,
    bytes: Bytes,
}

enum Bytes {
    Inside(Vec<u8>),
    Mapped(Frozen),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Inside(bytes) => &bytes[HEAD_BYTES..],
            Self::Mapped(map) => map,
        }
    }
}

fn open(of: &Interface, received: &mut Received) -> Result<Opened, Garbled> {
    let head: [u8; HEAD_BYTES] = *received.bytes.first_chunk().ok_or(Garbled)?;
    let id = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let bytes = match head[7..] {
        [0, 0, 0, 0, 0] => Bytes::Inside(std::mem::take(&mut received.bytes)),
        [1, 0, 0, 0, 0] if received.bytes.len() == HEAD_BYTES && !received.memory.is_empty() => {
            match received.memory.remove(0) {
                Memory::Donated(donated) if donated.bytes() <= ARGUMENTS_MAX as u64 => {
                    Bytes::Mapped(donated.map().map_err(|_| Garbled)?)
                }
                Memory::Donated(_) | Memory::Lent(_) => return Err(Garbled),
            }
        }
        _ => return Err(Garbled),
    };
    Ok(Opened {
        version: u16::from_le_bytes([head[4], head[5]]),
        is_of: id == of.id(),
        outcome: head[6],
        bytes,
    })
}

fn incoming<'a>(bytes: &'a Bytes, received: &mut Received) -> Incoming<'a> {
    Incoming {
        bytes: bytes.get(),
        rights: std::mem::take(&mut received.rights).into_iter(),
        descriptors: std::mem::take(&mut received.descriptors).into_iter(),
        memory: std::mem::take(&mut received.memory).into_iter(),
    }
}

/// Calls a method: for what [`interface!`](crate::interface) makes.
///
/// # Errors
/// [`InvokeError`].
pub fn invoke<T: Wire>(
    right: &SendRight,
    of: &Interface,
    call: Outgoing,
    timeout: Option<Duration>,
) -> Result<T, InvokeError> {
    invoke_by(right, of, call, timeout).map(|(_, answer)| answer)
}

/// As [`invoke`]; says who answered as well.
///
/// # Errors
/// [`InvokeError`].
pub fn invoke_by<T: Wire>(
    right: &SendRight,
    of: &Interface,
    call: Outgoing,
    timeout: Option<Duration>,
) -> Result<(Sender, T), InvokeError> {
    let call = call
        .finish(of, Outcome::Fine)
        .map_err(InvokeError::Memory)?;
    let mut answer = right.call(call, timeout)?;
    let garbled = InvokeError::Garbled("answer", of.name);
    let Ok(opened) = open(of, &mut answer) else {
        return Err(garbled);
    };
    if !opened.is_of {
        return Err(InvokeError::Interface(of.name));
    }
    if opened.version != of.version {
        return Err(InvokeError::Version {
            interface: of.name,
            ours: of.version,
            theirs: opened.version,
        });
    }
    if opened.outcome == Outcome::Refused as u8 {
        return Err(InvokeError::Refused(of.name));
    }
    if opened.outcome != Outcome::Fine as u8 {
        return Err(InvokeError::Garbled("arguments", of.name));
    }
    let mut incoming = incoming(&opened.bytes, &mut answer);
    let result = T::take(&mut incoming).and_then(|result| incoming.end().map(|()| result));
    let result = result.map_err(|Garbled| garbled)?;
    Ok((answer.sender, result))
}

/// Sends what nobody answers: for what [`interface!`](crate::interface) makes.
///
/// # Errors
/// [`InvokeError`].
pub fn tell(
    right: &SendRight,
    of: &Interface,
    message: Outgoing,
    timeout: Option<Duration>,
) -> Result<(), InvokeError> {
    let message = message.finish(of, Outcome::Fine);
    let sent = right.send(message.map_err(InvokeError::Memory)?, timeout);
    sent.map_err(|refused| CallError::Refused(refused.error).into())
}

/// Answers a call by `serve`, which gets the caller, the method, what came and whom to answer; it
/// says `None` for a method that there is not, and takes the reply right when it answers later. For
/// what [`interface!`](crate::interface) makes.
///
/// # Errors
/// The message, when it is a notice.
pub fn answer(
    of: &Interface,
    mut call: Received,
    serve: impl FnOnce(
        Sender,
        u32,
        &mut Incoming<'_>,
        &mut Option<Right>,
    ) -> Result<Option<Outgoing>, Garbled>,
) -> Result<(), Box<Received>> {
    if call.notice().is_some() {
        return Err(Box::new(call));
    }
    let (outcome, out) = match open(of, &mut call) {
        Err(Garbled) => (Outcome::Garbled, None),
        Ok(opened) if !opened.is_of || opened.version != of.version => (Outcome::Other, None),
        Ok(opened) => {
            let (sender, method) = (call.sender, call.id);
            let mut reply = call.reply.take();
            let mut incoming = incoming(&opened.bytes, &mut call);
            let served = serve(sender, method, &mut incoming, &mut reply);
            call.reply = reply;
            match served {
                Ok(Some(out)) => (Outcome::Fine, Some(out)),
                Ok(None) => (Outcome::NoMethod, None),
                Err(Garbled) => (Outcome::Garbled, None),
            }
        }
    };
    if call.reply.is_none() {
        // Told and not asked, or answered later.
        return Ok(());
    }
    let out = out.unwrap_or_else(|| Outgoing::new(call.id));
    // Without memory for it, or when it cannot be sent (it exceeds a limit, or would take a receive
    // right to its own port), the caller is told that there is no answer.
    if let Ok(answer) = out.finish(of, outcome) {
        let _ = call.answer(answer);
    }
    Ok(())
}

/// Declares an interface: a trait for its server and a struct for its clients, and a trait for
/// proxies.
///
/// Arguments and answers are owned values of what serde knows, rights, [`Memory`], [`Fd`],
/// [`Contents`] or [`Both`]. A method without an answer (`fn told(number: u64);`) is a message:
/// the client waits for room in the server's queue, and for nothing else. One with an answer after
/// `=>` is a call like others to the client; the server gets an [`Answer`] and gives it when it
/// can. A client that meets a server of another version gets [`InvokeError::Version`], which
/// says both. The server's methods get the caller first, as Linux says who it is; `dispatch`
/// answers one message, `serve` all until a notice comes.
///
/// With `proxy NAME` after the client there is a third trait, of what stands between clients and a
/// server: each of its methods sees the caller and the arguments before a call is passed on, may
/// change them, and says whether it is; by itself it is. The server answers the caller directly, and
/// sees the proxy as the one who calls. `forward` passes one message on, `forward_all` all until a
/// notice comes.
///
/// ```
/// use farpage_port::interface::InvokeError;
/// use farpage_port::{Node, ReceiveRight, SendRight, Sender, interface};
///
/// interface! {
///     /// Keeps numbers by name.
///     pub trait Numbers, client NumbersClient, proxy NumbersProxy, "example.numbers" version 1 {
///         /// Keeps a number; the one that was there before.
///         fn put(name: String, number: u64) -> Option<u64>;
///         /// A right to what tells of changes.
///         fn subscribe(to: SendRight) -> ();
///     }
/// }
///
/// #[derive(Default)]
/// struct Kept(std::collections::BTreeMap<String, u64>, Vec<SendRight>);
///
/// impl Numbers for Kept {
///     fn put(&mut self, _: Sender, name: String, number: u64) -> Option<u64> {
///         self.0.insert(name, number)
///     }
///     fn subscribe(&mut self, _: Sender, to: SendRight) {
///         self.1.push(to);
///     }
/// }
///
/// /// Lets nobody change anything.
/// struct ReadOnly;
///
/// impl NumbersProxy for ReadOnly {
///     fn put(&mut self, _: Sender, _: &mut String, _: &mut u64) -> bool {
///         false
///     }
/// }
///
/// let node = Node::new()?;
/// let port = node.port();
/// let numbers = NumbersClient::new(port.make_send());
/// // Elsewhere, in another process:
/// let serving = std::thread::spawn(move || {
///     for _ in 0..2 {
///         Kept::default().dispatch(port.receive(None).expect("a call")).expect("no notice");
///     }
/// });
/// assert_eq!(numbers.put("one".into(), 1)?, None);
/// let proxied = node.port();
/// let guarded = NumbersClient::new(proxied.make_send());
/// let behind = numbers.right().clone();
/// let passing = std::thread::spawn(move || {
///     for _ in 0..2 {
///         let call = proxied.receive(None).expect("a call");
///         ReadOnly.forward(call, &behind).expect("no notice");
///     }
/// });
/// assert!(matches!(guarded.put("one".into(), 2), Err(InvokeError::Refused(_))));
/// guarded.subscribe(node.port().make_send())?;
/// # passing.join().expect("no panic");
/// # serving.join().expect("no panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! interface {
    (@client [$(#[$told:meta])*] $vis:vis $method:ident($($argument:ident: $kind:ty),*)
        $answer:ty
    ) => {
        $(#[$told])*
        ///
        /// # Errors
        /// [`InvokeError`]($crate::interface::InvokeError).
        #[allow(dead_code)]
        $vis fn $method(
            &self $(, $argument: $kind)*
        ) -> ::core::result::Result<$answer, $crate::interface::InvokeError> {
            let method = const { Self::INTERFACE.number(stringify!($method)) };
            #[allow(unused_mut)]
            let mut out = $crate::interface::Outgoing::new(method);
            $(
                $crate::interface::Wire::put($argument, &mut out)
                    .map_err($crate::interface::InvokeError::Encode)?;
            )*
            $crate::interface::invoke(&self.right, &Self::INTERFACE, out, self.timeout)
        }
    };
    (@client [$(#[$told:meta])*] $vis:vis $method:ident($($argument:ident: $kind:ty),*)) => {
        $(#[$told])*
        ///
        /// # Errors
        /// [`InvokeError`]($crate::interface::InvokeError): it was not sent.
        #[allow(dead_code)]
        $vis fn $method(
            &self $(, $argument: $kind)*
        ) -> ::core::result::Result<(), $crate::interface::InvokeError> {
            let method = const { Self::INTERFACE.number(stringify!($method)) };
            #[allow(unused_mut)]
            let mut out = $crate::interface::Outgoing::new(method);
            $(
                $crate::interface::Wire::put($argument, &mut out)
                    .map_err($crate::interface::InvokeError::Encode)?;
            )*
            $crate::interface::tell(&self.right, &Self::INTERFACE, out, self.timeout)
        }
    };
    (@proxy [$(#[$about:meta])*] $vis:vis $proxy:ident of $client:ident {
        $(
            $(#[$told:meta])*
            fn $method:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $answer:ty)? $(=> $late:ty)?;
        )+
    }) => {
        $(#[$about])*
        ///
        /// Stands between clients and a server.
        $vis trait $proxy {
            $(
                $(#[$told])*
                ///
                /// True when the call is to be passed on.
                #[allow(unused_variables)]
                fn $method(
                    &mut self,
                    caller: $crate::Sender
                    $(, $argument: &mut $kind)*
                ) -> bool {
                    true
                }
            )+

            /// Passes a message on. When there is no room in the server's queue, waits for it: to
            /// the server all clients of a proxy are one, with one place in its queue.
            ///
            /// # Errors
            /// The message, when it is a notice.
            fn forward(
                &mut self,
                call: $crate::Received,
                to: &$crate::SendRight,
            ) -> ::core::result::Result<(), ::std::boxed::Box<$crate::Received>> {
                const OF: $crate::interface::Interface = $client::INTERFACE;
                #[allow(unused_variables)]
                $crate::interface::answer(&OF, call, |caller, method, incoming, reply| {
                    $(
                        if method == const { OF.number(stringify!($method)) } {
                            $(
                                let mut $argument =
                                    <$kind as $crate::interface::Wire>::take(incoming)?;
                            )*
                            incoming.end()?;
                            let mut on = None;
                            if self.$method(caller $(, &mut $argument)*) {
                                #[allow(unused_mut)]
                                let mut out = $crate::interface::Outgoing::new(method);
                                $(
                                    $crate::interface::Wire::put($argument, &mut out)
                                        .map_err(|_| $crate::interface::Garbled)?;
                                )*
                                on = Some(out);
                            }
                            $crate::interface::pass_on(&OF, to, reply.take(), on);
                            return Ok(Some($crate::interface::Outgoing::new(method)));
                        }
                    )+
                    Ok(None)
                })
            }

            /// Passes on what comes to a port until a notice does: that is returned.
            ///
            /// # Errors
            /// As [`receive`]($crate::ReceiveRight::receive).
            fn forward_all(
                &mut self,
                port: &$crate::ReceiveRight,
                to: &$crate::SendRight,
            ) -> ::core::result::Result<::std::boxed::Box<$crate::Received>, $crate::ReceiveError>
            {
                loop {
                    if let Err(notice) = self.forward(port.receive(None)?, to) {
                        return Ok(notice);
                    }
                }
            }
        }
    };
    (
        $(#[$about:meta])*
        $vis:vis trait $server:ident, client $client:ident, proxy $proxy:ident,
        $name:literal version $version:literal { $($methods:tt)+ }
    ) => {
        $crate::interface! {
            $(#[$about])*
            $vis trait $server, client $client, $name version $version { $($methods)+ }
        }
        $crate::interface! {
            @proxy [$(#[$about])*] $vis $proxy of $client { $($methods)+ }
        }
    };
    (
        $(#[$about:meta])*
        $vis:vis trait $server:ident, client $client:ident, $name:literal version $version:literal {
            $(
                $(#[$told:meta])*
                fn $method:ident($($argument:ident: $kind:ty),* $(,)?)
                    $(-> $answer:ty)? $(=> $late:ty)?;
            )+
        }
    ) => {
        $(#[$about])*
        $vis trait $server {
            $(
                $(#[$told])*
                fn $method(
                    &mut self,
                    caller: $crate::Sender
                    $(, $argument: $kind)*
                    $(, answer: $crate::interface::Answer<$late>)?
                ) $(-> $answer)?;
            )+

            /// Answers a message.
            ///
            /// # Errors
            /// The message, when it is a notice.
            fn dispatch(
                &mut self,
                call: $crate::Received,
            ) -> ::core::result::Result<(), ::std::boxed::Box<$crate::Received>> {
                const OF: $crate::interface::Interface = $client::INTERFACE;
                #[allow(unused_variables)]
                $crate::interface::answer(&OF, call, |caller, method, incoming, reply| {
                    $(
                        if method == const { OF.number(stringify!($method)) } {
                            $(
                                let $argument =
                                    <$kind as $crate::interface::Wire>::take(incoming)?;
                            )*
                            incoming.end()?;
                            #[allow(clippy::let_unit_value)]
                            let result = self.$method(
                                caller
                                $(, $argument)*
                                $(, $crate::interface::Answer::<$late>::new(&OF, method, reply))?
                            );
                            let mut out = $crate::interface::Outgoing::new(method);
                            let put = $crate::interface::Wire::put(result, &mut out);
                            put.map_err(|_| $crate::interface::Garbled)?;
                            return Ok(Some(out));
                        }
                    )+
                    Ok(None)
                })
            }

            /// Answers what comes to a port until a notice does: that is returned.
            ///
            /// # Errors
            /// As [`receive`]($crate::ReceiveRight::receive).
            fn serve(
                &mut self,
                port: &$crate::ReceiveRight,
            ) -> ::core::result::Result<::std::boxed::Box<$crate::Received>, $crate::ReceiveError>
            {
                loop {
                    if let Err(notice) = self.dispatch(port.receive(None)?) {
                        return Ok(notice);
                    }
                }
            }
        }

        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $client {
            right: $crate::SendRight,
            timeout: ::core::option::Option<::core::time::Duration>,
        }

        impl $client {
            /// What the interface is known by.
            $vis const INTERFACE: $crate::interface::Interface = $crate::interface::Interface {
                name: $name,
                version: $version,
                methods: &[$(stringify!($method)),+],
            };

            /// A client of the server behind a right. Calls wait as long as it lives.
            #[must_use]
            $vis fn new(right: $crate::SendRight) -> Self {
                let timeout = None;
                Self { right, timeout }
            }

            /// The same; calls wait for `timeout` at most.
            #[must_use]
            #[allow(dead_code)]
            $vis fn with_timeout(self, timeout: ::core::time::Duration) -> Self {
                let timeout = Some(timeout);
                Self { timeout, ..self }
            }

            /// The right to the server.
            #[must_use]
            #[allow(dead_code)]
            $vis fn right(&self) -> &$crate::SendRight {
                &self.right
            }

            $(
                $crate::interface! {
                    @client [$(#[$told])*] $vis $method($($argument: $kind),*) $($answer)? $($late)?
                }
            )+
        }
    };
}
