//! Several cases at a time, and a line about how far they are.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Case, Cells, Ran};

/// How many cases run at a time, and what is told meanwhile.
pub(crate) struct Pool {
    pub(crate) jobs: usize,
    /// Stop at the first failure.
    pub(crate) fail_fast: bool,
}

/// How often a run that no terminal shows says how far it is.
const NEWS: Duration = Duration::from_secs(30);

/// Runs the cases in this order and gives `each` what became of one as soon as it is known.
pub(crate) fn run_all(
    pool: &Pool,
    cells: &Cells,
    cases: Vec<Case>,
    mut each: impl FnMut(&Ran),
) -> Vec<Ran> {
    let mut news = News::new(cases.len());
    let waiting = Mutex::new(cases.into_iter());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    };
    let (event, events) = mpsc::channel();
    let mut all = Vec::new();
    thread::scope(|scope| {
        for _ in 0..pool.jobs.max(1) {
            let event = event.clone();
            scope.spawn(move || {
                while let Some(case) = next() {
                    let _ = event.send(Event::Began(case.name.clone()));
                    let ran = cells.run(&case);
                    if event.send(Event::Ended(ran)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(event);
        loop {
            match events.recv_timeout(news.pause()) {
                Ok(Event::Began(name)) => news.began(name),
                Ok(Event::Ended(ran)) => {
                    news.ended(&ran);
                    each(&ran);
                    let stops = pool.fail_fast && !ran.passed();
                    all.push(ran);
                    if stops {
                        // Nothing new begins; what runs is let end.
                        waiting
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .by_ref()
                            .for_each(drop);
                    }
                }
                Err(RecvTimeoutError::Timeout) => news.tell(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    news.end();
    all
}

enum Event {
    Began(String),
    Ended(Ran),
}

/// The line about how far a run is: rewritten on a terminal, elsewhere a new one now and then.
struct News {
    all: usize,
    done: usize,
    failed: usize,
    running: BTreeMap<String, Instant>,
    is_terminal: bool,
    told: Instant,
}

impl News {
    fn new(all: usize) -> Self {
        Self {
            all,
            done: 0,
            failed: 0,
            running: BTreeMap::new(),
            is_terminal: std::io::stdout().is_terminal(),
            told: Instant::now(),
        }
    }

    fn pause(&self) -> Duration {
        let every = if self.is_terminal {
            Duration::from_millis(500)
        } else {
            NEWS
        };
        every.saturating_sub(self.told.elapsed())
    }

    fn began(&mut self, name: String) {
        self.running.insert(name, Instant::now());
    }

    fn ended(&mut self, ran: &Ran) {
        self.running.remove(&ran.name);
        self.done += 1;
        if let Some(failure) = &ran.failure {
            self.failed += 1;
            self.clear();
            println!(
                "FAILED {} after {:.1} s: {failure}\n",
                ran.name, ran.seconds
            );
        }
    }

    fn tell(&mut self) {
        self.told = Instant::now();
        let longest = self.running.iter().min_by_key(|(_, began)| **began);
        let longest = longest.map_or(String::new(), |(name, began)| {
            format!("; running longest: {name}, {} s", began.elapsed().as_secs())
        });
        let failed = match self.failed {
            0 => String::new(),
            n => format!(", {n} failed"),
        };
        let line = format!("{} of {}{failed}{longest}", self.done, self.all);
        if self.is_terminal {
            let line: String = line.chars().take(100).collect();
            print!("\r\x1b[K{line}");
            let _ = std::io::stdout().flush();
        } else {
            println!("   {line}");
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            print!("\r\x1b[K");
        }
    }

    fn end(&self) {
        self.clear();
        let _ = std::io::stdout().flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_run_side_by_side_and_each_is_told_once() {
        let pipe = std::env::temp_dir().join(format!("farpage-pool-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap();
        assert!(made.success());
        // Each waits for the other at a pipe: one after the other they would never end.
        let writes = format!("echo x >{}", pipe.display());
        let reads = format!("read -r line <{}", pipe.display());
        let cells = Cells::new(&[]).unwrap();
        let pool = Pool {
            jobs: 2,
            fail_fast: false,
        };
        let mut told = Vec::new();
        let cases = vec![
            Case::of_shell("writes", &writes),
            Case::of_shell("reads", &reads),
        ];
        let all = run_all(&pool, &cells, cases, |ran| told.push(ran.name.clone()));
        std::fs::remove_file(pipe).unwrap();
        assert!(all.iter().all(Ran::passed), "{all:?}");
        told.sort();
        assert_eq!(told, ["reads", "writes"]);
    }

    #[test]
    fn the_first_failure_ends_a_run_that_is_to_fail_fast() {
        let cells = Cells::new(&[]).unwrap();
        let pool = Pool {
            jobs: 1,
            fail_fast: true,
        };
        let cases = vec![
            Case::of_shell("one", "exit 1"),
            Case::of_shell("two", "exit 0"),
            Case::of_shell("three", "exit 0"),
        ];
        let all = run_all(&pool, &cells, cases, |_| ());
        assert!(!all[0].passed() && all.len() < 3);
    }
}
