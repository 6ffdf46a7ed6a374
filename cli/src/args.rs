//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_common::tls::TrustDomain;

/// Talks to a Weir controller.
#[derive(Debug, Parser)]
#[command(name = "weirctl", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// Address of the controller.
    #[arg(long, global = true, env = "WEIR_SERVER", default_value = "http://127.0.0.1:7420")]
    pub server: String,
    /// TLS, for an address with https.
    #[command(flatten)]
    pub tls: Tls,
    /// Project of intents that are named without one.
    #[arg(short, long, global = true, env = "WEIR_PROJECT", default_value = "default")]
    pub project: String,
    /// How results are printed.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// TLS, for an address with https.
#[derive(Args, Clone, Debug)]
pub struct Tls {
    /// Authorities of the controller, a PEM file; needed for https.
    #[arg(long = "tls-ca", global = true, env = "WEIR_TLS_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Your certificate and its chain, a PEM file.
    #[arg(long = "tls-cert", global = true, env = "WEIR_TLS_CERT", value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// The certificate's key, a PEM file.
    #[arg(long = "tls-key", global = true, env = "WEIR_TLS_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Name in the controller's certificate [default: the address's host].
    #[arg(long = "tls-server-name", global = true, env = "WEIR_TLS_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,
    /// A file with a token that says who you are, where no certificate does; read at each call.
    #[arg(long = "token-file", global = true, env = "WEIR_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// Canonical proto JSON.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The exit codes, for the help.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  another error
  2  wrong usage
  3  invalid input: the manifest, or INVALID_ARGUMENT
  4  not found
  5  conflict: ALREADY_EXISTS, ABORTED or FAILED_PRECONDITION
  6  the controller cannot be reached, or did not answer in time
  7  waited, and at least one node failed
  8  waited, and the time was up";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create or update the intents of manifests (YAML or JSON, several documents each).
    Apply(Apply),
    /// Show intents, nodes, devices or workloads.
    Get {
        /// What to show.
        #[command(subcommand)]
        what: Get,
    },
    /// Show the block devices of a node as a tree, and where limits take effect in it.
    Devices {
        /// The node.
        node: String,
    },
    /// Show the cgroups of a node and what applies to them.
    Workloads {
        /// The node.
        node: String,
        /// Only those whose path matches.
        #[arg(long, default_value = "")]
        cgroup: String,
    },
    /// Show everything about one intent or node.
    Describe {
        /// What to show.
        #[command(subcommand)]
        what: Describe,
    },
    /// Delete intents.
    Delete(Delete),
    /// Show every setting of a node: who won it, who lost, why, and what was there before.
    Explain(Explain),
    /// Show intended, effective and achieved of every limit, live.
    Watch(Watch),
    /// Show the nodes.
    Nodes(Nodes),
    /// Stop changing the kernel on a node, or on all, until it is resumed.
    Pause(Target),
    /// Undo a pause or a release.
    Resume(Target),
    /// Put everything back on a node, or on all, and keep it so until it is resumed.
    Release(Release),
    /// Forget nodes that will not return.
    Forget(Forget),
    /// Make certificates for trying out and for small fleets.
    Certs {
        /// What to make.
        #[command(subcommand)]
        what: Certs,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version,
}

/// What certs makes.
#[derive(Debug, Subcommand)]
pub enum Certs {
    /// Make an authority in a directory, and certificates of it; a second run adds to what is there.
    Init(CertsInit),
}

/// Options of certs init.
#[derive(Args, Debug)]
pub struct CertsInit {
    /// Where the files go; it is made where it is missing.
    pub directory: PathBuf,
    /// First part of the identities: the controller's --trust-domain.
    #[arg(long, default_value = "weir", value_name = "DOMAIN")]
    pub trust_domain: TrustDomain,
    /// A name or an address by which the controller is reached [default: localhost, 127.0.0.1 and ::1]; may be repeated.
    #[arg(long = "server-name", value_name = "NAME|IP")]
    pub server_names: Vec<String>,
    /// A node whose agent gets a certificate; may be repeated.
    #[arg(long = "node", value_name = "NODE")]
    pub nodes: Vec<String>,
    /// A person or a program that gets a certificate; may be repeated.
    #[arg(long = "client", value_name = "NAME")]
    pub clients: Vec<String>,
    /// Days until the certificates expire; the authority's own is good for ten years.
    #[arg(long, default_value_t = 365, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
    /// Replace certificates that are there: of the nodes and clients that are named, and the controller's where
    /// --server-name or nobody is named. Never the authority.
    #[arg(long)]
    pub force: bool,
}

/// What `nodes` waits for.
#[derive(Args, Clone, Copy, Debug)]
pub struct Nodes {
    /// Wait until so many nodes are connected.
    #[arg(long, value_name = "N")]
    pub connected: Option<usize>,
    /// How long to wait, for instance 30s, 2m or 500ms; a bare number is seconds.
    #[arg(long, default_value = "30s", value_parser = duration, requires = "connected")]
    pub timeout: Duration,
}

/// Waiting.
#[derive(Args, Clone, Copy, Debug)]
pub struct Wait {
    /// Return when every node has answered.
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, for instance 30s, 2m or 500ms; a bare number is seconds.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

/// Options of apply.
#[derive(Args, Debug)]
pub struct Apply {
    /// Manifests; `-` is standard input.
    #[arg(short, long = "file", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Have everything checked by the controller, and store nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Waiting.
    #[command(flatten)]
    pub wait: Wait,
}

/// What get shows.
#[derive(Debug, Subcommand)]
pub enum Get {
    /// Intents.
    #[command(alias = "intent")]
    Intents {
        /// Only this one.
        name: Option<String>,
    },
    /// Nodes.
    #[command(alias = "node")]
    Nodes {
        /// Only this one.
        name: Option<String>,
    },
    /// Block devices of a node.
    Devices {
        /// The node.
        node: String,
    },
    /// Cgroups of a node.
    Workloads {
        /// The node.
        node: String,
        /// Only those whose path matches.
        #[arg(long, default_value = "")]
        cgroup: String,
    },
}

/// What describe shows.
#[derive(Debug, Subcommand)]
pub enum Describe {
    /// An intent.
    Intent {
        /// Its name.
        name: String,
    },
    /// A node.
    Node {
        /// Its name.
        name: String,
    },
}

/// Options of delete.
#[derive(Args, Debug)]
pub struct Delete {
    /// `intent NAME…`, or nothing with --file.
    #[arg(required_unless_present = "files", conflicts_with = "files", num_args = 1.., value_name = "intent NAME")]
    pub names: Vec<String>,
    /// Delete the intents that manifests name.
    #[arg(short, long = "file", num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Do not wait for nodes that are out of contact: they put back when they return.
    #[arg(long)]
    pub force: bool,
    /// Waiting.
    #[command(flatten)]
    pub wait: Wait,
}

/// Options of explain.
#[derive(Args, Debug)]
pub struct Explain {
    /// The node.
    pub node: String,
    /// Only settings that this intent wants.
    #[arg(long)]
    pub intent: Option<String>,
    /// Only cgroups whose path matches this glob.
    #[arg(long, default_value = "")]
    pub cgroup: String,
}

/// Options of watch.
#[derive(Args, Debug)]
pub struct Watch {
    /// Only this intent.
    #[arg(long)]
    pub intent: Option<String>,
    /// Only this node.
    #[arg(long)]
    pub node: Option<String>,
    /// End after this time; without it, by Ctrl-C.
    #[arg(long = "for", value_parser = duration)]
    pub length: Option<Duration>,
    /// Time between looks.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub interval: Duration,
}

/// Which nodes to forget.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Forget {
    /// The node.
    pub node: Option<String>,
    /// All that are GONE: out of contact for longer than the controller's --node-gone-after-s.
    #[arg(long)]
    pub gone: bool,
}

/// A node, or all.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// The node.
    pub node: Option<String>,
    /// All nodes, those that come later too.
    #[arg(long)]
    pub all: bool,
}

/// Options of release.
#[derive(Args, Debug)]
pub struct Release {
    /// Which.
    #[command(flatten)]
    pub target: Target,
    /// Waiting.
    #[command(flatten)]
    pub wait: Wait,
}

/// `30s`, `2m`, `500ms`, `1h`; a bare number is seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "a time is a number and a unit: 500ms, 30s, 2m, 1h".to_owned())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(format!("`{unit}` is none of ms, s, m, h")),
    };
    milliseconds.map(Duration::from_millis).ok_or_else(|| "that is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["weirctl", "delete", "intent", "a", "--wait"]).is_ok());
        assert!(Cli::try_parse_from(["weirctl", "delete", "-f", "x.yaml"]).is_ok());
        assert!(Cli::try_parse_from(["weirctl", "delete"]).is_err());
        assert!(Cli::try_parse_from(["weirctl", "pause"]).is_err());
        assert!(Cli::try_parse_from(["weirctl", "pause", "--all"]).is_ok());
    }

    #[test]
    fn times() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        for bad in ["", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
