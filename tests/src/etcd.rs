//! Real etcd servers on loopback: alone or as a cluster, each with a data directory of its own, killed by pid on drop.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{process::binary, require};

/// The server's program.
const PROGRAM: &str = "etcd";
/// How long a cluster may take to be ready.
const READY: Duration = Duration::from_secs(30);

/// What is missing for tests on a real etcd.
pub fn missing() -> Vec<String> {
    let missing = !require::on_path(PROGRAM);
    missing.then(|| "the program `etcd` (Debian: etcd-server)".to_owned()).into_iter().collect()
}

/// Whether controllers on a real etcd can run: etcd, and a controller that was built with it. See [`require::met`].
pub fn controllers_can(test: &str) -> bool {
    let mut missing = missing();
    let help = Command::new(binary("weir-controller")).arg("--help").output();
    if !help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--etcd-user")) {
        missing.push("weir-controller built with `--features weir-controller/etcd`".to_owned());
    }
    require::met(test, &missing)
}

/// Certificate and key by which a server speaks TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// PEM file.
    pub cert: PathBuf,
    /// PEM file.
    pub key: PathBuf,
    /// PEM file; where given, clients must present a certificate that it signed.
    pub client_ca: Option<PathBuf>,
}

/// How a cluster is made.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Members; 0 means one.
    pub members: usize,
    /// TLS to clients.
    pub tls: Option<ServerTls>,
    /// Further arguments of each server.
    pub args: Vec<String>,
}

/// A cluster; its servers are killed on drop.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    child: Child,
    address: String,
    args: Vec<String>,
    log: PathBuf,
}

impl Etcd {
    /// One server without TLS, ready.
    pub fn start() -> Etcd {
        Etcd::with(&Setup::default())
    }

    /// A cluster, ready: every member has found its leader.
    ///
    /// # Panics
    /// It does not start; the end of a log is in the message.
    pub fn with(setup: &Setup) -> Etcd {
        // Another program can take a port between its choice and its use.
        let mut problem = String::new();
        for _ in 0..3 {
            match Etcd::try_with(setup) {
                Ok(etcd) => return etcd,
                Err(found) => problem = found,
            }
        }
        panic!("etcd does not start: {problem}");
    }

    fn try_with(setup: &Setup) -> Result<Etcd, String> {
        let Setup { members, tls, args } = setup;
        let directory = tempfile::tempdir().expect("a directory for etcd");
        let count = (*members).max(1);
        let ports = free_ports(count * 2);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let peers: Vec<String> = (0..count).map(|i| format!("m{i}=http://127.0.0.1:{}", ports[2 * i + 1])).collect();
        let mut started = Vec::new();
        for i in 0..count {
            let (client, peer) = (ports[2 * i], ports[2 * i + 1]);
            let data = directory.path().join(format!("m{i}"));
            let mut all: Vec<String> = [
                ("--name", format!("m{i}")),
                ("--data-dir", data.display().to_string()),
                ("--listen-client-urls", format!("{scheme}://127.0.0.1:{client}")),
                ("--advertise-client-urls", format!("{scheme}://127.0.0.1:{client}")),
                ("--listen-peer-urls", format!("http://127.0.0.1:{peer}")),
                ("--initial-advertise-peer-urls", format!("http://127.0.0.1:{peer}")),
                ("--initial-cluster", peers.join(",")),
                ("--initial-cluster-token", directory.path().display().to_string()),
                ("--logger", "zap".to_owned()),
                ("--log-level", "info".to_owned()),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
            if let Some(ServerTls { cert, key, client_ca }) = tls {
                all.extend([format!("--cert-file={}", cert.display()), format!("--key-file={}", key.display())]);
                if let Some(ca) = client_ca {
                    all.extend([format!("--trusted-ca-file={}", ca.display()), "--client-cert-auth=true".to_owned()]);
                }
            }
            all.extend(args.iter().cloned());
            let log = directory.path().join(format!("m{i}.log"));
            let child = spawn(&all, &log);
            started.push(Member { child, address: format!("127.0.0.1:{client}"), args: all, log });
        }
        let mut etcd = Etcd { members: started, directory };
        for i in 0..count {
            etcd.wait_ready(i)?;
        }
        Ok(etcd)
    }

    /// `etcd://...` with all members and this prefix.
    pub fn location(&self, prefix: &str) -> String {
        let addresses: Vec<&str> = self.members.iter().map(|member| member.address.as_str()).collect();
        format!("etcd://{}{prefix}", addresses.join(","))
    }

    /// `host:port` of a member.
    pub fn address(&self, member: usize) -> &str {
        &self.members[member].address
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn pause(&self, member: usize) {
        self.signal(member, Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self, member: usize) {
        self.signal(member, Signal::CONT);
    }

    /// kill -9, and reaps it.
    pub fn kill(&mut self, member: usize) {
        let child = &mut self.members[member].child;
        let _ended = child.kill();
        let _reaped = child.wait();
    }

    /// Takes a killed member's data away, as where a volume was lost.
    ///
    /// # Panics
    /// It cannot be removed.
    pub fn lose_data(&mut self, member: usize) {
        std::fs::remove_dir_all(self.directory.path().join(format!("m{member}"))).expect("its data can be removed");
    }

    /// Starts a killed member again on its data.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self, member: usize) {
        let before = &self.members[member];
        self.members[member].child = spawn(&before.args, &before.log);
        self.wait_ready(member).expect("it starts again");
    }

    fn signal(&self, member: usize, signal: Signal) {
        let pid = Pid::from_child(&self.members[member].child);
        kill_process(pid, signal).expect("a server that runs takes a signal");
    }

    /// Waits for the line by which a server says that it serves its clients.
    fn wait_ready(&mut self, member: usize) -> Result<(), String> {
        let Member { child, log, .. } = &mut self.members[member];
        let deadline = Instant::now() + READY;
        loop {
            let ready = ["serving client traffic", "serving insecure client requests"];
            let lines = lines(log);
            if lines.iter().any(|line| ready.iter().any(|mark| line.contains(mark))) {
                return Ok(());
            }
            let ended = child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(format!("{ended:?}\n{}", lines[lines.len().saturating_sub(10)..].join("\n")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

fn spawn(args: &[String], log: &Path) -> Child {
    // Each start has a log of its own, so that readiness is never that of an earlier one.
    let log = File::create(log).expect("etcd's log can be made");
    Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("etcd can be started")
}

fn lines(path: &Path) -> Vec<String> {
    File::open(path).map(|file| BufReader::new(file).lines().map_while(Result::ok).collect()).unwrap_or_default()
}

/// Ports that are free now, all different.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port on loopback")).collect();
    held.iter().map(|listener| listener.local_addr().expect("it has an address").port()).collect()
}
