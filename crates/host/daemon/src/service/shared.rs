//! Memory that several hosts have in common: the cluster's store is asked by a thread of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender as Queue, channel};

use farpage_client::Refusal;
use farpage_client::cluster::{
    ClusterFigures, ClusterListed, PagesTold, PagesWanted, Passes, Wanted,
};
use farpage_client::interface::{OfCluster, Tried};
use farpage_object::PageRange;
use farpage_port::interface::{Answer, Both};
use farpage_port::{Name, SendRight, Sender};
use farpage_rules::sync::Process;

use super::at_host::AtHost;
use super::backed::{Event, Tells};
use super::{Entry, Held, Service, failed, identity};
use crate::cluster::Joined;
use crate::service::cluster::{Files, Had};
use crate::service::limits::Cost;
use crate::service::names;

/// Calls that wait for the store at most.
const ASKED_MAX: usize = 256;

type Given = Both<OfCluster, SendRight>;
type Asked = Answer<Tried<Given>>;

/// The cluster, and what of it somebody at this host has.
pub(super) struct Clustered {
    cluster: Arc<Joined>,
    work: Queue<Work>,
    /// Calls that wait.
    asked: Arc<AtomicUsize>,
    /// Ports of objects by their numbers in the cluster.
    by_number: HashMap<u64, Name>,
    /// The stay in which processes were last seen to be known.
    stay: u64,
}

/// What the thread that asks the store does.
enum Work {
    Have(String, (u32, u32), Option<Wanted>, Option<Files>, Asked),
    Remove(String, u32, Answer<Tried<()>>),
    Seal(String, u32, Answer<Tried<()>>),
    Release(u64),
}

/// What came of asking.
pub(super) struct Came {
    had: Result<Had, Refusal>,
    name: String,
    caller: (u32, u32),
    answer: Asked,
}

impl Clustered {
    fn start(cluster: Arc<Joined>, tells: Tells, stay: u64) -> std::io::Result<Self> {
        let (work, waiting) = channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let (asking, answered) = (Arc::clone(&cluster), Arc::clone(&asked));
        let run = move || {
            for work in waiting {
                if !matches!(work, Work::Release(_)) {
                    answered.fetch_sub(1, Ordering::Relaxed);
                }
                match work {
                    Work::Have(name, caller, wanted, files, answer) => {
                        let had = asking.have(&name, caller.0, wanted, files);
                        let came = Came {
                            had,
                            name,
                            caller,
                            answer,
                        };
                        tells.tell(Event::Had(Box::new(came)));
                    }
                    Work::Remove(name, uid, answer) => {
                        answer.give(Tried(asking.remove(&name, uid)));
                    }
                    Work::Seal(name, uid, answer) => {
                        answer.give(Tried(asking.seal(&name, uid)));
                    }
                    Work::Release(number) => asking.release(number),
                }
            }
        };
        std::thread::Builder::new()
            .name("services-cluster".into())
            .spawn(run)?;
        Ok(Self {
            cluster,
            work,
            asked,
            by_number: HashMap::new(),
            stay,
        })
    }

    /// Has the store asked, if few wait for that.
    fn ask(&self, work: Work) {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= ASKED_MAX {
            self.asked.fetch_sub(1, Ordering::Relaxed);
            return work.refuse();
        }
        // A thread that has ended took the cluster with it, and its answers say so.
        let _ = self.work.send(work);
    }
}

impl Work {
    fn refuse(self) {
        let why = "too many calls wait for the cluster's store; try again";
        let refusal = Refusal::Cluster(why.into());
        match self {
            Self::Have(.., answer) => drop(answer.give(Tried(Err(refusal)))),
            Self::Remove(.., answer) | Self::Seal(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::Release(_) => {}
        }
    }
}

impl Service {
    /// Objects of a cluster can be had as well. Which host this is there, [`Here::is_host`] is told.
    ///
    /// # Errors
    /// Without threads.
    pub(crate) fn with_cluster(mut self, cluster: Arc<Joined>) -> std::io::Result<Self> {
        let (tells, stay) = (self.backed.tells(), self.here.stay());
        self.clustered = Some(Clustered::start(cluster, tells, stay)?);
        Ok(self)
    }

