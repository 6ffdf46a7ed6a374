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

const BYTE_UNITS: [(&str, u64); 10] = [
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

/// A number as it stands in a file, without a unit. Only plain decimal digits are taken: what other notations mean differs
/// between YAML's versions. A negative number is passed on, so that the controller names the field.
///
/// # Errors
/// What is wrong, and the form that is probably meant.
pub fn parse_plain(text: &str, value: &serde_json::Number) -> Result<i64, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain && (digits == "0" || !digits.starts_with('0')) {
        return text.parse().map_err(|_| format!("`{text}` {TOO_LARGE}"));
    }
    let meant = value.as_i64().or_else(|| {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e15)?;
        format!("{float:.0}").parse().ok()
    });
    Err(match meant {
        Some(meant) => format!("`{text}` is no plain decimal number; write {meant} if that is meant"),
        None => format!("`{text}` is no whole number per second; write it in plain digits, or with a unit (10MiB)"),
    })
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
    if other_notation(unit) {
        return Err("write the number in plain digits, or with a unit such as MiB".to_owned());
    }
    if unit.contains('/') {
        return Err(format!("unknown unit `{unit}`; limits are per second, and the only suffix is /s"));
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

/// Whether what follows the digits looks like the rest of `1e6`, `0x10`, `0o17`, `1_000` or `1,000`.
fn other_notation(rest: &str) -> bool {
    let mut chars = rest.chars();
    let (first, second) = (chars.next(), chars.next());
    match first {
        Some('x' | 'X') => second.is_some_and(|c| c.is_ascii_hexdigit()),
        Some('e' | 'E' | 'o' | '_' | ',') => second.is_some_and(|c| c.is_ascii_digit() || c == '+' || c == '-'),
        _ => false,
    }
}

fn operation_factor(unit: &str) -> Result<u64, String> {
    match OPERATION_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => Ok(*factor),
        None if other_notation(unit) => Err("write the number in plain digits, or with k or M".to_owned()),
        None => Err(format!("unknown unit `{unit}`; operations are plain numbers, or end in k or M (powers of 1000)")),
    }
}

const TOO_LARGE: &str = "is too large: at most 2^63-1 per second";
const NOT_WHOLE: &str = "is no whole number per second";
/// Longest fraction. Longer ones would be whole only as parts of a TiB, which nobody writes with so many digits; and
/// 10^18 x 2^40 stays far below 2^127.
const MOST_PLACES: usize = 18;

/// whole.fraction x factor, exactly.
fn scale(whole: &str, fraction: &str, factor: u64) -> Result<i64, String> {
    let whole: u128 = whole.parse().map_err(|_| TOO_LARGE)?;
    let mut total = whole.checked_mul(u128::from(factor)).ok_or(TOO_LARGE)?;
    let fraction = fraction.trim_end_matches('0');
    let mut exact = true;
    if !fraction.is_empty() {
        if fraction.len() > MOST_PLACES {
            return Err(NOT_WHOLE.to_owned());
        }
        let power = fraction.bytes().fold(1u128, |power, _| power * 10);
        let part = fraction.parse::<u128>().map_err(|_| NOT_WHOLE)? * u128::from(factor);
        exact = part % power == 0;
        total = total.checked_add(part / power).ok_or(TOO_LARGE)?;
    }
    let total = i64::try_from(total).map_err(|_| TOO_LARGE)?;
    if exact { Ok(total) } else { Err(format!("{NOT_WHOLE}: write {total} or {}", total.saturating_add(1))) }
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
            ("1e6", "plain digits"),
            ("0x10", "plain digits"),
            ("1.1MiB", "write 1153433 or 1153434"),
            ("10kib", "KiB"),
            ("10KBit", "KiB"),
            ("10MiB/m", "/s"),
            ("1 0MiB", "unknown unit"),
            ("-20%", "percentage"),
            ("NaN", "no amount"),
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
        fn fractions_are_exact_or_refused(digits in "[0-9]{1,6}\\.[0-9]{1,9}", unit in 0usize..BYTE_UNITS.len()) {
            let (name, factor) = BYTE_UNITS[unit];
            let (whole, fraction) = digits.split_once('.').unwrap();
            // The same in whole numbers of 10^-9: what divides is the value, what does not is refused.
            let scaled = format!("{whole}{fraction:0<9}").parse::<u128>().unwrap() * u128::from(factor);
            let expected = (scaled % 1_000_000_000 == 0)
                .then(|| Amount::Value(i64::try_from(scaled / 1_000_000_000).unwrap()));
            prop_assert_eq!(bytes(&format!("{digits}{name}")).ok(), expected);
        }

        #[test]
        fn whole_numbers_come_back(value in 0i64..) {
            prop_assert_eq!(bytes(&value.to_string()), Ok(Amount::Value(value)));
            prop_assert_eq!(parse(&value.to_string(), false), Ok(Amount::Value(value)));
            prop_assert_eq!(parse_plain(&value.to_string(), &value.into()), Ok(value));
            prop_assert_eq!(parse_plain(&format!("-{value}"), &(-value).into()), Ok(-value));
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _any = (parse(&text, true), parse(&text, false), parse_plain(&text, &7.into()));
        }
    }
}
