//! Messages that are longer than the network takes, in parts.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_rules::coherence::Host;
use farpage_sys::lock;

use crate::wire::Said;

/// Bytes of a message that goes as it is; the network takes 1 MiB, with what it puts before it.
const WHOLE_BYTES_MAX: usize = (1 << 20) - 256;
/// Parts of a message at most: longer ones are refused.
const PARTS_MAX: u16 = 64;
/// Messages of one host that may be coming in parts at a time.
const COMING_MAX: usize = 1024;

/// What is on its way in parts.
#[derive(Default)]
pub(crate) struct Parts {
    next: AtomicU64,
    coming: Mutex<HashMap<(Host, u64), Coming>>,
}

/// The parts of a message that have come, each in its place.
type Coming = Vec<Option<Vec<u8>>>;

/// Where a part belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the sender's messages.
    pub(crate) message: u64,
    /// Which of its parts.
    pub(crate) part: u16,
    /// How many it has.
    pub(crate) count: u16,
}

impl Parts {
    /// Has `send` send a message, in parts if it is too long.
    pub(crate) fn send(&self, parts: &[&[u8]], mut send: impl FnMut(&[&[u8]])) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes <= WHOLE_BYTES_MAX {
            return send(parts);
        }
        let whole = parts.concat();
        let chunks = whole.chunks(WHOLE_BYTES_MAX);
        let count = u16::try_from(chunks.len()).expect("a message has an end");
        assert!(count <= PARTS_MAX, "a message of {bytes} bytes");
        let message = self.next.fetch_add(1, Ordering::Relaxed);
        for (part, chunk) in (0..count).zip(chunks) {
            let head = Said::Part {
                message,
                part,
                count,
            };
            send(&[&head.bytes(), chunk]);
        }
    }

    /// A part has come: the whole message with the last of them. The error is what is wrong.
    pub(crate) fn came(
        &self,
        from: Host,
        place: Place,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, &'static str> {
        let (at, count) = (usize::from(place.part), usize::from(place.count));
        if at >= count || place.count > PARTS_MAX {
            return Err("a part that no message has");
        }
        let mut all = lock(&self.coming);
        let key = (from, place.message);
        if !all.contains_key(&key) && all.keys().filter(|(by, _)| *by == from).count() >= COMING_MAX
        {
            return Err("parts of too many messages");
        }
        let coming = all.entry(key).or_insert_with(|| vec![None; count]);
        if coming.len() != count || coming[at].is_some() {
            return Err("a part that has come, or of a message of another length");
        }
        coming[at] = Some(bytes.to_vec());
        if coming.iter().any(Option::is_none) {
            return Ok(None);
        }
        let whole = all.remove(&key).into_iter().flatten().flatten();
        Ok(Some(whole.collect::<Vec<_>>().concat()))
    }

    /// Nothing of a host comes any more.
    pub(crate) fn is_gone(&self, host: Host) {
        lock(&self.coming).retain(|(by, _), _| *by != host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY: Host = Host(3);

    fn sent(parts: &Parts, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        parts.send(&[&bytes[..1], &bytes[1..]], |one| all.push(one.concat()));
        all
    }

    fn came(parts: &Parts, bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
        let (said, rest) = Said::take(bytes).unwrap();
        let Said::Part {
            message,
            part,
            count,
        } = said
        else {
            panic!("{said:?}");
        };
        let place = Place {
            message,
            part,
            count,
        };
        parts.came(BY, place, rest)
    }

    #[test]
    fn a_long_message_comes_whole_whatever_order_its_parts_come_in() {
        let parts = Parts::default();
        let one: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 9) as u8).collect();
        let other: Vec<u8> = one.iter().map(|byte| !byte).collect();
        let mut all = sent(&parts, &one);
        all.extend(sent(&parts, &other));
        assert!(all.iter().all(|part| part.len() <= (1 << 20) - 128));
        all.reverse();
        let whole: Vec<Vec<u8>> = all
            .iter()
            .filter_map(|part| came(&parts, part).unwrap())
            .collect();
        assert!(whole == [other, one]);
        assert_eq!(sent(&parts, &[1, 2, 3]), [vec![1, 2, 3]]);
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let parts = Parts::default();
        let all = sent(&parts, &vec![7; 2 << 20]);
        assert_eq!(came(&parts, &all[0]), Ok(None));
        assert!(came(&parts, &all[0]).is_err(), "twice");
        for (part, count) in [(3, 3), (0, 0), (0, PARTS_MAX + 1), (1, 2)] {
            let message = 0;
            let place = Place {
                message,
                part,
                count,
            };
            assert!(parts.came(BY, place, &[1]).is_err(), "{place:?}");
        }
        for message in 1..COMING_MAX as u64 {
            let (part, count) = (0, 2);
            let place = Place {
                message,
                part,
                count,
            };
            assert_eq!(parts.came(BY, place, &[1]), Ok(None));
        }
        let (message, part, count) = (COMING_MAX as u64, 0, 2);
        let place = Place {
            message,
            part,
            count,
        };
        assert!(parts.came(BY, place, &[1]).is_err(), "too many");
        parts.is_gone(BY);
        assert_eq!(parts.came(BY, place, &[1]), Ok(None));
    }
}
