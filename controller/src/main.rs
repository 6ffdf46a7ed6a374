//! weir-controller: wiring only.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the line that says where it listens is its interface to scripts"
)]

use std::{io::Write, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use weir_common::{
    tasks::{OnDeath, TaskSet, shutdown_on_signals},
    telemetry,
};
use weir_controller::{
    api::{Addresses, bind},
    config::{Command, Config, StoreLocation},
    controller::{self, Options},
    maintain::{self, StoreCommand},
    session::SessionOptions,
    store::EmbeddedStore,
};

/// How long tasks may take to end.
const GRACE: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // One line with the causes: whoever starts it wants to know what to do, not where in the code it was found.
        Err(error) => {
            eprintln!("weir-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> anyhow::Result<()> {
    let Config { listen, store, insecure, keep_revisions, max_session_age_s, log_format, command } = Config::parse();
    telemetry::init(log_format);
    let shutdown = shutdown_on_signals().context("installing the signal handlers")?;
    if let Some(Command::Store(command)) = command {
        let StoreLocation::File(path) = store;
        // Restoring makes a store; to copy one that is not there would be a mistake that leaves an empty one behind.
        let makes = matches!(command, StoreCommand::Restore { .. });
        anyhow::ensure!(makes || path.exists(), "there is no store {}", path.display());
        eprintln!("{}", maintain::run(&EmbeddedStore::open(&path)?, &command).await?);
        return Ok(());
    }
    let listener = bind(Addresses { listen, insecure }).await?;
    let StoreLocation::File(path) = store;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let store = EmbeddedStore::open(&path)?;

    let mut tasks = TaskSet::new(shutdown.clone());
    let watched = store.clone();
    let ending = shutdown.clone();
    tasks.spawn("store-writer", OnDeath::EndProcess, async move {
        tokio::select! {
            () = watched.failed() => Err("the store cannot be written"),
            () = ending.cancelled() => Ok(()),
        }
    });
    let max_age = (max_session_age_s > 0).then(|| Duration::from_secs(max_session_age_s));
    let sessions = SessionOptions { max_age, ..SessionOptions::new(shutdown) };
    let options = Options { sessions, insecure, keep_revisions };
    let address = controller::start(Arc::new(store), listener, options, &mut tasks).await?;
    println!("weir-controller listening on {address}");
    std::io::stdout().flush().context("writing to standard output")?;
    tasks.run(GRACE).await.map_err(anyhow::Error::from)
}
