//! What happens by the clock: ten times a second each connection is looked at for signs of life.
//! The way of a message asks for no time and sets no timer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use crate::lane::{Connection, END, Lane};
use crate::line::Broken;
use crate::shared::{Shared, Watched};

/// A tick.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Ticks after which this side, when it has nothing to say, says so.
const QUIET_TICKS: u32 = 4;
/// A connection that this side makes is made within these, or another is tried.
pub(crate) const CALLER_TICKS: u32 = 20;
/// One that others make says within these who it is.
pub(crate) const CALLED_TICKS: u32 = 50;
/// One that is refused is open for so long, for its peer to read why.
pub(crate) const ENDING_TICKS: u32 = 10;
/// Between attempts there are no more than these.
pub(crate) const BACK_OFF_MAX: u32 = 5;
/// A connection that broke before so many was none: the next attempt waits.
pub(crate) const YOUNG_TICKS: u32 = 10;

impl Shared {
    /// Has the next tick now, and then one after the other.
    pub(crate) fn tick_soon(&self) {
        let after = |ns: u32| Timespec {
            tv_sec: 0,
            tv_nsec: ns.into(),
        };
        let times = Itimerspec {
            it_interval: after(TICK.subsec_nanos()),
            it_value: after(1),
        };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
        set.expect("the times make sense");
    }

    /// The timer says that a tick has passed. Several that passed while this process was stopped are
    /// one: what peers said meanwhile is to be read before they are called silent.
    pub(crate) fn tick(self: &Arc<Self>) {
        let mut count = [0; 8];
        if rustix::io::read(&self.timer, &mut count) != Ok(8) {
            return; // another thread took it
        }
        self.accept();
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        let greeters: Vec<_> = watched
            .values()
            .filter_map(|what| match what {
                Watched::Greeter(greeter) => Some(Arc::clone(greeter)),
                Watched::Lane(_) => None,
            })
            .collect();
        drop(watched);
        greeters
            .iter()
            .for_each(|greeter| self.tick_greeter(greeter));
        self.lanes().iter().for_each(|lane| self.tick_lane(lane));
    }

    fn tick_lane(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut guard = lane.state();
        let state = &mut *guard;
        let Connection::Up(up) = &mut state.connection else {
            drop(guard);
            self.dial_if_due(lane);
            return;
        };
        let next = |passed: bool, ticks: u32| if passed { 0 } else { ticks + 1 };
        let (came, went) = up.line.take_signs();
        up.silent = next(came, up.silent);
        up.quiet = next(went, up.quiet);
        let has_room = !crate::line::Transport::is_full(&up.line.transport);
        up.stuck = next(went || has_room, up.stuck);
        up.age += 1;
        if up.age == YOUNG_TICKS {
            state.back_off = 0;
        }
        if up.silent >= self.silence {
            up.shut_down(Broken::Silent("nothing was heard of the peer for too long"));
        } else if up.stuck >= self.silence {
            up.shut_down(Broken::Silent("the peer took nothing for too long"));
        } else {
            if has_room && (state.session.is_untold() || up.quiet >= QUIET_TICKS) {
                state.session.push_bare();
                state.pump(usize::MAX);
            }
            return;
        }
        drop(guard);
        self.visit(lane, END);
    }
}
