//! Where an etcd is, as a person writes it: `etcd://host:2379,host2:2379/prefix`. PURE.

use std::str::FromStr;

/// How a location begins.
pub const SCHEME: &str = "etcd://";
/// Port of a member that names none.
const PORT: u16 = 2379;
/// Prefix of keys where none is given.
const PREFIX: &str = "/weir/";

/// Members of an etcd cluster and the part of its keys that is Weir's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLocation {
    /// `host:port` of each member, at least one.
    pub members: Vec<String>,
    /// Begins and ends with a slash.
    pub prefix: String,
}

/// The text is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; expected etcd://HOST:PORT,HOST:PORT/PREFIX")]
pub struct LocationError {
    problem: String,
}

impl FromStr for EtcdLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let error = |problem: String| LocationError { problem };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| error(format!("does not begin with {SCHEME}")))?;
        if let Some(found) = rest.chars().find(|c| c.is_whitespace() || c.is_control() || "?#@".contains(*c)) {
            let hint = if found == '@' { " (the user is given with --etcd-user)" } else { "" };
            return Err(error(format!("has {found:?} in it{hint}")));
        }
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let members: Vec<String> = members.split(',').map(member).collect::<Result<_, _>>().map_err(error)?;
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX.to_owned(),
            inner if inner.contains("//") => return Err(error("has an empty part in its prefix".to_owned())),
            inner => format!("/{inner}/"),
        };
        Ok(EtcdLocation { members, prefix })
    }
}

/// A member with its port.
fn member(text: &str) -> Result<String, String> {
    // The colons of an IPv6 address stand in brackets.
    let (host, port) = match text.rfind(':') {
        Some(at) if !text[at..].contains(']') => (&text[..at], &text[at + 1..]),
        _ => (text, ""),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    if host.is_empty() || (host.contains([':', '[', ']']) && !bracketed) {
        return Err(format!("has no host in `{text}` (an IPv6 address stands in brackets)"));
    }
    let port = match (port, text.ends_with(':')) {
        ("", false) => PORT,
        _ => port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| format!("has no port in `{text}`"))?,
    };
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_ports_and_prefixes() {
        for (text, members, prefix) in [
            ("etcd://a", &["a:2379"][..], "/weir/"),
            ("etcd://a:1/", &["a:1"], "/weir/"),
            ("etcd://a:1,b,10.0.0.1:2/x", &["a:1", "b:2379", "10.0.0.1:2"], "/x/"),
            ("etcd://[::1],[fe80::1]:7/x/y/", &["[::1]:2379", "[fe80::1]:7"], "/x/y/"),
        ] {
            let location: EtcdLocation = text.parse().unwrap();
            assert_eq!(location.members, members, "{text}");
            assert_eq!(location.prefix, prefix, "{text}");
        }
    }

    #[test]
    fn what_is_no_location_is_refused() {
        for (text, said) in [
            ("http://a", "begin"),
            ("etcd://", "no host"),
            ("etcd:///x", "no host"),
            ("etcd://a,,b", "no host"),
            ("etcd://a:0", "no port"),
            ("etcd://a:", "no port"),
            ("etcd://a:99999", "no port"),
            ("etcd://::1", "brackets"),
            ("etcd://u:p@a", "--etcd-user"),
            ("etcd://a/x?y", "?"),
            ("etcd://a/x//y", "empty part"),
        ] {
            let error = text.parse::<EtcdLocation>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
