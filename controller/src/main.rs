//! weir-controller: wiring only.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the line that says where it listens is its interface to scripts"
)]

use std::{io::Write, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Parser;
use tokio_util::sync::CancellationToken;
use weir_common::{
    errors::chain,
    ops,
    tasks::{OnDeath, TaskSet, shutdown_on_signals},
    telemetry,
};
use weir_controller::{
    api::{Addresses, bind},
    config::{Command, Config, StoreLocation},
    controller::{self, Options},
    leader::{Replica, ReplicaId, Sole},
    maintain::{self, StoreCommand},
    secure,
    session::SessionOptions,
    store::EmbeddedStore,
};
#[cfg(feature = "etcd")]
use weir_controller::{
    leader::etcd::EtcdElect,
    store::etcd::{EtcdAccess, EtcdStore},
};

/// Port for metrics and health, where none is given.
const OPS_PORT: u16 = 7421;

/// How long tasks may take to end.
const GRACE: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // One line with the causes: whoever starts it wants to know what to do, not where in the code it was found.
        Err(error) => {
            eprintln!("weir-controller: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run() -> anyhow::Result<()> {
    let Config {
        listen,
        store,
        insecure,
        tls,
        keep_revisions,
        max_session_age_s,
        node_gone_after_s,
        ops_listen,
        log_format,
        command,
        #[cfg(feature = "etcd")]
        etcd,
    } = Config::parse();
    let shutdown = shutdown_on_signals().context("installing the signal handlers")?;
    if let Some(Command::Store(command)) = command {
        telemetry::init(log_format, None)?;
        // Restoring makes a store; to copy one that is not there would leave an empty one behind.
        let makes = matches!(command, StoreCommand::Restore { .. });
        let work = maintain::prepare(command)?;
        let done = match store {
            StoreLocation::File(path) => {
                anyhow::ensure!(makes || path.exists(), "there is no store {}", path.display());
                make_directory_of(&path)?;
                maintain::run(&EmbeddedStore::open(&path)?, work).await?
            }
            #[cfg(feature = "etcd")]
            StoreLocation::Etcd(location) => {
                let access = EtcdAccess::load(&etcd)?;
                let store = if makes {
                    EtcdStore::connect(&location, &access).await?
                } else {
                    EtcdStore::existing(&location, &access).await?
                };
                maintain::run(&store, work).await?
            }
        };
        eprintln!("{done}");
        return Ok(());
    }
    let id = ReplicaId::random();
    let service =
        telemetry::Service { name: "weir-controller", version: env!("CARGO_PKG_VERSION"), instance: id.to_string() };
    let traces = telemetry::init(log_format, Some(service))?;
    let addresses = Addresses { listen, insecure, tls: tls.certificate.is_some(), asks: tls.asks() };
    let listener = bind(addresses).await?;
    let address = listener.local_addr().context("asking for the listener's address")?;
    let mut tasks = TaskSet::new(shutdown.clone());
    let max_age = (max_session_age_s > 0).then(|| Duration::from_secs(max_session_age_s));
    let sessions = SessionOptions { max_age, ..SessionOptions::new(shutdown.clone()) };
    // Before the store: what cannot be secured leaves nothing behind.
    let security = secure::open(tls, insecure, &mut tasks, &shutdown).await?;
    let gone_after = Duration::from_secs(node_gone_after_s);
    let ops = ops::bind(ops_listen, OPS_PORT).await?;
    let options = Options { sessions, security, keep_revisions, gone_after, ops };
    let address = match store {
        StoreLocation::File(path) => {
            let store = open_file(&path, &shutdown, &mut tasks)?;
            let elect = Sole::new(id, Replica::at(address.to_string()));
            controller::start(Arc::new(store), Arc::new(elect), listener, options, &mut tasks).await?
        }
        #[cfg(feature = "etcd")]
        StoreLocation::Etcd(location) => {
            anyhow::ensure!(
                options.security.tls.is_none() || options.security.peers.is_some(),
                "controllers that share etcd know each other by their certificates or tokens: TLS needs --tls-client-ca here, or \
                 --peer-ca and --token-file"
            );
            let access = EtcdAccess::load(&etcd)?;
            let replica = Replica::at(etcd.advertised(address)?);
            let store = EtcdStore::connect(&location, &access).await?;
            let elect = EtcdElect::new(&location, &access, id, replica);
            controller::start(Arc::new(store), Arc::new(elect), listener, options, &mut tasks).await?
        }
    };
    println!("weir-controller listening on {address}");
    std::io::stdout().flush().context("writing to standard output")?;
    let ended = tasks.run(GRACE).await;
    traces.end().await;
    Ok(ended?)
}

fn make_directory_of(store: &Path) -> anyhow::Result<()> {
    let directory = store.parent().filter(|directory| !directory.as_os_str().is_empty());
    let Some(directory) = directory else { return Ok(()) };
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))
}

/// Opens the embedded store, and makes its directory where there is none.
fn open_file(path: &Path, shutdown: &CancellationToken, tasks: &mut TaskSet) -> anyhow::Result<EmbeddedStore> {
    make_directory_of(path)?;
    let store = EmbeddedStore::open(path)?;
    let (watched, ending) = (store.clone(), shutdown.clone());
    tasks.spawn("store-writer", OnDeath::EndProcess, async move {
        tokio::select! {
            cause = watched.failed() => Err(cause.to_string()),
            () = ending.cancelled() => Ok(()),
        }
    });
    Ok(store)
}
