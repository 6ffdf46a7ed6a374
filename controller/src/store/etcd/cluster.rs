//! Calls to a cluster of etcd: one member at a time, the next one where it fails; each with a timeout.
//!
//! One connection to each member, made when it is needed. A member that hangs is found by HTTP/2 keepalive within 3 s.

use std::{
    future::Future,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, Error, ResponseHeader};
use tokio::sync::OnceCell;

use super::{
    access::EtcdAccess,
    failure::{Failure, Kind},
    location::EtcdLocation,
};

/// What is tried before the call itself.
const CONNECTING: &str = "connecting and authenticating";
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);
/// Idle time after which the other side is asked whether it lives, and how long it may take to say so.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

/// An etcd cluster.
pub(crate) struct Cluster {
    members: Vec<Member>,
    options: ConnectOptions,
    /// How long a call to one member may take.
    patience: Duration,
    /// Index of the member that is asked first.
    current: AtomicUsize,
    /// The cluster's identity, as the first answer had it.
    id: OnceLock<u64>,
}

struct Member {
    address: String,
    url: String,
    client: OnceCell<Client>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let members: Vec<&str> = self.members.iter().map(|member| member.address.as_str()).collect();
        f.debug_struct("Cluster").field("members", &members).finish_non_exhaustive()
    }
}

/// Whether a call may be made again when it is unknown whether it took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Twice is as good as once.
    Harmless,
    /// Only where it surely did not take place.
    Never,
}

/// An answer says which cluster it is from.
pub(crate) trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answers {
    ($($response:ty),*) => {$(
        impl Answer for $response {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header()
            }
        }
    )*};
}
answers!(
    etcd_client::GetResponse,
    etcd_client::PutResponse,
    etcd_client::TxnResponse,
    etcd_client::CompactionResponse,
    etcd_client::LeaseGrantResponse,
    etcd_client::LeaseRevokeResponse,
    etcd_client::StatusResponse
);

/// An answer, and the index of the member that gave it.
pub(crate) struct Answered<T> {
    pub(crate) answer: T,
    pub(crate) member: usize,
}

impl Cluster {
    pub(crate) fn new(location: &EtcdLocation, access: &EtcdAccess, patience: Duration) -> Self {
        let EtcdLocation { members, prefix: _ } = location;
        let EtcdAccess { user, tls } = access.clone();
        let mut options = ConnectOptions::new()
            .with_keep_alive(KEEPALIVE.0, KEEPALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_connect_timeout(CONNECT)
            // A member that lost the others says so instead of being silent.
            .with_require_leader(true);
        if let Some((user, password)) = user {
            options = options.with_user(user, password);
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        if let Some(tls) = tls {
            options = options.with_tls(tls);
        }
        let members = members.iter().map(|address| Member {
            address: address.clone(),
            url: format!("{scheme}://{address}"),
            client: OnceCell::new(),
        });
        Cluster { members: members.collect(), options, patience, current: AtomicUsize::new(0), id: OnceLock::new() }
    }

    /// Calls a member. Where it fails: the next one, if `repeat` permits.
    ///
    /// # Errors
    /// What every member that was asked answered.
    pub(crate) async fn call<T: Answer, F>(
        &self,
        step: &'static str,
        repeat: Repeat,
        call: impl Fn(Client) -> F,
    ) -> Result<Answered<T>, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.current.load(Ordering::Relaxed);
        let mut failures: Vec<Failure> = Vec::new();
        let mut refreshed = false;
        // At least twice: a connection may have ended while nobody looked.
        let mut turns = 0..self.members.len().max(2);
        let mut index = first % self.members.len();
        while turns.next().is_some() {
            let failure = match self.attempt(index, step, &call).await {
                Ok(answer) => return Ok(Answered { answer, member: index }),
                Err(failure) => failure,
            };
            match failure.kind {
                Kind::StaleToken if !refreshed => {
                    refreshed = true;
                    turns = 0..self.members.len();
                    self.refresh(index).await?;
                }
                kind if kind.is_of_the_member() => {
                    index = self.leave(index);
                    let open = kind == Kind::Unknown && repeat == Repeat::Never;
                    if !failures.iter().any(|before| before.message == failure.message) {
                        failures.push(failure);
                    }
                    if open {
                        break;
                    }
                }
                _ => return Err(failure),
            }
        }
        let messages: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
        let mut message = messages.join("; ");
        let open = failures.iter().any(|failure| failure.kind == Kind::Unknown);
        if open && self.id.get().is_none() {
            // Reached but never spoken with: a server of TLS closes connections of others without a word.
            message.push_str(
                "; where this etcd speaks TLS, give --etcd-ca, and where it asks for a certificate, --etcd-cert and \
                 --etcd-key",
            );
        }
        Err(Failure { kind: if open { Kind::Unknown } else { Kind::NotReached }, message })
    }

    /// Another member is asked first from now on; its index.
    pub(crate) fn leave(&self, index: usize) -> usize {
        let next = (index + 1) % self.members.len();
        let _moved_already = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        next
    }

    /// `host:port` of a member.
    pub(crate) fn address(&self, index: usize) -> &str {
        &self.members[index].address
    }

    /// Whether an answer is from the cluster that answered first.
    pub(crate) fn check(&self, index: usize, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        let Some(header) = header else { return Ok(()) };
        let (found, expected) = (header.cluster_id(), *self.id.get_or_init(|| header.cluster_id()));
        if found == expected {
            return Ok(());
        }
        Err(Failure::other_cluster(self.address(index), found, expected))
    }

    /// Asks every member once, so that one of another cluster is found now rather than when the others fail. Members
    /// that do not answer are no error.
    pub(crate) async fn look_around(&self) -> Result<(), Failure> {
        for index in 0..self.members.len() {
            let status = |client: Client| async move { client.maintenance_client().status().await };
            match self.attempt(index, "looking at a member", &status).await {
                Ok(_) => {}
                Err(failure) if failure.kind == Kind::OtherCluster => return Err(failure),
                Err(failure) => tracing::debug!(error = failure.message, "a member of etcd does not answer"),
            }
        }
        Ok(())
    }

    async fn attempt<T: Answer, F>(
        &self,
        index: usize,
        step: &'static str,
        call: &impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let member = &self.members[index];
        let deadline = tokio::time::Instant::now() + self.patience;
        let late = |step| Failure::timeout(&member.address, step, self.patience);
        let client = tokio::time::timeout_at(deadline, self.client(member)).await;
        let client = client.unwrap_or_else(|_| Err(late(CONNECTING).before_asking()))?;
        let answer = tokio::time::timeout_at(deadline, call(client)).await;
        let answer = answer.map_err(|_| late(step))?.map_err(|error| Failure::new(&member.address, step, &error))?;
        self.check(index, answer.header())?;
        Ok(answer)
    }

    async fn client(&self, member: &Member) -> Result<Client, Failure> {
        let connect = || Client::connect([&member.url], Some(self.options.clone()));
        let client = member.client.get_or_try_init(connect).await;
        client.cloned().map_err(|error| Failure::new(&member.address, CONNECTING, &error).before_asking())
    }

    async fn refresh(&self, index: usize) -> Result<(), Failure> {
        let member = &self.members[index];
        let refresh = async {
            let client = self.client(member).await?;
            client.refresh_token().await.map_err(|error| Failure::new(&member.address, CONNECTING, &error))
        };
        tokio::time::timeout(self.patience, refresh)
            .await
            .unwrap_or_else(|_| Err(Failure::timeout(&member.address, CONNECTING, self.patience)))
            .map_err(Failure::before_asking)
    }
}
