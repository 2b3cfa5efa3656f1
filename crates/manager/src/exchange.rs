//! Which pager is the default memory manager, and how another takes its place.
//!
//! While pages move there are two, and each page is with at most one of them: who reads asks the one
//! before first, who writes writes to the new one and discards at the one before. A page moves while
//! nobody else calls.

use std::fmt;
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

use farpage_abi::{ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};

use crate::channel::PAGES;
use crate::outside::News;
use crate::{Keeper, NotTaken, Outside};

/// Time until pages for which there was no room are tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Who keeps pages.
#[derive(Clone)]
enum Member {
    /// The one of the kernel itself.
    Inside(Arc<dyn Keeper>),
    Outside(Arc<Outside>),
}

impl Member {
    fn keeper(&self) -> &dyn Keeper {
        match self {
            Self::Inside(keeper) => keeper.as_ref(),
            Self::Outside(outside) => outside.as_ref(),
        }
    }

    fn outside(&self) -> Option<&Arc<Outside>> {
        match self {
            Self::Inside(_) => None,
            Self::Outside(outside) => Some(outside),
        }
    }

    fn is(&self, other: &Arc<Outside>) -> bool {
        self.outside().is_some_and(|own| Arc::ptr_eq(own, other))
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inside(own), Self::Inside(other)) => Arc::ptr_eq(own, other),
            (own, Self::Outside(other)) => own.is(other),
            (Self::Outside(_), Self::Inside(_)) => false,
        }
    }

    /// It asked for its end, or is dead: it is not to have pages.
    fn ends(&self) -> bool {
        self.outside().is_some_and(|outside| outside.ends())
    }

    /// Nothing of it is needed any more.
    fn may_end(&self) {
        if let Self::Outside(outside) = self {
            outside.may_end();
        }
    }
}

struct Kept {
    current: Member,
    /// The one before, while it still has pages.
    before: Option<Member>,
    /// Processes that died with pages.
    lost: Vec<u32>,
    /// Pages that could not be read when they were to move.
    unreadable: u64,
}

/// What there is to know of the default memory manager.
#[derive(Clone, Default)]
pub struct State {
    /// The process of the default pager. `None`: the kernel itself.
    pub outside: Option<Arc<Outside>>,
    /// Pages still move to it.
    pub is_moving: bool,
    /// Processes that died with pages, which are lost.
    pub lost: Vec<u32>,
    /// Pages that could not be read when they were to move.
    pub unreadable: u64,
}

/// What comes of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Moved,
    /// There is no room in the new one.
    NoRoom,
    /// All pages are with the new one.
    Done,
}

/// What the thread that moves pages is to look at.
#[derive(Default)]
struct Wanted {
    /// Who is to be next.
    next: Option<Member>,
    /// Something has changed since that thread looked.
    is_new: bool,
}

/// The default memory manager: the one of the kernel itself, or one that was put in its place.
pub struct Manager {
    inside: Arc<dyn Keeper>,
    /// Held during calls, for as long as a pager takes to answer.
    kept: RwLock<Kept>,
    /// What `kept` says, for who must not wait for a pager.
    state: Mutex<State>,
    /// Who holds it waits for nothing else: those that see a pager die need it.
    wanted: Mutex<Wanted>,
    asked: Condvar,
}

