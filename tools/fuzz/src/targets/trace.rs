//! Recorded working sets.

use farpage_source::{Trace, Traces};

/// A trace names pages that its sources have; one that was cut is the beginning of the whole.
pub(crate) fn run(input: &[u8]) {
    let traces = match Traces::parse(input) {
        Ok(traces) => traces,
        Err(why) => {
            assert!(!why.is_empty() && Trace::parse(input).is_err());
            return;
        }
    };
    for (at, run) in &traces.runs {
        let pages = traces.sources[*at].size.div_ceil(4096);
        assert!(!run.is_empty() && run.end.0 <= pages, "{run:?} of {pages}");
    }
    match Trace::parse(input) {
        Ok(trace) => assert_eq!(trace.runs.len(), traces.runs.len()),
        Err(_) => assert!(traces.sources.len() > 1),
    }
    for cut in [input.len() / 2, input.len() - 1] {
        if let Ok(part) = Traces::parse(&input[..cut]) {
            for (part, whole) in part.sources.iter().zip(&traces.sources) {
                assert_eq!((part.size, &part.version), (whole.size, &whole.version));
            }
            assert!(traces.runs.starts_with(&part.runs));
        }
    }
}

/// Whole ones, one that was cut, and some that lie.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "farpage trace 1\nsize 409600\nversion \"tag\"\n50+10\n0+3\n60+5\n",
        "farpage trace 1\nsize 8192\nversion \n0+1\n1+",
        "farpage trace 1\nsize 18446744073709551615\nversion x\n18446744073709551615+2\n",
        "farpage trace 1\nsize 8192\nversion a\nname x\nsize 1\nversion \nname y\n1+1\n\
         @1\n0+1\n@0\n0+1\n",
        "farpage trace 1\nsize 0\nversion x\n0+0\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
