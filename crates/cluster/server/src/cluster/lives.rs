//! Whether processes of other hosts live: each host knows its own.
//!
//! Whoever has something that another host wrote has seen the view in which that host was, or a later
//! one. So a host that is not in the view of who asks is gone, and so are its processes.

use std::collections::HashMap;
use std::sync::Mutex;

use farpage_network::Incarnation;
use farpage_rules::coherence::Host;
use farpage_sys::lock;

use super::{Cluster, Inner, Kind, put};

/// Questions at a time. Who asks more often is told that all live, and asks again.
const OPEN_MAX: usize = 4096;

/// Is told whether a process lives.
pub type Lives = Box<dyn FnOnce(bool) + Send>;

/// Questions that other hosts have yet to answer.
#[derive(Default)]
pub(super) struct Questions(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, (Incarnation, Lives)>,
}

impl Questions {
    fn begin(&self, of: Incarnation, answer: Lives) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.open.len() >= OPEN_MAX {
            drop(state);
            answer(true);
            return None;
        }
        state.next += 1;
        let question = state.next;
        state.open.insert(question, (of, answer));
        Some(question)
    }

    pub(super) fn answered(&self, question: u64, by: Incarnation, lives: bool) {
        let mut state = lock(&self.0);
        let is_of = |(of, _): &(Incarnation, Lives)| *of == by;
        let answer = match state.open.get(&question).is_some_and(is_of) {
            true => state.open.remove(&question),
            false => None,
        };
        drop(state);
        if let Some((_, answer)) = answer {
            answer(lives);
        }
    }

    /// Hosts of which `is_there` is false are gone, and their processes with them.
    pub(super) fn without_all_but(&self, is_there: impl Fn(Incarnation) -> bool) {
        let gone: Vec<Lives> = {
            let open = &mut lock(&self.0).open;
            let gone = open.extract_if(|_, (of, _)| !is_there(*of));
            gone.map(|(_, (_, answer))| answer).collect()
        };
        gone.into_iter().for_each(|answer| answer(false));
    }
}

impl Inner {
    /// Another host asks.
    pub(super) fn is_asked_who_lives(&self, by: Host, question: u64, process: u64) {
        let answer = (question, self.observer.lives(process));
        self.post.sends(by, Kind::IsLiving, &[&put(&answer)]);
    }
}

impl Cluster {
    /// Asks another host whether a process of its lives: `answer` is told when the host says so, or is
    /// out of the view. Who runs there is asked by [`super::Observer::lives`].
    pub fn asks_whether(&self, host: u8, process: u64, answer: Lives) {
        let inner = &self.inner;
        let Some(peer) = inner.post.incarnation(Host(host)) else {
            return answer(false);
        };
        let Some(question) = inner.questions.begin(peer, answer) else {
            return;
        };
        inner
            .post
            .sends(Host(host), Kind::Lives, &[&put(&(question, process))]);
        // It may have gone before the question was noted.
        inner
            .questions
            .without_all_but(|peer| inner.post.host(peer).is_some());
    }

    /// All who wait at a byte of an object at these hosts, one bit each, go on: who runs there is told
    /// by [`super::Observer::wake`]. Not waited for.
    pub fn wake_at(&self, number: u64, offset: u64, hosts: u64) {
        let what = put(&(number, offset, u32::MAX));
        for host in (0..64).filter(|host| hosts >> host & 1 == 1).map(Host) {
            self.inner.post.sends(host, Kind::Wake, &[&what]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_question_is_answered_by_who_was_asked_or_by_its_end() {
        let questions = Questions::default();
        let (tell, told) = channel();
        let begin = |of| {
            let tell = tell.clone();
            let answer = move |lives| tell.send(lives).unwrap();
            questions.begin(Incarnation(of), Box::new(answer))
        };
        let [one, two, three] = [1, 2, 2].map(|of| begin(of).unwrap());
        questions.answered(one, Incarnation(2), false);
        assert!(told.try_recv().is_err(), "it was not asked");
        questions.answered(one, Incarnation(1), true);
        questions.answered(one, Incarnation(1), false);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [true]);
        questions.answered(two, Incarnation(2), true);
        questions.without_all_but(|peer| peer == Incarnation(1));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [true, false]);
        questions.answered(three, Incarnation(2), true);
        assert!(told.try_recv().is_err(), "it is gone");
        while begin(1).is_some() {}
        assert_eq!(lock(&questions.0).open.len(), OPEN_MAX);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [true]);
    }
}
