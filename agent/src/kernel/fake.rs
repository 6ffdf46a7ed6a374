//! A kernel of our own making for tests and simulations: cgroups, devices and throttle files that take and refuse what the
//! real ones do, errno for errno. The text goes through the same encoders and parsers as on a real machine; the kernel's side
//! is `fake_parse`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;
use weir_common::{device::DevNum, units::LimitKey};

use super::{
    CgroupRef, CgroupVersion, IoCounters, Kernel, KernelError, KernelStep, LimitSet, blkio_service, blkio_throttle,
    fake_parse::{self, NONE, NONE_OPERATIONS},
    io_max, io_stat,
    real::{encode, join_v1, limit_file_name},
};

/// Writes that are kept for [`FakeKernel::take_writes`].
const MAX_WRITES: usize = 10_000;

const UNLIMITED: [u64; 4] = [NONE, NONE, NONE_OPERATIONS, NONE_OPERATIONS];

#[derive(Clone, Debug)]
struct FakeCgroup {
    id: u64,
    /// v2: whether this cgroup passes the io controller on to its children.
    passes_io: bool,
    limits: BTreeMap<DevNum, [u64; 4]>,
    counters: BTreeMap<DevNum, IoCounters>,
}

#[derive(Clone, Debug)]
struct Injected {
    file_ends_with: String,
    errno: i32,
    times: u32,
}

#[derive(Clone, Debug, Default)]
struct State {
    cgroups: BTreeMap<String, FakeCgroup>,
    devices: BTreeSet<DevNum>,
    /// v1: devices for which some limit was written; only these have counters.
    primed: BTreeSet<DevNum>,
    writes: Vec<(String, String)>,
    writes_seen: u64,
    /// Writes of what was held already.
    needless: u64,
    injected: Vec<Injected>,
    last_id: u64,
}

/// The fake. Shared by reference: what a test does to it, and what the agent does, see each other.
#[derive(Debug)]
pub struct FakeKernel {
    version: CgroupVersion,
    state: Mutex<State>,
}

impl FakeKernel {
    /// One with a root cgroup and no devices.
    pub fn new(version: CgroupVersion) -> FakeKernel {
        let fake = FakeKernel { version, state: Mutex::default() };
        fake.add_cgroup("/");
        fake
    }

