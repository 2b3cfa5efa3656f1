//! How hosts come to terms after one of them has died.
//!
//! All units of all objects are frozen. When nothing of before is on its way any more, each host
//! tells the home of each object what it has; the home decides, and tells all; and then all go on.

use std::collections::HashMap;

use farpage_rules::coherence::{Generation, Host, Hosts, Known, Recovery, Report, Verdict};

/// Of a unit: its object, and its number there.
type Place = (u64, u64);

/// What a host knows of the recovery that is under way.
#[derive(Debug)]
pub(crate) struct Recovering {
    pub(crate) fence: Generation,
    /// Who takes part, this host among them.
    all: Hosts,
    own: Host,
    has_reported: bool,
    has_decided: bool,
    reports: HashMap<Place, Recovery>,
    reported: Hosts,
    verdicts: HashMap<Place, (Host, Verdict)>,
    decided: Hosts,
}

impl Recovering {
    pub(crate) fn new(own: Host, fence: Generation, others: Hosts) -> Self {
        let mut all = others;
        all.add(own);
        Self {
            fence,
            all,
            own,
            has_reported: false,
            has_decided: false,
            reports: HashMap::new(),
            reported: Hosts::NONE,
            verdicts: HashMap::new(),
            decided: Hosts::NONE,
        }
    }

    /// Who takes part.
    pub(crate) fn all(&self) -> Hosts {
        self.all
    }

    /// A host began after what this is about: it has no part in it.
    pub(crate) fn excuse(&mut self, host: Host) {
        if host != self.own {
            self.all.remove(host);
            self.reported.remove(host);
            self.decided.remove(host);
        }
    }

    /// True once: nothing is on its way any more, so it is time to report.
    pub(crate) fn reports_now(&mut self, is_drained: bool) -> bool {
        is_drained && !std::mem::replace(&mut self.has_reported, true)
    }

    /// A host has reported units of which this one is the home. The error is what is wrong.
    pub(crate) fn reported(
        &mut self,
        by: Host,
        units: Vec<(u64, u64, Report)>,
        is_last: bool,
    ) -> Result<(), &'static str> {
        if !self.all.has(by) || self.reported.has(by) {
            return Err("a report that nobody waits for");
        }
        for (object, unit, report) in units {
            let own = self.own;
            let recovery = self.reports.entry((object, unit));
            let recovery = recovery.or_insert_with(|| Recovery::new(own));
            recovery
                .add(by, report)
                .map_err(|violation| violation.what)?;
        }
        if is_last {
            self.reported.add(by);
        }
        Ok(())
    }

    /// What this host decides as the home, once, when all have reported. `own` is what it has itself
    /// of a unit that others told of, and what is known of units of its object that nobody has.
    pub(crate) fn decides_now(
        &mut self,
        own: impl Fn(u64, u64) -> Option<(Report, Known)>,
    ) -> Option<Vec<(u64, u64, Verdict)>> {
        if self.has_decided || self.reported != self.all {
            return None;
        }
        self.has_decided = true;
        let reports = std::mem::take(&mut self.reports).into_iter();
        let decide = |((object, unit), mut recovery): (Place, Recovery)| {
            let mut known = Known::Nothing;
            if let Some((report, of_object)) = own(object, unit) {
                // Refused when it was among the reports; then it is the same.
                let _ = recovery.add(self.own, report);
                known = of_object;
            }
            (object, unit, recovery.verdict(known))
        };
        Some(reports.map(decide).collect())
    }

    /// A home has decided.
    pub(crate) fn decided(
        &mut self,
        by: Host,
        units: Vec<(u64, u64, Verdict)>,
        is_last: bool,
    ) -> Result<(), &'static str> {
        if !self.all.has(by) || self.decided.has(by) {
            return Err("a verdict that nobody waits for");
        }
        for (object, unit, verdict) in units {
            self.verdicts.insert((object, unit), (by, verdict));
        }
        if is_last {
            self.decided.add(by);
        }
        Ok(())
    }

    /// All verdicts, when every host has told its own.
    pub(crate) fn goes_on(&mut self) -> Option<HashMap<Place, (Host, Verdict)>> {
        (self.decided == self.all).then(|| std::mem::take(&mut self.verdicts))
    }
}

/// What becomes of a unit that nobody reports when its home has died: what was written to it, if
/// anything, died with its home.
pub(crate) fn of_nobody(home: Host, known: Known) -> Verdict {
    Recovery::new(home).verdict(known)
}

#[cfg(test)]
mod tests {
    use farpage_rules::coherence::{Contents, Epoch, Standing};

    use super::*;

    fn report(standing: Standing) -> Report {
        Report {
            standing,
            epoch: Epoch(3),
            owner: Host(9),
            kept: None,
        }
    }

    #[test]
    fn all_report_then_the_home_decides_then_all_go_on() {
        let mut own = Recovering::new(Host(0), Generation(4), Hosts::of(Host(1)));
        assert!(!own.reports_now(false));
        assert!(own.reports_now(true) && !own.reports_now(true));
        own.reported(Host(0), vec![(7, 1, report(Standing::Nothing))], true)
            .unwrap();
        assert_eq!(own.decides_now(|_, _| None), None);
        own.reported(Host(1), vec![(7, 1, report(Standing::Copy))], false)
            .unwrap();
        assert_eq!(own.decides_now(|_, _| None), None);
        own.reported(Host(1), vec![], true).unwrap();
        assert!(own.reported(Host(1), vec![], true).is_err());
        assert!(own.reported(Host(5), vec![], true).is_err());
        let verdicts = own.decides_now(|_, _| None).unwrap();
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].2.owner, Host(1));
        assert_eq!(own.decides_now(|_, _| None), None);
        own.decided(Host(0), verdicts, true).unwrap();
        assert!(own.goes_on().is_none());
        own.decided(Host(1), vec![], true).unwrap();
        assert!(own.decided(Host(1), vec![], true).is_err());
        assert_eq!(own.goes_on().unwrap().len(), 1);
    }

    #[test]
    fn what_nobody_has_when_its_home_died_is_lost_or_was_never_seen() {
        let verdict = of_nobody(Host(2), Known::Nothing);
        assert_eq!((verdict.owner, verdict.epoch), (Host(2), Epoch(1)));
        assert_eq!(verdict.contents, Contents::Lost { older: None });
        let mirrored = of_nobody(Host(2), Known::Mirrored);
        assert_eq!(mirrored.contents, Contents::First);
    }
}
