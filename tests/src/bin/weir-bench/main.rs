//! Benches by name. Each starts what it needs on loopback, prints a table, and as its last line one JSON object with its
//! figures, the thresholds and `"pass"`. Ends with 0 where it passed, 1 where it did not, 3 where something is missing.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool speaks to the person who started it"
)]

mod cluster;
mod failover;
mod telemetry;
mod timeline;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Weir against its targets.
#[derive(Parser)]
#[command(name = "weir-bench")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Intents change without a pause while controllers are killed, stopped and restarted: nothing acknowledged may be lost,
    /// no older plan applied, no kernel written without need, and every node must end up with what is stored.
    Failover(failover::Args),
    /// Traces of changes as a collector receives them, and the time that telemetry adds to an agent at rest.
    Telemetry(telemetry::Args),
}

/// What a bench found.
pub(crate) struct Outcome {
    /// Rows of the table: what, figure, threshold.
    rows: Vec<(String, String, String)>,
    /// The last line.
    json: serde_json::Value,
    pass: bool,
}

/// Something that the bench needs is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Missing(String);

#[tokio::main]
async fn main() -> ExitCode {
    let Args { bench } = Args::parse();
    let (name, result) = match bench {
        Bench::Failover(args) => ("failover", failover::run(args).await),
        Bench::Telemetry(args) => ("telemetry", telemetry::run(args).await),
    };
    match result {
        Ok(outcome) => {
            for (what, figure, threshold) in &outcome.rows {
                println!("{what:<44} {figure:>16}   {threshold}");
            }
            println!("{}", outcome.json);
            if outcome.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("weir-bench {name}: {error:#}");
            ExitCode::from(if error.is::<Missing>() { 3 } else { 1 })
        }
    }
}
