//! Callers by Kubernetes service-account tokens, as an API server reviews them. May touch the network: the API server alone.
//!
//! One secret for a whole DaemonSet would be no identity: a projected token is bound to its pod, and so to a node.

mod api_server;
mod cache;
mod verdict;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderMap, header::AUTHORIZATION};
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use weir_common::{reload::Reloaded, tls::MAX_TOKEN};

use super::{BindingsFile, NotAdmitted, Principal};
use crate::model::NodeName;
use api_server::{AskError, Reviewer};
use cache::{Cache, Digest};
use verdict::Holder;

pub use api_server::{ApiServer, ApiServerError};
pub use verdict::Account;

/// After a failure the API server is left alone for so long: each caller would wait for the same.
const LEFT_ALONE: Duration = Duration::from_secs(2);
/// Reviews at a time, of tokens that were good before as of those that nobody has shown yet; those of one token are one
/// after the other, so that one of them answers for all.
const AT_A_TIME: usize = 16;
/// Callers with tokens that nobody has shown yet who may wait for a review; further ones are turned away at once.
const MAY_WAIT: usize = 1024;

/// Which service accounts are what.
#[derive(Clone, Debug)]
pub struct TokenRoles {
    /// What tokens must be made for.
    pub audience: String,
    /// Accounts of agents.
    pub agents: Vec<Account>,
    /// Accounts of other controllers.
    pub controllers: Vec<Account>,
}

/// Whose a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    Node(NodeName),
    Controller(String),
    /// The name that roles are bound to.
    Client(String),
}

/// One of them is held while a token is reviewed; which one, the token's digest says.
type Turns = [tokio::sync::Mutex<()>; AT_A_TIME];

/// Callers by their tokens.
pub struct Tokens {
    server: Box<dyn Reviewer>,
    roles: TokenRoles,
    bindings: Arc<Reloaded<BindingsFile>>,
    verdicts: Mutex<Cache<Whose>>,
    /// For tokens that were good before: a flood of made-up ones does not hold them up.
    known_turns: Turns,
    new_turns: Turns,
    may_wait: tokio::sync::Semaphore,
    failed: Mutex<Option<(Instant, AskError)>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("roles", &self.roles).finish_non_exhaustive()
    }
}

impl Tokens {
    /// By what `server` says; clients have the rights that `bindings` give to `serviceaccount:NAMESPACE/NAME`.
    pub fn new(server: ApiServer, roles: TokenRoles, bindings: Arc<Reloaded<BindingsFile>>) -> Tokens {
        Self::by(Box::new(server), roles, bindings)
    }

    fn by(server: Box<dyn Reviewer>, roles: TokenRoles, bindings: Arc<Reloaded<BindingsFile>>) -> Tokens {
        Tokens {
            server,
            roles,
            bindings,
            verdicts: Mutex::new(Cache::new()),
            known_turns: Turns::default(),
            new_turns: Turns::default(),
            may_wait: tokio::sync::Semaphore::new(MAY_WAIT),
            failed: Mutex::default(),
        }
    }

