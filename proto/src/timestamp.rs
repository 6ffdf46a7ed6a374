//! `google.protobuf.Timestamp` with the canonical JSON form: RFC 3339 in UTC with `Z`, and no, 3, 6 or 9 digits of a second.
//! (The well-known-types crate writes `+00:00`, which not every client reads.)

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z; years 1 to 9999.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds after them, 0 to 999,999,999.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = u32::try_from(self.nanos).ok();
        let time = nanos.and_then(|nanos| DateTime::<Utc>::from_timestamp(self.seconds, nanos));
        let time = time.ok_or_else(|| S::Error::custom("the timestamp is out of range"))?;
        serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = DateTime::parse_from_rfc3339(&text)
            .map_err(|error| D::Error::custom(format!("`{text}` is no time such as 2026-01-31T12:00:00Z: {error}")))?;
        // A leap second has more than 999,999,999; it is its last nanosecond here.
        let nanos = i32::try_from(time.timestamp_subsec_nanos().min(999_999_999)).map_err(D::Error::custom)?;
        Ok(Timestamp { seconds: time.timestamp(), nanos })
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn json_is_in_utc_with_as_many_digits_as_are_needed() {
        for (seconds, nanos, text) in [
            (0, 0, r#""1970-01-01T00:00:00Z""#),
            (1_764_547_200, 5_000_000, r#""2025-12-01T00:00:00.005Z""#),
            (-1, 1, r#""1969-12-31T23:59:59.000000001Z""#),
        ] {
            let time = Timestamp { seconds, nanos };
            assert_eq!(serde_json::to_string(&time).unwrap(), text);
            assert_eq!(serde_json::from_str::<Timestamp>(text).unwrap(), time);
        }
        let offset: Timestamp = serde_json::from_str(r#""1970-01-01T02:00:00+02:00""#).unwrap();
        assert_eq!(offset, Timestamp::default());
        assert!(serde_json::from_str::<Timestamp>(r#""yesterday""#).is_err());
        assert!(serde_json::to_string(&Timestamp { seconds: i64::MAX, nanos: 0 }).is_err());
        assert!(serde_json::to_string(&Timestamp { seconds: 0, nanos: -1 }).is_err());
    }
}
