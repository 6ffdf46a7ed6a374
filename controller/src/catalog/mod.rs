//! What the store holds, as domain values: the keys, the stored forms, and a picture that follows the store's watch.
//!
//! May not touch the network or the contract's generated types; does no I/O: listings and changes come in.

mod records;

pub use records::{
    DIRECTIVES, DirectiveRecord, FLEET, INTENTS, Key, NODES, RecordError, decode_intent, decode_node, directive_key,
    encode, intent_key, node_key, parse_key,
};

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    model::{Directive, Intent, IntentName, NodeName, NodeRecord},
    store::{Change, Event, Item, Listing, Revision},
};

/// The picture of the store at one revision.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Revision that it reflects.
    pub revision: Revision,
    /// Intents.
    pub intents: BTreeMap<IntentName, Arc<Intent>>,
    /// Known nodes.
    pub nodes: BTreeMap<NodeName, NodeRecord>,
    /// Directives of single nodes; absent means active.
    pub node_directives: BTreeMap<NodeName, Directive>,
    /// The directive of the fleet.
    pub fleet_directive: Directive,
}

/// What a change of the store touched.
#[derive(Clone, Debug, PartialEq)]
pub enum Touched {
    /// An intent; `None` where it is gone.
    Intent(IntentName, Option<Arc<Intent>>),
    /// A node's record.
    Node(NodeName),
    /// A node's directive.
    NodeDirective(NodeName),
    /// The fleet's directive.
    FleetDirective,
}

impl Catalog {
    /// The picture of a listing of everything, and why rows of it were left out.
    pub fn load(listing: &Listing) -> (Self, Vec<RecordError>) {
        let mut catalog = Catalog { revision: listing.revision, ..Catalog::default() };
        let errors = listing.items.iter().filter_map(|item| catalog.put(item).err()).collect();
        (catalog, errors)
    }

    /// Follows one change.
    pub fn apply(&mut self, change: &Change) -> (Vec<Touched>, Vec<RecordError>) {
        let mut touched = Vec::new();
        let mut errors = Vec::new();
        for event in &change.events {
            let result = match event {
                Event::Put(item) => self.put(item),
                Event::Delete { key, .. } => self.delete(key),
            };
            match result {
                Ok(one) => touched.push(one),
                Err(error) => errors.push(error),
            }
        }
        self.revision = change.revision;
        (touched, errors)
    }

    fn put(&mut self, item: &Item) -> Result<Touched, RecordError> {
        Ok(match parse_key(&item.key)? {
            Key::Intent(name) => {
                let intent = Arc::new(decode_intent(item)?);
                self.intents.insert(name.clone(), Arc::clone(&intent));
                Touched::Intent(name, Some(intent))
            }
            Key::Node(name) => {
                self.nodes.insert(name.clone(), decode_node(item)?);
                Touched::Node(name)
            }
            Key::NodeDirective(name) => {
                self.node_directives.insert(name.clone(), records::decode_directive(item)?);
                Touched::NodeDirective(name)
            }
            Key::FleetDirective => {
                self.fleet_directive = records::decode_directive(item)?;
                Touched::FleetDirective
            }
        })
    }

    fn delete(&mut self, key: &str) -> Result<Touched, RecordError> {
        Ok(match parse_key(key)? {
            Key::Intent(name) => {
                self.intents.remove(&name);
                Touched::Intent(name, None)
            }
            Key::Node(name) => {
                self.nodes.remove(&name);
                Touched::Node(name)
            }
            Key::NodeDirective(name) => {
                self.node_directives.remove(&name);
                Touched::NodeDirective(name)
            }
            Key::FleetDirective => {
                self.fleet_directive = Directive::Active;
                Touched::FleetDirective
            }
        })
    }

    /// What a node is told: the stricter of its own directive and the fleet's.
    pub fn directive(&self, node: &NodeName) -> Directive {
        self.node_directives.get(node).copied().unwrap_or_default().max(self.fleet_directive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::intent;

    fn item(key: String, value: Vec<u8>, revision: u64) -> Item {
        Item { key, value, create_revision: Revision(1), mod_revision: Revision(revision) }
    }

    #[test]
    fn follows_puts_and_deletes_and_reports_rows_it_cannot_read() {
        let wanted = intent("a", 0, &["n1"]);
        let key = intent_key(&wanted.record.name);
        let listing = Listing {
            items: vec![item(key.clone(), encode(&wanted.record), 7), item("else".into(), vec![], 1)],
            revision: Revision(9),
        };
        let (mut catalog, errors) = Catalog::load(&listing);
        assert_eq!((catalog.intents.len(), errors.len(), catalog.revision), (1, 1, Revision(9)));
        assert_eq!(catalog.intents[&wanted.record.name].mod_revision, 7);

        let node: NodeName = "n1".parse().unwrap();
        let paused = encode(&DirectiveRecord { directive: Directive::Paused });
        let released = encode(&DirectiveRecord { directive: Directive::Released });
        let change = Change {
            revision: Revision(10),
            events: vec![
                Event::Delete { key, previous: vec![] },
                Event::Put(item(directive_key(Some(&node)), released, 10)),
                Event::Put(item(directive_key(None), paused, 10)),
                Event::Put(item(node_key(&node), b"{".to_vec(), 10)),
            ],
        };
        let (touched, errors) = catalog.apply(&change);
        assert_eq!((touched.len(), errors.len()), (3, 1));
        assert!(catalog.intents.is_empty());
        assert_eq!(catalog.directive(&node), Directive::Released);
        assert_eq!(catalog.directive(&"n2".parse().unwrap()), Directive::Paused);
    }
}
