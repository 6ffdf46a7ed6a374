//! From flags to security: reads certificates and roles, follows their files, and says loudly what is not secured.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_common::{
    reload::{self, Reloaded},
    tasks::{OnDeath, TaskSet},
    tls::{ClientFiles, ClientTls, FileError, ServerFiles, ServerTls},
};

use crate::{
    access::{BindingsError, BindingsFile, Loopback, MutualTls},
    api::Security,
    config::Tls,
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
}

/// Reads the files; `tasks` follow them.
///
/// # Errors
/// A file cannot be used.
pub fn open(
    flags: Tls,
    insecure: bool,
    tasks: &mut TaskSet,
    shutdown: &CancellationToken,
) -> Result<Security, SecureError> {
    let Tls { certificate, key, client_ca, trust_domain, access } = flags;
    let mutual = client_ca.is_some();
    // To other controllers this one shows the certificate that it serves with.
    let peers = match (&certificate, &key, &client_ca) {
        (Some(certificate), Some(key), Some(ca)) => {
            let files = ClientFiles { ca: ca.clone(), pair: Some((certificate.clone(), key.clone())) };
            Some(Arc::new(ClientTls::load(files)?))
        }
        _ => None,
    };
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let tls = Arc::new(ServerTls::load(ServerFiles { certificate, key, client_ca })?);
            let following = Arc::clone(&tls).follow(reload::PERIOD, shutdown.clone());
            tasks.spawn("reload-certificates", OnDeath::EndProcess, following);
            Some(tls)
        }
        _ => None,
    };
    if !mutual {
        let whom = if insecure { "everybody who reaches this controller" } else { "everybody on this machine" };
        let how = if tls.is_some() { "no client is asked for a certificate" } else { "no TLS" };
        tracing::warn!("{how}: {whom} may do everything; --tls-client-ca asks who calls");
        return Ok(Security { tls, authenticator: Arc::new(Loopback { insecure }), peers });
    }
    if access.is_none() {
        tracing::warn!("no --access: agents are served, but no client has a role, so none may do anything");
    }
    let bindings = Arc::new(Reloaded::load(BindingsFile(access))?);
    let following = Arc::clone(&bindings).follow(reload::PERIOD, shutdown.clone());
    tasks.spawn("reload-access", OnDeath::EndProcess, following);
    Ok(Security { tls, authenticator: Arc::new(MutualTls { trust_domain, bindings }), peers })
}
