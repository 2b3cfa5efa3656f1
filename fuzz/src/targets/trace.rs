//! Recorded working sets.

use farpage_source::Trace;

/// A trace names pages that its source has; one that was cut is the beginning of the whole.
pub(crate) fn run(input: &[u8]) {
    let trace = match Trace::parse(input) {
        Ok(trace) => trace,
        Err(why) => return assert!(!why.is_empty()),
    };
    let pages = trace.size.div_ceil(4096);
    for run in &trace.runs {
        assert!(!run.is_empty() && run.end.0 <= pages, "{run:?} of {pages}");
    }
    for cut in [input.len() / 2, input.len() - 1] {
        if let Ok(part) = Trace::parse(&input[..cut]) {
            assert_eq!((part.size, &part.version), (trace.size, &trace.version));
            assert!(trace.runs.starts_with(&part.runs));
        }
    }
}

/// Whole ones, one that was cut, and some that lie.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "farpage trace 1\nsize 409600\nversion \"tag\"\n50+10\n0+3\n60+5\n",
        "farpage trace 1\nsize 8192\nversion \n0+1\n1+",
        "farpage trace 1\nsize 18446744073709551615\nversion x\n18446744073709551615+2\n",
        "farpage trace 1\nsize 0\nversion x\n0+0\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
