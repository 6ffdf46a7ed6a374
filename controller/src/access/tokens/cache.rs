//! PURE: verdicts about tokens, for a short time. A token is known by its digest alone.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// A good token is taken for good for so long without asking again: as long as its withdrawal may go unnoticed.
pub(super) const GOOD: Duration = Duration::from_secs(60);
/// One that is refused is asked about again after so long.
pub(super) const BAD: Duration = Duration::from_secs(10);
/// A good verdict serves for so long where nobody can be asked.
pub(super) const UNASKED: Duration = Duration::from_secs(600);
/// Most verdicts; refusals give way before good ones, the oldest first.
const MOST: usize = 10_000;

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// Whether a token is good, and what for; the error is for its holder.
pub(super) type Verdict<T> = Result<T, String>;

#[derive(Debug)]
struct Entry<T> {
    verdict: Verdict<T>,
    at: Instant,
    /// The token's own end.
    expires: Option<SystemTime>,
}

/// Verdicts by digest.
#[derive(Debug)]
pub(super) struct Cache<T>(HashMap<Digest, Entry<T>>);

impl<T: Clone> Cache<T> {
    pub(super) fn new() -> Self {
        Cache(HashMap::new())
    }

    /// The verdict, while it needs no asking.
    pub(super) fn fresh(&self, digest: &Digest, now: Instant, wall: SystemTime) -> Option<Verdict<T>> {
        let entry = self.0.get(digest)?;
        let good_for = if entry.verdict.is_ok() { GOOD } else { BAD };
        (entry.is_of(good_for, now) && !entry.has_ended(wall)).then(|| entry.verdict.clone())
    }

    /// Whose a token was, where nobody can be asked now.
    pub(super) fn unasked(&self, digest: &Digest, now: Instant, wall: SystemTime) -> Option<T> {
        let entry = self.0.get(digest).filter(|entry| entry.is_of(UNASKED, now) && !entry.has_ended(wall))?;
        entry.verdict.clone().ok()
    }

    /// Remembers a verdict.
    pub(super) fn put(&mut self, digest: Digest, verdict: Verdict<T>, expires: Option<SystemTime>, now: Instant) {
        if self.0.len() >= MOST && !self.0.contains_key(&digest) {
            self.0.retain(|_, entry| entry.is_of(if entry.verdict.is_ok() { UNASKED } else { BAD }, now));
            if self.0.len() >= MOST
                // Refusals first: nobody can push good tokens out by showing bad ones.
                && let Some(least) = self.0.iter().min_by_key(|(_, entry)| (entry.verdict.is_ok(), entry.at))
            {
                let least = *least.0;
                self.0.remove(&least);
            }
        }
        self.0.insert(digest, Entry { verdict, at: now, expires });
    }
}

impl<T> Entry<T> {
    fn is_of(&self, age: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < age
    }

    fn has_ended(&self, wall: SystemTime) -> bool {
        self.expires.is_some_and(|end| end <= wall)
    }
}

/// The end that a token says it has. It is not verified here: it only makes a verdict's time shorter.
pub(super) fn expires(token: &str) -> Option<SystemTime> {
    #[derive(serde::Deserialize)]
    struct Claims {
        exp: u64,
    }
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_age() {
        let (start, wall) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let mut cache = Cache::new();
        let (good, bad) = ([1; 32], [2; 32]);
        cache.put(good, Ok("n1"), None, start);
        cache.put(bad, Err("no".to_owned()), None, start);
        let after = |time: Duration| start + time;
        assert_eq!(cache.fresh(&good, start, wall), Some(Ok("n1")));
        assert_eq!(cache.fresh(&bad, start, wall), Some(Err("no".to_owned())));
        assert_eq!(cache.fresh(&bad, after(BAD), wall), None);
        assert_eq!(cache.fresh(&good, after(GOOD), wall), None);
        assert_eq!(cache.unasked(&good, after(GOOD), wall), Some("n1"));
        assert_eq!(cache.unasked(&bad, start, wall), None, "a refusal admits nobody");
        assert_eq!(cache.unasked(&good, after(UNASKED), wall), None);
        assert_eq!(cache.fresh(&[3; 32], start, wall), None);
    }

    #[test]
    fn no_verdict_outlives_its_token() {
        let start = Instant::now();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let mut cache = Cache::new();
        cache.put([1; 32], Ok(()), Some(end), start);
        let before = end - Duration::from_secs(1);
        assert!(cache.fresh(&[1; 32], start, before).is_some() && cache.unasked(&[1; 32], start, before).is_some());
        assert!(cache.fresh(&[1; 32], start, end).is_none() && cache.unasked(&[1; 32], start, end).is_none());
    }

    #[test]
    fn the_number_is_bounded_and_the_oldest_give_way() {
        let start = Instant::now();
        let mut cache = Cache::new();
        let digest = |i: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&i.to_be_bytes());
            digest
        };
        for i in 0..MOST + 5 {
            cache.put(digest(i), Ok(i), None, start + Duration::from_millis(i.try_into().unwrap()));
        }
        assert_eq!(cache.0.len(), MOST);
        assert!(!cache.0.contains_key(&digest(4)) && cache.0.contains_key(&digest(5)));
        cache.put(digest(0), Err("no".to_owned()), None, start + Duration::from_secs(60));
        cache.put(digest(1), Err("no".to_owned()), None, start + Duration::from_secs(61));
        assert!(
            !cache.0.contains_key(&digest(0)) && cache.0.contains_key(&digest(6)),
            "a refusal, though it is the newest"
        );
    }

    #[test]
    fn the_end_of_a_token() {
        let token = |claims: &str| format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(expires(&token(r#"{"exp":1700000000,"aud":["weir"]}"#)), Some(end));
        for other in
            ["", "a.b.c", "opaque", &token("{}"), &token(r#"{"exp":-1}"#), &token(r#"{"exp":18446744073709551615}"#)]
        {
            assert_eq!(expires(other), None, "{other}");
        }
    }
}
