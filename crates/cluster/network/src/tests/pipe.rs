//! A connection in memory: it takes little at a time, and may break behind any byte.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::line::{Broken, Left, Transport};

const ROOM_BYTES: usize = 6000;

/// One direction.
#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    is_broken: bool,
}

/// One end.
pub(super) struct End {
    out: Rc<RefCell<Way>>,
    into: Rc<RefCell<Way>>,
    /// Taken, not passed on: what TLS has encrypted.
    held: VecDeque<u8>,
}

/// What can break it.
#[derive(Clone)]
pub(super) struct Wire([Rc<RefCell<Way>>; 2]);

pub(super) fn connection() -> ([End; 2], Wire) {
    let [a, b] = [(); 2].map(|()| Rc::<RefCell<Way>>::default());
    let end = |out: &Rc<_>, into: &Rc<_>| End {
        out: Rc::clone(out),
        into: Rc::clone(into),
        held: VecDeque::new(),
    };
    ([end(&a, &b), end(&b, &a)], Wire([a, b]))
}

impl Wire {
    /// Breaks it. Of what is under way this much still comes, in each direction.
    pub(super) fn cut(&self, mut keep: impl FnMut(usize) -> usize) {
        for way in &self.0 {
            let mut way = way.borrow_mut();
            let length = way.bytes.len();
            way.bytes.truncate(keep(length + 1));
            way.is_broken = true;
        }
    }
}

impl End {
    fn pass_on(&mut self) -> Result<(), Broken> {
        let mut out = self.out.borrow_mut();
        if out.is_broken {
            return Err(Broken::Ended);
        }
        let room = ROOM_BYTES - out.bytes.len();
        let count = room.min(self.held.len());
        out.bytes.extend(self.held.drain(..count));
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.out.borrow_mut().is_broken = true;
        self.into.borrow_mut().is_broken = true;
    }
}

impl Transport for End {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        self.pass_on()?;
        if self.is_full() {
            return Ok(0);
        }
        let count = bytes.len().min(4000);
        self.held.extend(&bytes[..count]);
        self.pass_on()?;
        Ok(count)
    }

    fn read(&mut self, bytes: &mut Vec<u8>, limit: Option<usize>) -> Result<Left, Broken> {
        let mut into = self.into.borrow_mut();
        let count = limit.unwrap_or(usize::MAX).min(into.bytes.len());
        bytes.extend(into.bytes.drain(..count));
        match (into.bytes.is_empty(), into.is_broken) {
            (true, true) => Err(Broken::Ended),
            (true, false) => Ok(Left::Nothing),
            (false, _) => Ok(Left::Perhaps),
        }
    }

    fn is_full(&self) -> bool {
        !self.held.is_empty()
    }
}
