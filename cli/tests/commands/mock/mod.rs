//! A controller of a few lines, to run the real binary against: it keeps intents, answers as the contract says, and does what
//! a test puts into its state.

mod fleet;
mod intents;

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use weir_proto::v1::{self, fleet_service_server::FleetServiceServer, intent_service_server::IntentServiceServer};

/// What the controller knows, and what it was asked to store.
#[derive(Default)]
pub struct State {
    pub intents: BTreeMap<String, v1::Intent>,
    pub nodes: Vec<v1::Node>,
    pub statuses: Vec<v1::IntentNodeStatus>,
    pub settings: Vec<v1::ExplainedSetting>,
    pub fleet_directive: i32,
    /// Agents say nothing of a release, so the controller alone does.
    pub agents_silent: bool,
    /// Status that intents get when they are stored, and the number of looks until then.
    pub becomes: v1::IntentStatus,
    pub looks_until: u32,
    /// A deleted intent is gone only after this many looks; `None` keeps it for ever.
    pub deleted_after: Option<u32>,
    /// So many looks at a deleted intent are answered by UNAVAILABLE first.
    pub deleting_looks_refused: u32,
    /// Writes so far, without those that only validated.
    pub writes: Vec<String>,
    /// The next calls are refused with these, first one first.
    pub refuse: Vec<Status>,
    revision: i64,
}

impl State {
    fn next_revision(&mut self) -> i64 {
        self.revision += 1;
        self.revision
    }

    fn refusal(&mut self) -> Result<(), Status> {
        if self.refuse.is_empty() { Ok(()) } else { Err(self.refuse.remove(0)) }
    }
}

/// The services.
#[derive(Clone)]
struct Mock(Arc<Mutex<State>>);

impl Mock {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// A running mock.
pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
    _runtime: tokio::runtime::Runtime,
}

/// What a run of weirctl left.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Standard output, of a run that must have gone well.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{self:?}");
        self.stdout
    }

    /// Standard error, of a run that must have failed like this, without a panic.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.starts_with("weirctl: "), "{self:?}");
        assert!(!self.stderr.contains("panicked") && !self.stderr.contains("RUST_BACKTRACE"), "{self:?}");
        self.stderr
    }
}

impl Server {
    pub fn start() -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let state = Arc::new(Mutex::new(State { deleted_after: Some(0), ..State::default() }));
        let mock = Mock(state.clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = tonic::transport::Server::builder()
            .add_service(IntentServiceServer::new(mock.clone()))
            .add_service(FleetServiceServer::new(mock));
        runtime.spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        Server { address, state, _runtime: runtime }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Runs weirctl with this server.
    pub fn run(&self, args: &[&str]) -> Outcome {
        self.run_with(args, "")
    }

    /// The same with something on standard input.
    pub fn run_with(&self, args: &[&str], input: &str) -> Outcome {
        weirctl(&self.address, args, input)
    }
}

/// The built binary, with nothing of the caller's environment that it would look at.
pub fn command(server: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirctl"));
    command.env_remove("WEIR_PROJECT").env("WEIR_SERVER", server);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the built binary to its end.
pub fn weirctl(server: &str, args: &[&str], input: &str) -> Outcome {
    let mut child = command(server).args(args).spawn().unwrap();
    // A command that does not read its input closes it early.
    let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
