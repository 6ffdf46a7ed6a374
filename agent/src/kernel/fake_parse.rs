//! How the kernel itself reads what is written to the throttle files, written apart from our encoders so that a fault there
//! shows. Source: block/blk-cgroup.c and block/blk-throttle.c of 6.12 and 6.18; confirmed by the differential tests.

use rustix::io::Errno;
use weir_common::device::DevNum;

/// The kernel's mark for no limit.
pub(super) const NONE: u64 = u64::MAX;
/// The same for operations, which are stored in 32 bits.
pub(super) const NONE_OPERATIONS: u64 = u32::MAX as u64;

/// Digits from the start, wrapping at 64 bits; `None` without a digit. What follows is the rest.
fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    let value = text[..end].bytes().fold(0u64, |value, b| value.wrapping_mul(10).wrapping_add(u64::from(b - b'0')));
    Some((value, &text[end..]))
}

/// The device that a line begins with, and its body.
///
/// # Errors
/// EINVAL where there is no `MAJ:MIN` or no body; ENODEV where `exists` denies the device.
pub(super) fn device(line: &str, exists: impl Fn(DevNum) -> bool) -> Result<(DevNum, &str), Errno> {
    // What follows the body is not cut off: a blank alone is a body, and an empty one.
    let line = line.trim_start();
    let (major, rest) = digits(line).ok_or(Errno::INVAL)?;
    let (minor, body) = rest.strip_prefix(':').and_then(digits).ok_or(Errno::INVAL)?;
    if !body.starts_with(|c: char| c.is_ascii_whitespace()) {
        return Err(Errno::INVAL);
    }
    let number = |value: u64, bits: u32| u32::try_from(value).ok().filter(|v| *v < 1 << bits).ok_or(Errno::NODEV);
    let device = DevNum { major: number(major, 12)?, minor: number(minor, 20)? };
    if exists(device) { Ok((device, body.trim_start())) } else { Err(Errno::NODEV) }
}

/// A v1 value: 0 removes, operations lose all but 32 bits.
///
/// # Errors
/// EINVAL without a digit.
pub(super) fn v1_value(body: &str, operations: bool) -> Result<u64, Errno> {
    let (value, _ignored) = digits(body).ok_or(Errno::INVAL)?;
    let value = if value == 0 { NONE } else { value };
    Ok(if operations { value & NONE_OPERATIONS } else { value })
}

/// A v2 body applied to the four values (rbps, wbps, riops, wiops): all of it or nothing.
///
/// # Errors
/// EINVAL for an unknown key, a missing value or 1 or less where more is asked; ERANGE for 0.
pub(super) fn v2_body(body: &str, mut values: [u64; 4]) -> Result<[u64; 4], Errno> {
    // The kernel reads at most 26 characters as one token.
    let tokens = body.split_ascii_whitespace().flat_map(|word| {
        let cut = word.char_indices().nth(26).map_or(word.len(), |(at, _)| at);
        [&word[..cut], &word[cut..]].into_iter().filter(|token| !token.is_empty())
    });
    for token in tokens {
        let (key, text) = token.split_once('=').ok_or(Errno::INVAL)?;
        let value = match digits(text) {
            Some((value, _ignored)) => value,
            None if text == "max" => NONE,
            None => return Err(Errno::INVAL),
        };
        if value == 0 {
            return Err(Errno::RANGE);
        }
        let slot = ["rbps", "wbps", "riops", "wiops"].iter().position(|known| *known == key).ok_or(Errno::INVAL)?;
        if value == 1 {
            return Err(Errno::INVAL);
        }
        values[slot] = if slot < 2 { value } else { value.min(NONE_OPERATIONS) };
    }
    Ok(values)
}
