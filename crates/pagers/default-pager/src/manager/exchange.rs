//! Which pager is the default memory manager, and how another takes its place.
//!
//! While pages move there are two, or more when one that had no room is replaced. Each page is with
//! at most one of them: who reads asks those before first, who writes writes to the new one and
//! discards at the others. A page moves while nobody else calls.

use std::fmt;
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
};

use crate::manager::channel::PAGES;
use crate::manager::member::Member;
use crate::manager::outside::News;
use crate::manager::{Keeper, NotTaken, Outside};

/// Time until pages for which there was no room are tried again.
const AGAIN: Duration = Duration::from_millis(200);

struct Kept {
    current: Member,
    /// Those before, while they still have pages; the last one first.
    before: Vec<Member>,
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
                before: Vec::new(),
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
    /// wants to end they move back, to the one before it or, if that has none any more, to the kernel's
    /// own; when it dies they are lost.
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
            is_moving: !kept.before.is_empty(),
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
            kept.current = match kept.before.is_empty() {
                true => inside,
                false => kept.before.remove(0),
            };
        } else if kept.before.iter().any(|member| member.is(outside)) {
            kept.before.retain(|member| !member.is(outside));
        } else {
            drop(kept);
            self.wanted().next.take_if(|next| next.is(outside));
            return;
        }
        let took_some = outside.may_have_pages();
        if took_some {
            kept.lost.push(outside.pid());
        }
        self.tell(&kept);
        let now = match kept.current.outside() {
            None => "the host kernel keeps pages itself now".into(),
            Some(outside) => format!("process {} keeps pages now", outside.pid()),
        };
        drop(kept);
        // Who has its place may want to end, too.
        self.look_again(self.wanted());
        let what = match took_some {
            true => "pages that it had are lost, and programs that touch them get SIGBUS",
            false => "it had no pages",
        };
        farpage_sys::say!(
            "farpage: the default pager (process {}) died: {what}; {now}",
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
                match self.step(&mut cursor, &mut buffer) {
                    // Whoever waits goes first.
                    Step::Moved => std::thread::yield_now(),
                    Step::Done => break,
                    Step::NoRoom => {
                        let waited = self.asked.wait_timeout(self.wanted(), AGAIN);
                        drop(whole(waited));
                    }
                }
                if let Some(next) = self.next() {
                    self.begin(next);
                    cursor = 0;
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
            whole(waited).is_new = false;
            if let Some(next) = self.next() {
                return next;
            }
        }
    }

    /// Who is to be the default memory manager, if not the one that is: another was put there, or it wants
    /// to end, and the one before it, if that does not, or else the kernel's own takes its place.
    fn next(&self) -> Option<Member> {
        let next = self.wanted().next.take();
        next.or_else(|| {
            let kept = self.read();
            let stays = |member: &&Member| !member.ends();
            kept.current.ends().then(|| {
                let before = kept.before.iter().find(stays);
                let inside = || Member::Inside(Arc::clone(&self.inside));
                before.cloned().unwrap_or_else(inside)
            })
        })
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
        kept.before.retain(|member| !member.is_same(&next));
        let before = std::mem::replace(&mut kept.current, next);
        kept.before.insert(0, before);
        self.tell(&kept);
    }

    /// Moves some pages.
    fn step(&self, cursor: &mut u64, buffer: &mut [u8]) -> Step {
        let mut kept = self.write();
        let Some(before) = kept.before.first().cloned() else {
            return Step::Done;
        };
        let found = match before.keeper().some_kept(*cursor) {
            Ok(found) => found,
            // Its end is told by whoever watches it; others may be had meanwhile.
            Err(_) => {
                kept.before.rotate_left(1);
                *cursor = 0;
                return Step::NoRoom;
            }
        };
        let Some((object, pages, further)) = found else {
            if *cursor > 0 {
                *cursor = 0;
                return Step::Moved;
            }
            kept.before.remove(0);
            self.tell(&kept);
            let is_last = kept.before.is_empty();
            drop(kept);
            before.may_end();
            return if is_last { Step::Done } else { Step::Moved };
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
    fn has_lost(&self) -> bool {
        !self.lost.is_empty() || self.unreadable > 0
    }

    fn all(&self) -> impl Iterator<Item = &Member> {
        self.before.iter().chain([&self.current])
    }
}

impl Pager for Manager {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let supplied = self.alive(|kept| {
            for member in kept.all() {
                let supplied = member.keeper().data_request(request.anew());
                if supplied != Err(PagerError::Unavailable) {
                    return (member.clone(), supplied);
                }
            }
            (kept.current.clone(), Err(PagerError::Unavailable))
        });
        match supplied {
            // A page that nobody has, but somebody had.
            Err(PagerError::Unavailable) if self.read().has_lost() => Err(PagerError::Dead),
            supplied => supplied,
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
        if !kept.all().all(is_gone) {
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
            let members = [&kept.current].into_iter().chain(&kept.before);
            let mut taken = Err(PagerError::Unavailable);
            // When the new one is full, or fails, there are still those before.
            let by = members.clone().find(|member| {
                taken = member.keeper().data_write(object, pages);
                matches!(taken, Ok(()) | Err(PagerError::Dead))
            });
            let Some(by) = by else {
                return (kept.current.clone(), taken);
            };
            if taken.is_ok() {
                for out in pages {
                    let page = PageRange::one(out.page);
                    let others = members.clone().filter(|member| !member.is_same(by));
                    others.for_each(|member| member.keeper().discard(object, page));
                }
            }
            (by.clone(), taken)
        })
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let kept = self.read();
        kept.all()
            .for_each(|member| member.keeper().discard(object, pages));
    }

    fn terminate(&self, object: ObjectId) {
        let kept = self.read();
        kept.all()
            .for_each(|member| member.keeper().terminate(object));
    }
}

#[cfg(test)]
mod tests;
