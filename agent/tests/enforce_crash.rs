//! The agent is cut off at every step (before and after each write to the kernel, and in the middle of every record of the
//! journal), then started again: whatever the moment, a release leaves the kernel as it was before the first touch.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use weir_agent::{
    devices::{BlockDevice, DeviceKind, DeviceSnapshot},
    enforce::{Enforcer, Input},
    kernel::{CgroupRef, CgroupVersion, IoCounters, Kernel, KernelError, LimitSet, fake::FakeKernel},
    ledger::Ledger,
    plan::{DeviceSelector, DeviceTerm, Directive, Mode, Plan, Rule, Scope, WorkloadSelector, WorkloadTerm},
    resolve::{NodeSettings, resolve},
    trace::Traces,
    workloads::{Cgroup, WorkloadSnapshot},
};
use weir_common::{
    device::{DevNum, DeviceId},
    fence::Fence,
    units::{Floor, LimitKey, LimitValue},
};

const DISK: DevNum = DevNum { major: 7, minor: 0 };
const BOOT: &str = "boot";

/// What was there at one moment: the kernel, and a copy of the state directory.
struct Moment {
    kernel: FakeKernel,
    state: tempfile::TempDir,
    what: String,
}

/// Passes everything on, and keeps a moment before and after each write.
struct Recording {
    kernel: FakeKernel,
    state: PathBuf,
    moments: Mutex<Vec<Moment>>,
}

impl Recording {
    fn keep(&self, what: String) {
        let moment = Moment { kernel: self.kernel.duplicate(), state: copy(&self.state), what };
        self.moments.lock().unwrap().push(moment);
    }
}

