//! The one place where a call is admitted or not: a layer around all services. The caller is authenticated, the method's rule is
//! looked up, and the caller goes with the request, for the checks that need the request's content.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use crate::access::{Authenticator, ConnectionInfo, NotAdmitted, Principal};

/// What a method asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Open,
    /// To be known.
    Known,
    /// To be allowed to read something; what exactly is seen is checked, or left out, by the handler.
    View,
    /// To be allowed to write intents of some project; the handler checks which.
    Edit,
    /// To be an administrator.
    Admin,
    /// To be the agent of a node; the handler checks of which.
    Agent,
    /// To be another controller.
    Peer,
}

/// Every method that is served, with its rule.
pub const RULES: [(&str, Rule); 24] = [
    ("/grpc.health.v1.Health/Check", Rule::Open),
    ("/grpc.health.v1.Health/Watch", Rule::Open),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Rule::Known),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Rule::Known),
    ("/weir.v1.AgentService/ReportMeasurements", Rule::Agent),
    ("/weir.v1.AgentService/Session", Rule::Agent),
    ("/weir.v1.FleetService/Explain", Rule::View),
    ("/weir.v1.FleetService/ForgetNode", Rule::Admin),
    ("/weir.v1.FleetService/GetNode", Rule::View),
    ("/weir.v1.FleetService/ListDevices", Rule::View),
    ("/weir.v1.FleetService/ListIntentNodeStatuses", Rule::View),
    ("/weir.v1.FleetService/ListNodes", Rule::View),
    ("/weir.v1.FleetService/ListWorkloads", Rule::View),
    ("/weir.v1.FleetService/PauseNode", Rule::Admin),
    ("/weir.v1.FleetService/ReleaseNode", Rule::Admin),
    ("/weir.v1.FleetService/ResumeNode", Rule::Admin),
    ("/weir.v1.IntentService/CreateIntent", Rule::Edit),
    ("/weir.v1.IntentService/DeleteIntent", Rule::Edit),
    ("/weir.v1.IntentService/GetIntent", Rule::View),
    ("/weir.v1.IntentService/ListIntents", Rule::View),
    ("/weir.v1.IntentService/UpdateIntent", Rule::Edit),
    ("/weir.v1.IntentService/WatchIntents", Rule::View),
    ("/weir.v1.PeerService/AskNode", Rule::Peer),
    ("/weir.v1.PeerService/Relay", Rule::Peer),
];

/// The rule of a method's full name, with the leading slash.
pub fn rule(method: &str) -> Option<Rule> {
    RULES.iter().find(|(name, _)| *name == method).map(|(_, rule)| *rule)
}

/// Decides by the rule alone. A method without one is for nobody.
fn decide(method: &str, caller: Result<Principal, NotAdmitted>) -> Result<Option<Principal>, Status> {
    let rule = rule(method);
    let caller = match (rule, caller) {
        (Some(Rule::Open), caller) => return Ok(caller.ok()),
        (_, Err(NotAdmitted::Unknown(why))) => return Err(Status::unauthenticated(why)),
        (_, Err(NotAdmitted::CannotAsk(why))) => return Err(Status::unavailable(why)),
        (_, Ok(caller)) => caller,
    };
    let (allowed, needs) = match rule {
        None => (false, "a rule, which this controller does not have for it"),
        Some(Rule::Open | Rule::Known) => (true, ""),
        Some(Rule::View) => (caller.may_view_some(), "the role VIEWER"),
        Some(Rule::Edit) => (caller.may_edit_some(), "the role EDITOR"),
        Some(Rule::Admin) => (caller.is_admin(), "the role ADMIN"),
        Some(Rule::Agent) => (matches!(caller, Principal::Node(_) | Principal::Local), "the certificate of a node"),
        Some(Rule::Peer) => {
            (matches!(caller, Principal::Controller(_) | Principal::Local), "the certificate of a controller")
        }
    };
    if allowed {
        return Ok(Some(caller));
    }
    Err(Status::permission_denied(format!(
        "{} may not call {method}, which needs {needs}; roles are bound in the controller's --access file",
        caller.describe()
    )))
}

/// Puts [`Authorize`] around services.
#[derive(Clone)]
pub(super) struct AuthorizeLayer(pub(super) Arc<dyn Authenticator>);

impl fmt::Debug for AuthorizeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorizeLayer")
    }
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize { inner, authenticator: Arc::clone(&self.0) }
    }
}

/// Admits calls.
#[derive(Clone)]
pub(super) struct Authorize<S> {
    inner: S,
    authenticator: Arc<dyn Authenticator>,
}

impl<S> Service<Request<Body>> for Authorize<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The one that is ready is taken; the clone stays for the next call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let authenticator = Arc::clone(&self.authenticator);
        Box::pin(async move {
            let connection = request.extensions().get::<ConnectionInfo>().cloned();
            let connection = connection.unwrap_or(ConnectionInfo { peer: None, uris: None });
            let caller = authenticator.authenticate(&connection, request.headers()).await;
            match decide(request.uri().path(), caller) {
                Ok(caller) => {
                    if let Some(caller) = &caller {
                        tracing::Span::current().record("weir.principal", caller.describe());
                    }
                    // Whatever came with the request is not a caller that was authenticated here.
                    request.extensions_mut().remove::<Principal>();
                    caller.map(|caller| request.extensions_mut().insert(caller));
                    inner.call(request).await
                }
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_without_a_rule_is_for_nobody() {
        let refused = decide("/weir.v1.IntentService/NewMethod", Ok(Principal::Local)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        let unknown = || Err(NotAdmitted::Unknown("x".to_owned()));
        assert_eq!(decide("/nothing", unknown()).unwrap_err().code(), tonic::Code::Unauthenticated);
        let later = decide("/nothing", Err(NotAdmitted::CannotAsk("x".to_owned()))).unwrap_err();
        assert_eq!(later.code(), tonic::Code::Unavailable, "whoever is turned away for now tries again");
        assert!(decide("/grpc.health.v1.Health/Check", unknown()).unwrap().is_none());
    }
}