    /// Another kernel in the same state, for what-if.
    pub fn duplicate(&self) -> FakeKernel {
        FakeKernel { version: self.version, state: Mutex::new(self.state().clone()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while holding it has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a cgroup (on v2 one that passes io on); an old one of that path is replaced by another with a new id.
    pub fn add_cgroup(&self, path: &str) -> CgroupRef {
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        let cgroup = FakeCgroup { id, passes_io: true, limits: BTreeMap::new(), counters: BTreeMap::new() };
        state.cgroups.insert(path.to_owned(), cgroup);
        CgroupRef { path: path.to_owned(), id }
    }

    /// Removes a cgroup.
    pub fn remove_cgroup(&self, path: &str) {
        self.state().cgroups.remove(path);
    }

    /// All cgroups, the root too.
    pub fn cgroups(&self) -> Vec<CgroupRef> {
        let state = self.state();
        state.cgroups.iter().map(|(path, cgroup)| CgroupRef { path: path.clone(), id: cgroup.id }).collect()
    }

    /// Whether a cgroup passes the io controller on to its children (v2).
    pub fn set_passes_io(&self, path: &str, passes: bool) {
        if let Some(cgroup) = self.state().cgroups.get_mut(path) {
            cgroup.passes_io = passes;
        }
    }

    /// Attaches a whole disk.
    pub fn add_device(&self, device: DevNum) {
        self.state().devices.insert(device);
    }

    /// Detaches a disk: its limits and counters are gone everywhere.
    pub fn remove_device(&self, device: DevNum) {
        let mut state = self.state();
        state.devices.remove(&device);
        state.primed.remove(&device);
        for cgroup in state.cgroups.values_mut() {
            cgroup.limits.remove(&device);
            cgroup.counters.remove(&device);
        }
    }

    /// The next `times` writes to files whose path ends so fail with `errno`.
    pub fn fail_writes(&self, file_ends_with: &str, errno: i32, times: u32) {
        self.state().injected.push(Injected { file_ends_with: file_ends_with.to_owned(), errno, times });
    }

    /// Every write that reached the kernel since the last call, refused ones too: (file, text).
    pub fn take_writes(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.state().writes)
    }

    /// Every write that reached the kernel since it was made, refused ones too.
    pub fn writes_seen(&self) -> u64 {
        self.state().writes_seen
    }

    /// Writes so far that changed nothing: each would have restarted a real throttle's slice for nothing.
    pub fn needless_writes(&self) -> u64 {
        self.state().needless
    }

    /// I/O of a cgroup. On v1 a device without a first limit counts nothing.
    pub fn add_io(&self, path: &str, device: DevNum, more: IoCounters) {
        let mut state = self.state();
        if self.version == CgroupVersion::V1 && !state.primed.contains(&device) {
            return;
        }
        if let Some(cgroup) = state.cgroups.get_mut(path) {
            let counters = cgroup.counters.entry(device).or_default();
            counters.read_bytes += more.read_bytes;
            counters.write_bytes += more.write_bytes;
            counters.read_operations += more.read_operations;
            counters.write_operations += more.write_operations;
        }
    }

    /// Writes text to a file by its absolute path, as anybody may.
    ///
    /// # Errors
    /// As the kernel would answer.
    pub fn write_raw(&self, file: &str, text: &str) -> Result<(), Errno> {
        let mut state = self.state();
        let (path, name) = self.locate(&state, file)?;
        state.writes_seen += 1;
        // Nobody takes them in a long simulation: the latest are enough.
        if state.writes.len() >= MAX_WRITES {
            state.writes.clear();
        }
        state.writes.push((file.to_owned(), text.to_owned()));
        if let Some(injected) = state.injected.iter_mut().find(|i| i.times > 0 && file.ends_with(&i.file_ends_with)) {
            injected.times -= 1;
            return Err(Errno::from_raw_os_error(injected.errno));
        }
        if text.is_empty() {
            return Ok(());
        }
        let key = LimitKey::ALL.into_iter().find(|key| limit_file_name(self.version, *key) == name);
        let key = key.ok_or(Errno::INVAL)?;
        let (device, body) = fake_parse::device(text, |device| state.devices.contains(&device))?;
        let cgroup = state.cgroups.get_mut(&path).ok_or(Errno::NODEV)?;
        let old = cgroup.limits.get(&device).copied().unwrap_or(UNLIMITED);
        let new = match self.version {
            CgroupVersion::V2 => fake_parse::v2_body(body, old)?,
            CgroupVersion::V1 => {
                let mut new = old;
                new[key.index()] = fake_parse::v1_value(body, !key.is_bytes())?;
                new
            }
        };
        let needless = cgroup.limits.insert(device, new).unwrap_or(UNLIMITED) == new;
        state.needless += u64::from(needless);
        state.primed.insert(device);
        Ok(())
    }

    /// Reads a file by its absolute path.
    ///
    /// # Errors
    /// As the kernel would answer.
    pub fn read_raw(&self, file: &str) -> Result<String, Errno> {
        let state = self.state();
        let (path, name) = self.locate(&state, file)?;
        let cgroup = state.cgroups.get(&path).ok_or(Errno::NODEV)?;
        let mut text = String::new();
        // Writing to a String does not fail.
        match name.as_str() {
            io_max::FILE => {
                for (device, values) in cgroup.limits.iter().filter(|(_, values)| **values != UNLIMITED) {
                    let _infallible = write!(text, "{device}");
                    for key in LimitKey::ALL {
                        let value = values[key.index()];
                        let none = UNLIMITED[key.index()] == value;
                        let shown = if none { "max".to_owned() } else { value.to_string() };
                        let _infallible = write!(text, " {key}={shown}");
                    }
                    text.push('\n');
                }
            }
            io_stat::FILE => {
                for (device, c) in &cgroup.counters {
                    let _infallible = writeln!(
                        text,
                        "{device} rbytes={} wbytes={} rios={} wios={} dbytes=0 dios=0",
                        c.read_bytes, c.write_bytes, c.read_operations, c.write_operations
                    );
                }
            }
            blkio_service::BYTES | blkio_service::OPERATIONS => {
                let bytes = name == blkio_service::BYTES;
                let mut total = 0;
                for (device, c) in &cgroup.counters {
                    let (read, write) =
                        if bytes { (c.read_bytes, c.write_bytes) } else { (c.read_operations, c.write_operations) };
                    total += read + write;
                    let _infallible = writeln!(
                        text,
                        "{device} Read {read}\n{device} Write {write}\n{device} Sync {0}\n{device} Async 0\n{device} Discard \
                         0\n{device} Total {0}",
                        read + write
                    );
                }
                let _infallible = writeln!(text, "Total {total}");
            }
            _ => {
                let key = LimitKey::ALL.into_iter().find(|key| blkio_throttle::file(*key) == name);
                let slot = key.ok_or(Errno::NOENT)?.index();
                for (device, values) in cgroup.limits.iter().filter(|(_, values)| values[slot] != UNLIMITED[slot]) {
                    let _infallible = writeln!(text, "{device} {}", values[slot]);
                }
            }
        }
        Ok(text)
    }

    /// Absolute path of a file of a cgroup.
    pub fn file(&self, cgroup_path: &str, name: &str) -> String {
        if cgroup_path == "/" { format!("/fake/{name}") } else { format!("/fake{cgroup_path}/{name}") }
    }

    /// (cgroup path, file name) of a file that exists.
    fn locate(&self, state: &State, file: &str) -> Result<(String, String), Errno> {
        let rest = file.strip_prefix("/fake").ok_or(Errno::NOENT)?;
        let (path, name) = rest.rsplit_once('/').ok_or(Errno::NOENT)?;
        let path = if path.is_empty() { "/" } else { path };
        if !state.cgroups.contains_key(path) {
            return Err(Errno::NOENT);
        }
        let limit = LimitKey::ALL.iter().any(|key| limit_file_name(self.version, *key) == name);
        let exists = match self.version {
            CgroupVersion::V1 => limit || [blkio_service::BYTES, blkio_service::OPERATIONS].contains(&name),
            CgroupVersion::V2 => {
                let enabled = path == "/" || withheld(state, path).is_none();
                enabled && ((limit && path != "/") || name == io_stat::FILE)
            }
        };
        if exists { Ok((path.to_owned(), name.to_owned())) } else { Err(Errno::NOENT) }
    }

    fn check(&self, cgroup: &CgroupRef) -> Result<(), KernelError> {
        let error = |step, errno: Option<Errno>| KernelError {
            step,
            file: self.file(&cgroup.path, "").trim_end_matches('/').to_owned(),
            value: None,
            errno: errno.map(Errno::raw_os_error),
        };
        match self.state().cgroups.get(&cgroup.path) {
            None => Err(error(KernelStep::OpenCgroup, Some(Errno::NOENT))),
            Some(found) if found.id != cgroup.id => Err(error(KernelStep::Identity, None)),
            Some(_) => Ok(()),
        }
    }

    fn read(&self, cgroup: &CgroupRef, name: &str) -> Result<String, KernelError> {
        let file = self.file(&cgroup.path, name);
        self.read_raw(&file).map_err(|errno| KernelError {
            step: if errno == Errno::NOENT { KernelStep::Open } else { KernelStep::Read },
            file,
            value: None,
            errno: Some(errno.raw_os_error()),
        })
    }
}

/// The outermost ancestor that does not pass io on.
fn withheld(state: &State, path: &str) -> Option<String> {
    let mut ancestors: Vec<&str> = crate::workloads::WorkloadSnapshot::ancestors(path).collect();
    ancestors.reverse();
    let found = ancestors.into_iter().find(|path| state.cgroups.get(*path).is_some_and(|cgroup| !cgroup.passes_io));
    found.map(str::to_owned)
}

impl Kernel for FakeKernel {
    fn version(&self) -> CgroupVersion {
        self.version
    }

    fn root(&self) -> PathBuf {
        PathBuf::from("/fake")
    }

    fn limit_file(&self, cgroup: &CgroupRef, key: LimitKey) -> String {
        self.file(&cgroup.path, limit_file_name(self.version, key))
    }

    fn read_limits(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, LimitSet>, KernelError> {
        self.check(cgroup)?;
        match self.version {
            CgroupVersion::V2 if cgroup.path == "/" => Ok(BTreeMap::new()),
            CgroupVersion::V2 => Ok(io_max::parse(&self.read(cgroup, io_max::FILE)?)),
            CgroupVersion::V1 => {
                let mut all: BTreeMap<DevNum, LimitSet> = BTreeMap::new();
                for key in LimitKey::ALL {
                    for (device, value) in blkio_throttle::parse(&self.read(cgroup, blkio_throttle::file(key))?) {
                        all.entry(device).or_default().insert(key, value);
                    }
                }
                Ok(all)
            }
        }
    }

    fn write_limits(&self, cgroup: &CgroupRef, device: DevNum, limits: &LimitSet) -> Result<(), KernelError> {
        self.check(cgroup)?;
        for (name, text) in encode(self.version, device, limits, |name| self.file(&cgroup.path, name))? {
            let file = self.file(&cgroup.path, name);
            self.write_raw(&file, &text).map_err(|errno| KernelError {
                step: if errno == Errno::NOENT { KernelStep::Open } else { KernelStep::Write },
                file,
                value: Some(text),
                errno: Some(errno.raw_os_error()),
            })?;
        }
        Ok(())
    }

    fn read_counters(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, IoCounters>, KernelError> {
        self.check(cgroup)?;
        match self.version {
            CgroupVersion::V2 => Ok(io_stat::parse(&self.read(cgroup, io_stat::FILE)?)),
            CgroupVersion::V1 => {
                Ok(join_v1(&self.read(cgroup, blkio_service::BYTES)?, &self.read(cgroup, blkio_service::OPERATIONS)?))
            }
        }
    }

    fn io_withheld_by(&self, cgroup: &CgroupRef) -> Option<String> {
        if self.version == CgroupVersion::V1 { None } else { withheld(&self.state(), &cgroup.path) }
    }

    fn stalled_us(&self, _cgroup: &CgroupRef) -> Option<u64> {
        None
    }

    fn device_busy_ms(&self, _device: DevNum) -> Option<u32> {
        None
    }
}
