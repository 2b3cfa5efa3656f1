//! Tasks as ports: who holds a send right to one works on its address space.

use std::time::Duration;

use farpage_port::interface::{EncodeError, Garbled, Incoming, InvokeError, Outgoing, Wire};
use farpage_port::link::{Draft, Sealed};
use farpage_port::{
    Donated, Memory, Message, Node, ReceiveRight, Received, SendRight, Sender, interface,
};
use farpage_sys::Errno;

use crate::{AddressSpace, InheritError, Inheritance, Protection, Region, Statistics, VmError};

type Vm<T> = std::result::Result<T, VmError>;

/// Memory, or why not.
pub(crate) struct Taken(Vm<Memory>);

impl Wire for Taken {
    fn put(self, out: &mut Outgoing) -> Result<(), EncodeError> {
        match self.0 {
            Ok(memory) => {
                Ok::<(), VmError>(()).put(out)?;
                memory.put(out)
            }
            Err(error) => Err::<(), _>(error).put(out),
        }
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        Ok(Self(match Vm::<()>::take(from)? {
            Ok(()) => Ok(Memory::take(from)?),
            Err(error) => Err(error),
        }))
    }
}

interface! {
    /// A task.
    pub(crate) trait Served, client TaskClient, "farpage.task" version 1 {
        /// `vm_allocate`.
        fn allocate(address: u64, bytes: u64, anywhere: bool) -> Vm<u64>;
        /// `vm_copy`.
        fn copy(source: u64, bytes: u64, destination: u64) -> Vm<()>;
        /// `vm_deallocate`.
        fn deallocate(address: u64, bytes: u64) -> Vm<()>;
        /// `vm_inherit`.
        fn inherit(address: u64, bytes: u64, inheritance: Inheritance) -> Vm<()>;
        /// `vm_protect`.
        fn protect(address: u64, bytes: u64, set_max: bool, protection: Protection) -> Vm<()>;
        /// `vm_read`.
        fn read(address: u64, bytes: u64) -> Taken;
        /// `vm_regions`.
        fn regions(address: u64, bytes: u64) -> Vm<Vec<Region>>;
        /// `vm_statistics`.
        fn statistics() -> Vm<Statistics>;
        /// `vm_write`.
        fn write(address: u64, data: Memory) -> Vm<()>;
    }
}

