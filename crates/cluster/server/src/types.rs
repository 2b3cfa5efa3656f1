//! Numbers in memory that hosts of either byte order have in common.
//!
//! Who makes an object says in its note what it holds, as NumPy does: `{"shape": [8], "dtype": "<f8"}`.
//! Between hosts such numbers are little-endian, and in the memory of each host in its own order. So
//! hosts that keep them little-endian anyway do nothing. Numbers that are said to be big-endian
//! (`">f8"`), and bytes of which nothing is said, are the same bytes everywhere. In a heap (`"head": 65536`)
//! so many bytes of the allocator's words, of 8 bytes each, come first.

use serde_json::Value;

/// Where the numbers are, of a record that is repeated from the head of an object on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Types {
    /// Bytes that are words of 8 bytes.
    head: u64,
    numbers: Vec<Numbers>,
    /// Of the whole record.
    bytes: u64,
}

/// Numbers that lie one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbers {
    at: u64,
    width: u64,
    count: u64,
}

/// What a host of the other byte order cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTurned {
    /// Numbers that lie on two pages.
    #[error(
        "numbers of {width} bytes lie at byte {at} of records of {bytes}, so that some are on two pages; \
         hosts of the other byte order can only have aligned ones: make the array anew, with \
         numpy.dtype(..., align=True)"
    )]
    Unaligned {
        /// Bytes of a number.
        width: u64,
        /// Where it lies in the record.
        at: u64,
        /// Bytes of the record.
        bytes: u64,
    },
    /// Locks beside the numbers.
    #[error(
        "it has locks, which are for hosts of one byte order; make the array without, and let the others \
         lock for this one"
    )]
    Locks,
}

impl Types {
    /// What a note says that has to be turned at a host whose own numbers are big-endian. `None`:
    /// nothing.
    ///
    /// # Errors
    /// [`NotTurned`].
    pub fn of_note(note: &str) -> Result<Option<Self>, NotTurned> {
        let note: Option<Value> = serde_json::from_str(note).ok();
        let Some(dtype) = note.as_ref().and_then(|note| note.get("dtype")) else {
            return Ok(None);
        };
        if note
            .as_ref()
            .is_some_and(|note| note.get("locks").is_some())
        {
            return Err(NotTurned::Locks);
        }
        let mut numbers = Vec::new();
        let Some(bytes) = adds(dtype, 0, &mut numbers) else {
            // Something else is said.
            return Ok(None);
        };
        let is_wrong =
            |one: &&Numbers| !one.at.is_multiple_of(one.width) || !bytes.is_multiple_of(one.width);
        if let Some(&Numbers { at, width, .. }) = numbers.iter().find(is_wrong) {
            return Err(NotTurned::Unaligned { width, at, bytes });
        }
        let head = note.as_ref().and_then(|note| note.get("head"));
        let head = head.and_then(Value::as_u64).unwrap_or(0) / 8 * 8;
        let is_any = head > 0 || !numbers.is_empty();
        Ok(is_any.then_some(Self {
            head,
            numbers,
            bytes,
        }))
    }

    /// Turns the numbers among `bytes`, which lie from byte `start` of an object on.
    ///
    /// # Panics
    /// When a number lies there in part.
    pub fn turn(&self, start: u64, bytes: &mut [u8]) {
        let head = self.head.saturating_sub(start).min(bytes.len() as u64);
        let (words, bytes) = bytes.split_at_mut(head as usize);
        turn(8, words);
        // Where the rest begins, from the head on.
        let start = (start + head).saturating_sub(self.head);
        let end = start + bytes.len() as u64;
        for numbers in &self.numbers {
            let run = numbers.width * numbers.count;
            let mut record = start / self.bytes * self.bytes;
            while record < end {
                let at = record + numbers.at;
                let from = at.max(start);
                let to = (at + run).min(end);
                if from < to {
                    let part = (from - start) as usize..(to - start) as usize;
                    turn(numbers.width as usize, &mut bytes[part]);
                }
                record += self.bytes;
            }
        }
    }
}

/// Bytes of one element of a type, a `descr` of NumPy. `None` of what is none.
#[must_use]
pub fn element_bytes(descr: &Value) -> Option<u64> {
    adds(descr, 0, &mut Vec::new()).filter(|bytes| *bytes > 0)
}

/// Turns numbers that lie side by side.
fn turn(width: usize, bytes: &mut [u8]) {
    assert!(bytes.len().is_multiple_of(width), "a part of a number");
    for number in bytes.chunks_exact_mut(width) {
        number.reverse();
    }
}

/// Adds the numbers of a `descr` of NumPy that lies at `at` of a record. Its bytes; `None` of what is
/// no `descr`.
fn adds(descr: &Value, at: u64, all: &mut Vec<Numbers>) -> Option<u64> {
    if let Some(text) = descr.as_str() {
        let (numbers, bytes) = of_text(text, at)?;
        all.extend(numbers);
        return Some(bytes);
    }
    let mut bytes = 0;
    for field in descr.as_array()? {
        let field = field.as_array()?;
        let (of, shape) = (field.get(1)?, field.get(2));
        let times = match shape.map(|shape| (shape.as_u64(), shape.as_array())) {
            None => 1,
            Some((Some(count), _)) => count,
            Some((None, Some(sizes))) => sizes
                .iter()
                .try_fold(1_u64, |all, size| all.checked_mul(size.as_u64()?))?,
            Some((None, None)) => return None,
        };
        for _ in 0..times {
            bytes += adds(of, at + bytes, all)?;
        }
    }
    joined(all);
    Some(bytes)
}