fn whole<T>(locked: Result<T, PoisonError<T>>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// Begins with `inside`, the kernel's own.
    ///
    /// # Errors
    /// Without a thread.
    pub fn start(inside: Arc<dyn Keeper>) -> std::io::Result<Arc<Self>> {
        let manager = Arc::new(Self::new(inside));
        let moves = Arc::clone(&manager);
        let named = std::thread::Builder::new().name("default-manager".into());
        named.spawn(move || moves.exchange())?;
        Ok(manager)
    }

    fn new(inside: Arc<dyn Keeper>) -> Self {
        Self {
            kept: RwLock::new(Kept {
                current: Member::Inside(Arc::clone(&inside)),
                before: None,
                lost: Vec::new(),
                unreadable: 0,
            }),
            inside,
            state: Mutex::default(),
            wanted: Mutex::default(),
            asked: Condvar::new(),
        }
    }

    /// `outside` is the default memory manager from now on (`vm_set_default_memory_manager`): it gets
    /// what pages out, and in the background what the one before has, which may end then. When it
    /// wants to end its pages move back to the kernel's own; when it dies they are lost.
    ///
    /// # Errors
    /// Without a thread that watches it.
    pub fn set_default_memory_manager(
        self: &Arc<Self>,
        outside: Arc<Outside>,
    ) -> Result<(), NotTaken> {
        let (manager, watched) = (Arc::clone(self), Arc::clone(&outside));
        outside.watch(move |news| match news {
            News::WantsToEnd => manager.ends(&watched),
            News::Died => manager.died(&watched),
        })?;
        self.set_next(Member::Outside(outside));
        Ok(())
    }

    /// Who is it, and how is it. Waits for no pager.
    pub fn state(&self) -> State {
        whole(self.state.lock()).clone()
    }

    /// Has [`Manager::state`] say what there is now.
    fn tell(&self, kept: &Kept) {
        *whole(self.state.lock()) = State {
            outside: kept.current.outside().cloned(),
            is_moving: kept.before.is_some(),
            lost: kept.lost.clone(),
            unreadable: kept.unreadable,
        };
    }

    fn read(&self) -> RwLockReadGuard<'_, Kept> {
        whole(self.kept.read())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Kept> {
        whole(self.kept.write())
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        whole(self.wanted.lock())
    }

    /// Has the thread that moves pages look again.
    fn look_again(&self, mut wanted: MutexGuard<'_, Wanted>) {
        wanted.is_new = true;
        self.asked.notify_all();
    }

    fn set_next(&self, member: Member) {
        let mut wanted = self.wanted();
        let displaced = wanted.next.replace(member);
        self.look_again(wanted);
        if let Some(displaced) = displaced {
            displaced.may_end();
        }
    }

    /// One that wants to end. Who has pages of it, or is to have some, is the business of the thread
    /// that moves them: this one must see it die, and waits for nobody.
    fn ends(&self, outside: &Arc<Outside>) {
        let mut wanted = self.wanted();
        let displaced = wanted.next.take_if(|next| next.is(outside));
        self.look_again(wanted);
        if let Some(displaced) = displaced {
            displaced.may_end();
        }
    }

    /// Its process is gone: what it had is lost, unless it had nothing any more.
    fn died(&self, outside: &Arc<Outside>) {
        let mut kept = self.write();
        if kept.current.is(outside) {
            let inside = Member::Inside(Arc::clone(&self.inside));
            kept.current = kept.before.take().unwrap_or(inside);
        } else if kept.before.as_ref().is_some_and(|m| m.is(outside)) {
            kept.before = None;
        } else {
            drop(kept);
            self.wanted().next.take_if(|next| next.is(outside));
            return;
        }
        kept.lost.push(outside.pid());
        self.tell(&kept);
        let now = match kept.current.outside() {
            None => "the host kernel keeps pages itself now".into(),
            Some(outside) => format!("process {} keeps pages now", outside.pid()),
        };
        drop(kept);
        // Who has its place may want to end, too.
        self.look_again(self.wanted());
        eprintln!(
            "farpage: the default pager (process {}) died: pages that it had are lost, and programs \
             that touch them get SIGBUS; {now}",
            outside.pid()
        );
    }

    /// Moves pages whenever another is to be the default memory manager, for ever.
    fn exchange(&self) {
        let mut buffer = vec![0; PAGES * PAGE_BYTES];
        loop {
            self.begin(self.wait_for_next());
            let mut cursor = 0;
            loop {
                let is_refused = match self.step(&mut cursor, &mut buffer) {
                    // Whoever waits goes first.
                    Step::Moved => {
                        std::thread::yield_now();
                        false
                    }
                    Step::Done => break,
                    Step::NoRoom => {
                        let waited = self.asked.wait_timeout(self.wanted(), AGAIN);
                        whole(waited).0.next.is_some()
                    }
                };
                if is_refused || self.is_given_up() {
                    self.turn_back();
                }
            }
        }
    }

    /// Waits until another is to be the default memory manager.
    fn wait_for_next(&self) -> Member {
        loop {
            let waited = self
                .asked
                .wait_while(self.wanted(), |wanted| !wanted.is_new);
            let mut wanted = whole(waited);
            wanted.is_new = false;
            let next = wanted.next.take();
            drop(wanted);
            match next {
                Some(next) => return next,
                None if self.read().current.ends() => {
                    return Member::Inside(Arc::clone(&self.inside));
                }
                None => {}
            }
        }
    }

    /// Pages move to one that wants to end, from one that does not.
    fn is_given_up(&self) -> bool {
        let kept = self.read();
        let has_other = kept.before.as_ref().is_some_and(|before| !before.ends());
        has_other && kept.current.ends()
    }

    /// Another is the default memory manager, unless it is that already, or is not to be it any more.
    fn begin(&self, next: Member) {
        let mut kept = self.write();
        if next.ends() {
            return next.may_end();
        }
        if kept.current.is_same(&next) {
            return;
        }
        let before = std::mem::replace(&mut kept.current, next);
        kept.before = Some(before);
        self.tell(&kept);
    }

    /// Pages go back to where they come from.
    fn turn_back(&self) {
        let kept = &mut *self.write();
        if let Some(before) = &mut kept.before {
            std::mem::swap(&mut kept.current, before);
        }
        self.tell(kept);
    }

    /// Moves some pages.
    fn step(&self, cursor: &mut u64, buffer: &mut [u8]) -> Step {
        let mut kept = self.write();
        let Some(before) = kept.before.clone() else {
            return Step::Done;
        };
        let found = match before.keeper().some_kept(*cursor) {
            Ok(found) => found,
            // Its end is told by whoever watches it.
            Err(_) => return Step::NoRoom,
        };
        let Some((object, pages, further)) = found else {
            if *cursor > 0 {
                *cursor = 0;
                return Step::Moved;
            }
            kept.before = None;
            self.tell(&kept);
            drop(kept);
            before.may_end();
            return Step::Done;
        };
        *cursor = further;
        let wanted = pages.pages().min(PAGES as u64);
        let pages = PageRange::new(pages.start.0, pages.start.0 + wanted);
        let into = &mut buffer[..pages.bytes() as usize];
        match before.keeper().copy(object, pages, into) {
            Ok(copied) => {
                let pages = PageRange::new(pages.start.0, pages.start.0 + copied);
                let (contents, _) = buffer.as_chunks::<PAGE_BYTES>();
                let pairs = pages.iter().zip(contents);
                let out: Vec<PageOut<'_>> =
                    pairs.map(|(page, bytes)| PageOut { page, bytes }).collect();
                let taken = kept.current.keeper().data_write(object, &out);
                // What was taken before it was refused must not stay.
                let there = if taken.is_ok() {
                    &before
                } else {
                    &kept.current
                };
                there.keeper().discard(object, pages);
                match taken {
                    Ok(()) => Step::Moved,
                    Err(_) => Step::NoRoom,
                }
            }
            Err(PagerError::Dead) => Step::NoRoom,
            Err(_) => {
                let first = PageIndex(pages.start.0);
                before.keeper().discard(object, PageRange::one(first));
                kept.unreadable += 1;
                self.tell(&kept);
                Step::Moved
            }
        }
    }

    /// Calls until the one that answers is alive.
    fn alive<T>(
        &self,
        mut call: impl FnMut(&Kept) -> (Member, Result<T, PagerError>),
    ) -> Result<T, PagerError> {
        loop {
            let (member, done) = call(&self.read());
            match (done, member) {
                (Err(PagerError::Dead), Member::Outside(dead)) => self.died(&dead),
                (done, _) => return done,
            }
        }
    }
}

