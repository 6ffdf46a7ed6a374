//! The form of a commit in the embedded store's log: what a watch needs, length by length, so that values stay bytes.
//!
//! `count:u32 { kind:u8 key value [create_revision:u64] }*`, numbers little-endian, texts and values with a u32 length.

use super::{Change, Event, Item, Revision};

const PUT: u8 = 1;
const DELETE: u8 = 2;

pub(super) fn encode(events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, events.len());
    for event in events {
        match event {
            Event::Put(item) => {
                out.push(PUT);
                bytes(&mut out, item.key.as_bytes());
                bytes(&mut out, &item.value);
                out.extend_from_slice(&item.create_revision.0.to_le_bytes());
            }
            Event::Delete { key, previous } => {
                out.push(DELETE);
                bytes(&mut out, key.as_bytes());
                bytes(&mut out, previous);
            }
        }
    }
    out
}

fn number(out: &mut Vec<u8>, n: usize) {
    // Lengths are bounded by what a message can hold, far below 4 GiB.
    out.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// The commit at `revision`; `None` where the record makes no sense.
pub(super) fn decode(revision: Revision, record: &[u8]) -> Option<Change> {
    let mut rest = record;
    let count = take_number(&mut rest)?;
    let mut events = Vec::new();
    for _ in 0..count {
        let (&kind, after) = rest.split_first()?;
        rest = after;
        let key = String::from_utf8(take_bytes(&mut rest)?.to_vec()).ok()?;
        let value = take_bytes(&mut rest)?.to_vec();
        events.push(match kind {
            PUT => {
                let (create, after) = rest.split_first_chunk::<8>()?;
                rest = after;
                let create_revision = Revision(u64::from_le_bytes(*create));
                Event::Put(Item { key, value, create_revision, mod_revision: revision })
            }
            DELETE => Event::Delete { key, previous: value },
            _ => return None,
        });
    }
    rest.is_empty().then_some(Change { revision, events })
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_le_bytes(*number))
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_number(rest)?).ok()?;
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let value = proptest::collection::vec(any::<u8>(), 0..20);
        (any::<bool>(), ".{0,10}", value, any::<u64>()).prop_map(|(put, key, value, create)| {
            if put {
                Event::Put(Item { key, value, create_revision: Revision(create), mod_revision: Revision(7) })
            } else {
                Event::Delete { key, previous: value }
            }
        })
    }

    proptest! {
        #[test]
        fn round_trip(events in proptest::collection::vec(event(), 0..5)) {
            let decoded = decode(Revision(7), &encode(&events)).unwrap();
            prop_assert_eq!(decoded.events, events);
        }

        #[test]
        fn a_cut_record_is_refused(events in proptest::collection::vec(event(), 1..4), cut in 1usize..10) {
            let record = encode(&events);
            prop_assert_eq!(decode(Revision(7), &record[..record.len().saturating_sub(cut)]), None);
        }

        #[test]
        fn garbage_is_no_panic(record in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(Revision(1), &record);
        }
    }
}
