//! How to get into an etcd: user and password, TLS. Reads the files that the flags name, once.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use etcd_client::{Certificate, Identity, TlsOptions};

/// The flags of the store on etcd.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EtcdFlags {
    /// etcd: the user to authenticate as.
    #[arg(long, value_name = "USER", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// etcd: file with the user's password; a line break at its end is no part of it.
    #[arg(long, value_name = "PATH", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// etcd: PEM file of the authorities that sign its certificates; with it, etcd is spoken to by TLS.
    #[arg(long, value_name = "PATH")]
    pub etcd_ca: Option<PathBuf>,
    /// etcd: PEM file of this controller's certificate, where etcd asks for one.
    #[arg(long, value_name = "PATH", requires = "etcd_key", requires = "etcd_ca")]
    pub etcd_cert: Option<PathBuf>,
    /// etcd: PEM file of that certificate's private key.
    #[arg(long, value_name = "PATH", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// etcd: address at which the other controllers on the same store reach this one; the one it listens on where not
    /// given.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub advertise: Option<String>,
}

impl EtcdFlags {
    /// `host:port` at which others reach this controller, which listens on `listen`.
    ///
    /// # Errors
    /// It listens on every address, and none was given to be reached at.
    pub fn advertised(&self, listen: SocketAddr) -> Result<String, AccessError> {
        match &self.advertise {
            Some(address) => Ok(address.clone()),
            None if listen.ip().is_unspecified() => Err(AccessError::NoAddress { listen }),
            None => Ok(listen.to_string()),
        }
    }
}

/// What the client presents, and whom it trusts.
#[derive(Clone, Default)]
pub struct EtcdAccess {
    pub(super) user: Option<(String, String)>,
    pub(super) tls: Option<TlsOptions>,
}

impl std::fmt::Debug for EtcdAccess {
    /// Without the password and the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(user, _)| user);
        f.debug_struct("EtcdAccess").field("user", &user).field("tls", &self.tls.is_some()).finish()
    }
}

/// A flag of the access cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
    #[error("{flag} {path} cannot be read: {source}")]
    Read {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no address at which other controllers reach this one.
    #[error(
        "other controllers on the same etcd cannot reach this one at {listen}: give --advertise ADDRESS:PORT with an \
         address of this machine or pod"
    )]
    NoAddress {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// It holds something else.
    #[error("{flag} {path} holds no {expected}")]
    Content {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
}

impl EtcdAccess {
    /// Reads what the flags name.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn load(flags: &EtcdFlags) -> Result<Self, AccessError> {
        let EtcdFlags { etcd_user, etcd_password_file, etcd_ca, etcd_cert, etcd_key, advertise: _ } = flags;
        let user = match (etcd_user, etcd_password_file) {
            (Some(user), Some(path)) => {
                let password = text("--etcd-password-file", path, "password", "")?;
                Some((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned()))
            }
            _ => None,
        };
        let tls = match etcd_ca {
            Some(path) => {
                let ca = text("--etcd-ca", path, "PEM certificate", "-----BEGIN CERTIFICATE-----")?;
                let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
                Some(match (etcd_cert, etcd_key) {
                    (Some(cert), Some(key)) => {
                        let cert = text("--etcd-cert", cert, "PEM certificate", "-----BEGIN CERTIFICATE-----")?;
                        let key = text("--etcd-key", key, "PEM private key", "PRIVATE KEY-----")?;
                        tls.identity(Identity::from_pem(cert, key))
                    }
                    _ => tls,
                })
            }
            None => None,
        };
        Ok(EtcdAccess { user, tls })
    }
}

/// The text of a file, which must contain `mark`.
fn text(flag: &'static str, path: &Path, expected: &'static str, mark: &str) -> Result<String, AccessError> {
    let content = || AccessError::Content { flag, path: path.to_owned(), expected };
    let text = fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidData => content(),
        _ => AccessError::Read { flag, path: path.to_owned(), source },
    })?;
    if text.trim().is_empty() || !text.contains(mark) {
        return Err(content());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_what_they_are_not_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f");
        fs::write(&file, "secret\n").unwrap();
        let user = Some("weir".to_owned());
        let flags = EtcdFlags { etcd_user: user, etcd_password_file: Some(file.clone()), ..Default::default() };
        let access = EtcdAccess::load(&flags).unwrap();
        assert_eq!(access.user, Some(("weir".to_owned(), "secret".to_owned())));
        assert!(!format!("{access:?}").contains("secret"));
        let flags = EtcdFlags { etcd_ca: Some(file), ..Default::default() };
        let error = EtcdAccess::load(&flags).unwrap_err().to_string();
        assert!(error.contains("--etcd-ca") && error.contains("no PEM certificate"), "{error}");
        let flags = EtcdFlags { etcd_ca: Some(directory.path().join("none")), ..Default::default() };
        let error = EtcdAccess::load(&flags).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}
