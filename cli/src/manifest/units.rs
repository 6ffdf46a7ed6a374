//! Amounts as people write them: `10MiB`, `500kB/s`, `2k`, `20%`, `unlimited`. Exact: a fraction that is no whole number of
//! bytes is an error, and nothing is ever rounded.

/// What a limit's short form says.
#[derive(Clone, Debug, PartialEq)]
pub enum Amount {
    /// Bytes or operations per second.
    Value(i64),
    /// Percent of capacity.
    Percent(f64),
    /// No limit.
    Unlimited,
}

const BYTE_UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kiB", 1 << 10),
];
const OPERATION_UNITS: [(&str, u64); 4] = [("", 1), ("k", 1_000), ("K", 1_000), ("M", 1_000_000)];

/// Reads a limit: bytes per second, or operations per second.
///
/// # Errors
/// What is wrong, and the form that is probably meant.
pub fn parse(text: &str, bytes: bool) -> Result<Amount, String> {
    let text = text.trim();
    if text == "unlimited" {
        return Ok(Amount::Unlimited);
    }
    if let Some(number) = text.strip_suffix('%') {
        return decimal(number.trim())
            .and_then(|_| number.trim().parse().ok())
            .map(Amount::Percent)
            .ok_or_else(|| format!("`{text}` is no percentage, such as 20%"));
    }
    let rate = text.strip_suffix("/s").unwrap_or(text);
    let end = rate.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rate.len());
    let (number, unit) = (&rate[..end], rate[end..].trim_start());
    let Some((whole, fraction)) = decimal(number) else {
        return Err(if rate.starts_with('-') {
            format!("`{text}` is negative; a limit is a positive amount, or `unlimited`")
        } else {
            format!("`{text}` is no amount: {}", expected(bytes))
        });
    };
    let factor = if bytes {
        byte_factor(unit).map_err(|hint| format!("`{text}`: {hint}"))?
    } else {
        operation_factor(unit).map_err(|hint| format!("`{text}`: {hint}"))?
    };
    scale(whole, fraction, factor).map(Amount::Value).map_err(|why| format!("`{text}` {why}"))
}

fn expected(bytes: bool) -> &'static str {
    if bytes {
        "bytes per second such as 10MiB, 500kB or 1048576, a percentage, or `unlimited`"
    } else {
        "operations per second such as 2000 or 2k, a percentage, or `unlimited`"
    }
}

/// (digits before, digits after the point) of a plain decimal number.
fn decimal(number: &str) -> Option<(&str, &str)> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    (!whole.is_empty() && digits(whole) && digits(fraction)).then_some((whole, fraction))
}

fn byte_factor(unit: &str) -> Result<u64, String> {
    if unit.is_empty() {
        return Ok(1);
    }
    if let Some((_, factor)) = BYTE_UNITS.iter().find(|(name, _)| *name == unit) {
        return Ok(*factor);
    }
    let letter = unit.chars().next().map(|c| c.to_ascii_uppercase()).filter(|c| "KMGT".contains(*c));
    Err(match letter {
        Some(letter) if !unit.contains(['b', 'B']) || unit.eq_ignore_ascii_case(&format!("{letter}B")) => {
            format!("`{unit}` could mean two things: write {letter}B (powers of 1000) or {letter}iB (powers of 1024)")
        }
        Some(letter) => format!("unknown unit `{unit}`; did you mean {letter}iB or {letter}B?"),
        None => format!("unknown unit `{unit}`; bytes are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
    })
}

fn operation_factor(unit: &str) -> Result<u64, String> {
    match OPERATION_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => Ok(*factor),
        None => Err(format!("unknown unit `{unit}`; operations are plain numbers, or end in k or M (powers of 1000)")),
    }
}

/// whole.fraction x factor, exactly.
fn scale(whole: &str, fraction: &str, factor: u64) -> Result<i64, &'static str> {
    let too_large = "is too large: at most 2^63-1 per second";
    let fraction = fraction.trim_end_matches('0');
    let whole: u128 = whole.parse().map_err(|_| too_large)?;
    let mut total = whole.checked_mul(u128::from(factor)).ok_or(too_large)?;
    if !fraction.is_empty() {
        // 10^12 x 2^40 fits easily; longer fractions are never whole bytes.
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 18);
        let power = places.map(|places| 10u128.pow(places)).ok_or("is no whole number per second")?;
        let part: u128 = fraction.parse().map_err(|_| too_large)?;
        let part = part * u128::from(factor);
        if part % power != 0 {
            return Err("is no whole number per second");
        }
        total = total.checked_add(part / power).ok_or(too_large)?;
    }
    i64::try_from(total).map_err(|_| too_large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Result<Amount, String> {
        parse(text, true)
    }

    #[test]
    fn good_amounts() {
        for (text, value) in [
            ("10MiB", 10 << 20),
            ("10 MiB/s", 10 << 20),
            ("1.5MiB", 3 << 19),
            ("500kB", 500_000),
            ("0.5KiB", 512),
            ("1048576", 1_048_576),
            ("7B", 7),
            ("0", 0),
            ("1.50GB", 1_500_000_000),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(Amount::Value(value)), "{text}");
        }
        assert_eq!(bytes("unlimited"), Ok(Amount::Unlimited));
        assert_eq!(bytes("12.5%"), Ok(Amount::Percent(12.5)));
        assert_eq!(parse("2k", false), Ok(Amount::Value(2000)));
        assert_eq!(parse("1.5k", false), Ok(Amount::Value(1500)));
    }

    #[test]
    fn bad_amounts_say_what_is_meant() {
        for (text, hint) in [
            ("10M", "MiB"),
            ("10m", "MB"),
            ("10mb", "MiB"),
            ("1e6", "unknown unit"),
            ("0x10", "unknown unit"),
            ("-5MiB", "negative"),
            ("", "no amount"),
            ("MiB", "no amount"),
            ("1.", "no amount"),
            (".5MiB", "no amount"),
            ("1.0000001KiB", "whole number"),
            ("9223372036854775808", "too large"),
            ("99999999999999999999999999999999999999999999", "too large"),
            ("8388608TiB", "too large"),
            ("10 parsecs", "unknown unit"),
            ("x%", "percentage"),
            ("max", "no amount"),
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        assert!(parse("2KiB", false).is_err());
    }

    proptest! {
        #[test]
        fn exact_or_an_error(number in 0u64..1 << 40, unit in 0usize..BYTE_UNITS.len()) {
            let (name, factor) = BYTE_UNITS[unit];
            let exact = i64::try_from(u128::from(number) * u128::from(factor)).ok();
            prop_assert_eq!(bytes(&format!("{number}{name}")).ok(), exact.map(Amount::Value));
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _any = (parse(&text, true), parse(&text, false));
        }
    }
}
