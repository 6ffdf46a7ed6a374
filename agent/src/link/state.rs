//! What the link knows of its own contact: for the node's own file, for simulations and tests. Contact is any message of a
//! controller, the receipts of measurements included; a connection alone is none.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::{sync::watch, time::Instant};

use crate::ledger::replace;

/// Name of the file in the state directory.
pub const FILE: &str = "link.json";

/// The state of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkState {
    /// Address of the controller with which there is a session.
    pub controller: Option<String>,
    /// Out of contact with every controller for 30 s or more: the last plan stays in force.
    pub stale: bool,
    /// What the controller said when it refused this node's name, because another live agent has it. Ends with the next session.
    pub name_taken: Option<String>,
    /// Sessions since the agent started.
    pub sessions: u64,
}

/// When a controller was last heard. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Contact(Arc<Mutex<Instant>>);

impl Contact {
    pub(super) fn now() -> Contact {
        Contact(Arc::new(Mutex::new(Instant::now())))
    }

    /// A controller was heard.
    pub(super) fn heard(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps `stale` true to the contact. Runs until it is dropped.
pub(super) async fn watch_contact(contact: Contact, state: watch::Sender<LinkState>, stale_after: Duration) {
    loop {
        let due = contact.last() + stale_after;
        let stale = due <= Instant::now();
        let changed = state.send_if_modified(|state| std::mem::replace(&mut state.stale, stale) != stale);
        match (changed, stale) {
            (true, true) => tracing::warn!("Stale: out of contact with every controller; the last plan stays in force"),
            (true, false) => tracing::info!("in contact again"),
            (false, _) => {}
        }
        // A contact that ends a stale time shows within a second.
        let wake = if stale { Instant::now() + Duration::from_secs(1).min(stale_after / 2) } else { due };
        tokio::time::sleep_until(wake).await;
    }
}

/// Writes the state to `STATE_DIR/link.json` at every change. Runs until the link has ended.
///
/// # Errors
/// None: what cannot be written is logged.
pub async fn keep(state_dir: PathBuf, mut state: watch::Receiver<LinkState>) -> Result<(), std::convert::Infallible> {
    loop {
        let (dir, now) = (state_dir.clone(), state.borrow_and_update().clone());
        let written = tokio::task::spawn_blocking(move || write(&dir, &now)).await;
        if let Err(error) = written.map_err(io::Error::other).flatten() {
            tracing::warn!(%error, "the state of the link cannot be written");
        }
        if state.changed().await.is_err() {
            return Ok(());
        }
    }
}

fn write(state_dir: &Path, state: &LinkState) -> io::Result<()> {
    let text = serde_json::to_string(state)?;
    replace(&state_dir.join(FILE), format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stale_begins_and_ends_with_contact() {
        let contact = Contact::now();
        let (send, mut receive) = watch::channel(LinkState::default());
        let task = tokio::spawn(watch_contact(contact.clone(), send, Duration::from_millis(400)));
        let soon = Duration::from_secs(10);
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(200)).await;
        contact.heard();
        tokio::time::timeout(soon, receive.wait_for(|state| state.stale)).await.unwrap().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(600), "it counts from the last contact");
        contact.heard();
        tokio::time::timeout(soon, receive.wait_for(|state| !state.stale)).await.unwrap().unwrap();
        task.abort();
    }

    #[tokio::test]
    async fn the_file_says_what_the_link_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (send, receive) = watch::channel(LinkState::default());
        send.send_modify(|state| state.name_taken = Some("two machines".to_owned()));
        drop(send);
        keep(dir.path().to_owned(), receive).await.unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(text.contains("\"name_taken\":\"two machines\""), "{text}");
    }
}
