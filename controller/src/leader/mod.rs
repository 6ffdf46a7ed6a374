//! What must be single: finalizing deletions, and compacting the log.
//!
//! With the embedded store this process is the leader by holding the file's exclusive lock: a second controller on the
//! same file does not start. Where several controllers share a store, an election decides who runs [`run`], and each
//! write in here gains a precondition on the leader's key; nothing else of this module changes.

mod compaction;
mod finalizer;

use std::{convert::Infallible, sync::Arc};

use crate::{session::Hub, store::Store};

/// The leader's work, for as long as this process leads. Failures of the store are retried.
///
/// # Errors
/// None; the work goes on until it is dropped.
pub async fn run<S: Store>(store: Arc<S>, hub: Arc<Hub>, keep_revisions: u64) -> Result<(), Infallible> {
    tokio::join!(finalizer::run(&*store, &hub), compaction::run(&*store, keep_revisions));
    Ok(())
}
