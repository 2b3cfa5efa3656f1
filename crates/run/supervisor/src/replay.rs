//! `--replay TRACE`: what of a trace belongs to which mapped file.

use farpage_object::PageRange;
use farpage_source::{Source, Traced, Traces};

/// A mapped file as a trace knows it.
pub struct ReplayedMap<'a> {
    /// As `--map` has it.
    pub name: &'a str,
    /// What it holds.
    pub source: &'a dyn Source,
}

/// What to bring in, by the numbers of `maps`; and a line for each of them that is left out, or has
/// changed.
pub fn plan(traces: &Traces, maps: &[ReplayedMap]) -> (Vec<(usize, PageRange)>, Vec<String>) {
    let mut messages = Vec::new();
    let mut map_of = vec![None; traces.sources.len()];
    for (number, map) in maps.iter().enumerate() {
        match find(traces, map, maps.len()) {
            Ok(at) => {
                map_of[at] = Some(number);
                messages.extend(traces.sources[at].change(map.name, map.source));
            }
            Err(why) => messages.push(format!("'{}' is not replayed: {why}", map.name)),
        }
    }
    let runs = traces.runs.iter();
    let runs = runs.filter_map(|(at, run)| Some((map_of[*at]?, *run)));
    (runs.collect(), messages)
}

/// Which of the sources of `traces` the file is.
fn find(traces: &Traces, map: &ReplayedMap, maps: usize) -> Result<usize, String> {
    let of_name = |source: &Traced| match &source.name {
        Some(name) => name == map.name,
        // Recorded of the only file there was.
        None => maps == 1,
    };
    traces.sources.iter().position(of_name).ok_or_else(|| {
        match traces.sources.as_slice() {
            [Traced { name: None, .. }] => {
                "the trace is of one file and does not name it; give only one --map"
            }
            _ => "the trace knows no --map of this path; record it again",
        }
        .to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_source::SourceError;

    struct Of(u64, &'static str);

    impl Source for Of {
        fn name(&self) -> &str {
            "here"
        }

        fn size(&self) -> u64 {
            self.0
        }

        fn version(&self) -> Option<String> {
            (!self.1.is_empty()).then(|| self.1.to_string())
        }

        fn read_at(&self, offset: u64, _: &mut [u8]) -> Result<(), SourceError> {
            panic!("byte {offset} is read")
        }
    }

    fn planned(trace: &str, maps: &[(&str, Of)]) -> (Vec<(usize, u64)>, Vec<String>) {
        let traces = Traces::parse(format!("farpage trace 1\n{trace}").as_bytes()).unwrap();
        let maps: Vec<ReplayedMap> = maps
            .iter()
            .map(|(name, source)| ReplayedMap { name, source })
            .collect();
        let (runs, messages) = plan(&traces, &maps);
        let runs = runs.iter().map(|(number, run)| (*number, run.start.0));
        (runs.collect(), messages)
    }

    const ONE: &str = "size 8192\nversion v\n1+1\n0+1\n";
    const TWO: &str = "size 8192\nversion v\nname a\nsize 4096\nversion \nname b\n1+1\n@1\n0+1\n";

    #[test]
    fn files_are_found_by_the_path_that_the_command_line_gives() {
        let all = planned(ONE, &[("any", Of(8192, "v"))]);
        assert_eq!(all, (vec![(0, 1), (0, 0)], Vec::new()));
        let all = planned(TWO, &[("b", Of(4096, "")), ("a", Of(8192, "v"))]);
        assert_eq!(all, (vec![(1, 1), (0, 0)], Vec::new()));
        let fewer = planned(TWO, &[("b", Of(4096, ""))]);
        assert_eq!(fewer, (vec![(0, 0)], Vec::new()));
    }

    #[test]
    fn what_has_changed_is_replayed_with_a_line_and_what_is_not_known_left_out_with_one() {
        let (runs, messages) = planned(TWO, &[("a", Of(8192, "w")), ("b", Of(4096, ""))]);
        assert_eq!(runs, [(0, 1), (1, 0)]);
        let want = "'a' has changed since its trace was recorded: it was v and is w; what it still \
                    has of the pages is brought in; record it again";
        assert_eq!(messages, [want]);
        let (runs, messages) = planned(ONE, &[("x", Of(4096, "v"))]);
        assert_eq!(runs, [(0, 1), (0, 0)]);
        assert!(
            messages[0].contains("it had 8192 bytes and has 4096"),
            "{messages:?}"
        );
        let (runs, messages) = planned(TWO, &[("c", Of(8192, "v"))]);
        assert!(runs.is_empty());
        assert!(
            messages[0].contains("knows no --map of this path"),
            "{messages:?}"
        );
        let (runs, messages) = planned(ONE, &[("a", Of(8192, "v")), ("b", Of(8192, "v"))]);
        assert!(runs.is_empty() && messages.len() == 2);
        assert!(messages[0].contains("give only one --map"), "{messages:?}");
    }
}
