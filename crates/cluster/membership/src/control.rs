//! What the user of the control plane has.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use crate::clock::Moment;
use crate::endpoint::Endpoint;
use crate::error::ControlError;
use crate::event::Event;
use crate::host::Host;
use crate::join::{join, look};
use crate::names;
use crate::record::{CheckedIn, Description, Object, ObjectId};
use crate::rule::{GOING_ON_MAX, Ping, Pong};
use crate::view::{Incarnation, Member, Slot, View};
use crate::{objects, ports};

/// How a host joins.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the store is.
    pub endpoint: Endpoint,
    /// Where other hosts reach this one.
    pub address: SocketAddr,
    /// What to call this host where it is shown.
    pub name: String,
    /// Bytes of a page here.
    pub page_bytes: u64,
    /// Which key the hosts of the cluster have, in words that do not give it away: who has another is
    /// refused. Empty: it is not looked at.
    pub key: String,
    /// Which process this is, for whoever can tell by it that it has ended ([`Control::vouch_gone`]).
    /// Empty: nobody can.
    pub process: String,
    /// How long the others believe this host alive when it is silent, in whole seconds. etcd makes
    /// it 2 s when it is less.
    pub lease: Duration,
    /// How long this host may go on without the store while every other host can be reached. Hosts
    /// that join after all have died wait for so long until they may take over from it.
    /// Zero: a host without the store stops when its lease is over.
    pub going_on: Duration,
    /// How long joining and each operation tries a store that does not answer.
    pub wait: Duration,
}

impl Config {
    /// Leases of 2 s, ten minutes without the store, 5 s for the store to answer.
    #[must_use]
    pub fn new(endpoint: Endpoint, address: SocketAddr, name: &str) -> Self {
        Self {
            endpoint,
            address,
            name: String::from(name),
            page_bytes: 4096,
            key: String::new(),
            process: String::new(),
            lease: Duration::from_secs(2),
            going_on: Duration::from_secs(600),
            wait: Duration::from_secs(5),
        }
    }

    fn check(&self) -> Result<(), ControlError> {
        let wrong = if !names::is_name(&self.name) {
            let name = names::shown(&self.name);
            format!("{name:?} cannot name a host; take 1 to 200 characters without /")
        } else if !self.page_bytes.is_power_of_two() {
            format!("pages of {} bytes are no power of two", self.page_bytes)
        } else if !(1..=3600).contains(&self.lease.as_secs()) || self.lease.subsec_nanos() != 0 {
            format!("a lease is 1 to 3600 whole seconds, not {:?}", self.lease)
        } else if self.going_on > GOING_ON_MAX {
            format!(
                "a host goes on without the store for a week at most, not {:?}",
                self.going_on
            )
        } else {
            return Ok(());
        };
        Err(ControlError::Config(wrong))
    }
}

