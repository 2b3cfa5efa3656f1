//! What an earlier run asked for, brought in before anybody waits for it.

use std::sync::Arc;

use farpage_abi::{PAGE_BYTES, PageRange};
use farpage_source::Recorder;
use farpage_sys::buffer::Buffer;

use crate::budget::WINDOW_MAX;
use crate::file::{Error, Waiter};
use crate::host::{Asked, Host, io_error};

/// Pages that are replayed at a time: 64 MiB keep any way to a source busy.
const UNDER_WAY_MAX: u64 = 16384;

impl Host {
    /// Has what is asked for recorded from now on: each file's pages under its number, in the
    /// order of the requests.
    pub fn record(&self, recorder: &Arc<Recorder>) {
        for (number, file) in self.files.iter().enumerate() {
            let noted = Arc::clone(recorder);
            file.pager
                .watch_requests(move |pages| noted.note(number, pages));
        }
    }

    /// Brings in runs of pages of files, which are named by their numbers, in this order and in
    /// the background. It takes no memory that somebody else has, and half of the budget at most.
    ///
    /// # Errors
    /// [`Error::Start`] without memory or a thread for it.
    ///
    /// # Panics
    /// In the background, when a number is of no file.
    pub fn replay(&'static self, runs: Vec<(usize, PageRange)>) -> Result<(), Error> {
        let buffer = Buffer::new(WINDOW_MAX as usize * PAGE_BYTES);
        let mut buffer = buffer.map_err(|errno| Error::Start(io_error(errno)))?;
        let work = move || {
            let mut left = self.budget.half();
            for (number, run) in joined(runs) {
                if !self.replay_run(number, run, &mut left, &mut buffer) {
                    break;
                }
            }
        };
        let builder = std::thread::Builder::new().name("maps-replay".into());
        builder.spawn(work).map_err(Error::Start)?;
        Ok(())
    }

    /// Asks for what is absent of `run`, `left` pages at most. False when there is no more room.
    fn replay_run(
        &'static self,
        number: usize,
        run: PageRange,
        left: &mut u64,
        buffer: &mut Buffer,
    ) -> bool {
        let file = &self.files[number];
        let (mut at, end) = (run.start.0, run.end.0.min(file.pages()));
        while at < end {
            self.under_way.wait_for_at_most(UNDER_WAY_MAX);
            let window = self.budget.window().min(end - at).min(*left);
            if window == 0 || self.budget.excess(window) > 0 {
                return false;
            }
            let Some(pages) = file.lock().want_soon(at..end, window) else {
                break;
            };
            if !self.budget.charge(pages.pages(), false) {
                let waiters = file.lock().came(pages, 0);
                waiters.iter().for_each(Waiter::wake);
                return false;
            }
            at = pages.end.0;
            *left -= pages.pages();
            let asked = Asked {
                file: number,
                pages,
                wanted: None,
            };
            self.request(asked, buffer);
        }
        true
    }
}

/// Runs that follow each other in a file become one: fewer, larger reads.
fn joined(runs: Vec<(usize, PageRange)>) -> Vec<(usize, PageRange)> {
    let mut joined: Vec<(usize, PageRange)> = Vec::new();
    for (number, run) in runs {
        match joined.last_mut() {
            Some((of, last)) if *of == number && last.end == run.start => last.end = run.end,
            _ => joined.push((number, run)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_where_they_follow_each_other_in_one_file() {
        let runs = [
            (0, 1, 2),
            (0, 2, 5),
            (1, 5, 6),
            (0, 5, 6),
            (0, 7, 8),
            (0, 6, 7),
        ];
        let of = |(number, start, end)| (number, PageRange::new(start, end));
        let want = [(0, 1, 5), (1, 5, 6), (0, 5, 6), (0, 7, 8), (0, 6, 7)];
        assert_eq!(joined(runs.map(of).to_vec()), want.map(of));
    }
}
