use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{
    verdict::{PodRef, tests::status},
    *,
};
use http::HeaderValue;

const NODE: &str = "authentication.kubernetes.io/node-name";
const POD: &str = "authentication.kubernetes.io/pod-name";
const UID: &str = "authentication.kubernetes.io/pod-uid";

/// An API server that knows a few tokens, counts what it is asked, and can be away.
#[derive(Default)]
struct Fake {
    asked: AtomicUsize,
    pods_forbidden: AtomicBool,
    away: Mutex<Option<AskError>>,
}

#[tonic::async_trait]
impl Reviewer for Arc<Fake> {
    async fn review(&self, token: &str, audience: &str) -> Result<TokenReviewStatus, AskError> {
        assert_eq!(audience, "weir");
        if let Some(error) = self.away.lock().unwrap().clone() {
            return Err(error);
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        if token.starts_with("endless") {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(match token {
            "claims-node" => status("system:serviceaccount:weir:agent", &[(NODE, &["n1"])]),
            "bound-to-pod" => status("system:serviceaccount:weir:agent", &[(POD, &["p"]), (UID, &["u"])]),
            "of-a-pod-that-left" => status("system:serviceaccount:weir:agent", &[(POD, &["p"]), (UID, &["older"])]),
            "unbound" => status("system:serviceaccount:weir:agent", &[]),
            "odd-node" => status("system:serviceaccount:weir:agent", &[(NODE, &["N 1"])]),
            "controller" => status("system:serviceaccount:weir:controller", &[(POD, &["weir-1"]), (UID, &["u"])]),
            "hooks" => status("system:serviceaccount:weir:hooks", &[(NODE, &["n1"])]),
            "namesake" => status("system:serviceaccount:other:agent", &[(NODE, &["n1"])]),
            _ => TokenReviewStatus { authenticated: Some(false), ..TokenReviewStatus::default() },
        })
    }

    async fn node_of(&self, pod: &PodRef) -> Result<Option<String>, AskError> {
        if self.pods_forbidden.load(Ordering::SeqCst) {
            return Err(AskError::Forbidden("get pods"));
        }
        Ok((pod.uid == "u" && pod.namespace == "weir").then(|| "n2".to_owned()))
    }
}

fn tokens() -> (Arc<Fake>, Tokens) {
    let fake = Arc::new(Fake::default());
    let roles = TokenRoles {
        audience: "weir".into(),
        agents: vec!["weir/agent".parse().unwrap()],
        controllers: vec!["weir/controller".parse().unwrap()],
    };
    let bindings = Arc::new(Reloaded::load(BindingsFile(None)).unwrap());
    (Arc::clone(&fake), Tokens::by(Box::new(fake), roles, bindings))
}

fn showing(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap())])
}

#[tokio::test]
async fn a_token_is_an_agents_a_controllers_or_a_clients() {
    let (_, tokens) = tokens();
    let of = async |token: &str| tokens.authenticate(&showing(token)).await;
    assert_eq!(of("claims-node").await, Ok(Principal::Node("n1".parse().unwrap())));
    assert_eq!(of("bound-to-pod").await, Ok(Principal::Node("n2".parse().unwrap())));
    assert_eq!(of("controller").await, Ok(Principal::Controller("weir-1".into())));
    // Neither an account with the agents' name elsewhere, nor a pod that happens to run on the node, is its agent.
    for (token, name) in [("hooks", "serviceaccount:weir/hooks"), ("namesake", "serviceaccount:other/agent")] {
        assert!(matches!(of(token).await, Ok(Principal::Client { name: found, .. }) if found == name));
    }
    for (token, says) in [
        ("of-a-pod-that-left", "names no node"),
        ("unbound", "names no node"),
        ("odd-node", "N 1"),
        ("nobodys", "does not accept"),
    ] {
        let refused = of(token).await.unwrap_err();
        assert!(matches!(&refused, NotAdmitted::Unknown(why) if why.contains(says)), "{token}: {refused:?}");
        assert!(!refused.to_string().contains(&format!("token {token}")), "no token is repeated");
    }
}

