//! The report for people: aligned, in groups, in colour where that is wanted.

use farpage_text::size::counted;

use super::{Check, Report, State};

/// Columns that text may take before it goes on in the next line.
const WIDTH: usize = 100;

pub(super) fn text(report: &Report, colour: bool) -> String {
    let paint = Paint(colour);
    let mut text = paint.bold(&format!(
        "farpage {} on Linux {}\n",
        report.farpage, report.kernel
    ));
    let names = report.checks.iter().map(|check| check.name.chars().count());
    let width = names.max().unwrap_or(0);
    let mut group = "";
    for check in &report.checks {
        if check.group != group {
            group = check.group;
            text += &format!("\n{}\n", paint.bold(group));
        }
        text += &line(check, width, &paint);
    }
    text.push('\n');
    text += &verdict(report, &paint);
    text
}

fn line(check: &Check, width: usize, paint: &Paint) -> String {
    let indent = 2 + 4 + 2 + width + 2;
    let found = wrap(&check.found, WIDTH.saturating_sub(indent).max(30));
    let mut text = format!(
        "  {}  {:<width$}  {}\n",
        paint.mark(check.state),
        check.name,
        found.join(&format!("\n{:indent$}", ""))
    );
    for command in &check.improve {
        text += &format!("{:indent$}{}\n", "", paint.command(command));
    }
    text
}

fn verdict(report: &Report, paint: &Paint) -> String {
    let count = |state| {
        report
            .checks
            .iter()
            .filter(|check| check.state == state)
            .count()
    };
    let (fails, warns) = (count(State::Fail), count(State::Warn));
    let things = |n: usize| counted(n as u64, "thing");
    if fails > 0 {
        let text = format!(
            "farpage run cannot work here: {} in the way (fail)",
            things(fails)
        );
        return paint.red(&text) + "\n";
    }
    let text = match warns {
        0 => "farpage run works here".to_string(),
        n => format!(
            "farpage run works here; {} could be better (warn)",
            things(n)
        ),
    };
    paint.green(&text) + "\n"
}

/// Breaks `text` at spaces into lines of at most `width` characters, longer words excepted.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("never empty");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_string());
            continue;
        }
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines
}

struct Paint(bool);

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if !self.0 {
            return text.to_string();
        }
        let (text, end) = match text.strip_suffix('\n') {
            Some(text) => (text, "\n"),
            None => (text, ""),
        };
        format!("\x1b[{code}m{text}\x1b[0m{end}")
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }

    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("1;32", text)
    }

    /// `$ ` marks what can be typed, with colour and without.
    fn command(&self, text: &str) -> String {
        self.with("36", &format!("$ {text}"))
    }

    fn mark(&self, state: State) -> String {
        match state {
            State::Ok => self.with("32", "ok  "),
            State::Info => self.with("2", "note"),
            State::Warn => self.with("1;33", "warn"),
            State::Fail => self.red("fail"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(works: bool) -> Report {
        let check = |group, name, state, found: &str| Check::new(group, name, state, found);
        Report {
            works,
            farpage: "0.1.0",
            kernel: "6.18".to_string(),
            tier: "device",
            checks: vec![
                check("userfaultfd", "tier", State::Ok, "device"),
                check("limits", "open files", State::Warn, "256 are few").improve("ulimit -n 4096"),
            ],
        }
    }

    #[test]
    fn the_report_is_aligned_and_names_the_line_to_type() {
        let expected = "\
farpage 0.1.0 on Linux 6.18

userfaultfd
  ok    tier        device

limits
  warn  open files  256 are few
                    $ ulimit -n 4096

farpage run works here; 1 thing could be better (warn)
";
        assert_eq!(text(&report(true), false), expected);
        assert!(text(&report(true), true).contains("\x1b[1;33mwarn\x1b[0m"));
    }

    #[test]
    fn long_findings_are_wrapped() {
        let lines = wrap("aaa bbb ccc dddddddddddd e", 7);
        assert_eq!(lines, ["aaa bbb", "ccc", "dddddddddddd", "e"]);
    }
}
