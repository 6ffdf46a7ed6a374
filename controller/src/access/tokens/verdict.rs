//! PURE: what the API server says of a token, and whose it is.

use std::{fmt, str::FromStr};

use k8s_openapi::api::authentication::v1::TokenReviewStatus;

/// Before the name of a service account in the name of its user.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Account, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Account { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("a service account is NAMESPACE/NAME".to_owned()),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod, as a token that is bound to it names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRef {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// Who holds a good token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) account: Account,
    /// The node's name in the token.
    pub(super) node: Option<String>,
    /// The pod that it is bound to.
    pub(super) pod: Option<PodRef>,
}

/// Who holds a token, from the answer to its review; the error is for its holder.
pub(super) fn holder(status: &TokenReviewStatus, audience: &str) -> Result<Holder, String> {
    if status.authenticated != Some(true) {
        let cause = status.error.as_deref().filter(|cause| !cause.is_empty());
        return Err(format!(
            "the API server does not accept the token: {}",
            cause.unwrap_or("it is of another cluster, expired, or for another audience")
        ));
    }
    // An API server that does not know audiences leaves them out: the token may be for anybody then.
    if !status.audiences.iter().flatten().any(|of| of == audience) {
        return Err(format!("the token is not for the audience {audience}"));
    }
    let user = status.user.clone().unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = name.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let Some((namespace, account)) = account else {
        return Err(format!("the token is of `{name}`, which is no service account"));
    };
    let account: Account = format!("{namespace}/{account}").parse()?;
    let extra = user.extra.unwrap_or_default();
    // More than one value would leave open which is meant.
    let one = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() => Some(value.clone()),
        _ => None,
    };
    let pod = one(POD_NAME).zip(one(POD_UID));
    let pod = pod.map(|(name, uid)| PodRef { namespace: account.namespace.clone(), name, uid });
    Ok(Holder { node: one(NODE_NAME), pod, account })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;

    pub(crate) fn status(user: &str, extra: &[(&str, &[&str])]) -> TokenReviewStatus {
        let values = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec!["weir".to_owned()]),
            user: Some(UserInfo {
                username: Some(user.to_owned()),
                extra: Some(extra.iter().map(|(key, list)| ((*key).to_owned(), values(list))).collect()),
                ..UserInfo::default()
            }),
            error: None,
        }
    }

    #[test]
    fn a_service_account_with_its_node_and_pod() {
        let extra: &[(&str, &[&str])] = &[(NODE_NAME, &["n1"]), (POD_NAME, &["agent-x"]), (POD_UID, &["u"])];
        let found = holder(&status("system:serviceaccount:weir:agent", extra), "weir").unwrap();
        assert_eq!((found.account.to_string().as_str(), found.node.as_deref()), ("weir/agent", Some("n1")));
        let pod = PodRef { namespace: "weir".into(), name: "agent-x".into(), uid: "u".into() };
        assert_eq!(found.pod, Some(pod));
        let bare = holder(&status("system:serviceaccount:weir:agent", &[]), "weir").unwrap();
        assert_eq!((bare.node, bare.pod), (None, None));
        let unclear: &[(&str, &[&str])] = &[(NODE_NAME, &["n1", "n2"]), (POD_NAME, &["agent-x"])];
        let unclear = holder(&status("system:serviceaccount:weir:agent", unclear), "weir").unwrap();
        assert_eq!((unclear.node, unclear.pod), (None, None), "neither two nodes nor a pod without its uid");
    }

    #[test]
    fn what_is_not_good_is_refused_with_the_reason() {
        let good = || status("system:serviceaccount:weir:agent", &[]);
        let refused = |change: fn(&mut TokenReviewStatus)| {
            let mut status = good();
            change(&mut status);
            holder(&status, "weir").unwrap_err()
        };
        assert!(holder(&good(), "other").unwrap_err().contains("audience other"));
        assert!(refused(|status| status.audiences = None).contains("audience"));
        assert!(refused(|status| status.authenticated = Some(false)).contains("expired"));
        assert!(refused(|status| status.authenticated = None).contains("does not accept"));
        let told = |status: &mut TokenReviewStatus| {
            (status.authenticated, status.error) = (Some(false), Some("token lifetime".to_owned()));
        };
        assert!(refused(told).contains("token lifetime"));
        for user in ["admin", "system:node:n1", "system:serviceaccount:weir", "system:serviceaccount::x", ""] {
            assert!(holder(&status(user, &[]), "weir").is_err(), "{user}");
        }
    }

    #[test]
    fn accounts() {
        for text in ["weir", "/a", "a/", "a/b/c", ""] {
            assert!(text.parse::<Account>().is_err(), "{text}");
        }
        assert_eq!("weir/agent".parse::<Account>().unwrap().to_string(), "weir/agent");
    }
}