#[tokio::test]
async fn headers_that_are_no_token() {
    let (fake, tokens) = tokens();
    let with = |values: &[&str]| -> HeaderMap {
        values.iter().map(|&value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
    };
    let long = format!("Bearer {}", "x".repeat(MAX_TOKEN + 1));
    for headers in [&[][..], &["Bearer"], &["Bearer  "], &["Basic abc"], &["Bearer a", "Bearer b"], &[long.as_str()]] {
        assert!(matches!(tokens.authenticate(&with(headers)).await, Err(NotAdmitted::Unknown(_))));
    }
    assert_eq!(fake.asked.load(Ordering::SeqCst), 0, "nobody is asked about those");
    assert!(tokens.authenticate(&with(&["bearer claims-node"])).await.is_ok(), "the scheme's case does not matter");
}

#[tokio::test]
async fn callers_with_one_token_are_one_question() {
    let (fake, tokens) = tokens();
    let (headers, bad) = (showing("claims-node"), showing("nobodys"));
    let tokens = Arc::new(tokens);
    let mut many = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (tokens, headers) = (Arc::clone(&tokens), headers.clone());
        many.spawn(async move { tokens.authenticate(&headers).await });
    }
    assert!(many.join_all().await.iter().all(Result::is_ok));
    assert_eq!(fake.asked.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        assert!(tokens.authenticate(&bad).await.is_err());
    }
    assert_eq!(fake.asked.load(Ordering::SeqCst), 2, "a refusal is remembered too");
}

#[tokio::test]
async fn while_nobody_can_be_asked_the_known_are_admitted_and_the_new_wait() {
    let (fake, tokens) = tokens();
    assert!(tokens.authenticate(&showing("claims-node")).await.is_ok());
    // As after the time for which it needs no asking.
    let aged = Instant::now().checked_sub(cache::GOOD).unwrap();
    let node = Whose::Node("n1".parse().unwrap());
    tokens.verdicts.lock().unwrap().put(digest("claims-node"), Ok(node), None, aged);
    for error in [AskError::Away("x".into()), AskError::Forbidden("create tokenreviews")] {
        *fake.away.lock().unwrap() = Some(error.clone());
        *tokens.failed.lock().unwrap() = None;
        assert!(tokens.authenticate(&showing("claims-node")).await.is_ok());
        let turned_away = tokens.authenticate(&showing("hooks")).await.unwrap_err();
        assert_eq!(turned_away, NotAdmitted::CannotAsk(error.to_string()));
    }
    *fake.away.lock().unwrap() = None;
    assert!(
        matches!(tokens.authenticate(&showing("hooks")).await, Err(NotAdmitted::CannotAsk(_))),
        "left alone a moment"
    );
    *tokens.failed.lock().unwrap() = None;
    assert!(tokens.authenticate(&showing("hooks")).await.is_ok());
}

#[tokio::test]
async fn a_question_that_only_some_need_does_not_hold_up_the_others() {
    let (fake, tokens) = tokens();
    fake.pods_forbidden.store(true, Ordering::SeqCst);
    let refused = tokens.authenticate(&showing("bound-to-pod")).await.unwrap_err();
    assert!(matches!(&refused, NotAdmitted::CannotAsk(why) if why.contains("get pods")), "{refused:?}");
    assert!(tokens.authenticate(&showing("claims-node")).await.is_ok());
    fake.pods_forbidden.store(false, Ordering::SeqCst);
    assert!(tokens.authenticate(&showing("bound-to-pod")).await.is_ok(), "it is asked again at once");
}

#[tokio::test]
async fn a_flood_of_new_tokens_is_bounded_and_does_not_hold_up_the_known() {
    let (_, tokens) = tokens();
    let tokens = Arc::new(tokens);
    let node = Whose::Node("n1".parse().unwrap());
    let aged = Instant::now().checked_sub(cache::GOOD).unwrap();
    tokens.verdicts.lock().unwrap().put(digest("claims-node"), Ok(node), None, aged);
    let mut flood = tokio::task::JoinSet::new();
    for i in 0..MAY_WAIT {
        let tokens = Arc::clone(&tokens);
        flood.spawn(async move { tokens.authenticate(&showing(&format!("endless-{i}"))).await });
    }
    while tokens.may_wait.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let beyond = tokens.authenticate(&showing("one-more")).await.unwrap_err();
    assert!(matches!(&beyond, NotAdmitted::CannotAsk(why) if why.contains("wait")), "{beyond:?}");
    assert!(tokens.authenticate(&showing("claims-node")).await.is_ok());
    flood.shutdown().await;
    assert!(tokens.authenticate(&showing("hooks")).await.is_ok(), "who waits no more takes no place");
}
