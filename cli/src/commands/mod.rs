//! What each command does.

mod apply;
mod certs;
mod delete;
mod describe;
mod devices;
mod explain;
mod get;
mod nodes;
mod wait;
mod watch;

use std::{collections::BTreeMap, time::Duration};

use clap::CommandFactory as _;

use crate::{
    args::{Certs, Cli, Command, Describe, Get, Nodes},
    client::Client,
    failure::Failure,
    print,
};

/// Runs a command.
///
/// # Errors
/// What went wrong.
pub async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { server, tls, project, output, command } = cli;
    match command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "weirctl", &mut script);
            return print::line(String::from_utf8_lossy(&script).trim_end());
        }
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            if print::structured(&BTreeMap::from([("version", version)]), output)? {
                return Ok(());
            }
            return print::line(&format!("weirctl {version}"));
        }
        Command::Certs { what: Certs::Init(options) } => return certs::init(&options),
        // Manifests are checked before anybody is asked.
        Command::Apply(apply) => {
            let documents = crate::manifest::read(&apply.files, &project)?;
            let mut client = Client::connect(&server, &tls).await?;
            return apply::run(&mut client, documents, &apply, output).await;
        }
        Command::Delete(delete) => {
            let names = delete::names(&delete, &project)?;
            let mut client = Client::connect(&server, &tls).await?;
            return delete::run(&mut client, names, &delete).await;
        }
        _ => {}
    }
    // Who waits for the fleet waits for the controller too: hooks of an installation run while names and networks come up.
    let patience = match &command {
        Command::Nodes(Nodes { connected: Some(_), timeout }) => *timeout,
        Command::Release(release) if release.wait.wait => release.wait.timeout,
        _ => Duration::ZERO,
    };
    let mut client = Client::connect_within(&server, &tls, patience).await?;
    match command {
        Command::Get { what: Get::Intents { name: Some(name) } } => {
            get::intent(&mut client, &name, &project, output).await
        }
        Command::Get { what: Get::Intents { name: None } } => get::intents(&mut client, &project, output).await,
        Command::Get { what: Get::Nodes { name: Some(name) } } => get::node(&mut client, &name, output).await,
        Command::Get { what: Get::Nodes { name: None } } => get::nodes(&mut client, output).await,
        Command::Nodes(Nodes { connected: None, .. }) => get::nodes(&mut client, output).await,
        Command::Nodes(Nodes { connected: Some(wanted), timeout }) => {
            wait::connected(&mut client, wanted, timeout).await?;
            get::nodes(&mut client, output).await
        }
        Command::Devices { node } => devices::tree(&mut client, &node, output).await,
        Command::Get { what: Get::Devices { node } } => get::devices(&mut client, &node, output).await,
        Command::Workloads { node, cgroup } | Command::Get { what: Get::Workloads { node, cgroup } } => {
            get::workloads(&mut client, &node, cgroup, &project, output).await
        }
        Command::Describe { what: Describe::Intent { name } } => {
            describe::intent(&mut client, &name, &project, output).await
        }
        Command::Describe { what: Describe::Node { name } } => {
            describe::node(&mut client, &name, &project, output).await
        }
        Command::Explain(explain) => explain::run(&mut client, explain, &project, output).await,
        Command::Watch(watch) => watch::run(&mut client, watch, &project, output).await,
        Command::Pause(target) => nodes::pause(&mut client, &target, output).await,
        Command::Resume(target) => nodes::resume(&mut client, &target, output).await,
        Command::Release(release) => nodes::release(&mut client, &release, output).await,
        Command::Forget(which) => match which.node {
            Some(node) => nodes::forget(&mut client, &node, output).await,
            None => nodes::forget_gone(&mut client, output).await,
        },
        Command::Apply(_)
        | Command::Delete(_)
        | Command::Certs { .. }
        | Command::Completions { .. }
        | Command::Version => Ok(()),
    }
}
