//! TLS 1.3 by rustls with ring, for both ends: certificates from PEM files that may change while the process runs, the
//! identities in a peer's certificate, and what a failed handshake means in words. May touch the files it is given and, as a
//! client, the network.

mod client;
mod explain;
mod files;
mod identity;
mod server;
mod token;

use std::sync::Arc;

pub use client::{AddressError, ClientFiles, ClientTls, ConnectError, Connection, Remote, SPEAKS_TLS, explain_call};
pub use explain::{Side, explain};
pub use files::{FileError, roots};
pub use identity::{Identity, IdentityError, TrustDomain, uris};
pub use server::{ClientAuth, ServerFiles, ServerTls};
pub use token::{Bearer, MAX_TOKEN, TokenFile};

/// HTTP/2, which gRPC needs.
const ALPN: &[u8] = b"h2";

/// Versions of the protocol that are spoken.
static VERSIONS: [&rustls::SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
