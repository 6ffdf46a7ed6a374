//! The machine's kernel. The hierarchy's root is opened once; every cgroup is opened below it without following links, and
//! its inode compared, before a file in it is touched. Nothing is ever created.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use weir_common::{
    device::DevNum,
    units::{LimitKey, LimitValue},
};

use super::{
    CgroupRef, CgroupVersion, IoCounters, Kernel, KernelError, KernelStep, LimitSet, blkio_service, blkio_throttle,
    block_stat,
    hierarchy::{Hierarchy, has_word},
    io_max, io_stat, pressure,
};

/// The throttle interface of this machine.
#[derive(Debug)]
pub struct RealKernel {
    hierarchy: Hierarchy,
    root: OwnedFd,
}

impl RealKernel {
    /// Opens the hierarchy's root.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(hierarchy: Hierarchy) -> io::Result<RealKernel> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&hierarchy.root, flags, Mode::empty())?;
        Ok(RealKernel { hierarchy, root })
    }

    fn path(&self, cgroup: &CgroupRef, file: &str) -> String {
        let root = self.hierarchy.root.display();
        if cgroup.path == "/" { format!("{root}/{file}") } else { format!("{root}{}/{file}", cgroup.path) }
    }

    /// Opens the cgroup's directory, and makes sure that it is the one that is meant.
    fn open_cgroup(&self, cgroup: &CgroupRef) -> Result<OwnedFd, KernelError> {
        let error = |step, errno: Option<Errno>| KernelError {
            step,
            file: self.path(cgroup, "").trim_end_matches('/').to_owned(),
            value: None,
            errno: errno.map(Errno::raw_os_error),
        };
        let relative = cgroup.path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        let directory = open_below(self.root.as_fd(), relative, OFlags::DIRECTORY | OFlags::RDONLY)
            .map_err(|errno| error(KernelStep::OpenCgroup, Some(errno)))?;
        let inode = rustix::fs::fstat(&directory).map_err(|errno| error(KernelStep::OpenCgroup, Some(errno)))?.st_ino;
        if inode != cgroup.id {
            return Err(error(KernelStep::Identity, None));
        }
        Ok(directory)
    }

    fn read_file(&self, cgroup: &CgroupRef, directory: BorrowedFd<'_>, file: &str) -> Result<String, KernelError> {
        let error = |step, errno: Errno| KernelError {
            step,
            file: self.path(cgroup, file),
            value: None,
            errno: Some(errno.raw_os_error()),
        };
        let fd = open_below(directory, file, OFlags::RDONLY).map_err(|errno| error(KernelStep::Open, errno))?;
        read_whole(&fd).map_err(|errno| error(KernelStep::Read, errno))
    }

    /// One write(2).
    fn write_file(
        &self,
        cgroup: &CgroupRef,
        directory: BorrowedFd<'_>,
        file: &str,
        value: &str,
    ) -> Result<(), KernelError> {
        let error = |step, errno: Option<Errno>| KernelError {
            step,
            file: self.path(cgroup, file),
            value: Some(value.to_owned()),
            errno: errno.map(Errno::raw_os_error),
        };
        let fd = open_below(directory, file, OFlags::WRONLY).map_err(|errno| error(KernelStep::Open, Some(errno)))?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&fd, value.as_bytes()))
            .map_err(|errno| error(KernelStep::Write, Some(errno)))?;
        if written == value.len() { Ok(()) } else { Err(error(KernelStep::ShortWrite, None)) }
    }
}

