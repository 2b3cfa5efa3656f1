//! What clients may use of the host kernel, so that one that takes too much is refused, and the
//! others are served.

use std::collections::HashMap;

use farpage_client::Refusal;
use farpage_client::locks::LockRefusal;
use rustix::process::{Resource, getrlimit};

/// What an object or a mapping takes of the host kernel's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    descriptors: u64,
    /// Of its address space.
    bytes: u64,
}

impl Cost {
    /// Of a mapping: the userfaultfd of the process that maps it.
    pub(crate) const MAPPING: Self = Self {
        descriptors: 1,
        bytes: 0,
    };

    /// Of an object: its memory file, the userfaultfd of the mapping here, and that mapping.
    pub(crate) fn of_object(bytes: u64) -> Self {
        Self {
            descriptors: 2,
            bytes,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.saturating_add(other.descriptors),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn exceeds(self, most: Self) -> bool {
        self.descriptors > most.descriptors || self.bytes > most.bytes
    }
}

/// What is used, by process and together.
pub(crate) struct Limits {
    /// All together; one process may have half of it.
    most: Cost,
    used: Cost,
    by_process: HashMap<u32, Cost>,
}

impl Limits {
    /// A quarter of the descriptors is for Links, messages and paging space; half of the address
    /// space is for everything else. Linux lets a process have 65530 mappings.
    pub(crate) fn of_this_process() -> Self {
        const DESCRIPTORS_MAX: u64 = 80_000;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(Cost {
            descriptors: (descriptors / 4 * 3).min(DESCRIPTORS_MAX),
            bytes: 1 << 46,
        })
    }

    fn new(most: Cost) -> Self {
        Self {
            most,
            used: Cost::default(),
            by_process: HashMap::new(),
        }
    }

    /// Gives a process more.
    pub(crate) fn take(&mut self, process: u32, cost: Cost) -> Result<(), Refusal> {
        let half = Cost {
            descriptors: self.most.descriptors / 2,
            bytes: self.most.bytes / 2,
        };
        let of = self.by_process.get(&process).copied().unwrap_or_default();
        for (used, most, whose) in [
            (of.and(cost), half, "this process"),
            (self.used.and(cost), self.most, "all processes together"),
        ] {
            if used.exceeds(most) {
                return Err(Refusal::Limit {
                    whose: whose.into(),
                    descriptors: most.descriptors,
                    bytes: most.bytes,
                });
            }
        }
        self.used = self.used.and(cost);
        self.by_process.insert(process, of.and(cost));
        Ok(())
    }

    /// A process has less.
    pub(crate) fn give_back(&mut self, process: u32, cost: Cost) {
        let less = |used: &mut Cost| {
            used.descriptors -= cost.descriptors;
            used.bytes -= cost.bytes;
        };
        less(&mut self.used);
        if let Some(of) = self.by_process.get_mut(&process) {
            less(of);
            if *of == Cost::default() {
                self.by_process.remove(&process);
            }
        }
    }
}

/// Locks of all users together, of which one may have half: each may split mappings and take a place of the ring.
const LOCKS_MAX: u64 = 16_384;
/// Bytes of segments of System V that are mapped whole at most.
const ATTACHED_MAX: u64 = 1 << 44;

/// What users have locked.
pub(crate) struct Locking {
    /// Bytes of each user at most.
    pub(crate) most_bytes: u64,
    by_user: HashMap<u32, u64>,
    locks: HashMap<u32, u64>,
    attached_bytes: u64,
}

impl Locking {
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self {
            most_bytes,
            by_user: HashMap::new(),
            locks: HashMap::new(),
            attached_bytes: 0,
        }
    }

    /// A user has so many bytes more locked.
    pub(crate) fn take(&mut self, user: u32, bytes: u64) -> Result<(), LockRefusal> {
        let used = self.bytes_of(user);
        if used + bytes > self.most_bytes && bytes > 0 {
            return Err(LockRefusal::Limit {
                user,
                asked: bytes >> 10,
                limit: self.most_bytes >> 10,
                used: used >> 10,
            });
        }
        self.by_user.insert(user, used + bytes);
        Ok(())
    }

    pub(crate) fn give_back(&mut self, user: u32, bytes: u64) {
        if let Some(used) = self.by_user.get_mut(&user) {
            *used -= bytes;
        }
        self.by_user.retain(|_, used| *used > 0);
    }

    pub(crate) fn bytes_of(&self, user: u32) -> u64 {
        self.by_user.get(&user).copied().unwrap_or(0)
    }

    /// A user has one lock more; half of all are one's.
    pub(crate) fn add(&mut self, user: u32) -> Result<(), LockRefusal> {
        let own = self.locks.get(&user).copied().unwrap_or(0);
        let all: u64 = self.locks.values().sum();
        for (used, most, whose) in [
            (own, LOCKS_MAX / 2, format!("user {user}")),
            (all, LOCKS_MAX, "all users together".into()),
        ] {
            if used >= most {
                let what = "locks".into();
                return Err(LockRefusal::Many { whose, what, most });
            }
        }
        self.locks.insert(user, own + 1);
        Ok(())
    }

    pub(crate) fn remove(&mut self, user: u32) {
        if let Some(locks) = self.locks.get_mut(&user) {
            *locks -= 1;
        }
        self.locks.retain(|_, locks| *locks > 0);
    }

    /// A segment of System V is mapped.
    pub(crate) fn attach(&mut self, bytes: u64) -> Result<(), LockRefusal> {
        let sum = self.attached_bytes.saturating_add(bytes);
        if sum > ATTACHED_MAX {
            return Err(LockRefusal::Many {
                whose: "all users together".into(),
                what: "bytes in System V segments of which something is locked".into(),
                most: ATTACHED_MAX,
            });
        }
        self.attached_bytes = sum;
        Ok(())
    }

    pub(crate) fn detach(&mut self, bytes: u64) {
        self.attached_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_half_and_what_it_gives_back_others_have() {
        let mut limits = Limits::new(Cost {
            descriptors: 8,
            bytes: 1 << 20,
        });
        let object = Cost::of_object(4096);
        assert!(limits.take(1, object).is_ok() && limits.take(1, object).is_ok());
        assert!(matches!(
            limits.take(1, Cost::MAPPING),
            Err(Refusal::Limit { descriptors: 4, .. })
        ));
        assert!(limits.take(2, object).is_ok() && limits.take(3, object).is_ok());
        assert!(matches!(
            limits.take(4, Cost::MAPPING),
            Err(Refusal::Limit { descriptors: 8, .. })
        ));
        limits.give_back(3, object);
        assert!(limits.take(4, Cost::MAPPING).is_ok());
        for (process, cost) in [(1, object), (1, object), (2, object), (4, Cost::MAPPING)] {
            limits.give_back(process, cost);
        }
        assert_eq!((limits.used, limits.by_process.len()), (Cost::default(), 0));
    }

    #[test]
    fn address_space_is_limited_and_sums_do_not_wrap() {
        let mut limits = Limits::of_this_process();
        assert!(limits.take(1, Cost::of_object(1 << 45)).is_ok());
        for bytes in [1, u64::MAX] {
            assert!(limits.take(1, Cost::of_object(bytes)).is_err());
        }
        assert!(limits.take(2, Cost::of_object(1 << 45)).is_ok());
        assert!(limits.take(3, Cost::of_object(1)).is_err());
    }

    #[test]
    fn what_users_have_locked_is_limited_each_for_itself() {
        let mut locking = Locking::new(8192);
        assert!(locking.take(1, 8192).is_ok() && locking.take(2, 4096).is_ok());
        assert!(locking.take(1, 0).is_ok());
        let refused = locking.take(1, 4096).unwrap_err().to_string();
        let wanted = "cannot lock 4 KiB more: processes of user 1 may have 8 KiB locked at the host kernel, of \
                      which 8 are in use; unlock some, or start it with more (farpage up --lock-limit)";
        assert_eq!(refused, wanted);
        locking.give_back(1, 4096);
        assert!(locking.take(1, 4096).is_ok());
        for _ in 0..LOCKS_MAX / 2 {
            locking.add(1).unwrap();
        }
        assert!(matches!(locking.add(1), Err(LockRefusal::Many { .. })));
        assert!(locking.add(2).is_ok());
        locking.remove(1);
        assert!(locking.add(1).is_ok());
        assert!(locking.attach(ATTACHED_MAX).is_ok() && locking.attach(1).is_err());
        locking.detach(1);
        assert!(locking.attach(1).is_ok());
    }
}
