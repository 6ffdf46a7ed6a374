//! `google.protobuf.FieldMask` with the canonical JSON form: one string, paths in lowerCamelCase, joined by commas.
//! (The well-known-types crate writes an object, which other clients refuse.)

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A set of field paths, for instance `spec.controls.limits.rbps`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct FieldMask {
    /// Paths in the proto form (snake_case).
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

impl Serialize for FieldMask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let joined: Vec<String> = self.paths.iter().map(|path| to_camel(path)).collect();
        serializer.serialize_str(&joined.join(","))
    }
}

impl<'de> Deserialize<'de> for FieldMask {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.contains('_') {
            return Err(D::Error::custom("field mask paths are lowerCamelCase in JSON"));
        }
        let paths = text.split(',').filter(|path| !path.is_empty()).map(to_snake).collect();
        Ok(FieldMask { paths })
    }
}

fn to_camel(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut upper = false;
    for c in path.chars() {
        if c == '_' {
            upper = true;
        } else {
            out.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    out
}

fn to_snake(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 4);
    for c in path.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::FieldMask;

    #[test]
    fn json_is_the_canonical_string() {
        let mask = FieldMask { paths: vec!["spec.allow_system".into(), "labels".into()] };
        let text = serde_json::to_string(&mask).unwrap();
        assert_eq!(text, r#""spec.allowSystem,labels""#);
        assert_eq!(serde_json::from_str::<FieldMask>(&text).unwrap(), mask);
        assert!(serde_json::from_str::<FieldMask>(r#""spec.allow_system""#).is_err());
        assert!(serde_json::from_str::<FieldMask>(r#"{"paths":[]}"#).is_err());
    }
}
