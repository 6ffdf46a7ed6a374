//! Enforcement on the fake kernel, v1 and v2.

use weir_common::{
    device::DevNum,
    fence::Fence,
    units::{Floor, LimitKey},
};

use super::{report::RuleState, *};
use crate::{
    kernel::{CgroupRef, CgroupVersion, fake::FakeKernel},
    plan::Rule,
    resolve::{NodeSettings, resolve, testing},
    workloads::Cgroup,
};

const DISK: DevNum = DevNum { major: 7, minor: 0 };

struct World {
    kernel: Arc<FakeKernel>,
    enforcer: Option<Enforcer>,
    dir: tempfile::TempDir,
    devices: DeviceSnapshot,
    workloads: WorkloadSnapshot,
    now: Instant,
    revision: u64,
    changed: bool,
}

impl World {
    fn new(version: CgroupVersion, cgroups: &[&str]) -> World {
        let kernel = Arc::new(FakeKernel::new(version));
        kernel.add_device(DISK);
        let dir = tempfile::tempdir().unwrap();
        let mut world = World {
            kernel,
            enforcer: None,
            dir,
            devices: testing::devices(&["7:0"]),
            workloads: WorkloadSnapshot::default(),
            now: Instant::now(),
            revision: 0,
            changed: false,
        };
        for path in cgroups {
            world.cgroup(path);
        }
        world.restart();
        world
    }

    fn cgroup(&mut self, path: &str) -> CgroupRef {
        let cgroup = self.kernel.add_cgroup(path);
        let entry = Cgroup { cgroup: cgroup.clone(), processes: 1, systemd_unit: None };
        self.workloads.cgroups.insert(path.to_owned(), entry);
        cgroup
    }

    /// As after kill -9.
    fn restart(&mut self) {
        self.enforcer = None;
        let (ledger, quarantined) = Ledger::open(self.dir.path(), "boot").unwrap();
        assert_eq!(quarantined, []);
        self.enforcer = Some(Enforcer::new(self.kernel.clone(), ledger));
    }

    fn enforcer(&mut self) -> &mut Enforcer {
        self.enforcer.as_mut().unwrap()
    }

    fn plan(&mut self, directive: Directive, rules: Vec<Rule>) {
        self.revision += 1;
        let fence = Fence { store_epoch: 1, revision: self.revision, facts_generation: 1 };
        self.enforcer().accept(Plan { store_uid: String::new(), fence, directive, rules }).unwrap();
        self.changed = true;
    }

    fn rules(&mut self, rules: Vec<Rule>) -> Report {
        self.plan(Directive::Active, rules);
        self.pass()
    }

    fn pass(&mut self) -> Report {
        self.pass_after(Duration::from_secs(1))
    }

    fn pass_after(&mut self, time: Duration) -> Report {
        self.now += time;
        let node = NodeSettings {
            floor: Floor { bytes_per_second: 1, operations_per_second: 1 },
            version: self.kernel.version(),
        };
        let rules = self.enforcer().ledger().plan().map(|plan| plan.rules.clone()).unwrap_or_default();
        let resolved = resolve(&rules, &self.devices, &self.workloads, node);
        let (devices, workloads) = (self.devices.clone(), self.workloads.clone());
        let input = Input {
            devices: &devices,
            workloads: &workloads,
            resolved: &resolved,
            plan_changed: std::mem::take(&mut self.changed),
            now: self.now,
            wall: SystemTime::UNIX_EPOCH,
            random: 1.0,
            traces: &Traces::default(),
        };
        self.enforcer().pass(input)
    }

    fn file(&self, path: &str, key: LimitKey) -> String {
        self.kernel.limit_file(&CgroupRef { path: path.to_owned(), id: 0 }, key)
    }

    fn foreign(&self, path: &str, key: LimitKey, value: u64) {
        let text = match (self.kernel.version(), value) {
            (CgroupVersion::V1, value) => format!("7:0 {value}"),
            (CgroupVersion::V2, 0) => format!("7:0 {key}=max"),
            (CgroupVersion::V2, value) => format!("7:0 {key}={value}"),
        };
        self.kernel.write_raw(&self.file(path, key), &text).unwrap();
        self.kernel.take_writes();
    }

