//! All that is locked of shared memory, and for whom.

use std::collections::{BTreeMap, HashMap};

use farpage_client::locks::{
    LentListed, LockAbout, LockRefusal, LockWanted, LocksListed, ProcessLocks, UserLocks,
};
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_pinning::system::{self, Hold, Pins};
use farpage_pinning::{Area, AreaError, Handle};
use farpage_port::Name;

use super::caller::Caller;
use super::policy::FramesTold;
use super::segment::{Account, Found, Identity, Memory, Segment};
use crate::service::limits::Locking;
use crate::service::names;

/// Frames that are told at a time.
pub(super) const FRAMES_MAX: u64 = 4096;

pub(super) struct Book {
    segments: BTreeMap<Identity, Segment>,
    leases: BTreeMap<u64, Lease>,
    /// Who has a lock, by the port that stands for it.
    users: HashMap<Name, User>,
    lent: BTreeMap<String, u64>,
    pins: Pins,
    limits: Locking,
    frames: FramesTold,
    last: u64,
}

/// A lock, as long as somebody has it.
struct Lease {
    segment: Identity,
    pages: PageRange,
    hold: Hold,
    /// Who is charged.
    uid: u32,
    /// In the accounts of what is held, and of the user.
    handles: [Handle; 2],
    users: u64,
    name: Option<String>,
}

struct User {
    lease: u64,
    uid: u32,
    pid: u32,
    handle: Handle,
}

impl Book {
    pub(super) fn new(limit_bytes: u64, frames: FramesTold) -> Self {
        Self {
            segments: BTreeMap::new(),
            leases: BTreeMap::new(),
            users: HashMap::new(),
            lent: BTreeMap::new(),
            pins: Pins::default(),
            limits: Locking::new(limit_bytes),
            frames,
            last: 0,
        }
    }

    /// Locks pages of shared memory for who has the port.
    pub(super) fn lock(
        &mut self,
        memory: &Memory,
        wanted: LockWanted,
        caller: Caller,
        port: Name,
    ) -> Result<LockAbout, LockRefusal> {
        let hold = wanted.hold();
        let found = memory.find(&caller, hold)?;
        let pages = pages_of(&found, wanted)?;
        self.limits.add(caller.uid)?;
        let locked = self.open(&found).and_then(|()| {
            self.forget_gone(found.identity, pages);
            self.lock_pages(memory, &found, pages, hold, caller)
        });
        let lease = match locked {
            Ok(lease) => lease,
            Err(why) => {
                self.limits.remove(caller.uid);
                self.close_unused(found.identity);
                // It may have become smaller meanwhile.
                let again = memory.find(&caller, hold);
                let again = again.and_then(|found| pages_of(&found, wanted));
                return Err(again.err().unwrap_or(why));
            }
        };
        self.enter(lease, caller, port);
        Ok(self.about(lease))
    }

    /// Another process has a lent lock, too.
    pub(super) fn borrow(
        &mut self,
        name: &str,
        caller: Caller,
        port: Name,
    ) -> Result<LockAbout, LockRefusal> {
        let none = || LockRefusal::NotLent(shown(name));
        let lease = *self.lent.get(name).ok_or_else(none)?;
        if !caller.is(self.leases[&lease].uid) {
            return Err(none());
        }
        self.limits.add(caller.uid)?;
        self.enter(lease, caller, port);
        Ok(self.about(lease))
    }

    /// Others may borrow it from now on, by the one name that it has.
    pub(super) fn lend(&mut self, port: Name, name: String) -> Result<(), LockRefusal> {
        let number = self.lease_of(port)?;
        names::check(&name).map_err(|_| LockRefusal::Name(shown(&name)))?;
        if self.lent.contains_key(&name) {
            return Err(LockRefusal::Lent(name));
        }
        let lease = self.leases.get_mut(&number).expect("it has users");
        if let Some(known) = &lease.name {
            return Err(LockRefusal::LentAs(known.clone()));
        }
        lease.name = Some(name.clone());
        self.lent.insert(name, number);
        Ok(())
    }

    /// Who had the port has the lock no more: given up, or dead.
    pub(super) fn release(&mut self, port: Name) {
        // One that was refused has none.
        let Some(user) = self.users.remove(&port) else {
            return;
        };
        self.limits.remove(user.uid);
        let lease = self.leases.get_mut(&user.lease).expect("it has users");
        lease.users -= 1;
        let identity = lease.segment;
        let segment = self.segments.get_mut(&identity).expect("it has locks");
        // What has gone asks for nothing.
        let _ = segment.areas.unlock(user.handle);
        if lease.users > 0 {
            return;
        }
        let lease = self.leases.remove(&user.lease).expect("looked at above");
        if let Some(name) = lease.name {
            self.lent.remove(&name);
        }
        let [held, charged] = lease.handles;
        if let Ok((_, free)) = segment.areas.unlock(charged) {
            self.limits.give_back(lease.uid, bytes_of(&free));
        }
        if let Ok((_, free)) = segment.areas.unlock(held) {
            for pages in free {
                segment.release(pages, lease.hold, &mut self.pins);
            }
        }
        self.close_unused(identity);
    }

