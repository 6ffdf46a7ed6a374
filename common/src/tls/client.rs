//! The client's side: an address, with TLS where it says https. Each new connection uses what the files hold then.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, client::Resumption, pki_types::ServerName, sign::SingleCertAndKey};
use tokio::{io::AsyncBufReadExt as _, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use super::{ALPN, Bearer, FileError, Side, TokenFile, VERSIONS, explain, files, provider};
use crate::errors::chain;
use crate::reload::{Reloaded, Source};

/// How long the server gets to refuse the client's certificate: in TLS 1.3 that comes after the client's handshake is done.
const VERDICT: Duration = Duration::from_secs(2);
/// What a controller with TLS says to a client of HTTP/2 without.
pub const SPEAKS_TLS: &str = "this port speaks TLS: say https://";
const HTTPS_PORT: u16 = 443;

/// Files of a client.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// Authorities of servers.
    pub ca: PathBuf,
    /// The client's certificate with its chain, and its key.
    pub pair: Option<(PathBuf, PathBuf)>,
}

impl Source for ClientFiles {
    type Value = Arc<ClientConfig>;
    type Error = FileError;

    fn what(&self) -> &'static str {
        "TLS certificates"
    }

    fn paths(&self) -> Vec<PathBuf> {
        let ClientFiles { ca, pair } = self;
        let pair = pair.iter().flat_map(|(certificate, key)| [certificate, key]);
        [ca].into_iter().chain(pair).cloned().collect()
    }

    fn make(&self, contents: &[io::Result<Vec<u8>>]) -> Result<Arc<ClientConfig>, FileError> {
        let ClientFiles { ca, pair } = self;
        let roots = files::roots(ca, files::content(ca, contents.first())?)?;
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&VERSIONS)?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match pair {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain_pem = files::content(certificate, contents.get(1))?;
                let key_pem = files::content(key, contents.get(2))?;
                let pair = files::pair((certificate, chain_pem), (key, key_pem))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The client's side of TLS, following its files.
pub type ClientTls = Reloaded<ClientFiles>;

/// An address cannot be connected to.
#[derive(Debug, thiserror::Error)]
#[error("`{address}` is no controller's address, such as http://127.0.0.1:7420 or https://weir.example:7420: {cause}")]
pub struct AddressError {
    address: String,
    cause: String,
}

/// There is no connection; the text has the cause and, where TLS refused, the remedy.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach a controller at {address}: {cause}")]
pub struct ConnectError {
    address: String,
    cause: String,
    by_tls: bool,
}

impl ConnectError {
    /// Whether somebody answers, and one of both sides refuses the other.
    pub fn is_refusal(&self) -> bool {
        self.by_tls
    }
}

#[derive(Clone)]
struct Secured {
    tls: Arc<ClientTls>,
    name: ServerName<'static>,
}

/// A connection to a controller; each call on it shows the token, where there is one.
pub type Connection = InterceptedService<Channel, Bearer>;

/// A controller that can be connected to.
#[derive(Clone)]
pub struct Remote {
    address: String,
    endpoint: Endpoint,
    secured: Option<Secured>,
    bearer: Bearer,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Remote {
    /// The controller at `http://HOST:PORT`, in plain text, or `https://HOST[:PORT]` (443 without a port) with `tls`. The name
    /// in the server's certificate must be the host's, or `server_name`.
    ///
    /// # Errors
    /// The address is none, or needs TLS and there is none.
    pub fn new(address: &str, tls: Option<Arc<ClientTls>>, server_name: Option<&str>) -> Result<Remote, AddressError> {
        let error = |cause: String| AddressError { address: address.to_owned(), cause };
        let uri: Uri = address.parse().map_err(|cause: http::uri::InvalidUri| error(cause.to_string()))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| error("it has no host".to_owned()))?;
        let (endpoint, secured) = match uri.scheme_str() {
            Some("http") => (Endpoint::from(uri.clone()), None),
            Some("https") => {
                let tls = tls.ok_or_else(|| error("https:// needs --tls-ca".to_owned()))?;
                let name = server_name.unwrap_or_else(|| host.trim_start_matches('[').trim_end_matches(']'));
                let name = ServerName::try_from(name.to_owned())
                    .map_err(|cause| error(format!("`{name}` is no name of a server: {cause}")))?;
                // The connector does TLS by itself: for the library below it is a plain connection to an https origin.
                let plain = format!("http://{host}:{}", uri.port_u16().unwrap_or(HTTPS_PORT));
                let endpoint = Endpoint::from_shared(plain).map_err(|cause| error(cause.to_string()))?;
                (endpoint.origin(uri.clone()), Some(Secured { tls, name }))
            }
            _ => return Err(error("it must begin with http:// or https://".to_owned())),
        };
        let endpoint = endpoint.tcp_nodelay(true);
        Ok(Remote { address: address.to_owned(), endpoint, secured, bearer: Bearer(None) })
    }

    /// The same, and calls show the token of a file.
    ///
    /// # Errors
    /// The address is one without TLS, where everybody on the way could take the token.
    pub fn with_token(mut self, file: Option<TokenFile>) -> Result<Remote, AddressError> {
        if file.is_some() && self.secured.is_none() {
            let cause = "a token is shown over https:// alone".to_owned();
            return Err(AddressError { address: self.address, cause });
        }
        self.bearer = Bearer(file);
        Ok(self)
    }

    /// The same with other options of its connections.
    pub fn map(mut self, change: impl FnOnce(Endpoint) -> Endpoint) -> Remote {
        self.endpoint = change(self.endpoint);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody answers, or one of both sides refuses the other's certificate.
    pub async fn connect(&self) -> Result<Connection, ConnectError> {
        let connected = match &self.secured {
            None => self.endpoint.connect().await,
            Some(secured) => {
                let secured = secured.clone();
                let connector = tower::service_fn(move |uri| dial(uri, secured.clone()));
                self.endpoint.connect_with_connector(connector).await
            }
        };
        let connected = connected.map(|channel| InterceptedService::new(channel, self.bearer.clone()));
        connected.map_err(|error| {
            let refusal = explain(&error, Side::Client);
            let by_tls = refusal.is_some();
            ConnectError { address: self.address.clone(), cause: refusal.unwrap_or_else(|| chain(&error)), by_tls }
        })
    }
}

/// What the failure of a call says of the connection, where it says something: a certificate that is refused late, or plain text
/// at a port with TLS.
pub fn explain_call(status: &tonic::Status) -> Option<String> {
    if let Some(text) = explain(status, Side::Client) {
        return Some(text);
    }
    let wants_tls = chain(status).contains(SPEAKS_TLS);
    wants_tls.then(|| "the controller speaks TLS: say https://, and give --tls-ca".to_owned())
}

async fn dial(uri: Uri, secured: Secured) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let Secured { tls, name } = secured;
    let looking = Arc::clone(&tls);
    tokio::task::spawn_blocking(move || looking.check()).await.map_err(io::Error::other)?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(HTTPS_PORT))).await?;
    stream.set_nodelay(true)?;
    let config = Arc::clone(&*tls.get());
    let mut stream = TlsConnector::from(config).connect(name, stream).await?;
    // An HTTP/2 server speaks first, so its first bytes, or its refusal, are waited for; they stay to be read.
    if let Ok(first) = tokio::time::timeout(VERDICT, stream.fill_buf()).await
        && first?.is_empty()
    {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection after the handshake",
        ));
    }
    Ok(TokioIo::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (address, says) in [
            ("https://weir.example:7420", "--tls-ca"),
            ("ftp://weir", "http://"),
            ("weir:7420", "http://"),
            ("http://", "no controller's address"),
        ] {
            let error = Remote::new(address, None, None).err().unwrap().to_string();
            assert!(error.contains(says), "{address}: {error}");
        }
        let plain = Remote::new("http://127.0.0.1:7420", None, None).unwrap();
        assert_eq!(plain.to_string(), "http://127.0.0.1:7420");
        assert!(plain.clone().with_token(None).is_ok());
        let refused = plain.with_token(Some(TokenFile::new("/token".as_ref()))).err().unwrap().to_string();
        assert!(refused.contains("https://"), "{refused}");
    }
}