fn copy(dir: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

impl Kernel for Recording {
    fn version(&self) -> CgroupVersion {
        self.kernel.version()
    }
    fn root(&self) -> PathBuf {
        self.kernel.root()
    }
    fn limit_file(&self, cgroup: &CgroupRef, key: LimitKey) -> String {
        self.kernel.limit_file(cgroup, key)
    }
    fn read_limits(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, LimitSet>, KernelError> {
        self.kernel.read_limits(cgroup)
    }
    fn write_limits(&self, cgroup: &CgroupRef, device: DevNum, limits: &LimitSet) -> Result<(), KernelError> {
        self.keep(format!("before {limits:?} in {}", cgroup.path));
        let result = self.kernel.write_limits(cgroup, device, limits);
        self.keep(format!("after {limits:?} in {}", cgroup.path));
        result
    }
    fn read_counters(&self, cgroup: &CgroupRef) -> Result<BTreeMap<DevNum, IoCounters>, KernelError> {
        self.kernel.read_counters(cgroup)
    }
    fn io_withheld_by(&self, cgroup: &CgroupRef) -> Option<String> {
        self.kernel.io_withheld_by(cgroup)
    }
    fn stalled_us(&self, cgroup: &CgroupRef) -> Option<u64> {
        self.kernel.stalled_us(cgroup)
    }
    fn device_busy_ms(&self, device: DevNum) -> Option<u32> {
        self.kernel.device_busy_ms(device)
    }
}

fn devices() -> DeviceSnapshot {
    let mut snapshot = DeviceSnapshot::default();
    let id = DeviceId { num: DISK, diskseq: Some(1) };
    let device = BlockDevice::new(id, "loop0", DeviceKind::Loop, 1 << 30);
    snapshot.devices.insert(DISK, device);
    snapshot
}

fn rule(uid: &str, path: &str, limits: &[(LimitKey, u64)]) -> Rule {
    Rule {
        uid: uid.into(),
        intent: format!("projects/default/intents/{uid}"),
        generation: 1,
        rank: 0,
        priority: 0,
        create_revision: 1,
        workloads: WorkloadSelector {
            any_of: vec![WorkloadTerm { cgroup_path: Some(path.into()), ..WorkloadTerm::default() }],
            exclude: vec![],
        },
        devices: DeviceSelector { any_of: vec![DeviceTerm { all: true, ..DeviceTerm::default() }], exclude: vec![] },
        limits: limits.iter().map(|(key, value)| (*key, LimitValue::finite(*value).unwrap())).collect(),
        not_built: vec![],
        scope: Scope::Pod,
        mode: Mode::Enforce,
        allow_system: false,
        unsupported: vec![],
    }
}

fn pass(enforcer: &mut Enforcer, kernel: &dyn Kernel, devices: &DeviceSnapshot, workloads: &WorkloadSnapshot) {
    let rules = enforcer.ledger().plan().map(|plan| plan.rules.clone()).unwrap_or_default();
    let node =
        NodeSettings { floor: Floor { bytes_per_second: 1, operations_per_second: 1 }, version: kernel.version() };
    let resolved = resolve(&rules, devices, workloads, node);
    enforcer.pass(Input {
        devices,
        workloads,
        resolved: &resolved,
        plan_changed: true,
        now: Instant::now(),
        wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1),
        random: 1.0,
        traces: &Traces::default(),
    });
}

fn held(kernel: &dyn Kernel, workloads: &WorkloadSnapshot) -> Vec<BTreeMap<DevNum, LimitSet>> {
    workloads.cgroups.values().map(|cgroup| kernel.read_limits(&cgroup.cgroup).unwrap()).collect()
}

#[test]
fn whatever_the_moment_a_release_leaves_what_was_there_before() {
    use LimitKey::{Rbps, Riops, Wbps, Wiops};
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let state = tempfile::tempdir().unwrap();
        let kernel = FakeKernel::new(version);
        kernel.add_device(DISK);
        let mut workloads = WorkloadSnapshot::default();
        for path in ["/a", "/b", "/c"] {
            let cgroup = kernel.add_cgroup(path);
            workloads.cgroups.insert(path.into(), Cgroup { cgroup, processes: 1, systemd_unit: None });
        }
        // Somebody's limits, some of which Weir will touch and some not.
        let foreign = |path: &str, limits: &[(LimitKey, u64)]| {
            let set = limits.iter().map(|(key, value)| (*key, LimitValue::finite(*value).unwrap())).collect();
            kernel.write_limits(&workloads.cgroups[path].cgroup, DISK, &set).unwrap();
        };
        foreign("/a", &[(Rbps, 777), (Wiops, 33)]);
        foreign("/b", &[(Wbps, 555)]);
        let original = held(&kernel, &workloads);

        let recording = Arc::new(Recording { kernel, state: state.path().to_owned(), moments: Mutex::default() });
        let (ledger, _) = Ledger::open(state.path(), BOOT).unwrap();
        let mut enforcer = Enforcer::new(recording.clone(), ledger);
        let steps: [&[Rule]; 6] = [
            &[rule("u", "/*", &[(Rbps, 100), (Wbps, 90)])],
            &[rule("u", "/*", &[(Rbps, 200), (Wbps, 50)]), rule("v", "/a", &[(Riops, 10)])],
            &[rule("v", "/a", &[(Riops, 20), (Rbps, 777)])],
            &[rule("w", "/b", &[(Wbps, 555)]), rule("x", "/c", &[(Wiops, 5)])],
            &[rule("u", "/*", &[(Rbps, 777)])],
            &[],
        ];
        for (revision, rules) in (1..).zip(steps) {
            let fence = Fence { store_epoch: 1, revision, facts_generation: 1 };
            enforcer
                .accept(Plan { store_uid: String::new(), fence, directive: Directive::Active, rules: rules.to_vec() })
                .unwrap();
            recording.keep(format!("plan {revision} accepted"));
            pass(&mut enforcer, &*recording, &devices(), &workloads);
            recording.keep(format!("plan {revision} enforced"));
        }
        assert_eq!(held(&*recording, &workloads), original, "after the last intent");
        drop(enforcer);

        let moments = std::mem::take(&mut *recording.moments.lock().unwrap());
        assert!(moments.len() > 30, "{}", moments.len());
        for moment in moments {
            let journal = moment.state.path().join("journal");
            let whole = std::fs::read(&journal).unwrap();
            // Torn ends too: what was not durable was not written to the kernel either.
            let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let ends =
                if moment.what.starts_with("before") { vec![whole.len()] } else { vec![whole.len(), whole.len() + 7] };
            assert!(last < whole.len());
            for end in ends {
                let mut bytes = whole.clone();
                bytes.resize(end, b'x');
                std::fs::write(&journal, &bytes).unwrap();
                let kernel = Arc::new(moment.kernel.duplicate());
                let (ledger, quarantined) = Ledger::open(moment.state.path(), BOOT).unwrap();
                assert_eq!(quarantined, [], "{version:?} {}", moment.what);
                let mut enforcer = Enforcer::new(kernel.clone(), ledger);
                // Some restart enforces first, others release at once.
                if end == whole.len() {
                    pass(&mut enforcer, &*kernel, &devices(), &workloads);
                }
                let released = enforcer.release_all(&devices(), &workloads);
                assert!(released.iter().all(|setting| setting.done), "{version:?} {}: {released:#?}", moment.what);
                assert_eq!(held(&*kernel, &workloads), original, "{version:?} {} (end {end})", moment.what);
            }
        }
    }
}
