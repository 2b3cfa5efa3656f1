//! Mach's ports between processes of one host that need not trust each other.
//!
//! A [`Node`] is what most programs want: ports with one receiver and many senders, rights that
//! travel in messages, calls, notifications, descriptors and memory of any size.
//! [`interface!`] declares what a server answers to, by types. Under both lies [`link`], which carries frames between two processes and knows nothing of rights.

pub mod interface;
pub mod link;
pub mod node;

pub use farpage_rights::{Name, PortStatus};
pub use node::{
    CallError, ConnectError, Donated, Lent, Listening, Memory, Message, Node, Notice, PortSet,
    ReceiveError, ReceiveRight, Received, Refused, Right, Room, SendError, SendOnceRight,
    SendRight, Sender, Ticket,
};
