//! What etcd's failures mean for a person: the cause, and what to do about it.

use std::error::Error as _;

use etcd_client::Error;
use tonic::Code;

use weir_common::errors::chain;

use crate::store::StoreError;

/// A call to etcd failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What it means.
    pub(crate) kind: Kind,
    /// For a person: which member, the cause, the remedy.
    pub(crate) message: String,
}

/// What a failure means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The member was not reached: nothing took place; another member may answer.
    NotReached,
    /// No answer, or one that leaves open whether it took place; another member may answer.
    Unknown,
    /// The revision is compacted.
    Compacted,
    /// The revision is not there yet.
    Future,
    /// A message was larger than this client takes.
    TooLarge,
    /// The token that stands for the password is no longer good: nothing took place.
    StaleToken,
    /// etcd refused, and will until somebody changes something.
    Refused,
    /// The member belongs to another cluster than the others.
    OtherCluster,
    /// Another store is there, or the store's epoch was raised.
    OtherStore,
}

impl Kind {
    /// Whether another member may do better.
    pub(crate) fn is_of_the_member(self) -> bool {
        match self {
            Kind::NotReached | Kind::Unknown => true,
            Kind::Compacted
            | Kind::Future
            | Kind::TooLarge
            | Kind::StaleToken
            | Kind::Refused
            | Kind::OtherCluster
            | Kind::OtherStore => false,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            // Going on could mix the data of two clusters.
            Kind::OtherCluster | Kind::OtherStore => StoreError::Replaced(failure.message),
            _ => StoreError::Backend(failure.message),
        }
    }
}

impl Failure {
    /// No answer in time.
    pub(crate) fn timeout(member: &str, step: &str, after: std::time::Duration) -> Failure {
        Failure { kind: Kind::Unknown, message: format!("etcd at {member} did not answer within {after:?} ({step})") }
    }

    /// The same where it came before the call itself: that did not take place.
    pub(crate) fn before_asking(self) -> Failure {
        let kind = if self.kind == Kind::Unknown { Kind::NotReached } else { self.kind };
        Failure { kind, ..self }
    }

    /// The member is of another cluster.
    pub(crate) fn other_cluster(member: &str, found: u64, expected: u64) -> Failure {
        let message = format!(
            "etcd at {member} belongs to another cluster (its id is {found:x}, expected {expected:x}): --store must name \
             members of one cluster; where etcd was set up anew, restart this controller"
        );
        Failure { kind: Kind::OtherCluster, message }
    }

    /// What a client's error means. `step` says what was tried.
    pub(crate) fn new(member: &str, step: &str, error: &Error) -> Failure {
        match error {
            Error::GRpcStatus(status) => Self::of_status(member, step, status),
            Error::TransportError(cause) => {
                Failure { kind: Kind::NotReached, message: unreachable(member, &chain(cause)) }
            }
            other => {
                Failure { kind: Kind::Unknown, message: format!("etcd at {member} failed ({step}): {}", chain(other)) }
            }
        }
    }

    /// What a status means.
    pub(crate) fn of_status(member: &str, step: &str, status: &tonic::Status) -> Failure {
        let said = status.message();
        let refused = |remedy: &str| Failure {
            kind: Kind::Refused,
            message: format!("etcd at {member} refused ({step}): {said}: {remedy}"),
        };
        if said.contains("required revision has been compacted") {
            return Failure { kind: Kind::Compacted, message: format!("etcd at {member}: {said}") };
        }
        if said.contains("required revision is a future revision") {
            return Failure { kind: Kind::Future, message: format!("etcd at {member}: {said}") };
        }
        if said.contains("message length too large") {
            return Failure { kind: Kind::TooLarge, message: format!("etcd at {member} ({step}): {said}") };
        }
        if said.contains("database space exceeded") {
            return refused(
                "etcd's quota is full, and it takes no write until there is space again: compact (etcdctl compact \
                 REVISION), defragment (etcdctl defrag), then disarm the alarm (etcdctl alarm disarm); or raise etcd's \
                 --quota-backend-bytes",
            );
        }
        if said.contains("authentication failed") {
            return refused("check --etcd-user and --etcd-password-file");
        }
        if said.contains("user name is empty") || said.contains("user name not found") {
            return refused("this etcd wants a user: give --etcd-user and --etcd-password-file");
        }
        if said.contains("authentication is not enabled") {
            return refused("this etcd knows no users: leave --etcd-user out, or enable its authentication");
        }
        if said.contains("invalid auth token") || said.contains("revision of auth store is old") {
            return Failure { kind: Kind::StaleToken, message: format!("etcd at {member} ({step}): {said}") };
        }
        if status.code() == Code::PermissionDenied || said.contains("permission denied") {
            return refused(
                "the user needs a role with readwrite permission on the whole prefix (etcdctl role grant-permission \
                 ROLE readwrite --prefix=true PREFIX)",
            );
        }
        if said.contains("request is too large") || said.contains("received message larger than max") {
            return refused("raise etcd's --max-request-bytes");
        }
        if said.contains("too many operations") {
            return refused("raise etcd's --max-txn-ops");
        }
        if said.contains("no leader") {
            let message = format!("etcd at {member} has no leader ({step}): most of its members are away");
            return Failure { kind: Kind::Unknown, message };
        }
        let causes = status.source().map(chain).unwrap_or_default();
        if has_cause::<tonic::ConnectError>(status) {
            return Failure { kind: Kind::NotReached, message: unreachable(member, &causes) };
        }
        let causes = if causes.is_empty() { said.to_owned() } else { format!("{said}: {causes}") };
        Failure { kind: Kind::Unknown, message: format!("etcd at {member} failed ({step}): {causes}") }
    }
}

fn unreachable(member: &str, causes: &str) -> String {
    let hint = if causes.contains("UnknownIssuer") || causes.contains("BadSignature") {
        ": its certificate is not signed by the authority in --etcd-ca"
    } else if causes.contains("certificate") {
        ": its certificate does not fit (is its host name or address in it, is it in its time?)"
    } else if ["InvalidContentType", "corrupt message", "handshake eof"].iter().any(|mark| causes.contains(mark)) {
        ": perhaps it speaks no TLS there; then leave --etcd-ca out, or name its TLS port"
    } else {
        ": is it running, and is the address in --store right?"
    };
    format!("etcd at {member} cannot be reached ({causes}){hint}")
}

fn has_cause<T: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<T>() {
            return true;
        }
        cause = error.source();
    }
    false
}
