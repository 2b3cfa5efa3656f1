//! Times as people write them: `100us`, `1.5ms`, `2s`, `0`.

use std::time::Duration;

use anyhow::{Result, anyhow};

/// Reads `text`, which was given to `option` (`--hold`), as whole microseconds.
///
/// # Errors
/// When `text` is no time; the message names the option, the reason and how to write it.
pub fn micros(option: &str, text: &str) -> Result<u32> {
    read(text.trim()).map_err(|why| {
        anyhow!("cannot read {option} '{text}': {why}; write e.g. 100us, 1.5ms, 2s or 0")
    })
}

/// Reads `text` as a duration in seconds, which may have a fraction.
///
/// # Errors
/// When `text` is not a number, or the duration would never end.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("'{text}' is not a duration; give seconds, such as 300 or 0.5"))
}

fn read(text: &str) -> Result<u32> {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let (digits, unit) = (&text[..end], text[end..].trim_start());
    let number: f64 = digits
        .parse()
        .map_err(|_| anyhow!("'{digits}' is not a number"))?;
    let factor = match unit {
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "" if number == 0.0 => 1.0,
        "" => return Err(anyhow!("it has no unit")),
        _ => return Err(anyhow!("'{unit}' is not a unit")),
    };
    let micros = (number * factor).round();
    match micros <= f64::from(u32::MAX) {
        true => Ok(micros as u32),
        false => Err(anyhow!("it is longer than an hour")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        let read = |text| micros("--hold", text).unwrap();
        assert_eq!((read("100us"), read("0"), read("0ms")), (100, 0, 0));
        assert_eq!(
            (read("1.5ms"), read(" 2 s"), read("7µs")),
            (1500, 2_000_000, 7)
        );
    }

    #[test]
    fn what_is_no_time_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "not a number"),
            ("5", "no unit"),
            ("5h", "not a unit"),
            ("-5us", "not a number"),
            ("1.2.3ms", "not a number"),
            ("9999s", "longer than an hour"),
        ] {
            let refused = micros("--hold", text).unwrap_err().to_string();
            assert!(
                refused.contains(why) && refused.contains("--hold"),
                "{refused}"
            );
        }
    }
}
