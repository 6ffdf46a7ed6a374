//! The server's side: one configuration, replaced whole when the files change. Handshakes that begin later use the new one;
//! connections that are open keep theirs.

use std::{io, path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
};
use tokio_rustls::TlsAcceptor;

use super::{ALPN, FileError, VERSIONS, files, provider};
use crate::reload::{Reloaded, Source};

/// Who has to have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Every client.
    Required,
    /// No client; one that it shows must be good. Who has none has to say otherwise who it is.
    Optional,
}

/// Files of a server.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// The certificate, and its chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities of clients, and which clients need a certificate of theirs; without it none is asked for one.
    pub client_ca: Option<(PathBuf, ClientAuth)>,
}

impl Source for ServerFiles {
    type Value = ServerConfig;
    type Error = FileError;

    fn what(&self) -> &'static str {
        "TLS certificates"
    }

    fn paths(&self) -> Vec<PathBuf> {
        let ServerFiles { certificate, key, client_ca } = self;
        [certificate, key].into_iter().chain(client_ca.iter().map(|(ca, _)| ca)).cloned().collect()
    }

    fn make(&self, contents: &[io::Result<Vec<u8>>]) -> Result<ServerConfig, FileError> {
        let ServerFiles { certificate, key, client_ca } = self;
        let chain_pem = files::content(certificate, contents.first())?;
        let key_pem = files::content(key, contents.get(1))?;
        let pair = files::pair((certificate, chain_pem), (key, key_pem))?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&VERSIONS)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some((path, auth)) => {
                let roots = Arc::new(files::roots(path, files::content(path, contents.get(2))?)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = match auth {
                    ClientAuth::Required => verifier,
                    ClientAuth::Optional => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|cause| FileError::Verifier { path: path.to_owned(), cause })?,
                )
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed connection would be let in on a certificate that was verified before the authorities changed.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }
}

/// The server's side of TLS, following its files.
pub type ServerTls = Reloaded<ServerFiles>;

impl ServerTls {
    /// Accepts one connection with what the files hold now.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.get())
    }
}