/// One run of numbers instead of many that lie side by side.
fn joined(all: &mut Vec<Numbers>) {
    all.dedup_by(|next, one| {
        let follows = next.width == one.width && next.at == one.at + one.width * one.count;
        if follows {
            one.count += next.count;
        }
        follows
    });
}

/// Of one type, such as `<f8`, `|u1`, `<U5`, `<M8[ns]`: its numbers if they are to be turned, and its
/// bytes.
fn of_text(text: &str, at: u64) -> Option<(Option<Numbers>, u64)> {
    let mut letters = text.chars();
    let (order, kind) = (letters.next()?, letters.next()?);
    let size = letters.as_str();
    let size: u64 = size[..size.find('[').unwrap_or(size.len())].parse().ok()?;
    let (width, count) = match kind {
        // A text has 4 bytes a letter.
        'U' => (4, size),
        // Real and imaginary.
        'c' => (size / 2, 2),
        'S' | 'V' | 'a' => (1, size),
        'b' | 'i' | 'u' | 'f' | 'm' | 'M' | 't' => (size, 1),
        _ => return None,
    };
    let bytes = width * count;
    let is_turned = order == '<' && width > 1 && count > 0;
    let is_sound = bytes > 0 && (width == 1 || width.is_power_of_two() && width <= 16);
    is_sound.then_some((is_turned.then_some(Numbers { at, width, count }), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(dtype: &str, start: u64, bytes: &[u8]) -> Vec<u8> {
        let note = format!("{{\"shape\": [4], \"dtype\": {dtype}}}");
        let mut bytes = bytes.to_vec();
        if let Some(types) = Types::of_note(&note).unwrap() {
            types.turn(start, &mut bytes);
        }
        bytes
    }

    #[test]
    fn numbers_are_turned_and_bytes_are_not() {
        let all: Vec<u8> = (0..16).collect();
        let eights = [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8];
        for dtype in ["\"<f8\"", "\"<i8\"", "\"<M8[ns]\"", "\"<c16\""] {
            assert_eq!(turned(dtype, 0, &all), eights, "{dtype}");
        }
        let fours = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];
        assert_eq!(turned("\"<U2\"", 8, &all), fours);
        for dtype in ["\">f8\"", "\"|u1\"", "\"|S4\"", "\"|V16\"", "\"what\"", "7"] {
            assert_eq!(turned(dtype, 0, &all), all, "{dtype}");
        }
        assert_eq!(Types::of_note(""), Ok(None));
        assert_eq!(Types::of_note("{\"bytes\": 5}"), Ok(None));
    }

    #[test]
    fn records_are_turned_number_by_number_wherever_a_part_of_the_object_begins() {
        let record = r#"[["a", "<i4"], ["", "|V4"], ["b", "<i2", [2, 2]], ["c", [["d", "<f8"]]]]"#;
        let whole: Vec<u8> = (0..48).collect();
        let all = turned(record, 0, &whole);
        assert_eq!(all[..8], [3, 2, 1, 0, 4, 5, 6, 7]);
        assert_eq!(all[8..16], [9, 8, 11, 10, 13, 12, 15, 14]);
        assert_eq!(all[16..24], [23, 22, 21, 20, 19, 18, 17, 16]);
        assert_eq!(all[24..32], [27, 26, 25, 24, 28, 29, 30, 31]);
        let second = turned(record, 16, &whole[16..]);
        assert_eq!([&all[..16], &second].concat(), all);
        let twice = turned(record, 8, &turned(record, 8, &whole));
        assert_eq!(twice, whole);
    }

    #[test]
    fn the_words_of_an_allocator_are_turned_and_its_blocks_as_what_they_are() {
        let all: Vec<u8> = (0..16).collect();
        let turned = |dtype: &str, start, bytes: &[u8]| {
            let note = format!("{{\"shape\": [6], \"dtype\": \"{dtype}\", \"head\": 8}}");
            let mut bytes = bytes.to_vec();
            Types::of_note(&note)
                .unwrap()
                .unwrap()
                .turn(start, &mut bytes);
            bytes
        };
        let words = [7, 6, 5, 4, 3, 2, 1, 0];
        let fours = [11, 10, 9, 8, 15, 14, 13, 12];
        assert_eq!(turned("<f4", 0, &all), [words, fours].concat());
        assert_eq!(turned("<f4", 8, &all[8..]), fours);
        assert_eq!(turned("<f4", 0, &all[..8]), words);
        assert_eq!(turned("|u1", 0, &all), [&words, &all[8..]].concat());
        assert_eq!(turned("|u1", 4096, &all), all);
    }

    #[test]
    fn numbers_on_two_pages_and_locks_are_refused() {
        let packed = r#"{"shape": [9], "dtype": [["a", "|u1"], ["b", "<f8"]]}"#;
        let unaligned = NotTurned::Unaligned {
            width: 8,
            at: 1,
            bytes: 9,
        };
        assert_eq!(Types::of_note(packed), Err(unaligned.clone()));
        assert!(unaligned.to_string().contains("align=True"));
        let bytes = r#"{"shape": [9], "dtype": [["a", "|u1"], ["b", ">f8"]]}"#;
        assert_eq!(Types::of_note(bytes), Ok(None));
        let locks = r#"{"shape": [9], "dtype": "<f8", "locks": 3, "page_size": 4096}"#;
        assert_eq!(Types::of_note(locks), Err(NotTurned::Locks));
    }
}
