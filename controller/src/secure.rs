//! From flags to security: reads certificates and roles, follows their files, and says loudly what is not secured.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_common::{
    reload::{self, Reloaded},
    tasks::{OnDeath, TaskSet},
    tls::{ClientAuth, ClientFiles, ClientTls, FileError, ServerFiles, ServerTls, TokenFile},
};

use crate::{
    access::{
        ApiServer, ApiServerError, Authenticator, BindingsError, BindingsFile, CertificateOrToken, Loopback, MutualTls,
        TokenRoles, Tokens,
    },
    api::Security,
    config::{self, Tls},
    peers::PeerTls,
};

/// The flags cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// Certificates.
    #[error("TLS: {0}")]
    Certificates(#[from] FileError),
    /// Roles.
    #[error("--access: {0}")]
    Access(#[from] BindingsError),
    /// Nobody can review tokens.
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
}

/// Reads the files; `tasks` follow them.
///
/// # Errors
/// A file cannot be used, or there is no API server to ask about tokens.
pub async fn open(
    flags: Tls,
    insecure: bool,
    tasks: &mut TaskSet,
    shutdown: &CancellationToken,
) -> Result<Security, SecureError> {
    let peers = peers(&flags)?;
    let Tls { certificate, key, client_ca, trust_domain, peer_ca: _, access, tokens } = flags;
    let config::Tokens { audience, agents, controllers, own: _, kubeconfig } = tokens;
    // Who shows a token needs no certificate.
    let auth = if audience.is_some() { ClientAuth::Optional } else { ClientAuth::Required };
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let client_ca = client_ca.clone().map(|ca| (ca, auth));
            let tls = Arc::new(ServerTls::load(ServerFiles { certificate, key, client_ca })?);
            let following = Arc::clone(&tls).follow(reload::PERIOD, shutdown.clone());
            tasks.spawn("reload-certificates", OnDeath::EndProcess, following);
            Some(tls)
        }
        _ => None,
    };
    if client_ca.is_none() && audience.is_none() {
        let whom = if insecure { "everybody who reaches this controller" } else { "everybody on this machine" };
        let how = if tls.is_some() { "no client is asked who it is" } else { "no TLS" };
        tracing::warn!("{how}: {whom} may do everything; --tls-client-ca or --token-audience asks who calls");
        return Ok(Security { tls, authenticator: Arc::new(Loopback { insecure }), peers });
    }
    if access.is_none() {
        tracing::warn!("no --access: agents are served, but no client has a role, so none may do anything");
    }
    let bindings = Arc::new(Reloaded::load(BindingsFile(access))?);
    let following = Arc::clone(&bindings).follow(reload::PERIOD, shutdown.clone());
    tasks.spawn("reload-access", OnDeath::EndProcess, following);
    let certificates = MutualTls { trust_domain, bindings: Arc::clone(&bindings) };
    let authenticator: Arc<dyn Authenticator> = match audience {
        None => Arc::new(certificates),
        Some(audience) => {
            if agents.is_empty() {
                tracing::warn!("no --token-agents: no token is that of an agent");
            }
            let server = ApiServer::find(kubeconfig.as_deref()).await?;
            let tokens = Tokens::new(server, TokenRoles { audience, agents, controllers }, bindings);
            Arc::new(CertificateOrToken { certificates: client_ca.is_some().then_some(certificates), tokens })
        }
    };
    Ok(Security { tls, authenticator, peers })
}

/// How other controllers are connected to: with the token where there is one, else with the certificate that is served with.
fn peers(flags: &Tls) -> Result<Option<PeerTls>, FileError> {
    let Tls { certificate, key, client_ca, peer_ca, tokens, .. } = flags;
    let token = tokens.own.as_deref().map(TokenFile::new);
    let pair = certificate.clone().zip(key.clone());
    let Some((ca, pair)) = peer_ca.as_ref().or(client_ca.as_ref()).zip(pair) else { return Ok(None) };
    // Where nobody is asked for a certificate, one without a token would be nobody.
    if token.is_none() && client_ca.is_none() {
        return Ok(None);
    }
    let pair = token.is_none().then_some(pair);
    let tls = Arc::new(ClientTls::load(ClientFiles { ca: ca.clone(), pair })?);
    Ok(Some(PeerTls { tls, token }))
}