    fn held(&self, path: &str, key: LimitKey) -> Option<u64> {
        let cgroup = self.workloads.cgroups[path].cgroup.clone();
        self.kernel.read_limits(&cgroup).unwrap().get(&DISK).and_then(|limits| limits.get(&key)).and_then(|v| v.get())
    }
}

const BOTH: [CgroupVersion; 2] = [CgroupVersion::V1, CgroupVersion::V2];

fn rule(uid: &str, path: &str, rbps: u64) -> Rule {
    testing::rule(uid, path, rbps)
}

#[test]
fn a_limit_is_written_once_and_put_back() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.foreign("/a", LimitKey::Rbps, 777);
        world.foreign("/a", LimitKey::Wiops, 5);
        let report = world.rules(vec![rule("u", "/a", 100)]);
        assert_eq!((report.rules[0].state, report.writes), (RuleState::Applied, 1));
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(100));
        for _ in 0..5 {
            assert_eq!(world.pass().writes, 0);
        }
        // Another plan with the same limit: still not one write.
        assert_eq!(world.rules(vec![rule("u", "/a", 100), rule("v", "/none", 5)]).writes, 0);
        let report = world.rules(vec![]);
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (Some(777), 0));
        assert_eq!(world.held("/a", LimitKey::Wiops), Some(5), "foreign keys are never touched");
        for (_, text) in world.kernel.take_writes() {
            assert!(!text.contains("wiops"), "{text}");
        }
    }
}

#[test]
fn v2_names_all_that_is_ours_in_one_write() {
    let mut world = World::new(CgroupVersion::V2, &["/a"]);
    let mut both = rule("u", "/a", 100);
    both.limits.insert(LimitKey::Wbps, weir_common::units::LimitValue::finite(50).unwrap());
    world.rules(vec![both.clone()]);
    assert_eq!(world.kernel.take_writes(), [("/fake/a/io.max".to_owned(), "7:0 rbps=100 wbps=50".to_owned())]);
    both.limits.insert(LimitKey::Wbps, weir_common::units::LimitValue::finite(60).unwrap());
    world.rules(vec![both]);
    assert_eq!(world.kernel.take_writes(), [("/fake/a/io.max".to_owned(), "7:0 rbps=100 wbps=60".to_owned())]);
}

#[test]
fn what_tightens_comes_before_what_loosens() {
    for version in BOTH {
        let mut world = World::new(version, &["/a", "/b"]);
        world.rules(vec![rule("u", "/a", 100), rule("v", "/b", 500)]);
        world.kernel.take_writes();
        world.rules(vec![rule("u", "/a", 300), rule("v", "/b", 200)]);
        let order: Vec<String> = world.kernel.take_writes().into_iter().map(|(file, _)| file).collect();
        assert!(order[0].starts_with("/fake/b/") && order[1].starts_with("/fake/a/"), "{order:?}");
    }
}

#[test]
fn drift_is_repaired_and_counted_and_a_refusal_is_retried_with_patience() {
    for version in BOTH {
        let mut world = World::new(version, &["/a", "/b"]);
        world.rules(vec![rule("u", "/*", 100)]);
        world.foreign("/a", LimitKey::Rbps, 0);
        let report = world.pass();
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(100));
        assert_eq!(report.settings[0].drift_repairs, 1);

        world.kernel.fail_writes(&world.file("/a", LimitKey::Rbps), 28, 3);
        let report = world.rules(vec![rule("u", "/*", 50)]);
        assert_eq!(report.rules[0].state, RuleState::Failed);
        assert_eq!(world.held("/b", LimitKey::Rbps), Some(50), "others go on");
        let failed = report.rules[0].conditions.iter().find(|c| c.finding.kind == ConditionType::WriteFailed).unwrap();
        let access = failed.finding.access.as_ref().unwrap();
        assert_eq!((access.errno, access.errno_name().as_str()), (Some(28), "ENOSPC"));
        assert!(access.file.starts_with("/fake/a/") && access.value.as_ref().unwrap().contains("50"));
        let writes: usize = (0..20).map(|_| world.pass().writes).sum();
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(50));
        assert_eq!(writes, 3, "two more refusals and the success, not one a period");
        let report = world.pass();
        assert_eq!(report.rules[0].state, RuleState::Applied);
        assert_eq!(report.settings[0].drift_repairs, 1, "a retry is no repair: nobody changed anything");
    }
}

