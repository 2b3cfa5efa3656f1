//! The format of traces, as `tools/bench/trace/recorder.c` writes them.
//!
//! A list of runs of pages that were touched one after the other. Each is a number, and a second
//! one when its lowest bit is set: bit 0 says that the run has a length (else it is one page), bit
//! 1 that the pages were written, the rest is the distance from the last page of the run before to
//! the first of this one, folded so that signs alternate (0, -1, 1, -2, ...). Numbers are stored
//! seven bits a byte, lowest first.

use std::collections::HashMap;
use std::fmt;

use farpage_object::CLUSTER_PAGES;

/// Accesses of one program, in order. Pages are numbered without gaps between clusters.
pub struct Trace {
    /// (page, it was written).
    pub accesses: Vec<(u32, bool)>,
    /// Pages touched.
    pub footprint: usize,
    /// Clusters numbered.
    pub clusters: usize,
}

/// Why bytes are not a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// They end within a number.
    Truncated,
    /// A page or a length is out of all bounds.
    Absurd,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "the trace ends within a number; record it again"),
            Self::Absurd => write!(f, "the trace names an impossible page; record it again"),
        }
    }
}

impl std::error::Error for TraceError {}

fn number(bytes: &[u8], at: &mut usize) -> Result<u64, TraceError> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(*at).ok_or(TraceError::Truncated)?;
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
        shift += 7;
        if shift > 56 {
            return Err(TraceError::Absurd);
        }
    }
}

/// Reads a trace.
///
/// # Errors
/// When `bytes` are not one.
pub fn decode(bytes: &[u8]) -> Result<Trace, TraceError> {
    const MOST: i64 = 1 << 31;
    let (mut at, mut last) = (0, 0i64);
    let mut raw = Vec::new();
    while at < bytes.len() {
        let token = number(bytes, &mut at)?;
        let folded = token >> 2;
        let half = (folded >> 1) as i64;
        let first = last + if folded & 1 == 1 { -half - 1 } else { half };
        let length = if token & 1 == 1 {
            number(bytes, &mut at)? as i64
        } else {
            1
        };
        if !(0..MOST).contains(&first) || !(1..1 << 24).contains(&length) {
            return Err(TraceError::Absurd);
        }
        raw.extend((first..first + length).map(|page| (page as u64, token & 2 != 0)));
        last = first + length - 1;
    }
    Ok(renumber(&raw))
}

/// Closes the gaps: clusters are numbered in the order of their addresses.
fn renumber(raw: &[(u64, bool)]) -> Trace {
    let mut clusters: Vec<u64> = raw.iter().map(|(page, _)| page / CLUSTER_PAGES).collect();
    clusters.sort_unstable();
    clusters.dedup();
    let places = clusters.iter().enumerate();
    let places: HashMap<u64, u64> = places.map(|(i, &cluster)| (cluster, i as u64)).collect();
    let accesses: Vec<(u32, bool)> = raw
        .iter()
        .map(|&(page, write)| {
            let place = places[&(page / CLUSTER_PAGES)];
            ((place * CLUSTER_PAGES + page % CLUSTER_PAGES) as u32, write)
        })
        .collect();
    let mut touched = vec![false; clusters.len() * CLUSTER_PAGES as usize];
    for &(page, _) in &accesses {
        touched[page as usize] = true;
    }
    Trace {
        footprint: touched.iter().filter(|&&there| there).count(),
        clusters: clusters.len(),
        accesses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_single_pages_and_steps_back_are_read() {
        // Pages 5, 6, 7 read; 3 written.
        let trace = decode(&[5 << 3 | 1, 3, 7 << 2 | 2]).expect("a trace");
        assert_eq!(
            trace.accesses,
            [(5, false), (6, false), (7, false), (3, true)]
        );
        assert_eq!((trace.footprint, trace.clusters), (4, 1));
    }

    #[test]
    fn what_is_not_a_trace_is_refused() {
        assert_eq!(decode(&[0x80]).err(), Some(TraceError::Truncated));
        assert_eq!(decode(&[1 << 2]).err(), Some(TraceError::Absurd));
        assert_eq!(decode(&[0xff; 12]).err(), Some(TraceError::Absurd));
    }
}
