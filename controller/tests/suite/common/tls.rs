//! An authority and certificates in a directory, and a controller that serves with them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose as Usage, IsCa, KeyPair, SanType,
};
use tokio_util::sync::CancellationToken;
use weir_common::{
    reload::Reloaded,
    tls::{ClientAuth, ClientFiles, ClientTls, Connection, Remote, ServerFiles, ServerTls},
};
use weir_controller::{
    access::{BindingsFile, MutualTls},
    api::Security,
};

/// How often files are looked at here.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Roles of the clients in these tests.
pub(crate) const BINDINGS: &str = "
bindings:
- { client: viewer, role: VIEWER }
- { client: web-viewer, role: VIEWER, projects: [web] }
- { client: web-editor, role: EDITOR, projects: [web] }
- { client: editor, role: EDITOR, projects: [default] }
- { client: admin, role: ADMIN }
";

/// An authority with a directory for what it signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
    pub(crate) ca: PathBuf,
}

impl Authority {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        // Several authorities of one name would be found by their name, and fail by their signature.
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let ca = directory.join(format!("{name}.crt"));
        std::fs::write(&ca, issuer.pem()).unwrap();
        Authority { issuer, directory: directory.to_owned(), ca }
    }

    /// A certificate of `file` with one name, which ends after `lives` from now; `None`: it ended an hour ago.
    fn sign(&self, file: &str, name: SanType, usage: Usage, lives: Option<Duration>) -> (PathBuf, PathBuf) {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        let mut params = CertificateParams::default();
        params.not_before = (now - 2 * hour).into();
        params.not_after = lives.map_or(now - hour, |lives| now + lives).into();
        params.subject_alt_names = vec![name];
        params.extended_key_usages = vec![usage];
        let pair = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&pair, &self.issuer).unwrap();
        let [certificate_path, key_path] = ["crt", "key"].map(|end| self.directory.join(format!("{file}.{end}")));
        std::fs::write(&certificate_path, certificate.pem()).unwrap();
        std::fs::write(&key_path, pair.serialize_pem()).unwrap();
        (certificate_path, key_path)
    }

    /// A certificate for a client with this URI.
    pub(crate) fn client(&self, file: &str, uri: &str) -> (PathBuf, PathBuf) {
        let name = SanType::URI(uri.try_into().unwrap());
        self.sign(file, name, Usage::ClientAuth, Some(Duration::from_secs(3600)))
    }

    /// The same, expired.
    pub(crate) fn expired_client(&self, file: &str, uri: &str) -> (PathBuf, PathBuf) {
        self.sign(file, SanType::URI(uri.try_into().unwrap()), Usage::ClientAuth, None)
    }

    /// A certificate for a server at 127.0.0.1.
    pub(crate) fn server(&self, file: &str) -> (PathBuf, PathBuf) {
        let name = SanType::IpAddress([127, 0, 0, 1].into());
        self.sign(file, name, Usage::ServerAuth, Some(Duration::from_secs(3600)))
    }
}

/// mTLS with these files, followed until the token is cancelled.
pub(crate) fn security(directory: &Path, authority: &Authority, stop: &CancellationToken) -> Security {
    let (certificate, key) = authority.server("server");
    let files = ServerFiles { certificate, key, client_ca: Some((authority.ca.clone(), ClientAuth::Required)) };
    let tls = Arc::new(ServerTls::load(files).unwrap());
    let access = directory.join("access.yaml");
    std::fs::write(&access, BINDINGS).unwrap();
    let bindings = Arc::new(Reloaded::load(BindingsFile(Some(access))).unwrap());
    tokio::spawn(Arc::clone(&tls).follow(LOOK, stop.clone()));
    tokio::spawn(Arc::clone(&bindings).follow(LOOK, stop.clone()));
    let trust_domain = "weir".parse().unwrap();
    Security { tls: Some(tls), authenticator: Arc::new(MutualTls { trust_domain, bindings }), peers: None }
}

/// How a client connects to `address` (`host:port`); the error is what a person would read.
pub(crate) async fn connect(address: &str, ca: &Path, pair: Option<(PathBuf, PathBuf)>) -> Result<Connection, String> {
    let tls = ClientTls::load(ClientFiles { ca: ca.to_owned(), pair }).unwrap();
    let remote = Remote::new(&format!("https://{address}"), Some(Arc::new(tls)), None).unwrap();
    remote.connect().await.map_err(|error| error.to_string())
}