#[test]
fn a_repair_that_had_to_wait_is_counted_once() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        world.foreign("/a", LimitKey::Rbps, 0);
        assert_eq!(world.pass().settings[0].drift_repairs, 1);
        // Within the shortest interval between two writes: seen now, put right later.
        world.foreign("/a", LimitKey::Rbps, 900);
        let report = world.pass_after(Duration::ZERO);
        assert_eq!((report.writes, report.settings[0].drift_repairs), (0, 1));
        // The kernel refuses the first attempt.
        world.kernel.fail_writes(&world.file("/a", LimitKey::Rbps), 28, 1);
        for _ in 0..10 {
            world.pass();
        }
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(100));
        assert_eq!(world.pass().settings[0].drift_repairs, 2);
    }
}

#[test]
fn trouble_ends_when_the_kernel_holds_what_is_wanted_whoever_wrote_it() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.kernel.fail_writes(&world.file("/a", LimitKey::Rbps), 30, 1);
        assert_eq!(world.rules(vec![rule("u", "/a", 100)]).rules[0].state, RuleState::Failed);
        world.foreign("/a", LimitKey::Rbps, 100);
        let report = world.pass();
        assert_eq!((report.rules[0].state, report.writes), (RuleState::Applied, 0));
    }
}

#[test]
fn pause_changes_nothing_and_release_puts_all_back_until_resumed() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        world.plan(Directive::Paused, vec![rule("u", "/a", 70)]);
        world.foreign("/a", LimitKey::Rbps, 900);
        let report = world.pass();
        assert_eq!((report.writes, report.rules[0].state), (0, RuleState::Suspended));
        world.foreign("/a", LimitKey::Rbps, 100);
        world.plan(Directive::Released, vec![rule("u", "/a", 70)]);
        let report = world.pass();
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (None, 0));
        world.restart();
        assert_eq!(world.pass().writes, 0, "durable");
        world.rules(vec![rule("u", "/a", 70)]);
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(70));
    }
}

#[test]
fn at_release_a_foreign_value_stays() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        world.foreign("/a", LimitKey::Rbps, 333);
        let report = world.rules(vec![]);
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (Some(333), 0));
        let told = |report: &Report| report.node.iter().any(|c| c.finding.kind == ConditionType::ForeignValueKept);
        assert!(told(&report) && told(&world.pass()), "as long as it is there");
        world.foreign("/a", LimitKey::Rbps, 0);
        assert!(!told(&world.pass()));
    }
}

#[test]
fn a_cgroup_that_comes_back_inherits_nothing() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.foreign("/a", LimitKey::Rbps, 777);
        world.rules(vec![rule("u", "/a", 100)]);
        world.cgroup("/a");
        let report = world.pass();
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (Some(100), 1));
        world.rules(vec![]);
        assert_eq!(world.held("/a", LimitKey::Rbps), None, "the old cgroup's baseline is not the new one's");
        world.kernel.remove_cgroup("/a");
        world.workloads.cgroups.remove("/a");
        assert_eq!(world.pass().settings_held, 0);
    }
}

#[test]
fn a_cgroup_that_goes_while_it_is_limited_is_forgotten() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        assert_eq!(world.rules(vec![rule("u", "/a", 100)]).settings_held, 1);
        world.kernel.remove_cgroup("/a");
        // The look at the cgroups was a moment before.
        world.pass();
        world.workloads.cgroups.remove("/a");
        let report = world.pass();
        assert_eq!((report.settings_held, report.uids_held.len()), (0, 0));
        assert!(world.rules(vec![]).uids_held.is_empty());
    }
}

#[test]
fn another_disk_under_the_number_inherits_nothing_and_keeps_no_remnant() {
    for version in BOTH {
        // The kernel keeps the line when only the medium behind a loop device changes.
        let mut world = World::new(version, &["/a"]);
        world.foreign("/a", LimitKey::Rbps, 777);
        world.rules(vec![rule("u", "/a", 100)]);
        world.devices.devices.get_mut(&DISK).unwrap().id.diskseq = Some(2);
        let report = world.pass();
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (Some(100), 1));
        world.rules(vec![]);
        assert_eq!(world.held("/a", LimitKey::Rbps), None, "777 was another disk's");

        world.rules(vec![rule("u", "/a", 100)]);
        world.devices.devices.clear();
        let report = world.pass();
        assert_eq!((world.held("/a", LimitKey::Rbps), report.settings_held), (None, 0));
    }
}

