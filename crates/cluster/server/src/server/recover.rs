//! Hosts come and die, and the steps of a recovery.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farpage_rules::coherence::{Change, Generation, HOSTS_MAX, Host, Report};
use farpage_sys::lock;

use super::{Hosts, Server, Wrong, wrong};
use crate::object::Shared;
use crate::recovery::Recovering;
use crate::wire::{Said, UNITS_MAX};

impl Server {
    /// A part of a recovery has come: of this one, of a later one, or of one that is over.
    pub(super) fn told(
        &self,
        from: Host,
        fence: Generation,
        bytes: &[u8],
        take: impl FnOnce(&mut Recovering) -> Result<(), &'static str>,
    ) -> Result<(), Wrong> {
        let entered = self.shell.gate.enter();
        let now = lock(&self.shell.members).fence();
        if fence > now {
            lock(&self.kept).push((from, bytes.to_vec()));
            return Ok(());
        }
        match &mut *lock(&self.recovering) {
            Some(recovering) if recovering.fence == fence => {
                take(recovering).map_err(|what| wrong(from, what))?;
            }
            Some(_) | None => return Ok(()),
        }
        drop(entered);
        self.goes_on();
        Ok(())
    }

    /// Hosts have come or died. Returns what is wrong with what others did meanwhile.
    pub fn sees(&self, hosts: Hosts) -> Vec<Wrong> {
        // A host whose place another has taken at once dies first.
        let mut between = lock(&self.hosts).clone();
        let stays = |host: &Host, stay: &u64| hosts.stays.get(host).is_none_or(|now| now == stay);
        if !between.stays.iter().all(|(host, stay)| stays(host, stay)) {
            between
                .stays
                .retain(|host, stay| hosts.stays.get(host) == Some(stay));
            between.generation = hosts.generation * 2;
            self.changes(between);
        }
        let generation = hosts.generation * 2 + 1;
        self.changes(Hosts {
            generation,
            ..hosts
        })
    }

    fn changes(&self, hosts: Hosts) -> Vec<Wrong> {
        let closed = self.shell.gate.close();
        let all: Vec<Arc<Shared>> = self.all();
        let view = hosts.view();
        let died = lock(&self.shell.members).view().living.less(view.living);
        if !died.is_empty() {
            all.iter().for_each(|shared| shared.keeps_copies());
        }
        let change = lock(&self.shell.members).change(view);
        let deaths = {
            let mut deaths = lock(&self.deaths);
            *deaths += died.less(self.shell.leavers()).count();
            *deaths
        };
        for shared in &all {
            shared.has_home(hosts.home(&shared.about), !died.is_empty());
            if deaths > 1 {
                shared.loses_several();
            }
        }
        *lock(&self.hosts) = hosts;
        match change {
            Change::Joined => {}
            Change::Fenced => {
                drop(closed);
                self.fence();
                return Vec::new();
            }
            Change::Died { marks_to } => {
                // It is asked for, or brought, again.
                lock(&self.early).clear();
                self.shell.leaves_anew();
                all.iter().for_each(|shared| shared.freeze(died));
                self.parts_from_the_dead_go();
                // Whoever has the recovery may look at the members, so not the other way round.
                let fence = lock(&self.shell.members).fence();
                let recovering = Recovering::new(self.shell.own, fence, marks_to);
                *lock(&self.recovering) = Some(recovering);
                let members = lock(&self.shell.members);
                for to in marks_to.iter() {
                    if let Some(marker) = members.marker(to) {
                        self.shell.sends(to, &Said::Marker(marker));
                    }
                }
                drop(members);
                all.iter().for_each(|shared| shared.goes_on(died));
            }
        }
        drop(closed);
        let wrong = self.offers_again();
        self.goes_on();
        wrong
    }