    /// Who shows the token in these headers.
    ///
    /// # Errors
    /// There is none, it is no good, or nobody can be asked now.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, NotAdmitted> {
        let token = bearer(headers).map_err(|why| NotAdmitted::Unknown(why.to_owned()))?;
        Ok(match self.whose(token).await? {
            Whose::Node(node) => Principal::Node(node),
            Whose::Controller(name) => Principal::Controller(name),
            // Looked up at each call, so that roles change without waiting for a token's verdict.
            Whose::Client(name) => {
                let rights = self.bindings.get().rights(&name);
                Principal::Client { name, rights }
            }
        })
    }

    async fn whose(&self, token: &str) -> Result<Whose, NotAdmitted> {
        let digest = digest(token);
        if let Some(verdict) = self.fresh(&digest) {
            return verdict;
        }
        let (turns, _waits) = if self.earlier(&digest).is_some() {
            (&self.known_turns, None)
        } else {
            let waits = self.may_wait.try_acquire().map_err(|_| {
                NotAdmitted::CannotAsk(format!("{MAY_WAIT} callers with new tokens wait for the API server's review"))
            })?;
            (&self.new_turns, Some(waits))
        };
        let _turn = turns[usize::from(digest[0]) % AT_A_TIME].lock().await;
        // Whoever had the turn before may have asked about the same token.
        if let Some(verdict) = self.fresh(&digest) {
            return verdict;
        }
        let verdict = match self.ask(token).await {
            Ok(verdict) => verdict,
            Err(error) => return self.earlier(&digest).ok_or_else(|| NotAdmitted::CannotAsk(error.to_string())),
        };
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.put(digest, verdict.clone(), cache::expires(token), Instant::now());
        verdict.map_err(NotAdmitted::Unknown)
    }

    fn fresh(&self, digest: &Digest) -> Option<Result<Whose, NotAdmitted>> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = verdicts.fresh(digest, Instant::now(), SystemTime::now())?;
        Some(verdict.map_err(NotAdmitted::Unknown))
    }

    /// Whose it was a while ago, which still holds where nobody can be asked.
    fn earlier(&self, digest: &Digest) -> Option<Whose> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.unasked(digest, Instant::now(), SystemTime::now())
    }

    async fn ask(&self, token: &str) -> Result<Result<Whose, String>, AskError> {
        let status = self.review(token).await?;
        match verdict::holder(&status, &self.roles.audience) {
            Ok(holder) => self.role_of(holder).await,
            Err(why) => Ok(Err(why)),
        }
    }

    /// Has a token reviewed, unless that failed a moment ago.
    async fn review(&self, token: &str) -> Result<TokenReviewStatus, AskError> {
        let lately = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, error)) = lately.as_ref().filter(|(at, _)| at.elapsed() < LEFT_ALONE) {
            return Err(error.clone());
        }
        let asked = self.server.review(token, &self.roles.audience).await;
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match &asked {
            Ok(_) => {
                if failed.take().is_some() {
                    tracing::info!("the Kubernetes API server answers again");
                }
            }
            Err(error) => {
                if failed.is_none() {
                    tracing::warn!(%error, "tokens that are new are turned away; known ones are taken for up to 10 minutes");
                }
                *failed = Some((Instant::now(), error.clone()));
            }
        }
        asked
    }

    async fn role_of(&self, holder: Holder) -> Result<Result<Whose, String>, AskError> {
        let Holder { account, node, pod } = holder;
        if self.roles.controllers.contains(&account) {
            let name = pod.map_or_else(|| account.to_string(), |pod| pod.name);
            return Ok(Ok(Whose::Controller(name)));
        }
        if !self.roles.agents.contains(&account) {
            return Ok(Ok(Whose::Client(format!("serviceaccount:{account}"))));
        }
        // Older API servers name the pod alone.
        let node = match (node, &pod) {
            (Some(node), _) => Some(node),
            // Others need no such question, so they go on where it has no answer.
            (None, Some(pod)) => self.server.node_of(pod).await.inspect_err(|error| {
                tracing::warn!(%account, %error, "an agent is turned away: its token names a pod and no node");
            })?,
            (None, None) => None,
        };
        let Some(node) = node else {
            return Ok(Err(format!(
                "the token of {account} names no node, and no pod that is on one: an agent's token is projected into its pod"
            )));
        };
        Ok(node.parse().map(Whose::Node).map_err(|error| format!("node `{node}`: {error}")))
    }
}

/// The token in the headers.
fn bearer(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) => value,
        (None, _) => return Err("there is neither a client certificate nor a token (--token-file)"),
        (Some(_), Some(_)) => return Err("there is more than one authorization header"),
    };
    let text = value.to_str().map_err(|_| "the authorization header is no text")?;
    let (scheme, token) = text.split_once(' ').ok_or("the authorization header is not `Bearer TOKEN`")?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err("the authorization header is not `Bearer TOKEN`");
    }
    if token.len() > MAX_TOKEN {
        return Err("the token is too long");
    }
    Ok(token)
}

fn digest(token: &str) -> Digest {
    let mut digest = [0; 32];
    let hash = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest.copy_from_slice(hash.as_ref());
    digest
}

#[cfg(test)]
mod tests;
