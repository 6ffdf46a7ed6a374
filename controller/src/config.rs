//! The controller's flags.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use weir_common::{ops::Addressed, telemetry::LogFormat, tls::TrustDomain};

#[cfg(feature = "etcd")]
use crate::store::etcd::{EtcdFlags, EtcdLocation, LocationError};
use crate::{access::Account, maintain::StoreCommand};

/// Weir's controller: intents in, plans out.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "weir-controller", version)]
pub struct Config {
    /// Address to serve on; port 0 takes a free one, which the first line of the output names.
    #[arg(long, default_value = "127.0.0.1:7420", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The store: the path of a file, or etcd://HOST:PORT,HOST:PORT/PREFIX for one that several controllers share.
    #[arg(long, global = true, default_value = "/var/lib/weir-controller/store.redb", value_name = "PATH")]
    pub store: StoreLocation,
    /// Permit an address that is not loopback, although no client is asked who it is: whoever reaches it can change limits.
    #[arg(long, conflicts_with_all = ["client_ca", "audience"])]
    pub insecure: bool,
    /// TLS and identities.
    #[command(flatten)]
    pub tls: Tls,
    /// Revisions for which watches can resume.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_revisions: u64,
    /// Age at which an agent's session ends softly, so that agents spread again over all controllers; give or take a
    /// tenth; 0 for never.
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    pub max_session_age_s: u64,
    /// Time without contact after which a node is shown as gone rather than stale.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub node_gone_after_s: u64,
    /// Address for /metrics, /livez and /readyz; `off` for none [default: 127.0.0.1:7421, where that is free].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub ops_listen: Option<Addressed>,
    /// Form of the log lines on standard error: text or json.
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// How to get into etcd.
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub etcd: EtcdFlags,
    /// What else than to serve.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// TLS and identities; the files are read again when they change.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("asks").args(["client_ca", "audience"]).multiple(true))]
pub struct Tls {
    /// Certificate to serve with, and its chain: a PEM file. Without it, plain text is served.
    #[arg(id = "certificate", long = "tls-cert", value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The certificate's key: a PEM file.
    #[arg(id = "key", long = "tls-key", value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Authorities of clients, people's and agents': a PEM file. With it, whoever connects needs a certificate of theirs, or
    /// a token where --token-audience admits those.
    #[arg(id = "client_ca", long = "tls-client-ca", value_name = "FILE", requires = "certificate")]
    pub client_ca: Option<PathBuf>,
    /// First part of the identities in certificates: spiffe://DOMAIN/node/NAME, .../client/NAME and
    /// .../controller/NAME.
    #[arg(long, value_name = "DOMAIN", default_value = "weir")]
    pub trust_domain: TrustDomain,
    /// Authorities of other controllers' certificates: a PEM file [default: those of --tls-client-ca].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub peer_ca: Option<PathBuf>,
    /// Which roles clients have: a YAML or JSON file.
    #[arg(long, value_name = "FILE", requires = "asks")]
    pub access: Option<PathBuf>,
    /// Tokens of Kubernetes service accounts.
    #[command(flatten)]
    pub tokens: Tokens,
}

impl Tls {
    /// Whether callers are asked who they are.
    pub fn asks(&self) -> bool {
        self.client_ca.is_some() || self.tokens.audience.is_some()
    }
}

/// Callers that say who they are by a token of a Kubernetes service account.
#[derive(Clone, Debug, clap::Args)]
pub struct Tokens {
    /// Admit callers by service-account tokens made for this audience, as the Kubernetes API server reviews them. That of the
    /// cluster in which the controller runs, unless there is a --kubeconfig.
    #[arg(id = "audience", long = "token-audience", value_name = "AUDIENCE", requires = "certificate", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub audience: Option<String>,
    /// Service accounts whose tokens are those of agents; a token says of which node.
    #[arg(
        id = "agents",
        long = "token-agents",
        value_name = "NAMESPACE/NAME",
        value_delimiter = ',',
        requires = "audience"
    )]
    pub agents: Vec<Account>,
    /// Service accounts whose tokens are those of other controllers.
    #[arg(
        id = "controllers",
        long = "token-controllers",
        value_name = "NAMESPACE/NAME",
        value_delimiter = ',',
        requires = "audience"
    )]
    pub controllers: Vec<Account>,
    /// A file with this controller's own token, which it shows to other controllers instead of its certificate.
    #[arg(id = "own", long = "token-file", value_name = "FILE", requires = "audience")]
    pub own: Option<PathBuf>,
    /// The Kubernetes API server that reviews tokens, where the controller runs outside its cluster.
    #[arg(long, value_name = "FILE", requires = "audience")]
    pub kubeconfig: Option<PathBuf>,
}

