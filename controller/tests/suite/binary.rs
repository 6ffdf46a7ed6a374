//! The binary itself: its first line, its end, and what it refuses.

use crate::common;

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use weir_proto::v1::{self, intent_service_client::IntentServiceClient};

fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-controller"));
    // The directory of the store is made where it is missing.
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json", "--store"]).arg(directory.join("made/store.redb"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(directory: &Path) -> (Child, String) {
    let mut child = command(directory).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("weir-controller listening on ").unwrap_or_else(|| panic!("{line:?}"));
    (child, address.to_owned())
}

fn terminate(mut child: Child) {
    let asked = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

fn refused(mut command: Command) -> String {
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert!(!child.wait().unwrap().success());
    said
}

#[tokio::test]
async fn serves_ends_in_time_and_keeps_what_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let (child, address) = start(directory.path());
    let mut intents = IntentServiceClient::connect(format!("http://{address}")).await.unwrap();
    let created: v1::Intent = serde_json::from_str(
        r#"{"name": "projects/default/intents/a", "spec": {"nodes": {"anyOf": [{"all": true}]},
            "workloads": {"anyOf": [{"cgroupPath": "/a"}]}, "devices": {"anyOf": [{"all": true}]},
            "controls": {"limits": {"rbps": {"bytesPerSecond": "1048576"}}}}}"#,
    )
    .unwrap();
    let request = v1::CreateIntentRequest { intent: Some(created), ..Default::default() };
    let created = intents.create_intent(request).await.unwrap().into_inner();
    // A client that keeps its streams open does not hold up the end.
    let watch = v1::WatchIntentsRequest::default();
    let mut open = intents.watch_intents(watch).await.unwrap().into_inner();
    open.message().await.unwrap();
    terminate(child);

    let (child, address) = start(directory.path());
    let mut intents = IntentServiceClient::connect(format!("http://{address}")).await.unwrap();
    let got = intents.get_intent(v1::GetIntentRequest { name: created.name }).await.unwrap().into_inner();
    assert_eq!(got.etag, created.etag);

    let second = refused(command(directory.path()));
    assert!(second.contains("in use by another process") && second.contains("--store"), "{second}");
    terminate(child);
}

#[test]
fn says_what_it_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let mut open_to_all = Command::new(env!("CARGO_BIN_EXE_weir-controller"));
    open_to_all.args(["--listen", "0.0.0.0:0", "--store"]).arg(directory.path().join("s"));
    open_to_all.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = refused(open_to_all);
    assert!(said.contains("--insecure"), "{said}");

    // Encryption alone does not tell who calls.
    let authority = common::tls::Authority::new(directory.path(), "ca");
    let (certificate, key) = authority.server("server");
    let mut nobody_is_asked = Command::new(env!("CARGO_BIN_EXE_weir-controller"));
    nobody_is_asked.args(["--listen", "0.0.0.0:0", "--store"]).arg(directory.path().join("s"));
    nobody_is_asked.arg("--tls-cert").arg(&certificate).arg("--tls-key").arg(&key);
    nobody_is_asked.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = refused(nobody_is_asked);
    assert!(said.contains("--tls-client-ca") && said.contains("--insecure"), "{said}");

    let mut no_pair = command(directory.path());
    no_pair.arg("--tls-cert").arg(&certificate).arg("--tls-key").arg(&authority.ca);
    let said = refused(no_pair);
    assert!(said.contains("ca.crt has no private key"), "{said}");

    let mut etcd = Command::new(env!("CARGO_BIN_EXE_weir-controller"));
    // Port 1 has no server.
    etcd.args(["--listen", "127.0.0.1:0", "--store", "etcd://127.0.0.1:1"]);
    etcd.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = refused(etcd);
    let expected = if cfg!(feature = "etcd") { "cannot be reached" } else { "--features weir-controller/etcd" };
    assert!(said.contains(expected), "{said}");

    std::fs::create_dir(directory.path().join("made")).unwrap();
    std::fs::write(directory.path().join("made/store.redb"), "no store").unwrap();
    let said = refused(command(directory.path()));
    assert!(said.contains("damaged or no store"), "{said}");
}
