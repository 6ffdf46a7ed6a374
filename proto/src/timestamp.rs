//! `google.protobuf.Timestamp` with the canonical JSON form: RFC 3339 that ends in `Z`, with 0, 3, 6 or 9 digits after the
//! second. (The well-known-types crate writes `+00:00`.)

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};

/// A moment of wall time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z; negative before.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds into the second, 0 to 999,999,999.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = u32::try_from(self.nanos).ok();
        let time: Option<DateTime<Utc>> = nanos.and_then(|nanos| DateTime::from_timestamp(self.seconds, nanos));
        let time = time.ok_or_else(|| S::Error::custom("the time is out of range"))?;
        serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pbjson_types::Timestamp { seconds, nanos } = Deserialize::deserialize(deserializer)?;
        Ok(Timestamp { seconds, nanos })
    }
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn json_is_the_canonical_string() {
        for (seconds, nanos, text) in [
            (1_764_571_749, 0, "\"2025-12-01T06:49:09Z\""),
            (1_764_571_749, 120_000_000, "\"2025-12-01T06:49:09.120Z\""),
            (-1, 1, "\"1969-12-31T23:59:59.000000001Z\""),
        ] {
            let time = Timestamp { seconds, nanos };
            assert_eq!(serde_json::to_string(&time).unwrap(), text);
            assert_eq!(serde_json::from_str::<Timestamp>(text).unwrap(), time);
        }
        let elsewhere = serde_json::from_str::<Timestamp>("\"2025-12-01T08:49:09+02:00\"").unwrap();
        assert_eq!(elsewhere, Timestamp { seconds: 1_764_571_749, nanos: 0 });
        assert!(serde_json::to_string(&Timestamp { seconds: i64::MAX, nanos: 0 }).is_err());
    }
}