    /// Whether it still is what was locked.
    pub(super) fn check(&mut self, port: Name) -> Result<(), LockRefusal> {
        let number = self.lease_of(port)?;
        let (identity, pages) = (self.leases[&number].segment, self.leases[&number].pages);
        self.forget_gone(identity, pages);
        let (lease, segment) = (&self.leases[&number], &self.segments[&identity]);
        let gone = |why| {
            let page = match why {
                AreaError::Gone { page, .. } => page,
                AreaError::Empty | AreaError::Unknown(_) => pages.start.0,
            };
            LockRefusal::Gone {
                segment: segment.name.clone(),
                offset: page * PAGE_BYTES as u64,
            }
        };
        segment.areas.get(lease.handles[0]).map(drop).map_err(gone)
    }

    /// Frames of pages of a lock, from its `first` on.
    pub(super) fn frames(
        &mut self,
        port: Name,
        first: u64,
        count: u64,
        caller: Caller,
    ) -> Result<Vec<u64>, LockRefusal> {
        if !self.frames.allows(&caller) {
            return Err(LockRefusal::FramesDenied {
                pid: caller.pid,
                user: caller.uid,
                told: self.frames.to_string(),
            });
        }
        self.check(port)?;
        let lease = &self.leases[&self.lease_of(port)?];
        let segment = &self.segments[&lease.segment];
        let start = lease.pages.start.0.saturating_add(first);
        let end = start.saturating_add(count.min(FRAMES_MAX));
        let pages = lease.pages.intersect(PageRange::new(start, end));
        let mut frames = Vec::new();
        for here in segment.here(pages, lease.hold) {
            let at = |page: u64| page as usize * PAGE_BYTES;
            frames.extend(system::frames(at(here.start.0)..at(here.end.0))?);
        }
        Ok(frames)
    }

    /// All locks that the caller may see.
    pub(super) fn list(&mut self, caller: Caller) -> LocksListed {
        let all = PageRange::new(0, u64::MAX >> 12);
        let segments: Vec<Identity> = self.segments.keys().copied().collect();
        segments
            .into_iter()
            .for_each(|one| self.forget_gone(one, all));
        let mut processes: BTreeMap<(Identity, u32), ProcessLocks> = BTreeMap::new();
        for user in self.users.values().filter(|user| caller.is(user.uid)) {
            let lease = &self.leases[&user.lease];
            let segment = &self.segments[&lease.segment];
            let bytes = |hold| segment.bytes_of(Account::Process(user.pid, hold));
            let entry = processes.entry((lease.segment, user.pid));
            let listed = entry.or_insert_with(|| ProcessLocks {
                segment: segment.name.clone(),
                segment_bytes: segment.bytes,
                pid: user.pid,
                uid: user.uid,
                resident_bytes: bytes(Hold::Resident),
                pinned_bytes: bytes(Hold::Pinned),
                areas: 0,
                gone: 0,
            });
            listed.areas += 1;
            listed.gone += u64::from(segment.areas.get(user.handle).is_err());
        }
        let lent = self.lent.iter().filter_map(|(name, number)| {
            let lease = &self.leases[number];
            caller.is(lease.uid).then(|| self.list_lent(name, *number))
        });
        let lent = lent.collect();
        let mut uids: Vec<u32> = self.leases.values().map(|lease| lease.uid).collect();
        uids.sort_unstable();
        uids.dedup();
        let users = uids.into_iter().filter(|uid| caller.is(*uid));
        let users = users.map(|uid| UserLocks {
            uid,
            bytes: self.limits.bytes_of(uid),
        });
        LocksListed {
            processes: processes.into_values().collect(),
            lent,
            users: users.collect(),
            user_limit_bytes: self.limits.most_bytes,
        }
    }

    fn list_lent(&self, name: &str, number: u64) -> LentListed {
        let lease = &self.leases[&number];
        let users = self.users.values().filter(|user| user.lease == number);
        let mut users: Vec<u32> = users.map(|user| user.pid).collect();
        users.sort_unstable();
        users.dedup();
        LentListed {
            name: name.to_owned(),
            segment: self.segments[&lease.segment].name.clone(),
            offset: lease.pages.start.0 * PAGE_BYTES as u64,
            bytes: lease.pages.bytes(),
            is_pinned: lease.hold == Hold::Pinned,
            users,
        }
    }