/// This host's stay in a cluster. Any thread may use it; nothing of it waits for the store but what
/// says so. When it is dropped the host is as dead for the others, who notice when its lease is
/// over; [`Control::leave`] tells them.
///
/// Nothing here may be called by a thread that runs an asynchronous runtime of its own and must not
/// be blocked.
pub struct Control {
    host: Arc<Host>,
    /// Those of threads that wait, one each.
    jobs: Option<UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of the runtime does for another one.
type Job = Box<dyn FnOnce(Arc<Host>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

impl Control {
    /// Joins: takes the lowest free slot, and an incarnation that nobody had or will have.
    ///
    /// # Errors
    /// When the configuration cannot be, the store does not answer or refuses, all slots are taken,
    /// or another version is stored there.
    pub fn join(config: Config) -> Result<Self, ControlError> {
        config.check()?;
        let (tell, told) = mpsc::channel();
        let (jobs, work) = unbounded_channel();
        let serve = move || {
            let joined = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(join(config)).map(|host| (host, runtime)),
                Err(why) => Err(no_thread(&why)),
            };
            match joined {
                Ok((host, runtime)) => {
                    let host = Arc::new(host);
                    if tell.send(Ok(host.clone())).is_ok() {
                        LocalSet::new().block_on(&runtime, run(host, work));
                    }
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name(String::from("farpage-membership"));
        let thread = thread.spawn(serve).map_err(|why| no_thread(&why))?;
        let host = told.recv().expect("the thread tells before it ends")?;
        Ok(Self {
            host,
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// The other members that are alive, as far as the store knows, without joining: whom a host is to
    /// reach that joins.
    ///
    /// # Errors
    /// When the store does not answer or refuses, or what it has cannot be read.
    pub fn look(config: &Config) -> Result<Vec<Member>, ControlError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| no_thread(&why))?;
        runtime.block_on(look(config))
    }

    /// Joins anew, with a new incarnation and what else the configuration says: what a host does
    /// that was fenced.
    ///
    /// # Errors
    /// As [`Control::join`].
    pub fn rejoin(self, config: Config) -> Result<Self, ControlError> {
        drop(self);
        Self::join(config)
    }

    /// This stay.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.host.me
    }

    /// This host's place.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.host.slot
    }

    /// The newest view that this host knows.
    ///
    /// # Errors
    /// When it is fenced.
    pub fn view(&self) -> Result<View, ControlError> {
        Ok(self.host.state()?.known.view())
    }

    /// The next event, waited for.
    #[must_use]
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.host.events.next(timeout)
    }

    /// Until when this host may act, as far as is known now.
    #[must_use]
    pub fn acts_until(&self) -> Moment {
        self.host.fence.until()
    }

    /// Whether this host counts on promises of the others by now: with them it goes on when the store is
    /// gone.
    #[must_use]
    pub fn counts_on_promises(&self) -> bool {
        let state = self.host.state();
        state.is_ok_and(|state| state.rule.counts_on_promises())
    }

    /// Whether this host may not act any more: for good, and [`Event::Fenced`] says why. One atomic
    /// load and a look at the clock.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.host.fence.is_up()
    }

    /// Says that this host's programs cannot reach what is shared any more, after [`Event::Fenced`]. A host
    /// that leaves for others waits for it, a lease at most, before they are told that it left.
    pub fn has_stopped(&self) {
        self.host.stopped.notify_one();
    }

    /// What to ask the other members now: to be sent to each, several times in a lease. Without
    /// them a host stops when the store does not answer.
    #[must_use]
    pub fn pings(&self) -> Vec<Ping> {
        let state = self.host.state();
        state.map_or_else(|_| Vec::new(), |mut state| state.rule.pings(Moment::now()))
    }

    /// The answer to another member's ping, to be sent back; none when it is not to go on.
    #[must_use]
    pub fn answer(&self, ping: &Ping) -> Option<Pong> {
        let mut state = self.host.state().ok()?;
        state.rule.answer(ping, Moment::now())
    }

    /// Takes another member's answer. What is no answer to this host's ping changes nothing.
    pub fn answered(&self, pong: &Pong) {
        if let Ok(mut state) = self.host.state() {
            state.rule.answered(pong, Moment::now());
            self.host.fence.set(state.rule.acts_until());
        }
    }

    /// Takes the word of somebody who knows, say an operator, that the process of another member
    /// is gone: it is removed as soon as its lease is over. Were it wrong, two hosts could write
    /// the same page.
    pub fn vouch_gone(&self, gone: Incarnation) {
        if let Ok(mut state) = self.host.state() {
            state.rule.vouched_gone(gone);
            self.host.changed.notify_waiters();
        }
    }

    /// Makes an object. This host holds it from the beginning.
    ///
    /// # Errors
    /// When the name or the description cannot be, the name is taken, the host is fenced, or the
    /// store does not answer or refuses.
    pub fn make(
        &self,
        name: Option<&str>,
        description: Description,
    ) -> Result<ObjectId, ControlError> {
        description.check().map_err(ControlError::Description)?;
        let name = name.map(object_name).transpose()?;
        self.call(move |host| async move { objects::make(&host, name, description).await })
    }

    /// The object of this name.
    ///
    /// # Errors
    /// [`ControlError::NoName`]; when the host is fenced, what is stored cannot be read, or the
    /// store does not answer or refuses.
    pub fn find(&self, name: &str) -> Result<(ObjectId, Object), ControlError> {
        let name = object_name(name)?;
        self.call(move |host| async move { objects::find(&host, &name).await })
    }

    /// All objects.
    ///
    /// # Errors
    /// As [`Control::find`]; what cannot be read is left out.
    pub fn list(&self) -> Result<Vec<(ObjectId, Object)>, ControlError> {
        self.call(move |host| async move { objects::list(&host).await })
    }

    /// Takes the name from its object, which lives on while somebody holds it.
    ///
    /// # Errors
    /// As [`Control::find`].
    pub fn remove(&self, name: &str) -> Result<ObjectId, ControlError> {
        let name = object_name(name)?;
        self.call(move |host| async move { objects::remove(&host, &name).await })
    }

    /// Gives the object another name, which it has instead of its own.
    ///
    /// # Errors
    /// [`ControlError::Exists`] when that is another's; [`ControlError::NoObject`] when the object is
    /// gone, or has no name any more; as [`Control::find`].
    pub fn rename(&self, id: ObjectId, to: &str) -> Result<(), ControlError> {
        let to = object_name(to)?;
        self.call(move |host| async move { objects::rename(&host, id, to).await })
    }

    /// Says something else of the object's contents ([`Description::note`]).
    ///
    /// # Errors
    /// [`ControlError::NoObject`]; [`ControlError::Description`] when it is too long; as
    /// [`Control::find`].
    pub fn note(&self, id: ObjectId, note: &str) -> Result<(), ControlError> {
        let note = String::from(note);
        self.call(move |host| async move {
            objects::describe(&host, id, |one| one.note.clone_from(&note)).await
        })
    }

    /// Nobody writes to the object any more ([`Description::is_sealed`]).
    ///
    /// # Errors
    /// [`ControlError::NoObject`]; as [`Control::find`].
    pub fn seal(&self, id: ObjectId) -> Result<(), ControlError> {
        self.call(move |host| async move {
            objects::describe(&host, id, |one| one.is_sealed = true).await
        })
    }

    /// Where in the order of the store an object was last changed, or is known to be gone.
    ///
    /// # Errors
    /// As [`Control::find`].
    pub fn revision_of(&self, id: ObjectId) -> Result<i64, ControlError> {
        self.call(move |host| async move { objects::revision_of(&host, id).await })
    }

    /// How far this host has come in the order of the store: every event up to there was handed out,
    /// or waits to be.
    ///
    /// # Errors
    /// When it is fenced.
    pub fn revision(&self) -> Result<i64, ControlError> {
        Ok(self.host.state()?.known.revision)
    }

    /// This host uses the object from now on: it is not removed. Holding it twice is as once.
    ///
    /// # Errors
    /// [`ControlError::NoObject`] when it is gone; as [`Control::find`].
    pub fn hold(&self, id: ObjectId) -> Result<(), ControlError> {
        self.call(move |host| async move { objects::hold(&host, id).await })
    }

    /// This host does not use the object any more.
    ///
    /// # Errors
    /// As [`Control::find`].
    pub fn release(&self, id: ObjectId) -> Result<(), ControlError> {
        self.call(move |host| async move { objects::release(&host, id).await })
    }

    /// True when an object is still there when this host has gone, as far as it knows: it stays, or
    /// another host has it.
    ///
    /// # Errors
    /// When it is fenced.
    pub fn outlives_this_host(&self, id: ObjectId) -> Result<bool, ControlError> {
        Ok(self.host.state()?.known.outlives_me(id))
    }

    /// Gives a port of this host's a name for the whole cluster, as long as this stay.
    ///
    /// # Errors
    /// [`ControlError::PortExists`], [`ControlError::Name`]; as [`Control::find`].
    pub fn check_in(&self, name: &str, number: u64, uid: u32) -> Result<(), ControlError> {
        let name = object_name(name)?;
        self.call(move |host| async move { ports::check_in(&host, name, number, uid).await })
    }

    /// The port of a name.
    ///
    /// # Errors
    /// [`ControlError::NoPort`], [`ControlError::Name`]; as [`Control::find`].
    pub fn look_up(&self, name: &str) -> Result<CheckedIn, ControlError> {
        let name = object_name(name)?;
        self.call(move |host| async move { ports::look_up(&host, name).await })
    }

    /// Takes its name away from a port, if that has it still.
    ///
    /// # Errors
    /// As [`Control::find`].
    pub fn check_out(&self, name: &str, port: CheckedIn) -> Result<(), ControlError> {
        let name = object_name(name)?;
        self.call(move |host| async move { ports::check_out(&host, name, port).await })
    }

    /// All ports that have names, as far as this host knows.
    ///
    /// # Errors
    /// When it is fenced.
    pub fn ports(&self) -> Result<Vec<(String, CheckedIn)>, ControlError> {
        let state = self.host.state()?;
        let ports = state.known.ports();
        Ok(ports
            .map(|(name, port)| (name.into(), port.clone()))
            .collect())
    }

    /// Leaves: the host is fenced, and then the others are told at once.
    ///
    /// # Errors
    /// When the store does not answer; the others notice when the lease is over.
    pub fn leave(&self) -> Result<(), ControlError> {
        let known = self.host.state()?.known.clone();
        self.host.end("it left");
        self.call(move |host| async move { objects::leave(&host, known).await })
    }

    /// Does it in the thread of the runtime.
    fn call<T: Send + 'static, F: Future<Output = Result<T, ControlError>> + 'static>(
        &self,
        work: impl FnOnce(Arc<Host>) -> F + Send + 'static,
    ) -> Result<T, ControlError> {
        let (tell, told) = mpsc::channel();
        let job: Job = Box::new(move |host| {
            let work = work(host);
            Box::pin(async move {
                let _ = tell.send(work.await);
            })
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        let ended = |_| ControlError::Fenced(String::from("its thread ended"));
        told.recv().map_err(ended)?
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.host.end("it was dropped");
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn no_thread(why: &std::io::Error) -> ControlError {
    ControlError::Config(format!(
        "cannot start the thread of the control plane: {why}"
    ))
}

fn object_name(name: &str) -> Result<String, ControlError> {
    match names::is_name(name) {
        true => Ok(String::from(name)),
        false => Err(ControlError::Name(names::shown(name))),
    }
}

/// The thread's work until nobody can ask it for more. A host that is fenced still answers.
async fn run(host: Arc<Host>, mut jobs: UnboundedReceiver<Job>) {
    spawn_local(host.clone().keep());
    spawn_local(host.clone().watch());
    spawn_local(host.clone().guard());
    spawn_local(host.clone().tidy());
    while let Some(job) = jobs.recv().await {
        spawn_local(job(host.clone()));
    }
    host.drop_lease();
}
