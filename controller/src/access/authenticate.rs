//! From a connection and its headers to a principal.

use std::{net::SocketAddr, sync::Arc};

use http::HeaderMap;
use weir_common::{
    reload::Reloaded,
    tls::{Identity, TrustDomain},
};

use super::{BindingsFile, Principal, Tokens};

/// What is known of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The peer's address, where it has one.
    pub peer: Option<SocketAddr>,
    /// URIs of the client's certificate, which was verified; `None` where there is none.
    pub uris: Option<Arc<[String]>>,
}

/// A caller is not admitted; the text says why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Nobody that is known.
    #[error("{0}")]
    Unknown(String),
    /// Whoever knows cannot be asked now: a later attempt may be admitted.
    #[error("{0}")]
    CannotAsk(String),
}

/// Finds out who calls. Asynchronous, since a way to do it may have to ask somebody else.
#[tonic::async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Who calls.
    ///
    /// # Errors
    /// See [`NotAdmitted`].
    async fn authenticate(&self, connection: &ConnectionInfo, headers: &HeaderMap) -> Result<Principal, NotAdmitted>;
}

/// By the certificate of the client, and the roles that are bound to its name.
#[derive(Debug)]
pub struct MutualTls {
    /// Whose certificates are believed.
    pub trust_domain: TrustDomain,
    /// Roles of clients.
    pub bindings: Arc<Reloaded<BindingsFile>>,
}

#[tonic::async_trait]
impl Authenticator for MutualTls {
    async fn authenticate(&self, connection: &ConnectionInfo, _: &HeaderMap) -> Result<Principal, NotAdmitted> {
        let unknown = |why: String| NotAdmitted::Unknown(why);
        let uris = connection.uris.as_deref().ok_or_else(|| unknown("there is no client certificate".to_owned()))?;
        let identity = Identity::of(uris, &self.trust_domain).map_err(|error| unknown(error.to_string()))?;
        match identity {
            Identity::Node(name) => {
                name.parse().map(Principal::Node).map_err(|error| unknown(format!("node `{name}`: {error}")))
            }
            Identity::Controller(name) => Ok(Principal::Controller(name)),
            Identity::Client(name) => {
                let rights = self.bindings.get().rights(&name);
                Ok(Principal::Client { name, rights })
            }
        }
    }
}

/// By a certificate, or else by a token.
#[derive(Debug)]
pub struct CertificateOrToken {
    /// Where clients may have certificates.
    pub certificates: Option<MutualTls>,
    /// Who has none.
    pub tokens: Tokens,
}

#[tonic::async_trait]
impl Authenticator for CertificateOrToken {
    async fn authenticate(&self, connection: &ConnectionInfo, headers: &HeaderMap) -> Result<Principal, NotAdmitted> {
        match &self.certificates {
            // The handshake has verified it; a token beside it is not looked at.
            Some(certificates) if connection.uris.is_some() => certificates.authenticate(connection, headers).await,
            _ => self.tokens.authenticate(headers).await,
        }
    }
}

/// Without identities: everybody on loopback, and everybody at all where the operator said `--insecure`, may do everything.
#[derive(Clone, Copy, Debug)]
pub struct Loopback {
    /// Admits other than loopback peers.
    pub insecure: bool,
}

#[tonic::async_trait]
impl Authenticator for Loopback {
    async fn authenticate(&self, connection: &ConnectionInfo, _: &HeaderMap) -> Result<Principal, NotAdmitted> {
        if self.insecure || connection.peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            return Ok(Principal::Local);
        }
        Err(NotAdmitted::Unknown(
            "only loopback is admitted: this controller asks for no client certificates".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loopback_alone_unless_insecure() {
        let admits = async |insecure, peer: Option<&str>| {
            let connection = ConnectionInfo { peer: peer.map(|peer| peer.parse().unwrap()), uris: None };
            Loopback { insecure }.authenticate(&connection, &HeaderMap::new()).await.is_ok()
        };
        for (peer, admitted) in
            [("127.0.0.1:1", true), ("[::1]:1", true), ("[::ffff:127.0.0.1]:1", true), ("10.0.0.1:1", false)]
        {
            assert_eq!(admits(false, Some(peer)).await, admitted, "{peer}");
        }
        assert!(!admits(false, None).await);
        assert!(admits(true, Some("10.0.0.1:1")).await);
    }

    #[tokio::test]
    async fn a_certificate_names_its_holder() {
        let bindings = Arc::new(Reloaded::load(BindingsFile(None)).unwrap());
        let tls = MutualTls { trust_domain: "weir".parse().unwrap(), bindings };
        let of = async |uris: Option<&[&str]>| {
            let uris = uris.map(|uris| uris.iter().map(|&uri| uri.to_owned()).collect());
            tls.authenticate(&ConnectionInfo { peer: None, uris }, &HeaderMap::new()).await
        };
        assert_eq!(of(Some(&["spiffe://weir/node/n1"])).await, Ok(Principal::Node("n1".parse().unwrap())));
        let client = of(Some(&["spiffe://weir/client/ci"])).await.unwrap();
        assert!(!client.may_view_some(), "without a binding there is no right");
        assert!(of(Some(&["spiffe://weir/node/N_1"])).await.is_err());
        assert!(of(Some(&["spiffe://other/node/n1"])).await.is_err());
        assert!(of(Some(&[])).await.is_err());
        assert!(of(None).await.is_err());
    }
}