    /// Nothing of those who have died comes any more.
    fn parts_from_the_dead_go(&self) {
        let living = lock(&self.shell.members).view().living;
        let mut met = lock(&self.shell.met);
        *met = met.less(met.less(living));
        for host in (0..HOSTS_MAX).map(Host).filter(|host| !living.has(*host)) {
            self.shell.parts.is_gone(host);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Shared>> {
        let all = lock(&self.shared);
        all.values().map(|open| Arc::clone(&open.shared)).collect()
    }

    /// What was of later may be of now.
    fn offers_again(&self) -> Vec<Wrong> {
        let kept = std::mem::take(&mut *lock(&self.kept));
        let taken = kept
            .into_iter()
            .map(|(from, bytes)| self.received(from, &bytes));
        taken.filter_map(Result::err).collect()
    }

    /// Does the next step of a recovery, if it is time.
    pub(super) fn goes_on(&self) {
        {
            // No other recovery begins meanwhile.
            let _entered = self.shell.gate.enter();
            if lock(&self.recovering).is_none() {
                return;
            }
            self.reports();
            self.decides();
        }
        self.resumes();
    }

    /// Tells the homes what this host has, once nothing of before is on its way.
    fn reports(&self) {
        let is_drained = lock(&self.shell.members).is_drained();
        let (fence, all) = {
            let mut recovering = lock(&self.recovering);
            let Some(now) = &mut *recovering else {
                return;
            };
            if !now.reports_now(is_drained) {
                return;
            }
            (now.fence, now.all())
        };
        let mut by_home: HashMap<Host, Vec<(u64, u64, Report)>> = HashMap::new();
        for shared in self.all() {
            let number = shared.about.number;
            let reports = shared.reports().into_iter();
            let of = by_home.entry(shared.home()).or_default();
            of.extend(reports.map(|(unit, report)| (number, unit, report)));
        }
        for home in all.iter() {
            let units = by_home.remove(&home).unwrap_or_default();
            if home == self.shell.own {
                if let Some(now) = &mut *lock(&self.recovering) {
                    now.reported(home, units, true).expect("its own, once");
                }
                continue;
            }
            in_parts(units, |units, is_last| {
                let said = Said::Reports {
                    fence,
                    units,
                    is_last,
                };
                self.shell.sends(home, &said);
            });
        }
    }

    /// Decides as the home, when all have reported.
    fn decides(&self) {
        let own = |object: u64, unit: u64| {
            let all = lock(&self.shared);
            let shared = &all.get(&object)?.shared;
            Some((shared.report_of(unit)?, shared.known_of_told(unit)))
        };
        let (fence, all, verdicts) = {
            let mut recovering = lock(&self.recovering);
            let Some(now) = &mut *recovering else {
                return;
            };
            let Some(verdicts) = now.decides_now(own) else {
                return;
            };
            let host = self.shell.own;
            now.decided(host, verdicts.clone(), true)
                .expect("its own, once");
            (now.fence, now.all(), verdicts)
        };
        for to in all.iter().filter(|to| *to != self.shell.own) {
            in_parts(verdicts.clone(), |units, is_last| {
                let said = Said::Verdicts {
                    fence,
                    units,
                    is_last,
                };
                self.shell.sends(to, &said);
            });
        }
    }

    /// Goes on, when all homes have decided.
    fn resumes(&self) {
        let closed = self.shell.gate.close();
        let verdicts = {
            let mut recovering = lock(&self.recovering);
            let Some(verdicts) = recovering.as_mut().and_then(Recovering::goes_on) else {
                return;
            };
            *recovering = None;
            verdicts
        };
        *lock(&self.deaths) = 0;
        lock(&self.shell.members).resume();
        for shared in self.all() {
            let number = shared.about.number;
            for violation in shared.resume(|unit| verdicts.get(&(number, unit)).copied()) {
                farpage_sys::say!("farpage: {violation}");
            }
        }
        drop(closed);
        for wrong in self.offers_again() {
            farpage_sys::say!("farpage: {wrong}");
        }
    }

    /// This host may not act any more: nothing that is shared can be used here.
    pub fn fence(&self) {
        let closed = self.shell.gate.close();
        self.shell.is_fenced.store(true, Ordering::Relaxed);
        *lock(&self.recovering) = None;
        self.all().iter().for_each(|shared| shared.fence());
        drop(closed);
    }
}

/// Says all of `units`, some at a time, and that these are the last.
fn in_parts<T>(mut units: Vec<T>, mut say: impl FnMut(Vec<T>, bool)) {
    while units.len() > UNITS_MAX {
        let rest = units.split_off(UNITS_MAX);
        say(std::mem::replace(&mut units, rest), false);
    }
    say(units, true);
}
