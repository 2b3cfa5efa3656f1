//! What the host kernel offers its processes of the cluster.

use farpage_client::Refusal;
use farpage_client::cluster::{
    ClusterListed, Consistency, HostListed, PagesWanted, Passes, Scheduler, SharedFigures,
    SharedListed, Wanted,
};
use farpage_membership::{Consistency as How, ControlError, Durability, Scheduler as Recorded};
use farpage_object::{Access, PageRange};
use farpage_server::{HaveError, NotLocked, OpenError, Wish};
use farpage_text::size::human;

use super::joined::Joined;
use super::told;
use crate::service::cluster::{
    Files, GiveUp, Had, OnFigures, OnFlushed, OnLocked, OnPages, OnReleased,
};

/// Calls may take as long as the cluster's store does.
impl Joined {
    /// The object of a name, which is made for a user when there is none and it is said how. This
    /// host has it from then on, until [`Joined::release`] was called as often as this.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotYours`], [`Refusal::Differs`], [`Refusal::Cluster`].
    pub(crate) fn have(
        &self,
        name: &str,
        uid: u32,
        wanted: Option<Wanted>,
        files: Option<Files>,
    ) -> Result<Had, Refusal> {
        let wish = wanted.map(|wanted| Wish {
            bytes: wanted.bytes,
            unit_bytes: wanted.unit_bytes,
            scheduler: match wanted.scheduler {
                Scheduler::Simple => Recorded::Simple,
                Scheduler::Distributed => Recorded::Distributed,
            },
            replicas: wanted.replicas,
            hold_us: wanted.hold_us,
            stale_us: wanted.stale_us,
            consistency: match wanted.consistency {
                Consistency::Strict => How::Strict,
                Consistency::Release => How::Release,
            },
            stays: wanted.stays,
            note: wanted.note,
        });
        let files = files.map(|Files { file, journal }| farpage_server::Files {
            file: file.into(),
            journal: journal.into(),
        });
        let had = self.asked()?.have(name, uid, wish.as_ref(), files);
        let (number, described, object) = had.map_err(|error| refusal(name, error))?;
        Ok(Had {
            number,
            bytes: described.bytes,
            uid: described.uid,
            note: described.note,
            is_sealed: described.is_sealed,
            consistency: consistency(described.consistency),
            object,
        })
    }

    /// This host no longer has an object.
    pub(crate) fn release(&self, number: u64) {
        // With a stay that is over, all is released.
        let Ok(cluster) = self.stay() else {
            return;
        };
        if let Err(error) = cluster.release(number) {
            farpage_sys::say!(
                "farpage: an object of the cluster is kept until this host leaves: {error}"
            );
        }
    }

    /// Takes an object's name away.
    ///
    /// # Errors
    /// As [`Joined::have`].
    pub(crate) fn remove(&self, name: &str, uid: u32) -> Result<(), Refusal> {
        let removed = self.asked()?.remove(name, uid);
        removed.map_err(|error| refusal(name, error))
    }

    /// Seals an object: no host writes to it again. All hosts know it when this returns.
    ///
    /// # Errors
    /// As [`Joined::have`].
    pub(crate) fn seal(&self, name: &str, uid: u32) -> Result<(), Refusal> {
        let sealed = self.asked()?.seal(name, uid);
        sealed.map_err(|error| refusal(name, error))
    }

    /// All that any host wrote to an object is in its file before `answer` is called.
    pub(crate) fn flush(&self, name: &str, uid: u32, answer: OnFlushed) {
        match self.asked() {
            Ok(cluster) => {
                let name = name.to_owned();
                let of = name.clone();
                let told = move |flushed: Result<u64, HaveError>| {
                    answer(flushed.map_err(|error| refusal(&of, error)));
                };
                cluster.flush(&name, uid, Box::new(told));
            }
            Err(refusal) => answer(Err(refusal)),
        }
    }

    /// This host releases or acquires an object, and `answer` is told when it has.
    pub(crate) fn passes(&self, number: u64, what: Passes, answer: OnReleased) {
        let cluster = match self.asked() {
            Ok(cluster) => cluster,
            Err(refusal) => return answer(Err(refusal)),
        };
        let ended = |ended: Result<(), farpage_server::Unreleased>| {
            answer(ended.map_err(|why| Refusal::Cluster(why.to_string())));
        };
        match what {
            Passes::Released => cluster.releases(number, Box::new(ended)),
            Passes::Acquired => cluster.acquires(number, Box::new(ended)),
        }
    }

