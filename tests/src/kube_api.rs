//! A Kubernetes API server as far as Weir asks one: reviews of tokens, and pods. In this process, over TLS, with what it knows
//! set by the test.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use weir_common::tls::{ServerFiles, ServerTls};

/// The token by which the controller is known to the API server.
const CONTROLLER: &str = "the-controllers-own";

/// How the API server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    #[default]
    Well,
    /// With 403 to everything.
    Forbidding,
    /// With 500 to everything.
    Broken,
    /// Not at all: it takes the question and is silent.
    Silent,
}

#[derive(Debug, Default)]
struct State {
    mood: Mood,
    /// The user and the extra fields of each token.
    tokens: HashMap<String, (String, Value)>,
    /// Uid and node of each pod, by namespace/name.
    pods: HashMap<String, (String, String)>,
    reviews: usize,
}

/// The API server. It ends with the runtime.
#[derive(Clone, Debug)]
pub struct KubeApi {
    state: Arc<Mutex<State>>,
    /// A kubeconfig for it.
    pub kubeconfig: PathBuf,
}

impl KubeApi {
    /// Serves on a free port of loopback; its files are put into `dir`.
    ///
    /// # Panics
    /// It cannot serve.
    pub async fn start(dir: &Path) -> KubeApi {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (dir.join("kube-api.crt"), dir.join("kube-api.key"));
        std::fs::write(&certificate, cert.pem()).unwrap();
        std::fs::write(&key, signing_key.serialize_pem()).unwrap();
        let files = ServerFiles { certificate: certificate.clone(), key, client_ca: None };
        let tls = Arc::new(ServerTls::load(files).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = dir.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{address}"), "certificate-authority": certificate}}],
            "users": [{"name": "u", "user": {"token": CONTROLLER}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, state) = (Arc::clone(&tls), Arc::clone(&served));
                // Whoever breaks its connection has its reason.
                tokio::spawn(async move { drop(answer(&tls, stream, &state).await) });
            }
        });
        KubeApi { state, kubeconfig }
    }

    /// A token of a service account (`namespace:name`), with the extra fields of its review (`node-name` and so on).
    pub fn token(&self, token: &str, account: &str, extra: &[(&str, &str)]) {
        let extra: serde_json::Map<String, Value> =
            extra.iter().map(|(key, value)| (format!("authentication.kubernetes.io/{key}"), json!([value]))).collect();
        let user = format!("system:serviceaccount:{account}");
        self.state.lock().unwrap().tokens.insert(token.to_owned(), (user, extra.into()));
    }

    /// A token is good no more.
    pub fn withdraw(&self, token: &str) {
        self.state.lock().unwrap().tokens.remove(token);
    }

    /// A pod (`namespace/name`) on a node.
    pub fn pod(&self, pod: &str, uid: &str, node: &str) {
        self.state.lock().unwrap().pods.insert(pod.to_owned(), (uid.to_owned(), node.to_owned()));
    }

    /// How it answers from now on.
    pub fn mood(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    /// How many reviews it was asked for.
    pub fn reviews(&self) -> usize {
        self.state.lock().unwrap().reviews
    }
}

/// One request of one connection: HTTP/1.1 without keep-alive.
async fn answer(tls: &ServerTls, stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut stream = tls.acceptor().accept(stream).await?;
    let mut bytes = Vec::new();
    let (head, body) = loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let mood = state.lock().unwrap().mood;
    let (code, answer) = match mood {
        Mood::Silent => return std::future::pending().await,
        Mood::Forbidding => (403, failure(403, "Forbidden")),
        Mood::Broken => (500, failure(500, "InternalError")),
        Mood::Well => answer_well(&head, &body, &mut state.lock().unwrap()),
    };
    let text = answer.to_string();
    let head = format!(
        "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(format!("{head}{text}").as_bytes()).await?;
    stream.shutdown().await
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code})
}

fn answer_well(head: &str, body: &str, state: &mut State) -> (u16, Value) {
    let line = head.lines().next().unwrap_or_default();
    let known = head.lines().any(|line| line.eq_ignore_ascii_case(&format!("authorization: Bearer {CONTROLLER}")));
    if !known {
        return (401, failure(401, "Unauthorized"));
    }
    if line.starts_with("POST /apis/authentication.k8s.io/v1/tokenreviews") {
        state.reviews += 1;
        let asked: Value = serde_json::from_str(body).unwrap_or_default();
        let token = asked["spec"]["token"].as_str().unwrap_or_default();
        let status = match state.tokens.get(token) {
            Some((user, extra)) => json!({
                "authenticated": true, "audiences": asked["spec"]["audiences"],
                "user": {"username": user, "extra": extra},
            }),
            None => json!({"authenticated": false, "error": "invalid bearer token"}),
        };
        let review = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}, "status": status,
        });
        return (201, review);
    }
    // GET /api/v1/namespaces/NAMESPACE/pods/NAME HTTP/1.1
    let path = line.strip_prefix("GET /api/v1/namespaces/").and_then(|rest| rest.split([' ', '?']).next());
    let pod =
        path.and_then(|path| path.split_once("/pods/")).map(|(namespace, name)| (format!("{namespace}/{name}"), name));
    match pod.as_ref().and_then(|(key, name)| Some((state.pods.get(key)?, name))) {
        Some(((uid, node), name)) => (
            200,
            json!({
                "kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "uid": uid},
                "spec": {"nodeName": node, "containers": []},
            }),
        ),
        None => (404, failure(404, "NotFound")),
    }
}
