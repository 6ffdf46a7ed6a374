//! `weirctl certs init`, and what it makes in use: a controller and weirctl by their binaries, over TLS.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use weir_tests::{
    fleet::Scratch,
    process::{Daemon, binary},
};

fn weirctl(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(binary("weirctl")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn init(directory: &Path, more: &[&str]) -> String {
    let directory = directory.display().to_string();
    let (code, out, err) = weirctl(&[&["certs", "init", &directory], more].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    out
}

#[test]
fn what_it_makes_serves_and_identifies() {
    let scratch = Scratch::new();
    let certs = scratch.path().join("certs");
    let path = |name: &str| certs.join(name).display().to_string();
    let out = init(&certs, &["--node", "n1", "--client", "ann"]);
    for name in ["--tls-client-ca", "--access", "node-n1.crt", "client-ann.key"] {
        assert!(out.contains(name), "{name} is not in: {out}");
    }
    for key in ["ca.key", "controller.key", "node-n1.key", "client-ann.key"] {
        assert_eq!(std::fs::metadata(certs.join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
    }

    let store = scratch.path().join("store.redb").display().to_string();
    let args = [
        ["--listen", "127.0.0.1:0"],
        ["--store", &store],
        ["--tls-cert", &path("controller.crt")],
        ["--tls-key", &path("controller.key")],
        ["--tls-client-ca", &path("ca.crt")],
        ["--access", &path("access.yaml")],
    ];
    let args: Vec<String> = args.concat().into_iter().map(str::to_owned).collect();
    let daemon = Daemon::start("weir-controller", &args, "listening on ", &scratch.path().join("log")).unwrap();
    let address = daemon.ready.rsplit(' ').next().unwrap();
    let (https, http) = (format!("https://{address}"), format!("http://{address}"));
    let of = |client: &str, server: &str, command: &[&str]| {
        let [certificate, key] = ["crt", "key"].map(|end| path(&format!("{client}.{end}")));
        let ca = path("ca.crt");
        let tls = ["--server", server, "--tls-ca", &ca, "--tls-cert", &certificate, "--tls-key", &key];
        weirctl(&[&tls[..], command].concat())
    };
    let (code, _, err) = of("client-ann", &https, &["nodes"]);
    assert_eq!((code, err.as_str()), (0, ""));

    // Every refusal names cause and remedy.
    let (code, _, err) = of("node-n1", &https, &["nodes"]);
    assert!(code == 1 && err.contains("the agent of node n1 may not call") && err.contains("--access"), "{code} {err}");
    let (code, _, err) = weirctl(&["--server", &https, "--tls-ca", &path("ca.crt"), "nodes"]);
    assert!(code == 6 && err.contains("wants a client certificate"), "{code} {err}");
    let (code, _, err) = weirctl(&["--server", &https, "nodes"]);
    assert!(code == 2 && err.contains("--tls-ca"), "{code} {err}");
    let (code, _, err) = weirctl(&["--server", &http, "nodes"]);
    assert!(code == 6 && err.contains("say https://"), "{code} {err}");

    // A second run keeps what is there and adds to it, under the same authority.
    let before = std::fs::read(certs.join("controller.crt")).unwrap();
    let out = init(&certs, &["--client", "bob"]);
    assert!(out.contains("kept") && out.contains("client: \"bob\""), "{out}");
    assert_eq!(std::fs::read(certs.join("controller.crt")).unwrap(), before);
    let (code, _, err) = of("client-bob", &https, &["nodes"]);
    assert!(code == 1 && err.contains("client bob may not call"), "{code} {err}");
    let bob = std::fs::read(certs.join("client-bob.crt")).unwrap();
    init(&certs, &["--force", "--client", "bob"]);
    assert_ne!(std::fs::read(certs.join("client-bob.crt")).unwrap(), bob);
    assert_eq!(std::fs::read(certs.join("controller.crt")).unwrap(), before, "its names were not given again");
    init(&certs, &["--force"]);
    assert_ne!(std::fs::read(certs.join("controller.crt")).unwrap(), before);

    let (code, _, err) = weirctl(&["certs", "init", &certs.display().to_string(), "--client", "a/b"]);
    assert!(code == 2 && err.contains("`a/b`"), "{code} {err}");
    std::fs::remove_file(certs.join("ca.key")).unwrap();
    let (code, _, err) = weirctl(&["certs", "init", &certs.display().to_string()]);
    assert!(code == 1 && err.contains("`ca.key` is not"), "{code} {err}");
}