    /// Keeps pages of an object at this host from when `answer` is told until
    /// [`Joined::unlocks`]. Meanwhile other hosts wait to write, and with [`Access::Write`] to
    /// read, too. The value that is returned gives up the lock as long as `answer` was not told,
    /// and does nothing later.
    pub(crate) fn locks(
        &self,
        number: u64,
        pages: PageRange,
        access: Access,
        answer: OnLocked,
    ) -> GiveUp {
        let cluster = match self.asked() {
            Ok(cluster) => cluster,
            Err(refusal) => {
                answer(Err(refusal));
                return Box::new(|| {});
            }
        };
        let ended = |ended: Result<(), NotLocked>| {
            answer(match ended {
                Ok(()) => Ok(true),
                Err(NotLocked::GivenUp(_)) => Ok(false),
                Err(
                    why @ (NotLocked::Kind(_) | NotLocked::Exchanged(_) | NotLocked::Sealed(_)),
                ) => Err(Refusal::Unfit(why.to_string())),
                Err(why) => Err(Refusal::Cluster(why.to_string())),
            });
        };
        cluster.locks(number, pages, access, Box::new(ended))
    }

    /// Whether all these pages are still locked: a host that is cut off or leaves has no locks.
    pub(crate) fn has_locked(&self, number: u64, pages: PageRange, access: Access) -> bool {
        self.stay()
            .is_ok_and(|cluster| cluster.has_locked(number, pages, access))
    }

    /// Gives back a lock of [`Joined::locks`].
    pub(crate) fn unlocks(&self, number: u64, pages: PageRange, access: Access) {
        // With a stay that is over, all is given back.
        if let Ok(cluster) = self.stay() {
            cluster.unlocks(number, pages, access);
        }
    }

    /// Wakes threads of these hosts (one bit each) that wait at a byte of an object, and does not
    /// wait until they are awake.
    pub(crate) fn wake(&self, number: u64, offset: u64, hosts: u64) {
        if let Ok(cluster) = self.stay() {
            cluster.wake_at(number, offset, hosts);
        }
    }

    /// Whether a process of another host lives, which `answer` is told when it is known.
    pub(crate) fn asks_whether(
        &self,
        host: u8,
        process: u64,
        answer: Box<dyn FnOnce(bool) + Send>,
    ) {
        match self.stay() {
            Ok(cluster) => cluster.asks_whether(host, process, answer),
            // Nobody knows.
            Err(_) => answer(true),
        }
    }

    /// Pages of an object, which `answer` is told when all hosts have told.
    pub(crate) fn pages(&self, name: &str, uid: u32, wanted: PagesWanted, answer: OnPages) {
        let cluster = match self.asked() {
            Ok(cluster) => cluster,
            Err(refusal) => return answer(Err(refusal)),
        };
        let state = cluster.state();
        let mut named = state.objects.iter();
        let found = named.find(|(_, (of, _))| of.as_deref() == Some(name));
        let (number, described) = match found {
            None => return answer(Err(Refusal::NotShared(name.into()))),
            Some((_, (_, described))) if uid != 0 && uid != described.uid => {
                return answer(Err(Refusal::NotYours(name.into())));
            }
            Some((number, (_, described))) => (*number, described.clone()),
        };
        let name = name.to_owned();
        match wanted {
            PagesWanted::Hottest(most) => {
                let answer = move |of| answer(Ok(told::pages(&name, &described, &state, of, None)));
                cluster.asks_hottest(number, most, Box::new(answer));
            }
            PagesWanted::Watched(pages) => {
                let order = pages.clone();
                let answer = move |of| {
                    let order = Some(order.as_slice());
                    answer(Ok(told::pages(&name, &described, &state, of, order)));
                };
                cluster.watches(number, pages, Box::new(answer));
            }
        }
    }

    /// What all hosts do, as a user sees it.
    pub(crate) fn figures(&self, uid: u32, answer: OnFigures) {
        let cluster = match self.asked() {
            Ok(cluster) => cluster,
            Err(refusal) => return answer(Err(refusal)),
        };
        let (state, own) = (cluster.state(), cluster.own().0);
        let answer = move |of| answer(Ok(told::figures(&state, own, uid, of)));
        cluster.asks_figures(Box::new(answer));
    }