    pub(super) fn have_shared(
        &self,
        caller: Sender,
        name: String,
        wanted: Option<Wanted>,
        files: Option<Files>,
        answer: Asked,
    ) {
        let asked =
            names::check(&name).and_then(|()| self.clustered.as_ref().ok_or(Refusal::Alone));
        let clustered = match asked {
            Ok(clustered) => clustered,
            Err(refusal) => {
                answer.give(Tried(Err(refusal)));
                return;
            }
        };
        clustered.ask(Work::Have(name, identity(caller), wanted, files, answer));
    }

    pub(super) fn remove_shared(&self, caller: Sender, name: String, answer: Answer<Tried<()>>) {
        let Some(clustered) = &self.clustered else {
            answer.give(Tried(Err(Refusal::Alone)));
            return;
        };
        clustered.ask(Work::Remove(name, identity(caller).0, answer));
    }

    pub(super) fn seal_of_cluster(&self, caller: Sender, name: String, answer: Answer<Tried<()>>) {
        let Some(clustered) = &self.clustered else {
            answer.give(Tried(Err(Refusal::Alone)));
            return;
        };
        clustered.ask(Work::Seal(name, identity(caller).0, answer));
    }

    pub(super) fn flush_of_cluster(&self, caller: Sender, name: &str, answer: Answer<Tried<u64>>) {
        let Some(clustered) = &self.clustered else {
            answer.give(Tried(Err(Refusal::Alone)));
            return;
        };
        let tell = move |flushed| {
            // Who asked may be gone.
            let _ = answer.give(Tried(flushed));
        };
        let (uid, _) = identity(caller);
        clustered.cluster.flush(name, uid, Box::new(tell));
    }

    pub(super) fn cluster_of_hosts(&self) -> Option<&Arc<Joined>> {
        self.clustered.as_ref().map(|clustered| &clustered.cluster)
    }

    /// Pages of an object of the cluster are to stay at this host.
    pub(super) fn lock_at_host(
        &self,
        number: u64,
        first: u64,
        pages: u64,
        to_write: bool,
    ) -> Option<Arc<AtHost>> {
        let cluster = Arc::clone(self.cluster_of_hosts()?);
        let pages = PageRange::new(first, first.saturating_add(pages));
        Some(Arc::new(AtHost::new(cluster, number, pages, to_write)))
    }

    /// This host releases or acquires an object of the cluster.
    pub(super) fn passes_object(&self, number: u64, what: Passes, answer: Answer<Tried<()>>) {
        let tell = move |ended| {
            // Who asked may be gone.
            let _ = answer.give(Tried(ended));
        };
        match self.cluster_of_hosts() {
            Some(cluster) => cluster.passes(number, what, Box::new(tell)),
            None => tell(Err(Refusal::Alone)),
        }
    }

    /// Whether a process lives that took something, at whichever host.
    pub(super) fn asked_whether(&self, process: u64, answer: Answer<bool>) {
        let of = Process::from_number(process);
        match (of, self.cluster_of_hosts()) {
            (Some(of), Some(cluster)) if of.host() != self.here.host() => {
                let tell = move |lives| {
                    // Who asked may be gone.
                    let _ = answer.give(lives);
                };
                cluster.asks_whether(of.host(), process, Box::new(tell));
            }
            (Some(_) | None, Some(_) | None) => {
                let _ = answer.give(self.here.lives(process));
            }
        }
    }

    pub(super) fn list_cluster(&self, caller: Sender) -> Result<ClusterListed, Refusal> {
        let clustered = self.clustered.as_ref().ok_or(Refusal::Alone)?;
        Ok(clustered.cluster.list(identity(caller).0))
    }

    pub(super) fn pages_of_cluster(
        &self,
        caller: Sender,
        name: &str,
        wanted: PagesWanted,
        answer: Answer<Tried<PagesTold>>,
    ) {
        let asked = names::check(name).and_then(|()| self.clustered.as_ref().ok_or(Refusal::Alone));
        match asked {
            Ok(clustered) => {
                let (uid, _) = identity(caller);
                let tell = move |told| {
                    // Who asked may be gone.
                    let _ = answer.give(Tried(told));
                };
                clustered.cluster.pages(name, uid, wanted, Box::new(tell));
            }
            Err(refusal) => {
                answer.give(Tried(Err(refusal)));
            }
        }
    }

