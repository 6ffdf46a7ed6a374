//! Names of resources.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// An id of a project or an intent.
    #[error("an id has 1 to 63 characters of a-z, 0-9 and `-`, begins with a letter and does not end with `-`")]
    Id,
    /// A node.
    #[error(
        "a node's name has 1 to 253 characters of a-z, 0-9, `-` and `.`, and begins and ends with a letter or digit"
    )]
    Node,
    /// The name of an intent.
    #[error("the name of an intent has the form projects/{{project}}/intents/{{intent}}: {0}")]
    Intent(String),
}

/// Id of a project or of an intent: 1 to 63 characters of a-z, 0-9 and `-`, first a letter, last no `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ResourceId(String);

impl ResourceId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ResourceId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let ok = (1..=63).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if ok { Ok(ResourceId(text.to_owned())) } else { Err(NameError::Id) }
    }
}

/// `projects/{project}/intents/{intent}`. Ordered as its text is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct IntentName {
    /// The project.
    pub project: ResourceId,
    /// The intent within it.
    pub intent: ResourceId,
}

impl fmt::Display for IntentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "projects/{}/intents/{}", self.project.0, self.intent.0)
    }
}

impl FromStr for IntentName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error = |why: &str| NameError::Intent(why.to_owned());
        let rest = text.strip_prefix("projects/").ok_or_else(|| error("it does not begin with projects/"))?;
        let (project, intent) = rest.split_once("/intents/").ok_or_else(|| error("`/intents/` is missing"))?;
        let id = |part: &str| part.parse().map_err(|why: NameError| error(&why.to_string()));
        Ok(IntentName { project: id(project)?, intent: id(intent)? })
    }
}

impl Ord for IntentName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // `-` sorts before the `/` that ends the project's id, so the parts alone would give another order.
        if self.project == other.project {
            self.intent.cmp(&other.intent)
        } else {
            self.to_string().cmp(&other.to_string())
        }
    }
}

impl PartialOrd for IntentName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Name of a node, without `nodes/`: 1 to 253 characters of a-z, 0-9, `-` and `.`, first and last a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `nodes/{node}`.
    pub fn resource(&self) -> String {
        format!("nodes/{}", self.0)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let ok = (1..=253).contains(&text.len())
            && text.starts_with(alphanumeric)
            && text.ends_with(alphanumeric)
            && text.chars().all(|c| alphanumeric(c) || c == '-' || c == '.');
        if ok { Ok(NodeName(text.to_owned())) } else { Err(NameError::Node) }
    }
}

macro_rules! stored_as_text {
    ($($name:ty),*) => {$(
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> { text.parse() }
        }
    )*};
}

stored_as_text!(ResourceId, IntentName, NodeName);

impl From<ResourceId> for String {
    fn from(id: ResourceId) -> String {
        id.0
    }
}

impl From<IntentName> for String {
    fn from(name: IntentName) -> String {
        name.to_string()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names() {
        for good in ["a", "a1", "a-b", &"a".repeat(63)] {
            assert!(good.parse::<ResourceId>().is_ok(), "{good}");
        }
        for bad in ["", "1a", "-a", "a-", "A", "a_b", "a/b", "ä", &"a".repeat(64)] {
            assert!(bad.parse::<ResourceId>().is_err(), "{bad}");
        }
        let name: IntentName = "projects/default/intents/slow-batch".parse().unwrap();
        assert_eq!(name.to_string(), "projects/default/intents/slow-batch");
        for bad in ["", "intents/x", "projects/default", "projects//intents/x", "projects/a/intents/b/intents/c"] {
            assert!(bad.parse::<IntentName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn node_names_never_look_like_the_wildcard() {
        for good in ["a", "1", "node-1.example.org", &"n".repeat(253)] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "-", ".", "-a", "a.", "A", "a/b", "a b", &"n".repeat(254)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn order_is_that_of_the_text() {
        let parse = |text: &str| text.parse::<IntentName>().unwrap();
        let (a, b) = (parse("projects/a/intents/x"), parse("projects/a-b/intents/x"));
        assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        assert!(parse("projects/a/intents/x") < parse("projects/a/intents/y"));
    }
}