/// What else than to serve.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum Command {
    /// Look after the store that --store names, with no controller running on it.
    #[command(subcommand)]
    Store(StoreCommand),
}

/// Where desired state lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A file of this machine.
    File(PathBuf),
    /// An etcd, which controllers can share.
    #[cfg(feature = "etcd")]
    Etcd(EtcdLocation),
}

impl FromStr for StoreLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        #[cfg(feature = "etcd")]
        if text.starts_with(crate::store::etcd::SCHEME) {
            return text.parse().map(StoreLocation::Etcd).map_err(|error: LocationError| error.to_string());
        }
        #[cfg(not(feature = "etcd"))]
        if text.starts_with("etcd://") {
            return Err(
                "this controller was built without etcd: build it with `--features weir-controller/etcd` (needs \
                        protoc and its well-known types; Debian: protobuf-compiler and libprotobuf-dev), or give the \
                        path of a file"
                    .to_owned(),
            );
        }
        if text.is_empty() || text.ends_with('/') || text.contains("://") {
            return Err("is no path of a file".to_owned());
        }
        Ok(StoreLocation::File(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn flags_and_defaults() {
        Config::command().debug_assert();
        let config = Config::parse_from(["weir-controller"]);
        assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
        assert_eq!(config.store, StoreLocation::File("/var/lib/weir-controller/store.redb".into()));
        assert_eq!(config.max_session_age_s, 1800);
        assert_eq!((config.insecure, config.keep_revisions, config.log_format), (false, 10_000, LogFormat::Text));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |args: &[&str]| {
            let args = ["weir-controller"].iter().chain(args);
            Config::try_parse_from(args).unwrap_err().to_string()
        };
        assert!(refused(&["store", "backup"]).contains("FILE"));
        #[cfg(not(feature = "etcd"))]
        assert!(refused(&["--store", "etcd://localhost:2379"]).contains("--features weir-controller/etcd"));
        #[cfg(feature = "etcd")]
        {
            assert!(refused(&["--store", "etcd://localhost:x"]).contains("no port"));
            assert!(refused(&["--store", "etcd://a", "--etcd-user", "u"]).contains("--etcd-password-file"));
            assert!(refused(&["--store", "etcd://a", "--etcd-cert", "c", "--etcd-ca", "a"]).contains("--etcd-key"));
        }
        assert!(refused(&["--store", "http://x"]).contains("no path"));
        assert!(refused(&["--keep-revisions", "0"]).contains("0"));
        assert!(refused(&["--log-format", "xml"]).contains("xml"));
        assert!(refused(&["--listen", "localhost"]).contains("localhost"));
        assert!(refused(&["--tls-cert", "c"]).contains("--tls-key"));
        assert!(refused(&["--tls-key", "k"]).contains("--tls-cert"));
        assert!(refused(&["--tls-client-ca", "ca"]).contains("--tls-cert"));
        assert!(refused(&["--access", "a"]).contains("--tls-client-ca"));
        assert!(refused(&["--token-audience", "weir"]).contains("--tls-cert"));
        assert!(refused(&["--token-agents", "a/b"]).contains("--token-audience"));
        let tokens = ["--tls-cert", "c", "--tls-key", "k", "--token-audience", "weir"];
        assert!(refused(&[&tokens[..], &["--token-agents", "agent"]].concat()).contains("NAMESPACE/NAME"));
        assert!(refused(&[&tokens[..], &["--insecure"]].concat()).contains("--insecure"));
        let roles = ["weir-controller", "--access", "a", "--token-agents", "x/a,x/b", "--token-agents", "y/c"];
        let Tokens { audience, agents, .. } = Config::parse_from([&roles[..], &tokens[..]].concat()).tls.tokens;
        assert_eq!((audience.as_deref(), agents.len()), (Some("weir"), 3));
        assert!(refused(&["--trust-domain", "A B"]).contains("trust domain"));
        let tls = ["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca", "--insecure"];
        assert!(refused(&tls).contains("--insecure"));
    }
}