    pub(super) fn figures_of_cluster(&self, caller: Sender, answer: Answer<Tried<ClusterFigures>>) {
        match &self.clustered {
            Some(clustered) => {
                let (uid, _) = identity(caller);
                let tell = move |told| {
                    // Who asked may be gone.
                    let _ = answer.give(Tried(told));
                };
                clustered.cluster.figures(uid, Box::new(tell));
            }
            None => {
                answer.give(Tried(Err(Refusal::Alone)));
            }
        }
    }

    /// An object of the cluster is at this host, or cannot be.
    pub(super) fn had(&mut self, came: Came) {
        self.sees_stay();
        let given = match came.had {
            Ok(had) => self.enter_shared(had, came.name, came.caller),
            Err(refusal) => Err(refusal),
        };
        let port = given.as_ref().ok().map(|(port, _)| *port);
        came.answer.give(Tried(given.map(|(_, given)| given)));
        if let Some(port) = port {
            // Who asked may be gone.
            self.forget_unheld(port);
        }
    }

    /// When this host has begun another stay, processes enter anew: they hear that their rights are
    /// dead before they have anything of this stay.
    fn sees_stay(&mut self) {
        let stay = self.here.stay();
        let is_same = |clustered: &Clustered| clustered.stay == stay;
        if self.clustered.as_ref().is_none_or(is_same) {
            return;
        }
        let here = Arc::clone(&self.here);
        let gone = self.held.extract_if(|_, held| match held {
            Held::Process { process, .. } => !here.lives(process.number()),
            Held::Object(_)
            | Held::Name(_)
            | Held::Mapping(_)
            | Held::Wired(_)
            | Held::Locked { .. } => false,
        });
        for (_, held) in gone {
            if let Held::Process { pid, .. } = held {
                self.limits.give_back(pid, Cost::MAPPING);
            }
        }
        if let Some(clustered) = &mut self.clustered {
            clustered.stay = stay;
        }
    }

    fn enter_shared(
        &mut self,
        had: Had,
        name: String,
        (_, pid): (u32, u32),
    ) -> Result<(Name, Given), Refusal> {
        let said = OfCluster {
            bytes: had.bytes,
            note: had.note,
            is_sealed: had.is_sealed,
            consistency: had.consistency,
        };
        let known = self.clustered.as_ref();
        let known = known.and_then(|clustered| clustered.by_number.get(&had.number).copied());
        if let Some(port) = known
            && let Some(Held::Object(entry)) = self.held.get_mut(&port)
            // Of an earlier stay of this host it is another one, which cannot be used any more.
            && Arc::ptr_eq(&entry.object, &had.object)
        {
            let given = Both(said, entry.give());
            // All who have it here have it once, as the cluster sees it.
            self.asks_release(had.number);
            return Ok((port, given));
        }
        let (number, bytes) = (had.number, had.bytes);
        let entered = self
            .limits
            .take(pid, Cost::of_object(bytes))
            .and_then(|()| had.object.identity().map_err(|errno| failed(&errno)));
        let file = entered.inspect_err(|_| self.releases(number))?;
        self.is_of_user(&had.object, had.uid);
        let port = self.node.port();
        self.ports.insert(&port);
        let key = port.name();
        let mut entry = Entry {
            port,
            given: 0,
            held: false,
            stays_until: None,
            name_port: None,
            object: had.object,
            file,
            name,
            bytes,
            uid: had.uid,
            pid,
            mapped_by: Vec::new(),
            backing: None,
            shared: Some(number),
        };
        let right = entry.give();
        self.files.insert(file, key);
        self.here.has(number, file.1);
        self.held.insert(key, Held::Object(entry));
        if let Some(clustered) = &mut self.clustered {
            clustered.by_number.insert(number, key);
        }
        Ok((key, Both(said, right)))
    }

    /// Nobody at this host has the object at a port any more. One of an earlier stay was released
    /// with that.
    pub(super) fn release_shared(&mut self, number: u64, port: Name) {
        let clustered = self.clustered.as_mut();
        if clustered.is_some_and(|clustered| clustered.by_number.get(&number) == Some(&port)) {
            self.releases(number);
        }
    }

    fn releases(&mut self, number: u64) {
        self.here.has_no_more(number);
        if let Some(clustered) = &mut self.clustered {
            clustered.by_number.remove(&number);
        }
        self.asks_release(number);
    }

    /// It waits its turn.
    fn asks_release(&self, number: u64) {
        if let Some(clustered) = &self.clustered {
            // A thread that has ended took the cluster with it.
            let _ = clustered.work.send(Work::Release(number));
        }
    }
}