    fn lock_pages(
        &mut self,
        memory: &Memory,
        found: &Found,
        pages: PageRange,
        hold: Hold,
        caller: Caller,
    ) -> Result<u64, LockRefusal> {
        let segment = self.segments.get_mut(&found.identity).expect("opened");
        let uid = caller.uid;
        let area = |kind| Area { pages, kind };
        let no_pages = |_| LockRefusal::Empty;
        let charge = segment.areas.lock(area(Account::User(uid)));
        let (charged, more) = charge.map_err(no_pages)?;
        if let Err(why) = self.limits.take(uid, bytes_of(&more)) {
            // It was locked above, and has not gone since.
            let _ = segment.areas.unlock(charged);
            return Err(why);
        }
        let held = segment.areas.lock(area(Account::Held(hold)));
        let (held, new) = held.map_err(no_pages)?;
        for (done, range) in new.iter().enumerate() {
            if let Err(why) = segment.hold(*range, hold, memory, &mut self.pins) {
                for range in &new[..done] {
                    segment.release(*range, hold, &mut self.pins);
                }
                // As above.
                let _ = segment.areas.unlock(held);
                let _ = segment.areas.unlock(charged);
                self.limits.give_back(uid, bytes_of(&more));
                return Err(why);
            }
        }
        self.last += 1;
        let lease = Lease {
            segment: found.identity,
            pages,
            hold,
            uid,
            handles: [held, charged],
            users: 0,
            name: None,
        };
        self.leases.insert(self.last, lease);
        Ok(self.last)
    }

    /// A process has a lock from now on.
    fn enter(&mut self, number: u64, caller: Caller, port: Name) {
        let lease = self.leases.get_mut(&number).expect("it is there");
        let segment = self.segments.get_mut(&lease.segment).expect("it has locks");
        let kind = Account::Process(caller.pid, lease.hold);
        let pages = lease.pages;
        let entered = segment.areas.lock(Area { pages, kind });
        let (handle, _) = entered.expect("a lock has pages");
        lease.users += 1;
        let user = User {
            lease: number,
            uid: caller.uid,
            pid: caller.pid,
            handle,
        };
        self.users.insert(port, user);
    }

    fn about(&self, number: u64) -> LockAbout {
        let lease = &self.leases[&number];
        LockAbout {
            first: lease.pages.start.0,
            pages: lease.pages.pages(),
            pinned: lease.hold == Hold::Pinned,
        }
    }

    fn lease_of(&self, port: Name) -> Result<u64, LockRefusal> {
        let user = self.users.get(&port).map(|user| user.lease);
        user.ok_or_else(|| LockRefusal::Failed("this lock was given up".into()))
    }

    fn open(&mut self, found: &Found) -> Result<(), LockRefusal> {
        if let Some(known) = self.segments.get_mut(&found.identity) {
            known.bytes = found.bytes;
            return Ok(());
        }
        if let Identity::SystemV(_) = found.identity {
            self.limits.attach(found.bytes)?;
        }
        self.segments.insert(found.identity, Segment::new(found));
        Ok(())
    }

    fn close_unused(&mut self, identity: Identity) {
        let is_used = |one: &Segment| one.areas.all().next().is_some();
        if self.segments.get(&identity).is_none_or(is_used) {
            return;
        }
        let segment = self.segments.remove(&identity).expect("looked at above");
        if let Identity::SystemV(_) = identity {
            self.limits.detach(segment.bytes);
        }
        segment.close(&mut self.pins);
    }

    /// Locks of which pages are not there any more have gone, each whole: what is there now can be locked.
    fn forget_gone(&mut self, identity: Identity, pages: PageRange) {
        let segment = self.segments.get_mut(&identity).expect("it is there");
        let gone = segment.gone(pages);
        if gone.is_empty() {
            return;
        }
        let uids: Vec<u32> = self.leases.values().map(|lease| lease.uid).collect();
        let charged = |segment: &Segment| -> HashMap<u32, u64> {
            let of = |uid: &u32| (*uid, segment.bytes_of(Account::User(*uid)));
            uids.iter().map(of).collect()
        };
        let before = charged(segment);
        for range in gone {
            let (_, rest) = segment.areas.gone(range);
            for (account, pages) in rest {
                if let Account::Held(hold) = account {
                    segment.release(pages, hold, &mut self.pins);
                }
            }
            for hold in [Hold::Resident, Hold::Pinned] {
                segment.release(range, hold, &mut self.pins);
            }
        }
        let after = charged(segment);
        for (uid, bytes) in before {
            self.limits.give_back(uid, bytes - after[&uid]);
        }
    }
}

/// What of a name can be shown.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(60).collect()
}

fn bytes_of(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.bytes()).sum()
}

fn pages_of(found: &Found, wanted: LockWanted) -> Result<PageRange, LockRefusal> {
    let LockWanted { offset, bytes, .. } = wanted;
    if bytes == 0 {
        return Err(LockRefusal::Empty);
    }
    let end = offset.checked_add(bytes).filter(|end| *end <= found.bytes);
    let end = end.ok_or_else(|| LockRefusal::Beyond {
        segment: found.name.clone(),
        offset,
        bytes,
        size: found.bytes,
    })?;
    let page = PAGE_BYTES as u64;
    Ok(PageRange::new(offset / page, end.div_ceil(page)))
}
