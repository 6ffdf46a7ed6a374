//! Certificates for trying out and for small fleets: an authority in a directory, and what it has signed. Touches that directory
//! alone.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use weir_common::tls::{Identity, IdentityError, TrustDomain};

use crate::{args::CertsInit, failure::Failure, print};

const DAY: Duration = Duration::from_secs(86_400);
/// How long the authority is good, days.
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates begin so long ago, for clocks that are behind.
const EARLIER: Duration = Duration::from_secs(3600);
/// Names of a controller that nobody named: on this machine alone.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// File name of the controllers' certificate.
const CONTROLLER: &str = "controller";

/// A certificate was not made.
#[derive(Debug, thiserror::Error)]
enum CertsError {
    #[error("cannot write {}: {cause}", path.display())]
    Write { path: PathBuf, cause: io::Error },
    #[error("cannot read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("the authority in {} cannot be used: {cause}", directory.display())]
    Authority { directory: PathBuf, cause: rcgen::Error },
    #[error("`{name}` is there and `{missing}` is not, in {}: give both back, or move the one away", directory.display())]
    Half { directory: PathBuf, name: &'static str, missing: &'static str },
    #[error("no certificate for {name}: {cause}")]
    Make { name: String, cause: rcgen::Error },
    #[error(transparent)]
    Name(#[from] IdentityError),
}

impl From<CertsError> for Failure {
    fn from(error: CertsError) -> Failure {
        match error {
            CertsError::Name(error) => Failure::Usage(error.to_string()),
            other => Failure::Other(other.to_string()),
        }
    }
}

/// Makes what is missing, and says how to use it.
///
/// # Errors
/// A name is none, a file cannot be written, or the authority that is there cannot be used.
pub fn init(options: &CertsInit) -> Result<(), Failure> {
    let CertsInit { directory, trust_domain, server_names, nodes, clients, days, force } = options;
    // All names first: a wrong one leaves nothing half done.
    let subjects = subjects(trust_domain, server_names, nodes, clients)?;
    fs::create_dir_all(directory).map_err(|cause| CertsError::Write { path: directory.clone(), cause })?;
    let issuer = authority(directory, trust_domain)?;
    for Subject { file, names, usages } in subjects {
        let [certificate, key] = ["crt", "key"].map(|end| directory.join(format!("{file}.{end}")));
        // Whoever names somebody means those alone: a controller's new certificate without its names would turn all away.
        let meant = file != CONTROLLER || !server_names.is_empty() || (nodes.is_empty() && clients.is_empty());
        if !(*force && meant) && (certificate.exists() || key.exists()) {
            let how = if file == CONTROLLER { "--force with its --server-name" } else { "--force" };
            print::line(&format!("kept {} ({how} makes a new one)", certificate.display()))?;
            continue;
        }
        let failed = |cause| CertsError::Make { name: file.clone(), cause };
        let pair = KeyPair::generate().map_err(failed)?;
        let params = params(&file, names, usages, *days);
        let made = params.signed_by(&pair, &issuer).map_err(failed)?;
        write(&key, &pair.serialize_pem(), 0o600)?;
        write(&certificate, &made.pem(), 0o644)?;
        print::line(&format!("made {} and its key", certificate.display()))?;
    }
    access(directory, clients)?;
    usage(options)
}

struct Subject {
    file: String,
    names: Vec<SanType>,
    usages: Vec<Usage>,
}

fn subjects(
    domain: &TrustDomain,
    server_names: &[String],
    nodes: &[String],
    clients: &[String],
) -> Result<Vec<Subject>, CertsError> {
    let dns = |name: &str| -> Result<SanType, CertsError> {
        let failed = |cause| CertsError::Make { name: name.to_owned(), cause };
        match name.parse() {
            Ok(address) => Ok(SanType::IpAddress(address)),
            Err(_) => Ok(SanType::DnsName(name.try_into().map_err(failed)?)),
        }
    };
    let names: Vec<SanType> = if server_names.is_empty() {
        LOCAL.iter().map(|name| dns(name)).collect::<Result<_, _>>()?
    } else {
        server_names.iter().map(|name| dns(name)).collect::<Result<_, _>>()?
    };
    let uri_of = |name: &str, identity: Identity| -> Result<SanType, CertsError> {
        let failed = |cause| CertsError::Make { name: name.to_owned(), cause };
        Ok(SanType::URI(identity.uri(domain)?.as_str().try_into().map_err(failed)?))
    };
    // Controllers that share a store are clients of each other.
    let itself = uri_of("controller", Identity::Controller("controller".to_owned()))?;
    let names: Vec<SanType> = names.into_iter().chain([itself]).collect();
    let usages = vec![Usage::ServerAuth, Usage::ClientAuth];
    let mut all = vec![Subject { file: CONTROLLER.to_owned(), names, usages }];
    let nodes = nodes.iter().map(|name| ("node", name, Identity::Node(name.clone())));
    let clients = clients.iter().map(|name| ("client", name, Identity::Client(name.clone())));
    for (kind, name, identity) in nodes.chain(clients) {
        let names = vec![uri_of(name, identity)?];
        all.push(Subject { file: format!("{kind}-{name}"), names, usages: vec![Usage::ClientAuth] });
    }
    Ok(all)
}

fn params(name: &str, names: Vec<SanType>, usages: Vec<Usage>, days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    valid_for(&mut params, days);
    // A common name has at most 64 characters; nobody reads it but people.
    params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    params
}

fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - EARLIER).into();
    params.not_after = (now + DAY * days).into();
}

