//! Keys and stored forms. Values are JSON, so that a person can read a store.

use serde::{Deserialize, Serialize};

use crate::{
    model::{Directive, Intent, IntentName, IntentRecord, NodeName, NodeRecord, ResourceId},
    store::Item,
};

/// Prefix of intents: `intents/{project}/{intent}`.
pub const INTENTS: &str = "intents/";
/// Prefix of nodes: `nodes/{node}`.
pub const NODES: &str = "nodes/";
/// Prefix of directives: `directives/{node}`, and `directives/-` for the fleet.
pub const DIRECTIVES: &str = "directives/";
/// What stands for the fleet where a node's name is expected.
pub const FLEET: &str = "-";

/// A row of the store that this version cannot read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The key is of no known kind.
    #[error("the store has a key `{0}` of no known kind")]
    Key(String),
    /// The value cannot be decoded.
    #[error("the value of `{key}` cannot be read: {source}")]
    Value {
        /// The key.
        key: String,
        /// Why not.
        source: serde_json::Error,
    },
}

/// What a key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// An intent.
    Intent(IntentName),
    /// A node.
    Node(NodeName),
    /// A node's directive.
    NodeDirective(NodeName),
    /// The fleet's directive.
    FleetDirective,
}

/// What is stored of a directive; no row means active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectiveRecord {
    /// What is told.
    pub directive: Directive,
}

/// Key of an intent.
pub fn intent_key(name: &IntentName) -> String {
    format!("{INTENTS}{}/{}", name.project.as_str(), name.intent.as_str())
}

/// Key of a node.
pub fn node_key(name: &NodeName) -> String {
    format!("{NODES}{name}")
}

/// Key of a node's directive, or with `None` of the fleet's.
pub fn directive_key(name: Option<&NodeName>) -> String {
    format!("{DIRECTIVES}{}", name.map_or(FLEET, NodeName::as_str))
}

/// What a key stands for.
///
/// # Errors
/// It is of no known kind.
pub fn parse_key(key: &str) -> Result<Key, RecordError> {
    let error = || RecordError::Key(key.to_owned());
    if let Some(rest) = key.strip_prefix(INTENTS) {
        let (project, intent) = rest.split_once('/').ok_or_else(error)?;
        let id = |text: &str| text.parse::<ResourceId>().map_err(|_| error());
        Ok(Key::Intent(IntentName { project: id(project)?, intent: id(intent)? }))
    } else if let Some(rest) = key.strip_prefix(NODES) {
        rest.parse().map(Key::Node).map_err(|_| error())
    } else if let Some(rest) = key.strip_prefix(DIRECTIVES) {
        if rest == FLEET { Ok(Key::FleetDirective) } else { rest.parse().map(Key::NodeDirective).map_err(|_| error()) }
    } else {
        Err(error())
    }
}

/// The stored form of a record.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    // Records have texts as keys and finite numbers only, so there is always a JSON form; were there none, the empty
    // value would be refused when read, and named.
    serde_json::to_vec(record).unwrap_or_default()
}

fn decode<'a, T: Deserialize<'a>>(key: &str, value: &'a [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(value).map_err(|source| RecordError::Value { key: key.to_owned(), source })
}

/// The intent in an item.
///
/// # Errors
/// The value cannot be read.
pub fn decode_intent(item: &Item) -> Result<Intent, RecordError> {
    let record: IntentRecord = decode(&item.key, &item.value)?;
    Ok(Intent { record, create_revision: item.create_revision.0, mod_revision: item.mod_revision.0 })
}

/// The node in an item.
///
/// # Errors
/// The value cannot be read.
pub fn decode_node(item: &Item) -> Result<NodeRecord, RecordError> {
    decode(&item.key, &item.value)
}

pub(super) fn decode_directive(item: &Item) -> Result<Directive, RecordError> {
    decode::<DirectiveRecord>(&item.key, &item.value).map(|record| record.directive)
}
