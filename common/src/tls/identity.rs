//! Who a certificate says its holder is: one URI of the form `spiffe://{trust domain}/node/{name}`, `.../client/{name}` or
//! `.../controller/{name}`.

use std::{fmt, str::FromStr};

use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::FromDer as _};

/// Longest name of a node or client, bytes.
const MAX_NAME: usize = 253;

/// Whose certificates are believed: the first part of every identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain(String);

impl FromStr for TrustDomain {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(known) {
            return Err(IdentityError::TrustDomain(text.to_owned()));
        }
        Ok(TrustDomain(text.to_owned()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who the holder of a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The agent of a node.
    Node(String),
    /// A person or a program.
    Client(String),
    /// A controller, as the others know it with which it shares a store.
    Controller(String),
}

/// A certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The trust domain is none.
    #[error("`{0}` is no trust domain: it has 1 to 253 of a-z, 0-9, `.`, `-` and `_`")]
    TrustDomain(String),
    /// The certificate cannot be parsed.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// No identity, or several.
    #[error("the certificate has {found} identities (URI names with spiffe://) where it must have one")]
    Count {
        /// How many.
        found: usize,
    },
    /// Of another trust domain.
    #[error("`{uri}` is of another trust domain than `{expected}` (--trust-domain)")]
    OtherDomain {
        /// What the certificate says.
        uri: String,
        /// What is believed.
        expected: TrustDomain,
    },
    /// Neither a node, a client nor a controller.
    #[error(
        "`{0}` is none of spiffe://DOMAIN/node/NAME, spiffe://DOMAIN/client/NAME and spiffe://DOMAIN/controller/NAME"
    )]
    Form(String),
    /// The name is none.
    #[error("`{0}` is no name: it has 1 to 253 of a-z, A-Z, 0-9, `.`, `-` and `_`, and is neither `.` nor `..`")]
    Name(String),
}

const SCHEME: &str = "spiffe://";

impl Identity {
    /// Reads the identity among the URIs of a certificate.
    ///
    /// # Errors
    /// There is none, or not one alone, or it is not of this trust domain.
    pub fn of(uris: &[String], domain: &TrustDomain) -> Result<Identity, IdentityError> {
        let found: Vec<&str> = uris.iter().filter_map(|uri| uri.strip_prefix(SCHEME)).collect();
        let [rest] = found.as_slice() else { return Err(IdentityError::Count { found: found.len() }) };
        let uri = || format!("{SCHEME}{rest}");
        let form = || IdentityError::Form(uri());
        let (theirs, path) = rest.split_once('/').ok_or_else(form)?;
        if theirs != domain.0 {
            return Err(IdentityError::OtherDomain { uri: uri(), expected: domain.clone() });
        }
        let (kind, name) = path.split_once('/').ok_or_else(form)?;
        match kind {
            "node" => Ok(Identity::Node(checked(name)?)),
            "client" => Ok(Identity::Client(checked(name)?)),
            "controller" => Ok(Identity::Controller(checked(name)?)),
            _ => Err(form()),
        }
    }

    /// As the URI in a certificate.
    ///
    /// # Errors
    /// The name is none.
    pub fn uri(&self, domain: &TrustDomain) -> Result<String, IdentityError> {
        let (kind, name) = match self {
            Identity::Node(name) => ("node", name),
            Identity::Client(name) => ("client", name),
            Identity::Controller(name) => ("controller", name),
        };
        Ok(format!("spiffe://{domain}/{kind}/{}", checked(name)?))
    }
}

fn checked(name: &str) -> Result<String, IdentityError> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.len() > MAX_NAME || matches!(name, "." | "..") || !name.chars().all(known) {
        return Err(IdentityError::Name(name.to_owned()));
    }
    Ok(name.to_owned())
}

/// The URIs among a certificate's alternative names. The certificate must have been verified before.
///
/// # Errors
/// It cannot be parsed.
pub fn uris(certificate: &CertificateDer<'_>) -> Result<Vec<String>, IdentityError> {
    let unreadable = |error: String| IdentityError::Certificate(error);
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate)
        .map_err(|error| unreadable(error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| unreadable(error.to_string()))?;
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    Ok(names.iter().filter_map(uri).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        let domain: TrustDomain = "weir".parse().unwrap();
        let of = |uris: &[&str]| Identity::of(&uris.iter().map(|&uri| uri.to_owned()).collect::<Vec<_>>(), &domain);
        assert_eq!(of(&["spiffe://weir/node/n-1.example"]), Ok(Identity::Node("n-1.example".into())));
        assert_eq!(of(&["https://x/y", "spiffe://weir/client/ci"]), Ok(Identity::Client("ci".into())));
        for identity in [Identity::Node("n".into()), Identity::Client("Ann_B".into()), Identity::Controller("c".into())]
        {
            assert_eq!(of(&[&identity.uri(&domain).unwrap()]), Ok(identity));
        }
        assert_eq!(of(&[]), Err(IdentityError::Count { found: 0 }));
        assert_eq!(of(&["spiffe://weir/node/a", "spiffe://weir/node/b"]), Err(IdentityError::Count { found: 2 }));
        assert!(matches!(of(&["spiffe://other/node/a"]), Err(IdentityError::OtherDomain { .. })));
        for bad in ["spiffe://weir", "spiffe://weir/", "spiffe://weir/node", "spiffe://weir/admin/a"] {
            assert!(matches!(of(&[bad]), Err(IdentityError::Form(_))), "{bad}");
        }
        for bad in
            ["spiffe://weir/node/", "spiffe://weir/node/a/b", "spiffe://weir/client/..", "spiffe://weir/node/a%2f"]
        {
            assert!(matches!(of(&[bad]), Err(IdentityError::Name(_))), "{bad}");
        }
        for bad in ["", "Weir", "a/b"] {
            assert!(bad.parse::<TrustDomain>().is_err(), "{bad}");
        }
    }
}
