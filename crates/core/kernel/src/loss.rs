//! Lost pages: say what, why and what to do, then end it.

use core::fmt::Write;

use farpage_object::{Death, PAGE_BYTES, PageIndex, PagerError};
use farpage_sys::{Errno, file, process};

use crate::kernel::{Kernel, OnLoss};
use crate::regions::{Source, address_of};

/// A message on the stack: longer ones are cut.
pub(crate) struct Message {
    bytes: [u8; 1024],
    length: usize,
}

impl Message {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; 1024],
            length: 0,
        }
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

fn advice(error: PagerError) -> (Death, &'static str) {
    match error {
        PagerError::OutOfSpace => (
            Death::OutOfSpace,
            "free disk space, raise --spill-limit, or add a directory with `farpage spill add DIR`",
        ),
        PagerError::Corrupt => (
            Death::Corrupt,
            "the disk under the paging file returns wrong bytes: use another with --spill DIR",
        ),
        PagerError::Read(_)
        | PagerError::Unavailable
        | PagerError::Dead
        | PagerError::Violation => (
            Death::ReadError,
            "check the disk under the paging file, or use another with --spill DIR",
        ),
        PagerError::Write(_) => (
            Death::WriteError,
            "check the disk under the paging file, or use another with --spill DIR",
        ),
    }
}

impl Kernel {
    /// Tells the user something.
    pub(crate) fn say(&self, text: core::fmt::Arguments<'_>) {
        let mut message = Message::new();
        let _ = writeln!(message, "farpage: {text}");
        file::write_message(self.messages, &message.bytes[..message.length]);
    }

    /// Ends the process: its memory cannot be had any more.
    pub(crate) fn kill(&self, what: core::fmt::Arguments<'_>, error: PagerError) -> ! {
        let (death, remedy) = advice(error);
        let pid = process::id();
        self.say(format_args!(
            "{what}: {error}; process {pid} is killed; {remedy}"
        ));
        self.die(death)
    }

    /// Ends the process: Linux refuses what cannot be done without.
    pub(crate) fn end_for(&self, what: core::fmt::Arguments<'_>, errno: Errno) -> ! {
        let (pid, remedy) = (
            process::id(),
            match errno {
                Errno::ENOMEM => "raise vm.max_map_count, or give the machine more memory",
                _ => "this is a bug in farpage",
            },
        );
        self.say(format_args!(
            "{what}: {errno}; process {pid} is killed; {remedy}"
        ));
        self.die(Death::Told)
    }

    fn die(&self, death: Death) -> ! {
        let cause = &self.account.task().death;
        cause.store(death as u32, core::sync::atomic::Ordering::Release);
        process::die()
    }

    /// The contents of `page` are lost.
    pub(crate) fn lose(&self, page: PageIndex, error: PagerError) {
        let address = address_of(page.0);
        match self.on_loss {
            OnLoss::Kill => self.kill(
                format_args!("cannot page in the memory at {address:#x}"),
                error,
            ),
            OnLoss::Poison => {
                self.say_why_lost(page, error);
                // SAFETY: the page is registered and has no contents any more.
                unsafe { self.uffd_at(address).poison(address, PAGE_BYTES) };
                self.wake(address, PAGE_BYTES);
            }
        }
    }

    /// In the pager's words, if it has any.
    fn say_why_lost(&self, page: PageIndex, error: PagerError) {
        let address = address_of(page.0);
        let region = self.state.lock().region_of_page(page.0).cloned();
        let mut why = Message::new();
        if let Some(Source {
            object,
            pager,
            origin,
            ..
        }) = region.map(|region| region.source)
        {
            let asked = PageIndex(page.0 - origin);
            if pager.explain(object, asked, &mut why) {
                let offset = asked.0 * PAGE_BYTES as u64;
                let why = core::str::from_utf8(&why.bytes[..why.length]).unwrap_or_default();
                self.say(format_args!(
                    "the page at byte {offset} cannot be had: {why}"
                ));
                return;
            }
        }
        self.say(format_args!(
            "cannot page in the memory at {address:#x}: {error}"
        ));
    }
}
