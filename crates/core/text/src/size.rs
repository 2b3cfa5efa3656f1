//! Sizes as people write them: `512M`, `1.5GiB`, `1073741824`, `50%`.

use anyhow::{Result, anyhow, bail};

const EXAMPLES: &str = "write e.g. 512M, 1.5G or 50%";

/// A size, possibly relative to something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of a whole.
    Percent(f64),
}

impl Size {
    /// Reads `text`, which was given to `option` (`--ram`).
    ///
    /// K, M, G, T, P and KiB, MiB, ... are powers of 1024; kB, MB, ... are powers of 1000.
    ///
    /// # Errors
    /// When `text` is not a size; the message names the option, the reason and how to write it.
    pub fn parse(option: &str, text: &str) -> Result<Self> {
        read(text.trim()).map_err(|why| anyhow!("cannot read {option} '{text}': {why}; {EXAMPLES}"))
    }

    /// In bytes, where 100% is `whole`.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

fn read(text: &str) -> Result<Size> {
    if text.is_empty() {
        bail!("it is empty");
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = (&text[..end], text[end..].trim_start());
    if digits.is_empty() {
        bail!("it does not start with a number");
    }
    let number: f64 = digits
        .parse()
        .map_err(|_| anyhow!("'{digits}' is not a number"))?;
    if unit == "%" {
        if number > 100.0 {
            bail!("more than 100% is not there");
        }
        return Ok(Size::Percent(number));
    }
    let factor = factor_of(unit).ok_or_else(|| anyhow!("'{unit}' is not a unit"))?;
    let bytes = match digits.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => {
            let bytes = number * factor as f64;
            (bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    };
    bytes
        .map(Size::Bytes)
        .ok_or_else(|| anyhow!("it is larger than any memory"))
}

fn factor_of(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match unit.as_str() {
        "" | "b" => return Some(1),
        _ if unit.ends_with("ib") => (&unit[..unit.len() - 2], 1024u64),
        _ if unit.ends_with('b') => (&unit[..unit.len() - 1], 1000),
        _ => (unit.as_str(), 1024),
    };
    let power = ["k", "m", "g", "t", "p"]
        .iter()
        .position(|&p| p == prefix)?;
    base.checked_pow(power as u32 + 1)
}

/// `bytes` for people: three digits and a binary unit.
pub fn human(bytes: u64) -> String {
    let (number, unit) = scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
    format!("{number} {unit}")
}

/// A count for people: `950`, `12.3k`, `4.56M`.
pub fn human_count(count: u64) -> String {
    let (number, unit) = scaled(count, 1000.0, &["", "k", "M", "G"]);
    format!("{number}{unit}")
}

/// `1 socket`, `12.3k sockets`.
pub fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", human_count(count))
}

/// `value` in the unit that leaves it at most three digits before the point.
fn scaled(value: u64, step: f64, units: &[&'static str]) -> (String, &'static str) {
    let mut value = value as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    (format!("{value:.digits$}"), units[unit])
}

/// A duration for people: `12 ms`, `3.45 s`, `2 min 05 s`, `1 h 02 min`.
pub fn human_time(ns: u64) -> String {
    let s = ns as f64 / 1e9;
    match s {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 99.95 => format!("{s:.1} s"),
        s if s < 3599.5 => {
            let whole = s.round() as u64;
            format!("{} min {:02} s", whole / 60, whole % 60)
        }
        s => {
            let minutes = (s / 60.0).round() as u64;
            format!("{} h {:02} min", minutes / 60, minutes % 60)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match Size::parse("--ram", text).unwrap() {
            Size::Bytes(bytes) => bytes,
            Size::Percent(_) => panic!("{text} is a percentage"),
        }
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes("512M"), 512 << 20);
        assert_eq!(bytes("1G"), 1 << 30);
        assert_eq!(bytes("1.5GiB"), 3 << 29);
        assert_eq!(bytes("1.5 gib"), 3 << 29);
        assert_eq!(bytes("1073741824"), 1 << 30);
        assert_eq!(bytes("64k"), 64 << 10);
        assert_eq!(bytes("2MB"), 2_000_000);
        assert_eq!(bytes("100B"), 100);
        assert_eq!(bytes("0"), 0);
        let half = Size::parse("--ram", "50%").unwrap();
        assert_eq!(half.of(1000), 500);
        assert_eq!(Size::Percent(12.5).of(1000), 125);
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, why) in [
            ("12X", "'X' is not a unit"),
            ("", "it is empty"),
            ("abc", "it does not start with a number"),
            ("-1G", "it does not start with a number"),
            ("1..5G", "'1..5' is not a number"),
            ("1GG", "'GG' is not a unit"),
            ("120%", "more than 100% is not there"),
            ("99999999999G", "it is larger than any memory"),
            ("9999999999.5P", "it is larger than any memory"),
            ("ib", "it does not start with a number"),
            ("1ib", "'ib' is not a unit"),
        ] {
            let message = Size::parse("--ram", text).unwrap_err().to_string();
            let expected = format!("cannot read --ram '{text}': {why}; {EXAMPLES}");
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1.00 KiB");
        assert_eq!(human(1 << 30), "1.00 GiB");
        assert_eq!(human(812 << 20), "812 MiB");
        assert_eq!(human(20 << 30), "20.0 GiB");
        assert_eq!(human_count(950), "950");
        assert_eq!(human_count(12_345), "12.3k");
        assert_eq!(human_count(4_560_000), "4.56M");
        assert_eq!(human_time(850_000), "850 us");
        assert_eq!(human_time(12_000_000), "12 ms");
        assert_eq!(human_time(3_450_000_000), "3.45 s");
        assert_eq!(human_time(125_000_000_000), "2 min 05 s");
        assert_eq!(human_time(3_725_000_000_000), "1 h 02 min");
    }
}