/// The authority that is there, or a new one.
fn authority(directory: &Path, domain: &TrustDomain) -> Result<Issuer<'static, KeyPair>, CertsError> {
    let [certificate, key] = ["ca.crt", "ca.key"].map(|name| directory.join(name));
    let unusable = |cause| CertsError::Authority { directory: directory.to_owned(), cause };
    let half = |name, missing| CertsError::Half { directory: directory.to_owned(), name, missing };
    match (certificate.exists(), key.exists()) {
        (true, true) => {
            let read = |path: &Path| {
                fs::read_to_string(path).map_err(|cause| CertsError::Read { path: path.to_owned(), cause })
            };
            let pair = KeyPair::from_pem(&read(&key)?).map_err(unusable)?;
            Issuer::from_ca_cert_pem(&read(&certificate)?, pair).map_err(unusable)
        }
        (true, false) => Err(half("ca.crt", "ca.key")),
        (false, true) => Err(half("ca.key", "ca.crt")),
        (false, false) => {
            let mut params = CertificateParams::default();
            valid_for(&mut params, AUTHORITY_DAYS);
            params.distinguished_name.push(DnType::CommonName, format!("Weir authority of {domain}"));
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            let pair = KeyPair::generate().map_err(unusable)?;
            let key_pem = pair.serialize_pem();
            let made = CertifiedIssuer::self_signed(params, pair).map_err(unusable)?;
            write(&key, &key_pem, 0o600)?;
            write(&certificate, &made.pem(), 0o644)?;
            let pair = KeyPair::from_pem(&key_pem).map_err(unusable)?;
            Issuer::from_ca_cert_pem(&made.pem(), pair).map_err(unusable)
        }
    }
}

/// Writes a file whole or not at all, so that whoever follows it never reads half of it.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertsError> {
    let failed = |cause| CertsError::Write { path: path.to_owned(), cause };
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&aside).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&aside, path).map_err(failed)
}

/// The file of roles, where it is missing; afterwards it belongs to whoever edits it.
fn access(directory: &Path, clients: &[String]) -> Result<(), Failure> {
    let path = directory.join("access.yaml");
    let bindings: Vec<String> =
        clients.iter().map(|client| format!("- {{ client: \"{client}\", role: ADMIN }}")).collect();
    if !path.exists() {
        let list = if bindings.is_empty() { " []".to_owned() } else { format!("\n{}", bindings.join("\n")) };
        write(&path, &format!("bindings:{list}\n"), 0o644)?;
        return print::line(&format!("made {}: every client here is ADMIN", path.display()));
    }
    for binding in bindings {
        print::line(&format!("kept {}; where it does not name this client yet, add: {binding}", path.display()))?;
    }
    Ok(())
}

fn usage(options: &CertsInit) -> Result<(), Failure> {
    let CertsInit { directory, trust_domain, server_names, nodes, clients, days: _, force: _ } = options;
    let dir = directory.display();
    let server = server_names.first().map_or("localhost", String::as_str);
    let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
    let listen = if server_names.is_empty() { "127.0.0.1:7420" } else { "0.0.0.0:7420" };
    let domain = trust_domain.to_string();
    let domain = if domain == "weir" { String::new() } else { format!(" --trust-domain {domain}") };
    let node = nodes.first().map_or("NODE", String::as_str);
    let client = clients.first().map_or("CLIENT", String::as_str);
    print::line(&format!(
        "
weir-controller --listen {listen} --tls-cert {dir}/controller.crt --tls-key {dir}/controller.key \\
    --tls-client-ca {dir}/ca.crt --access {dir}/access.yaml{domain}
weir-agent --controller https://{server}:7420 --node {node} --tls-ca {dir}/ca.crt \\
    --tls-cert {dir}/node-{node}.crt --tls-key {dir}/node-{node}.key
weirctl --server https://{server}:7420 --tls-ca {dir}/ca.crt \\
    --tls-cert {dir}/client-{client}.crt --tls-key {dir}/client-{client}.key nodes

{dir}/ca.key signs certificates of anybody: keep it away from the machines that run Weir."
    ))
}
