//! `farpage trace`: what an object's threads, the host kernel and its pager say to each other.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use farpage_client::Message;
use farpage_daemon::symbols::Symbols;
use farpage_text::size::human;

use super::WhichHost;
use super::figures::time;

/// Between two questions whether there is something new.
const EVERY: Duration = Duration::from_millis(100);

/// Show what happens to shared memory as it happens: faults, requests, returns
///
/// A line each: time, what, which bytes, who (and in which function, where Linux lets the host kernel
/// know), and how long the pager took. Until it is interrupted.
///
/// read, write: a thread faulted. request, supply, unavailable: pages are asked for, come, do not.
/// return, taken, refused: pages leave for the pager, which takes them or not. zeros: new pages.
/// aside: pages are next to leave; back: they were used meanwhile; dropped: the pager has them.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct TraceArgs {
    /// A name, as `farpage ls` shows it
    #[arg(value_name = "NAME")]
    pub name: String,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Prints messages as they come.
///
/// # Errors
/// When no host kernel answers, or there is no such object, or not any more.
pub fn trace(args: &TraceArgs) -> Result<()> {
    args.which.ask(|host| {
        let mut symbols = Symbols::default();
        let (mut from, _) = host.messages(&args.name, u64::MAX)?;
        let mut left = args.count.unwrap_or(u64::MAX);
        while left > 0 {
            let (first, messages) = host.messages(&args.name, from)?;
            let mut text = String::new();
            if first > from {
                let _ = writeln!(text, "({} messages are lost)", first - from);
            }
            from = first + messages.len() as u64;
            let is_all = messages.is_empty();
            for message in messages.into_iter().take(left as usize) {
                left -= 1;
                let who = who(&mut symbols, &message);
                let _ = writeln!(text, "{}", line(&message, &who));
            }
            // Who reads them may have had enough.
            if std::io::stdout().write_all(text.as_bytes()).is_err() {
                break;
            }
            if is_all {
                std::thread::sleep(EVERY);
            }
        }
        Ok(())
    })
}

/// Who a message is of: a thread's process, and where it is in its program.
fn who(symbols: &mut Symbols, message: &Message) -> String {
    match message.thread {
        0 => String::new(),
        thread => symbols.place(thread, message.instruction),
    }
}

fn line(message: &Message, who: &str) -> String {
    let seconds = message.at_ns / 1_000_000_000 % 86_400;
    let micros = message.at_ns / 1_000 % 1_000_000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let took = match message.took_ns {
        0 => String::new(),
        ns => format!("  after {}", time(Some(ns as f64 / 1e3))),
    };
    let text = format!(
        "{hours:02}:{minutes:02}:{:02}.{micros:06}  {:<11}  {:#012x}  {:>8}  {who}{took}",
        seconds % 60,
        message.what,
        message.offset,
        human(message.bytes),
    );
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_line() {
        let mut message = Message {
            at_ns: 3_661_000_042_000,
            what: "write".into(),
            thread: 7,
            offset: 0x3000,
            bytes: 4096,
            took_ns: 0,
            instruction: 0,
        };
        let shown = line(&message, "71 python3");
        assert_eq!(
            shown,
            "01:01:01.000042  write        0x0000003000  4.00 KiB  71 python3"
        );
        message.took_ns = 2_000_000;
        assert!(
            line(&message, "").ends_with("4.00 KiB    after 2 ms"),
            "{}",
            line(&message, "")
        );
    }

    #[test]
    fn a_thread_is_told_by_its_process() {
        let mut message = Message {
            at_ns: 0,
            what: "read".into(),
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            offset: 0,
            bytes: 4096,
            took_ns: 0,
            instruction: 0,
        };
        let told = who(&mut Symbols::default(), &message);
        assert!(told.starts_with(&std::process::id().to_string()), "{told}");
        message.thread = 0;
        assert_eq!(who(&mut Symbols::default(), &message), "");
    }
}
