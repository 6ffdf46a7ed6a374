//! The command line of the agent.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use weir_common::{ops::Addressed, telemetry::LogFormat, units};

/// Makes this node's kernel keep the plan of a controller, and measures whether it does.
///
/// Ending the agent releases nothing; `weir-agent release`, with the agent stopped, puts everything back.
#[derive(Debug, Parser)]
#[command(name = "weir-agent", version)]
pub struct Cli {
    /// Options.
    #[command(flatten)]
    pub options: Options,
    /// What to do instead of running.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Put back every setting that Weir owns on this node, and say what became of each. The agent must not be running.
    Release,
}

/// Options, before or after the command.
#[derive(Args, Debug)]
pub struct Options {
    /// Addresses of controllers, separated by commas.
    #[arg(
        global = true,
        long,
        env = "WEIR_CONTROLLER",
        default_value = "http://127.0.0.1:7420",
        value_delimiter = ','
    )]
    pub controller: Vec<String>,
    /// TLS, for addresses with https.
    #[command(flatten)]
    pub tls: Tls,
    /// Name of this node [default: the host's name].
    #[arg(global = true, long, env = "WEIR_NODE")]
    pub node: Option<String>,
    /// Where the plan and the journal are kept.
    #[arg(global = true, long, env = "WEIR_STATE_DIR", default_value = "/var/lib/weir-agent")]
    pub state_dir: PathBuf,
    /// A label of this node, KEY=VALUE; may be repeated.
    #[arg(global = true, long = "label", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Root of the cgroup hierarchy with the throttle files [default: found].
    #[arg(global = true, long)]
    pub cgroup_root: Option<PathBuf>,
    /// Where the host's / is seen: in a container, where it, or its /dev alone, is mounted. Device paths, by-id names and mount
    /// points are looked up below it.
    #[arg(global = true, long, env = "WEIR_HOST_ROOT", value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// Time between looks at the node, milliseconds.
    #[arg(global = true, long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub period_ms: u64,
    /// Lowest byte rate that is written, bytes per second.
    #[arg(global = true, long, default_value_t = units::DEFAULT_FLOOR_BYTES_PER_SECOND, value_parser = clap::value_parser!(u64).range(2..))]
    pub floor_bytes_per_second: u64,
    /// Lowest operation rate that is written, operations per second.
    #[arg(global = true, long, default_value_t = units::DEFAULT_FLOOR_OPERATIONS_PER_SECOND, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub floor_operations_per_second: u64,
    /// Address for /metrics, /livez and /readyz; `off` for none [default: 127.0.0.1:7422, where that is free].
    #[arg(global = true, long, env = "WEIR_OPS_LISTEN", value_name = "ADDRESS:PORT")]
    pub ops_listen: Option<Addressed>,
    /// Simulated nodes instead of this one.
    #[command(flatten)]
    pub simulate: SimulateOptions,
    /// How log lines look: text or json.
    #[arg(global = true, long, default_value = "text")]
    pub log_format: LogFormat,
}

/// A simulation. Touches no kernel and needs no root: each node has modelled disks (nvme0n1, nvme1n1, ...) and cgroups
/// (/sim/w1, /sim/w2, ...), and all else as a real agent: its link, its plan, its journal.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub struct SimulateOptions {
    /// Runs N modelled nodes in this process. Their names are the one of --node (default `sim`) with `-0001` and so on; each
    /// has its journal in --state-dir/NAME.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9999))]
    pub simulate: Option<u16>,
    /// Appends lines of JSON: each second one of `"kind":"total"`; on SIGUSR1, and at the end, one of `"kind":"agent"` for
    /// each node with its counters and the limits that its kernel holds, then one of `"kind":"end"`.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    pub simulate_report: Option<PathBuf>,
    /// Modelled disks of each node.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub simulate_devices: u8,
    /// Modelled workloads of each node.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub simulate_workloads: u16,
}

/// TLS; the files are read again at each connection.
#[derive(Args, Clone, Debug)]
pub struct Tls {
    /// Authorities of controllers, a PEM file; needed for https.
    #[arg(long = "tls-ca", env = "WEIR_TLS_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// This node's certificate and its chain, a PEM file.
    #[arg(long = "tls-cert", env = "WEIR_TLS_CERT", value_name = "FILE", requires_all = ["ca", "key"])]
    pub certificate: Option<PathBuf>,
    /// The certificate's key, a PEM file.
    #[arg(long = "tls-key", env = "WEIR_TLS_KEY", value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Name in the controller's certificate [default: the address's host].
    #[arg(long = "tls-server-name", env = "WEIR_TLS_SERVER_NAME", value_name = "NAME", requires = "ca")]
    pub server_name: Option<String>,
    /// A file with a token that proves which node this is, where no certificate does (in Kubernetes a projected
    /// service-account token); read at each call.
    #[arg(long = "token-file", env = "WEIR_TOKEN_FILE", value_name = "FILE", requires = "ca")]
    pub token_file: Option<PathBuf>,
}

impl Options {
    /// Time between looks at the node.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE".to_owned()),
    }
}

/// Whether a name can be a node's: 1 to 253 of a-z, 0-9, `-` and `.`, beginning and ending with a letter or a digit.
pub fn is_node_name(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253
        && edge(name.chars().next())
        && edge(name.chars().last())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["weir-agent", "--state-dir", "/x", "--label", "a=b=c", "release"]);
        assert_eq!(cli.command, Some(Command::Release));
        assert_eq!(cli.options.labels, [("a".to_owned(), "b=c".to_owned())]);
        let cli = Cli::parse_from(["weir-agent", "release", "--state-dir", "/y"]);
        assert_eq!((cli.command, cli.options.state_dir), (Some(Command::Release), "/y".into()));
        assert!(Cli::try_parse_from(["weir-agent", "--floor-bytes-per-second", "0"]).is_err());
        for (name, good) in [("node-1.example", true), ("", false), ("-a", false), ("A", false), ("a/b", false)] {
            assert_eq!(is_node_name(name), good, "{name}");
        }
    }
}
