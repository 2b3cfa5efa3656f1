//! A host as its shell sees it: members, pages, contents, what it keeps for others.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, string::String, vec};
use core::hash::{Hash, Hasher};

use farpage_object::{Access, PageIndex};

use super::super::check_said;
use super::flying::{About, Bytes, Flying, PAGES, What};
use super::locker::Locker;
use crate::coherence::{
    Change, Host, Members, Message, Mirror, Output, Page, Receipt, Report, View,
};

/// Something that a host does, for the world to do.
pub(super) enum Effect {
    Send(Host, What),
    /// A thread was let in.
    Answered(usize, Access),
    Lost(usize),
    Sealed(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) own: Host,
    pub(super) members: Members,
    pub(super) pages: Vec<Page>,
    pub(super) bytes: Vec<Option<Bytes>>,
    /// What tasks can do, as the shell has done so far what the pages say.
    can: Vec<Option<Access>>,
    pub(super) kept: Vec<Option<Bytes>>,
    pub(super) mirror: Option<Mirror>,
    /// What its threads may have seen.
    pub(super) knows: [u32; PAGES],
    /// Messages of later.
    pub(super) inbox: Vec<Flying>,
    /// Its backup has this parcel, and has not said so.
    pub(super) arrived: Option<u64>,
    /// A thread that locks pages.
    pub(super) locker: Option<Locker>,
    pub(super) reported: bool,
    pub(super) reports: BTreeMap<Host, Vec<(usize, Report)>>,
}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.members.view(), self.members.fence()).hash(state);
        (self.members.is_frozen(), self.members.is_drained()).hash(state);
        (&self.pages, &self.bytes, &self.kept, self.knows).hash(state);
        if let Some(mirror) = &self.mirror {
            (mirror.clone().take_written(), mirror.is_settled()).hash(state);
            for page in 0..self.pages.len() {
                mirror.kept(index(page)).hash(state);
            }
        }
        (
            &self.inbox,
            self.arrived.is_some(),
            self.locker,
            self.reported,
            &self.reports,
        )
            .hash(state);
    }
}

pub(super) fn index(page: usize) -> PageIndex {
    PageIndex(page as u64)
}

impl Member {
    pub(super) fn new(own: Host, view: View, pages: usize, is_mirrored: bool) -> Self {
        let make = match is_mirrored {
            true => Page::mirrored,
            false => Page::new,
        };
        let first = Bytes {
            written: 0,
            past: [0; PAGES],
        };
        let is_first = view.generation.0 == 0 && own == view.home;
        let pages: Vec<Page> = (0..pages)
            .map(|page| match page % 3 {
                0 => make(own, view.home),
                2 if !is_mirrored => make(own, view.home).lend(),
                _ => make(own, view.home).find_migration(),
            })
            .collect();
        Self {
            own,
            members: Members::new(own, view),
            can: pages.iter().map(Page::allowed).collect(),
            bytes: vec![is_first.then_some(first); pages.len()],
            kept: vec![None; pages.len()],
            pages,
            mirror: is_mirrored.then(Mirror::new),
            knows: [0; PAGES],
            inbox: Vec::new(),
            arrived: None,
            locker: None,
            reported: false,
            reports: BTreeMap::new(),
        }
    }

    /// Does to a page what `act` says, and all that follows. `came` are the contents of a message.
    pub(super) fn at(
        &mut self,
        page: usize,
        came: Option<Bytes>,
        act: impl FnOnce(&mut Page) -> Result<(), String>,
    ) -> Result<Vec<Effect>, String> {
        act(&mut self.pages[page])?;
        let mut effects = Vec::new();
        self.drain(page, came, &mut effects)?;
        Ok(effects)
    }

    fn drain(
        &mut self,
        page: usize,
        mut came: Option<Bytes>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        while let Some(output) = self.pages[page].poll_output() {
            match output {
                Output::Send(to, message) => {
                    let about = self.about(page, to, message)?;
                    match (&mut self.mirror, about.bytes) {
                        (Some(mirror), Some(_)) if !mirror.is_settled() => {
                            self.parcel(Vec::new(), Some(about), effects)?;
                        }
                        _ => effects.push(Effect::Send(to, What::About(about))),
                    }
                }
                Output::Show {
                    to,
                    message,
                    version,
                } => {
                    let about = self.about(page, to, message)?;
                    let bytes = about.bytes.ok_or("shows nothing")?;
                    self.parcel(vec![(page, version, bytes)], Some(about), effects)?;
                }
                Output::Keep(version) => {
                    let bytes = self.bytes[page].ok_or("keeps what it has not")?;
                    self.keep(page, version, bytes);
                }
                Output::Restore(version) => {
                    self.bytes[page] = match version.0 {
                        0 => Some(Bytes {
                            written: 0,
                            past: [0; PAGES],
                        }),
                        _ => Some(self.kept[page].ok_or("restores what it has not kept")?),
                    };
                }
                Output::Take => self.bytes[page] = Some(came.take().ok_or("takes nothing")?),
                Output::Allow(access) => {
                    self.can[page] = access;
                    match access {
                        Some(_) => self.allow(page)?,
                        None => self.bytes[page] = None,
                    }
                }
                Output::Withdraw => self.can[page] = None,
                Output::Answer(access) => effects.push(Effect::Answered(page, access)),
                Output::Lost => effects.push(Effect::Lost(page)),
                Output::Sealed => effects.push(Effect::Sealed(page)),
            }
        }
        if let Some(mirror) = &mut self.mirror
            && self.pages[page].is_written()
        {
            mirror.may_write(index(page));
        }
        Ok(())
    }

