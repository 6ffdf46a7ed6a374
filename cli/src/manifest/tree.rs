//! A document as a tree of values that know where they stand, from YAML (of which JSON is a part).

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column.
    pub column: u64,
}

impl Place {
    /// The scalar without quotes that begins here, as it stands in the file.
    pub fn scalar(self, source: &str) -> &str {
        let (Ok(line), Ok(column)) = (usize::try_from(self.line), usize::try_from(self.column)) else { return "" };
        let line = line.checked_sub(1).and_then(|index| source.lines().nth(index)).unwrap_or_default();
        let begin = line.char_indices().nth(column.saturating_sub(1)).map_or(line.len(), |(at, _)| at);
        let rest = line.get(begin..).unwrap_or_default();
        let end = rest.find(|c: char| c.is_whitespace() || ",]}".contains(c)).unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default()
    }
}

/// A value with its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it stands; the default for values that stand nowhere.
    pub place: Place,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// true or false.
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys (with their places) and values, in order.
    Map(Vec<(String, Place, Node)>),
}

impl Node {
    /// As JSON.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Number(number) => Json::Number(number.clone()),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(nodes) => Json::Array(nodes.iter().map(Node::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, _, node)| (key.clone(), node.to_json())).collect())
            }
        }
    }

    /// The value of a key, in either spelling, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        let Value::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|(name, _, _)| snake(name) == key).map(|(_, _, node)| node)
    }

    /// The place of the deepest part of a path (`spec.nodes.any_of[0].names`) that stands in the file: of its key where it
    /// has one.
    pub fn locate(&self, path: &str) -> Place {
        let mut place = self.place;
        let mut node = self;
        for step in path.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
            let next = match &node.value {
                Value::Map(entries) => {
                    entries.iter().find(|(name, _, _)| snake(name) == snake(step)).map(|(_, at, node)| (*at, node))
                }
                Value::List(nodes) => {
                    step.parse().ok().and_then(|i: usize| nodes.get(i)).map(|node| (node.place, node))
                }
                _ => None,
            };
            let Some((at, next)) = next else { break };
            if at != Place::default() {
                place = at;
            }
            node = next;
        }
        place
    }
}

/// The proto spelling of a field's name.
pub fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn place(location: serde_saphyr::Location) -> Place {
    Place { line: location.line(), column: location.column() }
}

fn located(spanned: Spanned<Value>) -> Node {
    Node { place: place(spanned.referenced), value: spanned.value }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        located(spanned)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_i128<E: serde::de::Error>(self, number: i128) -> Result<Value, E> {
        Err(E::custom(format!("{number} is too large")))
    }

    fn visit_u128<E: serde::de::Error>(self, number: u128) -> Result<Value, E> {
        Err(E::custom(format!("{number} is too large")))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| E::custom(format!("{number} is no number that can be sent")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element::<Spanned<Value>>()? {
            nodes.push(located(node));
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, node)) = map.next_entry::<Spanned<String>, Spanned<Value>>()? {
            entries.push((key.value, place(key.referenced), located(node)));
        }
        Ok(Value::Map(entries))
    }
}
