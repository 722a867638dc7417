//! Parses the durations in attributes and configuration texts, such as `"250ms"`, `"5s"`, `"10m"` and `"1h"`.

use std::{fmt, time::Duration};

/// The reason why a text is not a valid duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurationError {
    /// The number has no unit.
    MissingUnit,
    /// The unit is none of `us`, `ms`, `s`, `m`, `h`, `d`.
    UnknownUnit,
    /// The text does not begin with a whole, non-negative number.
    NotANumber,
    /// The number of microseconds does not fit into 64 bits.
    Overflow,
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingUnit => {
                "a duration needs a unit: write \"5s\", \"250ms\", \"10m\" or \"1h\""
            }
            Self::UnknownUnit => "a duration is one whole number and one unit, us, ms, s, m, h or d, with nothing between: write \"5s\", \"90s\" or \"1500ms\"",
            Self::NotANumber => "a duration is a whole number and a unit, as in \"30s\"",
            Self::Overflow => "this duration is too long to count in microseconds: write a shorter one, such as \"24h\"",
        })
    }
}

impl std::error::Error for DurationError {}

/// Parses one whole number followed by one unit (`us`, `ms`, `s`, `m`, `h`, `d`), with no space around or between them.
///
/// # Errors
/// Returns a [`DurationError`] that says which part of the text is wrong.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(lock_core::duration::parse("250ms"), Ok(Duration::from_millis(250)));
/// assert!(lock_core::duration::parse("5").is_err());
/// ```
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(DurationError::NotANumber);
    }
    let micros_per_unit: u64 = match unit {
        "" => return Err(DurationError::MissingUnit),
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60 * 1_000_000,
        "h" => 3_600 * 1_000_000,
        "d" => 86_400 * 1_000_000,
        _ => return Err(DurationError::UnknownUnit),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(micros_per_unit))
        .map(Duration::from_micros)
        .ok_or(DurationError::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_counts_as_it_says() {
        for (text, micros) in [
            ("0s", 0),
            ("7us", 7),
            ("250ms", 250_000),
            ("5s", 5_000_000),
            ("10m", 600_000_000),
            ("2h", 7_200_000_000),
            ("1d", 86_400_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, error) in [
            ("", DurationError::NotANumber),
            ("s", DurationError::NotANumber),
            ("-5s", DurationError::NotANumber),
            (" 5s", DurationError::NotANumber),
            ("5", DurationError::MissingUnit),
            ("5 s", DurationError::UnknownUnit),
            ("1.5s", DurationError::UnknownUnit),
            ("5sec", DurationError::UnknownUnit),
            ("99999999999999999999s", DurationError::Overflow),
            ("18446744073709551615d", DurationError::Overflow),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
            // Each error message shows a valid example, in quotes.
            let example = error.to_string();
            let example = example.split('"').nth(1).expect("an example in quotes");
            assert!(parse(example).is_ok(), "{example}");
        }
    }
}
