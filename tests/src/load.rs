//! Readers as processes of their own, in a cgroup of their own, with the figures that they saw themselves.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use serde::{Deserialize, Serialize};

use crate::process::binary;

/// What a reader or writer saw itself; the last line that `weir-load` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Bytes that its calls returned.
    pub bytes: u64,
    /// Calls.
    pub operations: u64,
    /// From the first call to the end of the last, seconds.
    pub seconds: f64,
    /// Longest call, seconds.
    pub worst_stall_seconds: f64,
}

impl Report {
    /// Mean rate.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Write instead of read.
    pub write: bool,
    /// Bypass the page cache.
    pub direct: bool,
    /// Bytes a call.
    pub block: usize,
    /// Length in seconds.
    pub seconds: f64,
    /// Pause between calls, to ask for less than the limit; bytes per second, 0 for none.
    pub pace: u64,
}

impl Load {
    /// Direct 64 KiB reads, as fast as they go.
    pub fn direct_read(seconds: f64) -> Load {
        Load { write: false, direct: true, block: 64 * 1024, seconds, pace: 0 }
    }

    /// Starts it in a cgroup.
    ///
    /// # Panics
    /// It could not be started.
    pub fn start(self, cgroup: &Path, file: &Path) -> Running {
        let mut command = Command::new(binary("weir-load"));
        command.arg(if self.write { "write" } else { "read" });
        command.arg("--file").arg(file).arg("--cgroup").arg(cgroup);
        command.args(["--block", &self.block.to_string(), "--seconds", &self.seconds.to_string()]);
        if self.direct {
            command.arg("--direct");
        }
        if self.pace > 0 {
            command.args(["--pace", &self.pace.to_string()]);
        }
        let child = command.stdout(Stdio::piped()).spawn().expect("weir-load starts");
        Running { child }
    }
}

/// A load that runs; killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Waits for its end.
    ///
    /// # Panics
    /// It failed.
    pub fn report(mut self) -> Report {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().expect("stdout is piped");
        std::io::Read::read_to_string(&mut stdout, &mut text).expect("its output is text");
        let status = self.child.wait().expect("it can be waited for");
        assert!(status.success(), "weir-load: {status}");
        let last = text.lines().last().expect("it prints a report");
        serde_json::from_str(last).expect("its last line is a report")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