fn open_below(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    // EAGAIN: something was renamed at the same moment.
    for _ in 0..8 {
        match rustix::fs::openat2(directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Reads a kernel file to its end: such files are made anew for each page, so the end is where a read gives nothing.
fn read_whole(fd: &OwnedFd) -> Result<String, Errno> {
    let mut bytes = vec![0u8; 4096];
    let mut length = 0;
    loop {
        if length == bytes.len() {
            bytes.resize(bytes.len() * 2, 0);
        }
        let read = rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut bytes[length..]))?;
        if read == 0 {
            bytes.truncate(length);
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        length += read;
    }
}

impl Kernel for RealKernel {
    fn version(&self) -> CgroupVersion {
        self.hierarchy.version
    }

    fn root(&self) -> PathBuf {
        self.hierarchy.root.clone()
    }

    fn limit_file(&self, cgroup: &CgroupRef, key: LimitKey) -> String {
        self.path(cgroup, limit_file_name(self.hierarchy.version, key))
    }

    fn read_limits(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, LimitSet>, KernelError> {
        let directory = self.open_cgroup(cgroup)?;
        match self.hierarchy.version {
            CgroupVersion::V2 if cgroup.path == "/" => Ok(BTreeMap::new()),
            CgroupVersion::V2 => Ok(io_max::parse(&self.read_file(cgroup, directory.as_fd(), io_max::FILE)?)),
            CgroupVersion::V1 => {
                let mut all: BTreeMap<DevNum, LimitSet> = BTreeMap::new();
                for key in LimitKey::ALL {
                    let text = self.read_file(cgroup, directory.as_fd(), blkio_throttle::file(key))?;
                    for (device, value) in blkio_throttle::parse(&text) {
                        all.entry(device).or_default().insert(key, value);
                    }
                }
                Ok(all)
            }
        }
    }

    fn write_limits(&self, cgroup: &CgroupRef, device: DevNum, limits: &LimitSet) -> Result<(), KernelError> {
        let directory = self.open_cgroup(cgroup)?;
        for (file, text) in encode(self.hierarchy.version, device, limits, |file| self.path(cgroup, file))? {
            self.write_file(cgroup, directory.as_fd(), file, &text)?;
        }
        Ok(())
    }

    fn read_counters(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, IoCounters>, KernelError> {
        let directory = self.open_cgroup(cgroup)?;
        match self.hierarchy.version {
            CgroupVersion::V2 => Ok(io_stat::parse(&self.read_file(cgroup, directory.as_fd(), io_stat::FILE)?)),
            CgroupVersion::V1 => Ok(join_v1(
                &self.read_file(cgroup, directory.as_fd(), blkio_service::BYTES)?,
                &self.read_file(cgroup, directory.as_fd(), blkio_service::OPERATIONS)?,
            )),
        }
    }

    fn io_withheld_by(&self, cgroup: &CgroupRef) -> Option<String> {
        if self.hierarchy.version == CgroupVersion::V1 {
            return None;
        }
        // The outermost one is the cause: what it does not pass on, none below can.
        let mut ancestors: Vec<&str> = crate::workloads::WorkloadSnapshot::ancestors(&cgroup.path).collect();
        ancestors.reverse();
        ancestors
            .into_iter()
            .find(|path| {
                let control = self.hierarchy.root.join(path.trim_start_matches('/')).join("cgroup.subtree_control");
                std::fs::read_to_string(control).is_ok_and(|text| !has_word(&text, "io"))
            })
            .map(str::to_owned)
    }

    fn stalled_us(&self, cgroup: &CgroupRef) -> Option<u64> {
        if self.hierarchy.version == CgroupVersion::V1 {
            return None;
        }
        let directory = self.open_cgroup(cgroup).ok()?;
        pressure::parse_some_total_us(&self.read_file(cgroup, directory.as_fd(), pressure::FILE).ok()?)
    }

    fn device_busy_ms(&self, device: DevNum) -> Option<u32> {
        block_stat::parse_busy_ms(&std::fs::read_to_string(format!("/sys/dev/block/{device}/stat")).ok()?)
    }
}

/// Name of the file that holds a limit.
pub(super) fn limit_file_name(version: CgroupVersion, key: LimitKey) -> &'static str {
    match version {
        CgroupVersion::V1 => blkio_throttle::file(key),
        CgroupVersion::V2 => io_max::FILE,
    }
}

/// The writes, in order, that set limits of one device: (file, text).
///
/// # Errors
/// A value that the kernel would take for another one; `path` makes the file's path for the report.
pub(super) fn encode(
    version: CgroupVersion,
    device: DevNum,
    limits: &LimitSet,
    path: impl Fn(&str) -> String,
) -> Result<Vec<(&'static str, String)>, KernelError> {
    let refused = |file: &str, value: LimitValue| KernelError {
        step: KernelStep::Refused,
        file: path(file),
        value: Some(value.to_string()),
        errno: None,
    };
    match version {
        CgroupVersion::V1 => limits
            .iter()
            .map(|(&key, &value)| {
                let file = blkio_throttle::file(key);
                let text = blkio_throttle::format(device, key, value).ok_or_else(|| refused(file, value))?;
                Ok((file, text))
            })
            .collect(),
        CgroupVersion::V2 if limits.is_empty() => Ok(Vec::new()),
        CgroupVersion::V2 => Ok(vec![(io_max::FILE, io_max::format(device, limits))]),
    }
}

/// Joins the two v1 counter files; a device that is intact in both counts.
pub(super) fn join_v1(bytes: &str, operations: &str) -> BTreeMap<DevNum, IoCounters> {
    let operations = blkio_service::parse(operations);
    blkio_service::parse(bytes)
        .into_iter()
        .filter_map(|(device, (read_bytes, write_bytes))| {
            let &(read_operations, write_operations) = operations.get(&device)?;
            Some((device, IoCounters { read_bytes, write_bytes, read_operations, write_operations }))
        })
        .collect()
}