struct Server(&'static AddressSpace);

impl Served for Server {
    fn allocate(&mut self, _: Sender, address: u64, bytes: u64, anywhere: bool) -> Vm<u64> {
        self.0.vm_allocate(address, bytes, anywhere)
    }

    fn copy(&mut self, _: Sender, source: u64, bytes: u64, destination: u64) -> Vm<()> {
        self.0.vm_copy(source, bytes, destination)
    }

    fn deallocate(&mut self, _: Sender, address: u64, bytes: u64) -> Vm<()> {
        self.0.vm_deallocate(address, bytes)
    }

    fn inherit(&mut self, _: Sender, address: u64, bytes: u64, inheritance: Inheritance) -> Vm<()> {
        self.0.vm_inherit(address, bytes, inheritance)
    }

    fn protect(
        &mut self,
        _: Sender,
        address: u64,
        bytes: u64,
        set_max: bool,
        protection: Protection,
    ) -> Vm<()> {
        self.0.vm_protect(address, bytes, set_max, protection)
    }

    fn read(&mut self, _: Sender, address: u64, bytes: u64) -> Taken {
        Taken(self.0.vm_read(address, bytes).map(Memory::from))
    }

    fn regions(&mut self, _: Sender, address: u64, bytes: u64) -> Vm<Vec<Region>> {
        self.0.vm_regions(address, bytes)
    }

    fn statistics(&mut self, _: Sender) -> Vm<Statistics> {
        self.0.vm_statistics()
    }

    fn write(&mut self, _: Sender, address: u64, data: Memory) -> Vm<()> {
        self.0.vm_write_memory(address, &data)
    }
}

/// Tells the serving thread to end, when it comes from this task.
const END: u32 = u32::MAX;

/// The port of this task, served by a thread of its own until this is dropped. A child of fork has
/// its parent's value, but not its port: it makes one of its own.
#[derive(Debug)]
pub struct TaskPort {
    right: Option<SendRight>,
    process: u32,
}

/// Why a task has no port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// See there.
    #[error(transparent)]
    Inherit(#[from] InheritError),
    /// There is no thread to serve it.
    #[error("cannot start a thread that serves the task's port: {0}")]
    Thread(std::io::Error),
}

impl TaskPort {
    /// Makes a port of `node`, and lets all who get a send right to it work on this task's memory:
    /// read all of it, and change what came from [`AddressSpace::vm_allocate`].
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(node: &Node) -> Result<Self, OfferError> {
        let space = AddressSpace::own()?;
        let port = node.port();
        let right = Some(port.make_send());
        std::thread::Builder::new()
            .name("farpage-task".into())
            .spawn(move || serve(space, &port))
            .map_err(OfferError::Thread)?;
        let process = std::process::id();
        Ok(Self { right, process })
    }

    /// A right to the port, to be given to who is to work on this task.
    ///
    /// # Panics
    /// In a child of fork.
    #[must_use]
    pub fn right(&self) -> SendRight {
        assert_eq!(self.process, std::process::id(), "the port of the parent's");
        self.right.clone().expect("there until it is dropped")
    }
}

impl Drop for TaskPort {
    fn drop(&mut self) {
        let Some(right) = self.right.take() else {
            return;
        };
        if self.process != std::process::id() {
            // The Node is the parent's, and so are its locks.
            std::mem::forget(right);
            return;
        }
        // Without room in the queue it goes when the last message was answered.
        let _ = right.send(Message::new(END), Some(Duration::from_secs(1)));
    }
}

fn serve(space: &'static AddressSpace, port: &ReceiveRight) {
    let mut server = Server(space);
    while let Ok(call) = port.receive(None) {
        if is_end(&call) {
            return;
        }
        // Notices are about nothing that this thread has asked for.
        let _ = server.dispatch(call);
    }
}

fn is_end(call: &Received) -> bool {
    call.id == END && call.sender == Sender::Own
}

/// Why something was not done to a task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The task says no.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// It does not answer: it may be dead.
    #[error("the task does not answer: {0}")]
    Call(#[from] InvokeError),
    /// There is no memory for what is to be written.
    #[error("there is no memory for what is to be written: {0}")]
    Memory(Errno),
    /// It answers with memory that makes no sense.
    #[error("the task answers with other memory than it was asked for")]
    Answer,
}

/// Another task, or this one, by its port. The operations are those of [`AddressSpace`], and what
/// is refused there is refused here.
#[derive(Clone, Debug)]
pub struct Task(TaskClient);

impl Task {
    /// The task whose port `right` is to. Calls wait as long as it lives.
    #[must_use]
    pub fn new(right: SendRight) -> Self {
        Self(TaskClient::new(right))
    }

    /// The same; calls wait for `timeout` at most. One that was not answered in time may be done
    /// nevertheless.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self(self.0.with_timeout(timeout))
    }

    /// The right, to be sent on.
    #[must_use]
    pub fn right(&self) -> &SendRight {
        self.0.right()
    }

    /// [`AddressSpace::vm_allocate`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_allocate(&self, address: u64, bytes: u64, anywhere: bool) -> Result<u64, TaskError> {
        Ok(self.0.allocate(address, bytes, anywhere)??)
    }

    /// [`AddressSpace::vm_copy`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_copy(&self, source: u64, bytes: u64, destination: u64) -> Result<(), TaskError> {
        Ok(self.0.copy(source, bytes, destination)??)
    }

    /// [`AddressSpace::vm_deallocate`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_deallocate(&self, address: u64, bytes: u64) -> Result<(), TaskError> {
        Ok(self.0.deallocate(address, bytes)??)
    }

    /// [`AddressSpace::vm_inherit`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_inherit(
        &self,
        address: u64,
        bytes: u64,
        inheritance: Inheritance,
    ) -> Result<(), TaskError> {
        Ok(self.0.inherit(address, bytes, inheritance)??)
    }

    /// [`AddressSpace::vm_protect`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_protect(
        &self,
        address: u64,
        bytes: u64,
        set_max: bool,
        protection: Protection,
    ) -> Result<(), TaskError> {
        Ok(self.0.protect(address, bytes, set_max, protection)??)
    }

    /// [`AddressSpace::vm_read`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_read(&self, address: u64, bytes: u64) -> Result<Donated, TaskError> {
        match self.0.read(address, bytes)?.0? {
            Memory::Donated(donated) if donated.bytes() == bytes => Ok(donated),
            Memory::Donated(_) | Memory::Lent(_) => Err(TaskError::Answer),
        }
    }

    /// [`AddressSpace::vm_regions`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_regions(&self, address: u64, bytes: u64) -> Result<Vec<Region>, TaskError> {
        Ok(self.0.regions(address, bytes)??)
    }

    /// [`AddressSpace::vm_statistics`].
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_statistics(&self) -> Result<Statistics, TaskError> {
        Ok(self.0.statistics()??)
    }

    /// [`AddressSpace::vm_write`]: `data` goes as memory, and the task maps it from 64 KiB on.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_write(&self, address: u64, data: &[u8]) -> Result<(), TaskError> {
        if data.is_empty() {
            return Ok(());
        }
        let sealed = Draft::create(c"farpage-write", data.len()).and_then(|mut draft| {
            draft.copy_from_slice(data);
            Sealed::new(draft)
        });
        let donated = Donated::from(sealed.map_err(TaskError::Memory)?);
        self.vm_write_memory(address, donated.into())
    }

    /// [`AddressSpace::vm_write_memory`]: nothing is copied on the way.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn vm_write_memory(&self, address: u64, data: Memory) -> Result<(), TaskError> {
        Ok(self.0.write(address, data)??)
    }
}
