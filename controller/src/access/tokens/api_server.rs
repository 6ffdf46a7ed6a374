//! What is asked of a Kubernetes API server: whose a token is, and on which node a pod runs.

use std::{path::Path, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    core::v1::Pod,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::verdict::PodRef;

/// How long an answer may take, connecting included.
const ANSWER: Duration = Duration::from_secs(5);

/// There is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AskError {
    /// Nobody answers, or not in time.
    #[error("the Kubernetes API server cannot be asked: {0}")]
    Away(String),
    /// The controller may not ask that.
    #[error("the Kubernetes API server does not let this controller ask: its service account needs `{0}`")]
    Forbidden(&'static str),
}

/// The API server's parameters cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ApiServerError(String);

/// An API server, as far as it is asked.
#[tonic::async_trait]
pub(super) trait Reviewer: Send + Sync + 'static {
    /// Reviews a token for an audience.
    async fn review(&self, token: &str, audience: &str) -> Result<TokenReviewStatus, AskError>;

    /// The node of a pod that has this uid; `None` where there is none, or it has no node yet.
    async fn node_of(&self, pod: &PodRef) -> Result<Option<String>, AskError>;
}

/// The real one.
pub struct ApiServer(Client);

impl ApiServer {
    /// The one that a kubeconfig names, or that of the cluster in which this process runs.
    ///
    /// # Errors
    /// The file is no good, or the process runs in no cluster.
    pub async fn find(kubeconfig: Option<&Path>) -> Result<ApiServer, ApiServerError> {
        let mut config = match kubeconfig {
            Some(path) => {
                let error = |cause: String| ApiServerError(format!("--kubeconfig {}: {cause}", path.display()));
                let file = Kubeconfig::read_from(path).map_err(|cause| error(cause.to_string()))?;
                let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
                config.map_err(|cause| error(cause.to_string()))?
            }
            None => Config::incluster().map_err(|cause| {
                ApiServerError(format!(
                    "--token-audience asks a Kubernetes API server, and this is no pod with a service account ({cause}): \
                     give --kubeconfig"
                ))
            })?,
        };
        // A connection that went silent is given up; later than the answer is, which says why.
        let silent = Some(ANSWER * 2);
        (config.connect_timeout, config.read_timeout, config.write_timeout) = (silent, silent, silent);
        Client::try_from(config).map(ApiServer).map_err(|cause| ApiServerError(format!("the API server: {cause}")))
    }
}

/// Waits for an answer; a 403 is told apart, since only a person can mend it.
async fn answer<T>(
    asked: impl Future<Output = kube::Result<T>> + Send,
    needs: &'static str,
) -> Result<Option<T>, AskError> {
    match tokio::time::timeout(ANSWER, asked).await {
        Err(_) => Err(AskError::Away(format!("no answer within {} s", ANSWER.as_secs()))),
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(AskError::Forbidden(needs)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(error)) => Err(AskError::Away(weir_common::errors::chain(&error))),
    }
}

#[tonic::async_trait]
impl Reviewer for ApiServer {
    async fn review(&self, token: &str, audience: &str) -> Result<TokenReviewStatus, AskError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![audience.to_owned()]) },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.0.clone());
        let (parameters, needs) = (PostParams::default(), "create tokenreviews.authentication.k8s.io");
        let answered = answer(api.create(&parameters, &review), needs).await?;
        answered
            .and_then(|review| review.status)
            .ok_or_else(|| AskError::Away("it answers without a verdict: is it an API server?".to_owned()))
    }

    async fn node_of(&self, pod: &PodRef) -> Result<Option<String>, AskError> {
        let api: Api<Pod> = Api::namespaced(self.0.clone(), &pod.namespace);
        let found = answer(api.get(&pod.name), "get pods, in the namespace of the agents").await?;
        // Another pod under the name is another holder.
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(pod.uid.as_str()));
        Ok(found.and_then(|found| found.spec).and_then(|spec| spec.node_name).filter(|node| !node.is_empty()))
    }
}
