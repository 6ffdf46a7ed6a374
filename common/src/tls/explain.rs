//! What a failed handshake means, and what to do about it, for each side.

use std::{error::Error, io};

use rustls::{AlertDescription as Alert, CertificateError, Error as Tls};

/// Who reads the explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connects.
    Client,
    /// The one that was connected to.
    Server,
}

/// The sentence for an error that TLS caused; `None` for any other.
pub fn explain(error: &(dyn Error + 'static), side: Side) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = tls(error) {
            return Some(sentence(found, side));
        }
        next = error.source();
    }
    None
}

/// The error of TLS that this one is, or wraps without saying so in `source`.
fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Tls> {
    if let Some(found) = error.downcast_ref::<Tls>() {
        return Some(found);
    }
    let mut inner = error.downcast_ref::<io::Error>()?.get_ref()?;
    loop {
        if let Some(found) = inner.downcast_ref::<Tls>() {
            return Some(found);
        }
        inner = inner.downcast_ref::<io::Error>()?.get_ref()?;
    }
}

fn sentence(error: &Tls, side: Side) -> String {
    match side {
        Side::Client => for_client(error),
        Side::Server => for_server(error),
    }
}

fn for_client(error: &Tls) -> String {
    let text = match error {
        Tls::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the controller's certificate has expired: renew it (or set this machine's clock)"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the controller's certificate is not valid yet: set this machine's clock, or the one where it was made"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the controller's certificate is of another authority than --tls-ca names (between controllers: --peer-ca, else \
                 --tls-client-ca): give the one that signed it"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                return format!(
                    "the controller's certificate is for another name ({why}): connect by a name that it has, or say \
                     which with --tls-server-name"
                );
            }
            _ => return format!("the controller's certificate is no good: {why}"),
        },
        Tls::AlertReceived(Alert::CertificateRequired) => {
            "the controller wants a client certificate: give --tls-cert and --tls-key"
        }
        Tls::AlertReceived(Alert::CertificateExpired) => {
            "the controller refused this client's certificate, which has expired: renew the file of --tls-cert"
        }
        Tls::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the controller refused this client's certificate, which is of an authority that it does not know: give one \
             that is signed by the controller's --tls-client-ca"
        }
        Tls::AlertReceived(Alert::ProtocolVersion | Alert::HandshakeFailure) => "the controller does not speak TLS 1.3",
        Tls::AlertReceived(alert) => {
            return format!("the controller refused this client's certificate, or the connection: {alert:?}");
        }
        Tls::InvalidMessage(_) => {
            "what answers there does not speak TLS: if it is a controller without TLS, say http://"
        }
        other => return format!("TLS failed: {other}"),
    };
    text.to_owned()
}

fn for_server(error: &Tls) -> String {
    let text = match error {
        Tls::NoCertificatesPresented => "the client has no certificate: it needs --tls-cert and --tls-key",
        Tls::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has expired: renew it (or set this machine's clock)"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the client's certificate is not valid yet: set this machine's clock, or the one where it was made"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the client's certificate is of another authority than --tls-client-ca names"
            }
            _ => return format!("the client's certificate is no good: {why}"),
        },
        Tls::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the client does not know the authority of --tls-cert: its --tls-ca must name the one that signed it"
        }
        Tls::AlertReceived(Alert::CertificateExpired) => "the client found that --tls-cert has expired: renew it",
        Tls::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown) => {
            "the client refused --tls-cert: it has to carry the name or the address by which the client connects"
        }
        Tls::AlertReceived(alert) => return format!("the client broke off: {alert:?}"),
        Tls::PeerIncompatible(_) => "the client does not speak TLS 1.3",
        Tls::InvalidMessage(_) => "the client does not speak TLS: a client of Weir has to say https://",
        other => return format!("TLS failed: {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_however_deep_and_told_to_each_side() {
        let deep = |error: Tls| io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        let expired = || Tls::InvalidCertificate(CertificateError::Expired);
        assert!(
            explain(&deep(expired()), Side::Client).unwrap().starts_with("the controller's certificate has expired")
        );
        assert!(explain(&deep(expired()), Side::Server).unwrap().starts_with("the client's certificate has expired"));
        let wanted = explain(&deep(Tls::AlertReceived(Alert::CertificateRequired)), Side::Client).unwrap();
        assert!(wanted.contains("--tls-cert"), "{wanted}");
        assert_eq!(explain(&io::Error::other("reset"), Side::Client), None);
    }
}
