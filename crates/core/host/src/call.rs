//! Reading and writing objects by calls: for who cannot map them, or does not want to wait at a fault.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use farpage_object::{PAGE_BYTES, PageIndex};
use farpage_sys::file::{self, Fd};
use farpage_sys::lock;

use crate::Object;
use crate::counters::now_ns;
use crate::waiter::{Waiter, Who};

/// Why a call did nothing, or only the first part of what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use '{name}' at byte {offset}: {why}")]
pub struct CallError {
    /// Of which object.
    pub name: String,
    /// Of which byte on.
    pub offset: u64,
    /// Why.
    pub why: String,
}

/// What is done with one page as soon as it may be. It is told what became of it once.
pub(crate) struct Call {
    does: Does,
    done: Mutex<Option<Told>>,
}

type Done = Result<Box<[u8]>, String>;

/// Who is told.
enum Told {
    /// Somebody waits.
    Waits(SyncSender<Done>),
    /// Somebody has other things to do.
    Later(OnPut),
}

/// Is told what became of bytes that were to be put somewhere, perhaps with locks held: it must not use
/// the object, and not wait.
pub type OnPut = Box<dyn FnOnce(Result<(), String>) + Send>;

enum Does {
    /// Reads these bytes of the page.
    Read(Range<usize>),
    /// Writes bytes there.
    Write(usize, Box<[u8]>),
    /// The same in several places.
    Put(Vec<(usize, Box<[u8]>)>),
}

impl Call {
    fn new(does: Does) -> (Arc<Self>, Receiver<Done>) {
        let (done, told) = sync_channel(1);
        let done = Mutex::new(Some(Told::Waits(done)));
        (Arc::new(Self { does, done }), told)
    }

    /// The page is there, as long as the object's lock is held.
    pub(crate) fn acts(&self, memory: Fd, page: u64) {
        let start = page * PAGE_BYTES as u64;
        let done = match &self.does {
            Does::Read(part) => {
                let mut bytes = vec![0; part.len()].into_boxed_slice();
                match file::pread(memory, &mut bytes, start + part.start as u64) {
                    Ok(got) if got == part.len() => Ok(bytes),
                    Ok(_) => Err("its memory file is too short".to_owned()),
                    Err(errno) => Err(format!("Linux does not read it ({errno})")),
                }
            }
            Does::Write(at, bytes) => put(memory, start, *at, bytes),
            Does::Put(all) => {
                let mut all = all.iter();
                let each = all.try_for_each(|(at, bytes)| put(memory, start, *at, bytes).map(drop));
                each.map(|()| Box::default())
            }
        };
        self.ends(done);
    }

    pub(crate) fn fails(&self, why: &str) {
        self.ends(Err(why.to_owned()));
    }

    fn ends(&self, done: Done) {
        match lock(&self.done).take() {
            Some(Told::Waits(told)) => {
                // Who called waits.
                let _ = told.send(done);
            }
            Some(Told::Later(tell)) => tell(done.map(drop)),
            None => {}
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.fails("the object is gone");
    }
}

fn put(memory: Fd, start: u64, at: usize, bytes: &[u8]) -> Done {
    file::pwrite_all(memory, bytes, start + at as u64)
        .map(|()| Box::default())
        .map_err(|errno| format!("Linux does not write it ({errno})"))
}

impl Object {
    /// Reads bytes from `offset` on as one who has the object mapped would, page by page, and waits
    /// for what is not there.
    ///
    /// # Errors
    /// [`CallError`]: beyond the end, or for whatever reason a thread would get SIGBUS there.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CallError> {
        let mut done = 0;
        while done < into.len() {
            let (page, part) = part_at(offset + done as u64, into.len() - done);
            let bytes = part.len();
            let read = self.calls(page, false, Does::Read(part));
            let read = read.map_err(|why| self.failed_at(offset + done as u64, why))?;
            into[done..done + bytes].copy_from_slice(&read);
            done += bytes;
        }
        Ok(())
    }

    /// The same, to write: what was written before an error stays.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CallError> {
        let mut done = 0;
        while done < bytes.len() {
            let (page, part) = part_at(offset + done as u64, bytes.len() - done);
            let next = done + part.len();
            let does = Does::Write(part.start, bytes[done..next].into());
            let written = self.calls(page, true, does);
            written.map_err(|why| self.failed_at(offset + done as u64, why))?;
            done = next;
        }
        Ok(())
    }

    /// Puts bytes in places of a page as one who has the object mapped would write them, beside what others
    /// write there meanwhile: now, or when the page is there. `on_put` is told once.
    pub fn put_later(&self, page: PageIndex, all: Vec<(usize, Box<[u8]>)>, on_put: OnPut) {
        let call = Arc::new(Call {
            does: Does::Put(all),
            done: Mutex::new(Some(Told::Later(on_put))),
        });
        self.want(Waiter {
            page: page.0,
            write: true,
            since_ns: now_ns(),
            who: Who::Call(call),
        });
    }

    fn calls(&self, page: u64, write: bool, does: Does) -> Done {
        let (call, told) = Call::new(does);
        self.host().slow_down(self);
        self.host().makes_room();
        self.want(Waiter {
            page,
            write,
            since_ns: now_ns(),
            who: Who::Call(call),
        });
        let gone = |_| Err("the object is gone".to_owned());
        told.recv().unwrap_or_else(gone)
    }

    fn failed_at(&self, offset: u64, why: String) -> CallError {
        let name = self.name().to_owned();
        CallError { name, offset, why }
    }
}

/// The page of a byte, and which bytes of it are among `bytes` from there on.
fn part_at(offset: u64, bytes: usize) -> (u64, Range<usize>) {
    let page = offset / PAGE_BYTES as u64;
    let start = (offset % PAGE_BYTES as u64) as usize;
    (page, start..PAGE_BYTES.min(start + bytes))
}
