//! The product's binaries as processes: started, watched for their line of readiness, ended.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// Path of a binary of this workspace: beside the running program (or a folder up, for test binaries), or what the
/// environment names in its place, as `TEST_BINARY_WEIR_AGENT` for `weir-agent`: one of another version.
///
/// # Panics
/// It was not built.
pub fn binary(name: &str) -> PathBuf {
    if let Some(other) = std::env::var_os(format!("TEST_BINARY_{}", name.to_uppercase().replace('-', "_"))) {
        return other.into();
    }
    let me = std::env::current_exe().expect("the running program has a path");
    for dir in me.ancestors().skip(1).take(2) {
        let path = dir.join(name);
        if path.is_file() {
            return path;
        }
    }
    panic!("{name} is not beside {}: build with `cargo build --release --workspace`", me.display());
}

/// What is missing where `buf` finds nothing.
pub const BUF_MISSING: &str = "buf (pip install buf-bin; ./test installs it)";

/// The program that judges the contract: where ./test installs it, or on the PATH.
pub fn buf() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.join(".tools/venv/bin/buf");
    if installed.is_file() {
        return Some(installed);
    }
    crate::require::on_path("buf").then(|| "buf".into())
}

/// A daemon that runs. Killed on drop; `stop` ends it in order.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// The line by which it said that it is ready.
    pub ready: String,
    /// Its log.
    pub log: PathBuf,
    keep: bool,
}

impl Daemon {
    /// Starts `name` with `args`; waits up to 20 s for a line on stdout that contains `ready`. Its log goes to `log`.
    ///
    /// # Errors
    /// It ended or was not ready in time; the end of its log is in the message.
    pub fn start(name: &str, args: &[String], ready: &str, log: &Path) -> anyhow::Result<Daemon> {
        let mut command = Command::new(binary(name));
        command.args(args);
        Daemon::start_command(command, ready, log)
    }

    /// As `start`, for a command of any kind that ends as the daemon (by exec).
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_command(mut command: Command, ready: &str, log: &Path) -> anyhow::Result<Daemon> {
        let file = File::options().create(true).append(true).open(log)?;
        let name = command.get_program().to_string_lossy().into_owned();
        // A group of its own: Ctrl-C reaches the driver alone, which then ends things in order.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).process_group(0);
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut daemon = Daemon { child, ready: String::new(), log: log.to_owned(), keep: false };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match receive.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.contains(ready) => {
                    daemon.ready = line;
                    // Keep reading, so that it never blocks on a full pipe.
                    std::thread::spawn(move || while receive.recv().is_ok() {});
                    return Ok(daemon);
                }
                Ok(_) => {}
                Err(_) => {
                    if let Some(status) = daemon.child.try_wait()? {
                        bail!("{name} ended ({status}) before it was ready:\n{}", daemon.log_tail());
                    }
                    if Instant::now() > deadline {
                        bail!("{name} was not ready within 60 s:\n{}", daemon.log_tail());
                    }
                }
            }
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Leaves it running.
    pub fn keep(mut self) {
        self.keep = true;
    }

    /// kill -9, and reaps it.
    pub fn kill(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// SIGTERM; returns whether it ended by itself with success within 5 s (then it is killed).
    pub fn stop(&mut self) -> bool {
        self.signal(rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        false
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.keep {
            self.kill();
        }
    }
}