    fn about(&self, page: usize, to: Host, message: Message) -> Result<About, String> {
        if to == self.own {
            return Err(format!("{to} sends itself {message:?}"));
        }
        check_said(&message, self.can[page])?;
        let bytes = match message.has_contents() {
            true => Some(self.bytes[page].ok_or("sends what it has not")?),
            false => None,
        };
        let origin = self.own;
        Ok(About {
            page,
            origin,
            to,
            message,
            bytes,
        })
    }

    /// Threads may read from now on.
    fn allow(&mut self, page: usize) -> Result<(), String> {
        let bytes = self.bytes[page].ok_or("allows what it has not")?;
        for (knows, past) in self.knows.iter_mut().zip(bytes.past) {
            *knows = past.max(*knows);
        }
        Ok(())
    }

    fn keep(&mut self, page: usize, version: crate::coherence::Epoch, bytes: Bytes) {
        let mirror = self.mirror.as_mut().expect("only mirrored pages are kept");
        if mirror.keep(index(page), version) {
            self.kept[page] = Some(bytes);
        }
    }

    /// Sends all that this host has written to its backup, which passes `then` on.
    pub(super) fn parcel(
        &mut self,
        mut pages: Vec<(usize, crate::coherence::Epoch, Bytes)>,
        then: Option<About>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), String> {
        let mirror = self.mirror.as_mut().expect("it is mirrored");
        for other in mirror.take_written() {
            let at = other.0 as usize;
            if pages.iter().any(|(page, ..)| *page == at) {
                continue;
            }
            if let Some(version) = self.pages[at].mirror() {
                self.drain(at, None, effects)?;
                if self.can[at] == Some(Access::Write) {
                    return Err("mirrors what is being written".into());
                }
                let bytes = self.bytes[at].ok_or("mirrors what it has not")?;
                pages.push((at, version, bytes));
            } else if self.pages[at].is_written() {
                self.mirror.as_mut().expect("it is").may_write(other);
            }
        }
        let (own, view) = (self.own, self.members.view());
        let parcel = self.mirror.as_mut().expect("it is").parcel(own, view);
        let (backup, number) = parcel.ok_or("shows something to nobody")?;
        let parcel = What::Parcel {
            number,
            pages,
            then,
        };
        effects.push(Effect::Send(backup, parcel));
        Ok(())
    }

    /// A message that counts has come.
    pub(super) fn take(&mut self, flying: Flying) -> Result<Vec<Effect>, String> {
        match flying.what {
            What::About(about) => self.handle(about),
            What::Parcel { pages, then, .. } => {
                for (page, version, bytes) in pages {
                    self.keep(page, version, bytes);
                }
                match then {
                    Some(about) if about.to == self.own => self.handle(about),
                    Some(about) if !self.members.is_frozen() => {
                        Ok(vec![Effect::Send(about.to, What::About(about))])
                    }
                    Some(_) | None => Ok(Vec::new()),
                }
            }
            What::Marker(_) | What::Reports(..) | What::Verdicts(..) => unreachable!("not here"),
        }
    }

    fn handle(&mut self, about: About) -> Result<Vec<Effect>, String> {
        let (origin, message) = (about.origin, about.message);
        self.at(about.page, about.bytes, |page| {
            let handled = page.handle(origin, message);
            handled.map_err(|violation| format!("an honest host: {violation}"))
        })
    }

    /// A view has come: whom to send markers.
    pub(super) fn hear(&mut self, view: View) -> Result<Vec<Effect>, String> {
        let marks_to = match self.members.change(view) {
            Change::Joined => return Ok(Vec::new()),
            Change::Fenced => return Err("it lives".into()),
            Change::Died { marks_to } => marks_to,
        };
        self.pages.iter_mut().for_each(Page::freeze);
        let mut effects = Vec::new();
        for page in 0..self.pages.len() {
            self.drain(page, None, &mut effects)?;
        }
        self.reported = false;
        self.reports.clear();
        let marker = |to| self.members.marker(to).expect("it lives");
        let marks = marks_to.iter().map(|to| {
            let marker = super::flying::Uncounted(marker(to));
            Effect::Send(to, What::Marker(marker))
        });
        effects.extend(marks);
        Ok(effects)
    }

    pub(super) fn receipt(&mut self, flying: &Flying) -> Receipt {
        self.members.receive(flying.from, flying.generation)
    }

    /// What it says to the home.
    pub(super) fn report(&mut self) -> Vec<(usize, Report)> {
        self.reported = true;
        let all = 0..self.pages.len();
        let report = all.map(|page| {
            let mirror = self.mirror.as_ref();
            let kept = mirror.and_then(|mirror| mirror.kept(index(page)));
            let report = self.pages[page].report();
            (page, Report { kept, ..report })
        });
        report.collect()
    }
}