impl Kept {
    /// A page that nobody has, but somebody had.
    fn lost(&self, error: PagerError) -> PagerError {
        let are_lost = !self.lost.is_empty() || self.unreadable > 0;
        match error {
            PagerError::Unavailable if are_lost => PagerError::Dead,
            other => other,
        }
    }

    fn both(&self) -> impl Iterator<Item = &Member> {
        self.before.iter().chain([&self.current])
    }
}

impl Pager for Manager {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (object, pages) = (request.object(), request.pages());
        let (needed, access) = (request.needed(), request.access());
        let buffer = request.buffer();
        loop {
            let kept = self.read();
            let mut answer = Err(PagerError::Unavailable);
            let mut asked = None;
            for member in kept.both() {
                let request = DataRequest::new(object, pages, needed, access, buffer);
                answer = member.keeper().data_request(request);
                asked = Some(member.clone());
                if answer != Err(PagerError::Unavailable) {
                    break;
                }
            }
            match (answer, asked) {
                (Err(PagerError::Dead), Some(Member::Outside(dead))) => {
                    drop(kept);
                    self.died(&dead);
                }
                (Err(error), _) => return Err(kept.lost(error)),
                (supplied, _) => return supplied,
            }
        }
    }

    fn explain(&self, object: ObjectId, page: PageIndex, into: &mut dyn fmt::Write) -> bool {
        let kept = self.read();
        // Who has it still, and cannot give it, is not explained by those that are gone.
        let is_gone = |member: &Member| {
            let copied = member
                .keeper()
                .copy(object, PageRange::one(page), &mut [0; PAGE_BYTES]);
            matches!(copied, Err(PagerError::Unavailable | PagerError::Dead))
        };
        if !kept.both().all(is_gone) {
            return false;
        }
        let said = match (kept.lost.last(), kept.unreadable) {
            (Some(pid), _) => write!(
                into,
                "the default pager (process {pid}) died with it; what it had is lost"
            ),
            (None, 1..) => write!(
                into,
                "it could not be read when the default pager was replaced"
            ),
            (None, 0) => return false,
        };
        said.is_ok()
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.alive(|kept| {
            let taken = kept.current.keeper().data_write(object, pages);
            let discard = |member: &Member| {
                for out in pages {
                    let page = PageRange::one(out.page);
                    member.keeper().discard(object, page);
                }
            };
            let Some(before) = &kept.before else {
                return (kept.current.clone(), taken);
            };
            match taken {
                Ok(()) => {
                    discard(before);
                    (kept.current.clone(), Ok(()))
                }
                Err(PagerError::Dead) => (kept.current.clone(), Err(PagerError::Dead)),
                Err(_) => {
                    // The new one is full, or fails: there is still the one before.
                    let taken = before.keeper().data_write(object, pages);
                    if taken.is_ok() {
                        discard(&kept.current);
                    }
                    (before.clone(), taken)
                }
            }
        })
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let kept = self.read();
        kept.both()
            .for_each(|member| member.keeper().discard(object, pages));
    }

    fn terminate(&self, object: ObjectId) {
        let kept = self.read();
        kept.both()
            .for_each(|member| member.keeper().terminate(object));
    }
}

#[cfg(test)]
mod tests;
