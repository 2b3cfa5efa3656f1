//! What one host has changed of a page, as bytes: only those that differ, so that hosts that write next to
//! each other do not undo one another.
//!
//! For each line of 64 bytes in which something differs come the number of the line (2 bytes), a bit for
//! each byte that does (8 bytes), and those bytes. So one word that changed is 18 bytes, and a page that
//! changed everywhere is 4736.

/// Bytes of a line.
const LINE: usize = 64;
/// Bytes before those of a line.
const HEAD: usize = 10;

/// What differs between a page as it `was` and as it `is`; `None`: nothing.
///
/// # Panics
/// When they have not the same length, or more than 65536 lines.
pub(crate) fn diff(was: &[u8], is: &[u8]) -> Option<Vec<u8>> {
    assert_eq!(was.len(), is.len(), "one page");
    assert!(was.len() <= LINE << 16, "lines have numbers of two bytes");
    let mut all = Vec::new();
    let lines = was.chunks(LINE).zip(is.chunks(LINE));
    for (line, (was, is)) in lines.enumerate().filter(|(_, (was, is))| was != is) {
        all.extend((line as u16).to_le_bytes());
        let differs = |at: &usize| was[*at] != is[*at];
        let bits = (0..is.len()).filter(differs);
        all.extend(bits.fold(0, |bits: u64, at| bits | 1 << at).to_le_bytes());
        all.extend((0..is.len()).filter(differs).map(|at| is[at]));
    }
    (!all.is_empty()).then_some(all)
}

/// The bytes of a diff, and where in a page of `bytes` each run of them lies. `None`: it is no diff of
/// such a page.
pub(crate) fn runs(mut diff: &[u8], bytes: usize) -> Option<Vec<(usize, Box<[u8]>)>> {
    let mut all: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut next = 0;
    while !diff.is_empty() {
        let (head, rest) = diff.split_first_chunk::<HEAD>()?;
        let line = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let (_, bits) = head.split_last_chunk()?;
        let bits = u64::from_le_bytes(*bits);
        let (changed, rest) = rest.split_at_checked(bits.count_ones() as usize)?;
        if line < next || bits == 0 {
            return None;
        }
        let places = (0..LINE).filter(|at| bits >> at & 1 == 1);
        for (at, byte) in places.map(|at| line * LINE + at).zip(changed) {
            match all.last_mut() {
                Some((first, run)) if *first + run.len() == at => run.push(*byte),
                Some(_) | None => all.push((at, vec![*byte])),
            }
        }
        (diff, next) = (rest, line + 1);
    }
    let end = all.last().map_or(0, |(first, run)| first + run.len());
    let all = all.into_iter().map(|(first, run)| (first, run.into()));
    (end <= bytes).then(|| all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(page: &mut [u8], diff: &[u8]) {
        for (at, run) in runs(diff, page.len()).unwrap() {
            page[at..at + run.len()].copy_from_slice(&run);
        }
    }

    #[test]
    fn neighbours_that_write_single_bytes_do_not_undo_one_another() {
        let was = [7; 4096];
        let (mut one, mut other, mut owner) = (was, was, was);
        for at in (0..4096).step_by(2) {
            (one[at], other[at + 1]) = (1, 2);
        }
        put(&mut owner, &diff(&was, &one).unwrap());
        put(&mut owner, &diff(&was, &other).unwrap());
        assert!(owner.chunks(2).all(|both| both == [1, 2]));
    }

    #[test]
    fn a_word_is_little_and_a_whole_page_hardly_more_than_itself() {
        let was = [0; 4096];
        let mut word = was;
        word[800..808].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(diff(&was, &word).unwrap().len(), 18);
        assert_eq!(diff(&was, &[1; 4096]).unwrap().len(), 4736);
        assert_eq!(diff(&was, &was), None);
        assert_eq!(
            runs(&diff(&was, &[1; 4096]).unwrap(), 4096),
            Some(vec![(0, [1; 4096].into())])
        );
    }

    #[test]
    fn what_is_no_diff_of_such_a_page_is_refused() {
        let one = diff(&[0; 4096], &[1; 4096]).unwrap();
        assert_eq!(runs(&one[1..], 4096), None);
        assert_eq!(runs(&one[..one.len() - 1], 4096), None);
        assert_eq!(runs(&one, 4095), None, "beyond the end");
        assert_eq!(runs(&[0; 10], 4096), None, "a line without changes");
        let twice = [&diff(&[0; 64], &[1; 64]).unwrap()[..]; 2].concat();
        assert_eq!(runs(&twice, 4096), None);
        assert_eq!(runs(&[], 4096), Some(vec![]));
    }
}
