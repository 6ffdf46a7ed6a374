//! PEM files: certificate chains, keys, authorities.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::provider;

/// Files that make no certificate, key or authority.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// It is no PEM file.
    #[error("{} is no PEM file: {cause}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Where it breaks.
        cause: rustls::pki_types::pem::Error,
    },
    /// There is no certificate in it.
    #[error("{} has no certificate (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// There is no key in it.
    #[error("{} has no private key (-----BEGIN PRIVATE KEY-----): {cause}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        cause: rustls::pki_types::pem::Error,
    },
    /// The authority is none that can be trusted.
    #[error("a certificate in {} is no authority's: {cause}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: rustls::Error,
    },
    /// Certificate and key are not a pair, or of a kind that is not known.
    #[error("{} and {} are no pair of certificate and key: {cause}", certificate.display(), key.display())]
    Pair {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// Why not.
        cause: rustls::Error,
    },
    /// The verifier cannot be made of the authorities.
    #[error("{} verifies nobody: {cause}", path.display())]
    Verifier {
        /// File of the authorities.
        path: PathBuf,
        /// Why not.
        cause: rustls::server::VerifierBuilderError,
    },
    /// The library refuses the set.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// The content of a file that was read.
pub(super) fn content<'a>(path: &Path, content: Option<&'a io::Result<Vec<u8>>>) -> Result<&'a [u8], FileError> {
    match content {
        Some(Ok(content)) => Ok(content),
        // io::Error cannot be cloned.
        Some(Err(cause)) => {
            let cause = io::Error::new(cause.kind(), cause.to_string());
            Err(FileError::Read { path: path.to_owned(), cause })
        }
        None => Err(FileError::Read { path: path.to_owned(), cause: io::ErrorKind::NotFound.into() }),
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|cause| FileError::Pem { path: path.to_owned(), cause })?;
    if found.is_empty() { Err(FileError::NoCertificate { path: path.to_owned() }) } else { Ok(found) }
}

/// The authorities in a PEM file.
///
/// # Errors
/// There is none in it, or one is none.
pub fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|cause| FileError::Authority { path: path.to_owned(), cause })?;
    }
    Ok(roots)
}

/// A certificate with its chain and its key.
pub(super) fn pair(
    (certificate, chain_pem): (&Path, &[u8]),
    (key, key_pem): (&Path, &[u8]),
) -> Result<Arc<CertifiedKey>, FileError> {
    let chain = certificates(certificate, chain_pem)?;
    let der =
        PrivateKeyDer::from_pem_slice(key_pem).map_err(|cause| FileError::NoKey { path: key.to_owned(), cause })?;
    let pair = CertifiedKey::from_der(chain, der, &provider());
    let no_pair = |cause| FileError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), cause };
    pair.map(Arc::new).map_err(no_pair)
}