#[test]
fn without_a_plan_nothing_is_released_and_without_the_ledger_nothing_is_written() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        std::fs::remove_file(world.dir.path().join("plan")).unwrap();
        world.restart();
        assert_eq!((world.pass().writes, world.held("/a", LimitKey::Rbps)), (0, Some(100)));
        assert_eq!(world.pass().settings_held, 1);
    }
}

#[test]
fn a_new_owner_takes_over_without_a_write() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        let report = world.rules(vec![rule("v", "/a", 100)]);
        assert_eq!((report.writes, report.uids_held.into_iter().collect::<Vec<_>>()), (0, vec!["v".to_owned()]));
    }
}

#[test]
fn effective_is_the_strictest_ancestor_on_v2_and_io_that_is_withheld_is_said() {
    let mut world = World::new(CgroupVersion::V2, &["/p", "/p/a", "/q", "/q/b"]);
    world.foreign("/p", LimitKey::Rbps, 30);
    let report = world.rules(vec![rule("u", "/p/a", 100)]);
    let setting = &report.settings[0];
    assert_eq!(setting.effective.and_then(|v| v.get()), Some(30));
    assert_eq!(setting.effective_from.as_deref(), Some("/p"));
    assert!(report.targets[0].limits[&LimitKey::Rbps].foreign);

    world.kernel.set_passes_io("/q", false);
    let report = world.rules(vec![rule("w", "/q/b", 100)]);
    assert_eq!(report.rules[0].state, RuleState::Failed);
    let said = &report.rules[0].conditions;
    assert!(said.iter().any(|c| c.finding.kind == ConditionType::ControllerNotEnabled), "{said:#?}");
    world.kernel.set_passes_io("/q", true);
    assert_eq!(world.pass().rules[0].state, RuleState::Applied);
}

#[test]
fn on_v1_an_ancestors_limit_is_not_effective_below_it() {
    let mut world = World::new(CgroupVersion::V1, &["/p", "/p/a"]);
    let report = world.rules(vec![rule("u", "/p/a", 100), rule("v", "/p", 20)]);
    let below = report.settings.iter().find(|setting| setting.key.cgroup.path == "/p/a").unwrap();
    assert_eq!(below.effective_from, None);
    assert_eq!(below.effective, Some(below.intended));
}

#[test]
fn what_cannot_be_put_back_is_told_by_the_node() {
    for version in BOTH {
        let mut world = World::new(version, &["/a"]);
        world.rules(vec![rule("u", "/a", 100)]);
        world.kernel.fail_writes(&world.file("/a", LimitKey::Rbps), 30, 1);
        let report = world.rules(vec![]);
        let told = report.node.iter().find(|c| c.finding.kind == ConditionType::WriteFailed).expect("a condition");
        assert_eq!(told.finding.access.as_ref().unwrap().errno_name(), "EROFS");
        assert_eq!(report.uids_held.len(), 1);
        let mut last = world.pass();
        for _ in 0..5 {
            last = world.pass();
        }
        assert!(last.node.is_empty() && last.uids_held.is_empty(), "{:?}", last.node);
    }
}

#[test]
fn release_all_says_what_became_of_each() {
    for version in BOTH {
        let mut world = World::new(version, &["/a", "/b", "/c"]);
        world.foreign("/a", LimitKey::Rbps, 777);
        world.rules(vec![rule("u", "/*", 100)]);
        world.foreign("/b", LimitKey::Rbps, 5);
        world.kernel.fail_writes(&world.file("/c", LimitKey::Rbps), 30, 1);
        let (devices, workloads) = (world.devices.clone(), world.workloads.clone());
        let released = world.enforcer().release_all(&devices, &workloads);
        let of = |path: &str| released.iter().find(|r| r.key.cgroup.path == path).unwrap();
        assert!(of("/a").done && of("/a").outcome.contains("777"));
        assert!(of("/b").done && of("/b").outcome.contains("somebody else"));
        assert!(!of("/c").done && of("/c").outcome.contains("EROFS"), "{released:#?}");
        assert_eq!(world.held("/a", LimitKey::Rbps), Some(777));
        assert!(world.enforcer().release_all(&devices, &workloads).iter().all(|r| r.done));
    }
}
