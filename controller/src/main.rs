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
    secure,
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
    let Config { listen, store, insecure, tls, keep_revisions, log_format, command } = Config::parse();
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
    let addresses = Addresses { listen, insecure, tls: tls.certificate.is_some(), mutual: tls.client_ca.is_some() };
    let listener = bind(addresses).await?;
    let mut tasks = TaskSet::new(shutdown.clone());
    // Before the store: what cannot be secured leaves nothing behind.
    let security = secure::open(tls, insecure, &mut tasks, &shutdown)?;
    let StoreLocation::File(path) = store;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let store = EmbeddedStore::open(&path)?;

    let watched = store.clone();
    let ending = shutdown.clone();
    tasks.spawn("store-writer", OnDeath::EndProcess, async move {
        tokio::select! {
            () = watched.failed() => Err("the store cannot be written"),
            () = ending.cancelled() => Ok(()),
        }
    });
    let options = Options { sessions: SessionOptions::new(shutdown), security, keep_revisions };
    let address = controller::start(Arc::new(store), listener, options, &mut tasks).await?;
    println!("weir-controller listening on {address}");
    std::io::stdout().flush().context("writing to standard output")?;
    tasks.run(GRACE).await.map_err(anyhow::Error::from)
}
