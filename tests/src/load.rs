//! Readers as processes of their own, in a cgroup of their own, with the figures that they saw themselves.

use std::{
    os::unix::process::CommandExt as _,
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
    /// Goes on when the program that started it ends; then nobody reads its report.
    pub outlive: bool,
}

impl Load {
    /// Direct 64 KiB reads, as fast as they go.
    pub fn direct_read(seconds: f64) -> Load {
        Load { write: false, direct: true, block: 64 * 1024, seconds, pace: 0, outlive: false }
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
        command.stdout(Stdio::piped());
        if self.outlive {
            // Of a group of its own: what ends the program, as Ctrl-C, does not reach it.
            command.arg("--outlive").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        }
        let child = command.spawn().expect("weir-load starts");
        Running { child, keep: false }
    }
}

/// A load that runs; killed on drop unless it is kept.
#[derive(Debug)]
pub struct Running {
    child: Child,
    keep: bool,
}

impl Running {
    /// Leaves it running; one that was started to outlive this program ends with its time.
    pub fn keep(mut self) {
        self.keep = true;
    }

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
        if self.keep {
            return;
        }
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
