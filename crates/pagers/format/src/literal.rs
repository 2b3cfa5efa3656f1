//! Python literals, as far as the header of an npy file has them.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Deepest nesting of brackets.
const DEPTH_MAX: u32 = 32;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Literal {
    /// Text, without its quotes; escapes stand as they were.
    Text(String),
    Number(u64),
    Bool(bool),
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
}

/// One entry of a dictionary: key, value, and the value's source.
pub(crate) type Entry = (String, Literal, String);

/// Reads a dictionary with text for keys, and nothing after it but spaces.
pub(crate) fn dictionary(text: &str) -> Result<Vec<Entry>, String> {
    let mut reader = Reader { text, at: 0 };
    reader.must('{')?;
    let mut entries = Vec::new();
    while !reader.take('}') {
        let Literal::Text(key) = reader.value(0)? else {
            return Err(reader.error("a key that is not text"));
        };
        reader.must(':')?;
        reader.spaces();
        let from = reader.at;
        let value = reader.value(0)?;
        let source = text[from..reader.at].to_string();
        entries.push((key, value, source));
        if !reader.take(',') {
            reader.must('}')?;
            break;
        }
    }
    reader.spaces();
    match reader.at == text.len() {
        true => Ok(entries),
        false => Err(reader.error("something after the dictionary")),
    }
}

struct Reader<'a> {
    text: &'a str,
    /// The next byte; always between two characters.
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn error(&self, what: &str) -> String {
        alloc::format!("{what} at byte {} of the header", self.at)
    }

    fn spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn take(&mut self, sign: char) -> bool {
        self.spaces();
        let there = self.rest().starts_with(sign);
        self.at += if there { sign.len_utf8() } else { 0 };
        there
    }

    fn must(&mut self, sign: char) -> Result<(), String> {
        match self.take(sign) {
            true => Ok(()),
            false => Err(self.error(&alloc::format!("no {sign:?}"))),
        }
    }

    fn value(&mut self, depth: u32) -> Result<Literal, String> {
        if depth > DEPTH_MAX {
            return Err(self.error("brackets nested too deep"));
        }
        self.spaces();
        match self.rest().bytes().next() {
            Some(quote @ (b'\'' | b'"')) => self.quoted(quote),
            Some(b'0'..=b'9') => self.number(),
            Some(b'(') => {
                self.at += 1;
                let (mut values, comma) = self.values(')', depth)?;
                match (values.len(), comma) {
                    (1, false) => values.pop().ok_or_else(|| self.error("nothing")),
                    _ => Ok(Literal::Tuple(values)),
                }
            }
            Some(b'[') => {
                self.at += 1;
                Ok(Literal::List(self.values(']', depth)?.0))
            }
            _ => self.word(),
        }
    }

    /// Values with commas between; whether the last has one behind it.
    fn values(&mut self, close: char, depth: u32) -> Result<(Vec<Literal>, bool), String> {
        let (mut values, mut comma) = (Vec::new(), false);
        while !self.take(close) {
            if !values.is_empty() && !comma {
                return Err(self.error("no comma"));
            }
            values.push(self.value(depth + 1)?);
            comma = self.take(',');
        }
        Ok((values, comma))
    }

    fn quoted(&mut self, quote: u8) -> Result<Literal, String> {
        let from = self.at + 1;
        let mut escaped = false;
        for (place, byte) in self.text.bytes().enumerate().skip(from) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'\n' => break,
                _ if byte == quote => {
                    self.at = place + 1;
                    return Ok(Literal::Text(self.text[from..place].to_string()));
                }
                _ => {}
            }
        }
        Err(self.error("text without an end"))
    }

    fn number(&mut self) -> Result<Literal, String> {
        let rest = self.rest();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(number) = rest[..digits].parse() else {
            return Err(self.error("too large a number"));
        };
        self.at += digits;
        if self.rest().starts_with('L') {
            self.at += 1; // Python 2 wrote long integers so
        }
        Ok(Literal::Number(number))
    }

    fn word(&mut self) -> Result<Literal, String> {
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(Literal::Bool(value));
            }
        }
        Err(self.error("no value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn one(text: &str) -> Result<Literal, String> {
        let entries = dictionary(&alloc::format!("{{'a': {text}}}"))?;
        Ok(entries[0].1.clone())
    }

    #[test]
    fn values_are_read() {
        let numbers = |n: &[u64]| n.iter().map(|&n| Literal::Number(n)).collect::<Vec<_>>();
        assert_eq!(one("'<f4'"), Ok(Literal::Text("<f4".to_string())));
        assert_eq!(one(r#""it's""#), Ok(Literal::Text("it's".to_string())));
        assert_eq!(one(r"'a\'b'"), Ok(Literal::Text(r"a\'b".to_string())));
        assert_eq!(one("()"), Ok(Literal::Tuple(vec![])));
        assert_eq!(one("(3)"), Ok(Literal::Number(3)));
        assert_eq!(one("(3,)"), Ok(Literal::Tuple(numbers(&[3]))));
        assert_eq!(one("(3L, 4L)"), Ok(Literal::Tuple(numbers(&[3, 4]))));
        assert_eq!(one("[1, 2]"), Ok(Literal::List(numbers(&[1, 2]))));
        assert_eq!(one("False"), Ok(Literal::Bool(false)));
    }

    #[test]
    fn the_source_of_a_value_is_kept() {
        let entries = dictionary("{'a':  [('x', '<f4')] , 'b': 1, } \n").unwrap();
        assert_eq!(entries[0].2, "[('x', '<f4')]");
        assert_eq!(entries[1].2, "1");
    }

    #[test]
    fn whatever_else_python_can_do_is_refused() {
        for text in [
            "1+1",
            "-1",
            "1.5",
            "None",
            "a",
            "'a",
            "'a\n'",
            "(1 2)",
            "(,)",
            "(1,,2)",
            "[1",
            "{}",
            "18446744073709551616",
            "__import__('os')",
            "'a' 'b'",
            "0x10",
            "b'a'",
        ] {
            assert!(one(text).is_err(), "{text}");
        }
        for text in ["", "{", "{1: 2}", "{'a'}", "{'a': 1} 2", "{'a': 1 'b': 2}"] {
            assert!(dictionary(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let nested = |depth| one(&("[".repeat(depth) + &"]".repeat(depth)));
        assert!(nested(30).is_ok());
        assert!(nested(100_000).is_err());
    }
}
