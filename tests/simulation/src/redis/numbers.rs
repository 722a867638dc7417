//! Numbers in text, as Redis reads and writes them.

/// Reads a 64-bit integer. Returns `None` for all other texts, including integers with a `+` sign, leading zeros or
/// spaces.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [] => false,
        [b'0', ..] => text == b"0",
        _ => digits.iter().all(u8::is_ascii_digit),
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a score, as `strtod` does. Returns `None` if the text is not entirely a number, or if the number is NaN or out
/// of range.
pub(crate) fn double(text: &[u8]) -> Option<f64> {
    if text.first().is_none_or(|first| is_space(*first)) {
        return None;
    }
    let value = strtod(text)?;
    let named = text
        .iter()
        .any(|byte| byte.eq_ignore_ascii_case(&b'n') || byte.eq_ignore_ascii_case(&b'y'));
    let overflows = value.is_infinite() && !named;
    let vanishes = value == 0.0 && has_mantissa(text);
    (!value.is_nan() && !overflows && !vanishes).then_some(value)
}

/// Reads one end of a range of scores. Returns the score, and whether a `(` before the score excludes it from the
/// range. A missing score is read as zero.
pub(crate) fn range_end(text: &[u8]) -> Option<(f64, bool)> {
    let (text, exclusive) = match text.strip_prefix(b"(") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    if text.is_empty() {
        return Some((0.0, exclusive));
    }
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let value = strtod(&text[start..])?;
    (!value.is_nan()).then_some((value, exclusive))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn strtod(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(hex) = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        if hex.starts_with('+') {
            return None;
        }
        let value = u64::from_str_radix(hex, 16).ok()? as f64;
        return Some(if negative { -value } else { value });
    }
    text.parse().ok()
}

/// Returns whether a decimal number has a non-zero digit before its exponent.
fn has_mantissa(text: &[u8]) -> bool {
    text.iter()
        .take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'))
        .any(|byte| (b'1'..=b'9').contains(byte))
}

/// Writes a number as `%.17g` does. Redis 7.0 uses this format for scores, and for numbers from scripts.
pub(crate) fn write_double(out: &mut Vec<u8>, value: f64) {
    if value.fract() == 0.0 && value.abs() < 1e17 && !(value == 0.0 && value.is_sign_negative()) {
        return write_integer(out, value as i64);
    }
    if value.is_nan() {
        // As in C, the sign of a NaN is written. The processor determines the sign of 0/0.
        out.extend_from_slice(if value.is_sign_negative() {
            b"-nan"
        } else {
            b"nan"
        });
        return;
    }
    if value.is_infinite() {
        out.extend_from_slice(if value < 0.0 { b"-inf" } else { b"inf" });
        return;
    }
    let scientific = format!("{value:.16e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("the format `e` writes an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let text = if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap_or_default();
        without_zeros(&format!("{value:.places$}")).to_owned()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = without_zeros(mantissa);
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    };
    out.extend_from_slice(text.as_bytes());
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// Writes an integer.
pub(crate) fn write_integer(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut left = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: f64) -> String {
        let mut out = Vec::new();
        write_double(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_are_written_as_by_c() {
        assert_eq!(written(0.1), "0.10000000000000001");
        assert_eq!(written(1e17), "1e+17");
        assert_eq!(written(123_456_789_012_345_678.0), "1.2345678901234568e+17");
        assert_eq!(written(-0.0), "-0");
        assert_eq!(written(1.5e-7), "1.4999999999999999e-07");
        assert_eq!(written(f64::NEG_INFINITY), "-inf");
        assert_eq!(written(1_795_377_386_524_797.0), "1795377386524797");
    }

    #[test]
    fn only_canonical_integers_are_read() {
        for text in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "9223372036854775808",
            "1.0",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
    }

    #[test]
    fn doubles_are_read_as_by_c() {
        for text in ["", " 1", "1 ", "nan", "1e400", "1e-400", "x"] {
            assert_eq!(double(text.as_bytes()), None, "{text}");
        }
        for (text, value) in [
            ("0x10", 16.0),
            ("+1", 1.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("0e9", 0.0),
        ] {
            assert_eq!(double(text.as_bytes()), Some(value), "{text}");
        }
        assert_eq!(double(b"-Infinity"), Some(f64::NEG_INFINITY));
        assert_eq!(range_end(b"("), Some((0.0, true)));
    }
}