    /// What there is, as a user sees it.
    pub(crate) fn list(&self, uid: u32) -> ClusterListed {
        let cluster = match self.stay() {
            Ok(cluster) => cluster,
            Err(trouble) => {
                return ClusterListed {
                    store: self.store().into(),
                    trouble,
                    goes_on: false,
                    generation: 0,
                    hosts: Vec::new(),
                    objects: Vec::new(),
                };
            }
        };
        let state = cluster.state();
        let own = cluster.own();
        let hosts = state.members.values().map(|member| HostListed {
            number: member.host.0,
            name: member.name.clone(),
            address: member.address.to_string(),
            is_own: member.host == own,
            is_up: member.is_up,
            cause: member.cause.clone(),
        });
        let objects = state.objects.into_iter();
        let objects = objects.filter(|(_, (_, described))| uid == 0 || uid == described.uid);
        ClusterListed {
            store: self.store().into(),
            trouble: match (state.fenced, state.store_lost) {
                (Some(why), _) => format!("this host is out of the cluster: {why}"),
                (None, Some(why)) => format!("the cluster's store does not answer: {why}"),
                (None, None) => String::new(),
            },
            goes_on: cluster.counts_on_promises(),
            generation: state.generation,
            hosts: hosts.collect(),
            objects: objects
                .map(|(number, one)| listed(&cluster, number, one))
                .collect(),
        }
    }
}

fn consistency(how: How) -> Consistency {
    match how {
        How::Strict => Consistency::Strict,
        How::Release => Consistency::Release,
    }
}

fn listed(
    cluster: &farpage_server::Cluster,
    number: u64,
    (name, described): (Option<String>, farpage_membership::Description),
) -> SharedListed {
    let figures = cluster.figures(number).unwrap_or_default();
    let home = cluster
        .has_home(&described)
        .then_some(described.home.slot.0);
    SharedListed {
        name: name.unwrap_or_default(),
        number,
        wanted: Wanted {
            bytes: described.bytes,
            unit_bytes: described.page_bytes,
            scheduler: match described.scheduler {
                Recorded::Simple => Scheduler::Simple,
                Recorded::Distributed => Scheduler::Distributed,
            },
            replicas: described.replicas,
            hold_us: described.hold_us,
            stale_us: described.stale_us,
            consistency: consistency(described.consistency),
            stays: described.stays,
            note: described.note,
        },
        is_sealed: described.is_sealed,
        is_durable: described.durability == Durability::Flushed,
        home,
        owned: figures.owned,
        copies: figures.copies,
        figures: SharedFigures {
            read_misses: figures.read_misses,
            write_misses: figures.write_misses,
            upgrades: figures.upgrades,
            sent: figures.sent,
            forwarded: figures.forwarded,
            contents_sent: figures.contents_sent,
            given: figures.given,
            dropped: figures.dropped,
        },
    }
}

fn refusal(name: &str, error: HaveError) -> Refusal {
    match error {
        HaveError::Control(ControlError::NoName(_)) => Refusal::NotShared(name.into()),
        HaveError::Control(ControlError::Name(_)) => Refusal::Name(name.into()),
        HaveError::Control(error) => Refusal::Cluster(error.to_string()),
        HaveError::Open(error @ OpenError::Kernel(_)) => Refusal::Failed(error.to_string()),
        HaveError::Over(name) => Refusal::Over(name),
        HaveError::Flush(name, why) => Refusal::Unflushed(name, why),
        error @ (HaveError::Open(_)
        | HaveError::Unsealable(_)
        | HaveError::File(..)
        | HaveError::NoFile(_)
        | HaveError::OtherFile(_)) => Refusal::Unfit(error.to_string()),
        HaveError::Consistency(name, is) => {
            Refusal::Differs(name, format!("with consistency {is}"))
        }
        HaveError::NotYours(name) => Refusal::NotYours(name),
        HaveError::Differs {
            name,
            bytes,
            unit_bytes,
        } => {
            let there = format!("of {} in pages of {}", human(bytes), human(unit_bytes));
            Refusal::Differs(name, there)
        }
    }
}
