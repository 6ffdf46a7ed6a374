//! The ONLY module that touches kernel files of the throttle. One file of the kernel, one module here: its type, how it
//! is parsed and formatted, how its presence is probed. `real` is the machine's kernel, `fake` answers as a kernel does.

pub mod blkio_service;
pub mod blkio_throttle;
pub mod block_stat;
pub mod fake;
mod fake_parse;
pub mod hierarchy;
pub mod io_max;
pub mod io_stat;
pub mod pressure;
pub mod real;
pub mod sole;

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use weir_common::{
    device::DevNum,
    units::{LimitKey, LimitValue},
};

/// Which cgroup version carries the throttle files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupVersion {
    /// blkio hierarchy: flat, one file a limit.
    V1,
    /// Unified hierarchy with the io controller: hierarchical, io.max holds all four.
    V2,
}

/// Identity of a cgroup: a path alone is none, since another cgroup may come back under it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CgroupRef {
    /// Path below the hierarchy's root, beginning with `/`; the root is `/`.
    pub path: String,
    /// Inode number of its directory.
    pub id: u64,
}

impl fmt::Display for CgroupRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (id {})", self.path, self.id)
    }
}

/// Values of some of the four limits of one device in one cgroup.
pub type LimitSet = BTreeMap<LimitKey, LimitValue>;

/// The step at which an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelStep {
    /// Opening the cgroup's directory.
    OpenCgroup,
    /// Opening the file in it.
    Open,
    /// The directory is there, but it is another cgroup than was meant.
    Identity,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// The kernel took fewer bytes than were given.
    ShortWrite,
    /// Not tried: the kernel would take the value for another one.
    Refused,
}

/// An access to a kernel file that did not do what it should. Carries all that a person needs to know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step:?} {file}{}: {}", .value.as_deref().map(|v| format!(" `{v}`")).unwrap_or_default(), errno_text(*.errno))]
pub struct KernelError {
    /// Where it failed.
    pub step: KernelStep,
    /// Absolute path of the file.
    pub file: String,
    /// What was to be written, exactly; `None` for a read.
    pub value: Option<String>,
    /// The errno; `None` for a failure of ours (identity, short write).
    pub errno: Option<i32>,
}

impl KernelError {
    /// Whether the cgroup is gone (or is another one now), so that there is nothing to retry on.
    pub fn is_gone(&self) -> bool {
        use rustix::io::Errno;
        let errno = self.errno.map(Errno::from_raw_os_error);
        match self.step {
            KernelStep::Identity => true,
            // The hierarchy's root is held open, so this is about the cgroup.
            KernelStep::OpenCgroup => matches!(errno, Some(Errno::NOENT | Errno::NOTDIR)),
            // Every access to a file of a cgroup that was removed after it was opened.
            KernelStep::Open | KernelStep::Read | KernelStep::Write => {
                errno == Some(Errno::NODEV) && self.value.is_none()
            }
            KernelStep::ShortWrite | KernelStep::Refused => false,
        }
    }
}

/// `ENODEV (No such device)` and so on.
pub fn errno_text(errno: Option<i32>) -> String {
    match errno {
        Some(errno) => format!("{} ({})", errno_name(errno), std::io::Error::from_raw_os_error(errno)),
        None => "no errno".to_owned(),
    }
}

/// Symbolic name of the errnos that these files answer with; `E<number>` for others.
pub fn errno_name(errno: i32) -> String {
    use rustix::io::Errno;
    let known = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::BADF, "EBADF"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::BUSY, "EBUSY"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::MFILE, "EMFILE"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::ROFS, "EROFS"),
        (Errno::RANGE, "ERANGE"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::XDEV, "EXDEV"),
        (Errno::LOOP, "ELOOP"),
    ];
    known
        .iter()
        .find(|(code, _)| code.raw_os_error() == errno)
        .map_or_else(|| format!("E{errno}"), |(_, name)| (*name).to_owned())
}

/// Whether a file of sysfs or of a cgroup cannot be accessed because it, or what it belonged to, is not there (any more).
/// Any other error says nothing about that.
pub fn is_gone(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NODEV, Errno::NXIO, Errno::NOTDIR];
    error.raw_os_error().is_some_and(|errno| gone.iter().any(|gone| gone.raw_os_error() == errno))
}

/// Cumulative counters of one cgroup on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub read_operations: u64,
    /// Write operations.
    pub write_operations: u64,
}

/// The throttle interface of a kernel. All calls block shortly; none allocates kernel state but `write_limits`.
pub trait Kernel: Send + Sync + 'static {
    /// Version of cgroups behind this interface.
    fn version(&self) -> CgroupVersion;

    /// Mount point of the hierarchy.
    fn root(&self) -> PathBuf;

    /// The absolute path of the file that holds `key` for this cgroup, for reports.
    fn limit_file(&self, cgroup: &CgroupRef, key: LimitKey) -> String;

    /// The cgroup's own limits, finite ones only: a device or key that is not listed is unlimited.
    ///
    /// # Errors
    /// The files cannot be opened or read, or the path is another cgroup now.
    fn read_limits(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, LimitSet>, KernelError>;

    /// Sets the given limits of one device, and leaves the keys that are not given as they are. On v2 this is one
    /// write(2); on v1 one for each key, in order, up to the first that fails. Never writes 0; refuses by itself what the
    /// kernel would misunderstand (operations per second above 2^32-2).
    ///
    /// # Errors
    /// The first access that failed, with file, value and errno.
    fn write_limits(&self, cgroup: &CgroupRef, device: DevNum, limits: &LimitSet) -> Result<(), KernelError>;

    /// The cgroup's counters by device. A device that is not listed has none: on v1 none exist before a first limit was
    /// written for that device in any cgroup, on v2 before the first I/O.
    ///
    /// # Errors
    /// As for `read_limits`.
    fn read_counters(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, IoCounters>, KernelError>;

    /// Path of the nearest ancestor that does not pass the io controller on to its children, which is why the cgroup has no
    /// throttle files; `None` where nothing is amiss, always on v1.
    fn io_withheld_by(&self, cgroup: &CgroupRef) -> Option<String>;

    /// How long some task of the cgroup has been stalled on I/O, microseconds, cumulative; `None` where the kernel does not
    /// say (v1, or without pressure information).
    fn stalled_us(&self, cgroup: &CgroupRef) -> Option<u64>;

    /// How long the device has had I/O in flight, milliseconds, cumulative modulo 2^32; `None` where the kernel does not say.
    fn device_busy_ms(&self, device: DevNum) -> Option<u32>;
}
