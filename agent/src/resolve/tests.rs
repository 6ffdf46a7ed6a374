//! What the merge must and must not do.

use proptest::prelude::*;
use weir_common::{
    device::DevNum,
    units::{Floor, LimitKey, LimitValue},
};

use super::{testing::*, *};
use crate::{
    devices::{BlockDevice, DeviceKind, Partition, PathTarget},
    plan::{DeviceSelector, DeviceTerm, Scope, WorkloadSelector, WorkloadTerm},
};

fn node(version: CgroupVersion) -> NodeSettings {
    NodeSettings { floor: Floor { bytes_per_second: 10, operations_per_second: 2 }, version }
}

const V1: CgroupVersion = CgroupVersion::V1;
const V2: CgroupVersion = CgroupVersion::V2;

/// (path, value) of the enforced read limits.
fn enforced(resolved: &Resolved) -> Vec<(String, Option<u64>)> {
    let values = resolved
        .settings
        .iter()
        .filter_map(|(key, desired)| Some((key.cgroup.path.clone(), desired.enforced()?.get())));
    values.collect()
}

fn kinds(resolved: &Resolved, uid: &str) -> Vec<ConditionType> {
    resolved.rules[uid].findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn priority_then_strictness_then_age_and_each_says_why() {
    let mut strong = rule("strong", "/a", 500);
    (strong.rank, strong.priority, strong.create_revision) = (0, 10, 9);
    let mut strict = rule("strict", "/a", 100);
    (strict.rank, strict.create_revision) = (1, 8);
    let mut loose = rule("loose", "/a", 200);
    (loose.rank, loose.create_revision) = (1, 2);
    let mut same = rule("same", "/a", 100);
    (same.rank, same.create_revision) = (1, 9);
    let (devices, workloads) = (devices(&["7:0"]), workloads(&[("/a", 1)]));
    let all = [loose.clone(), same, strict, strong];
    let resolved = resolve(&all, &devices, &workloads, node(V2));
    let desired = resolved.settings.values().next().unwrap();
    let order: Vec<&str> = desired.claims.iter().map(|claim| claim.uid.as_ref()).collect();
    assert_eq!(order, ["strong", "strict", "same", "loose"]);
    assert_eq!(desired.enforced(), LimitValue::finite(500));
    assert!(why(&desired.claims, 0).contains("priority"));
    assert_eq!(kinds(&resolved, "loose"), [ConditionType::Overruled]);

    let resolved = resolve(&all[..3], &devices, &workloads, node(V2));
    let desired = resolved.settings.values().next().unwrap();
    assert_eq!(&*desired.winner().unwrap().uid, "strict", "the older of two that want the same");
    assert!(desired.claims.iter().skip(1).all(|claim| !claim.won));
    assert!((0..desired.claims.len()).all(|i| !why(&desired.claims, i).is_empty()));
}

#[test]
fn keys_merge_apart_and_unmanaged_keys_are_not_desired() {
    let mut reads = rule("reads", "/a", 500);
    reads.limits.insert(LimitKey::Wbps, LimitValue::Unlimited);
    let mut writes = rule("writes", "/a", 900);
    writes.limits = [(LimitKey::Wbps, LimitValue::finite(70).unwrap())].into();
    let resolved = resolve(&[reads, writes], &devices(&["7:0"]), &workloads(&[("/a", 1)]), node(V2));
    let of = |key| resolved.settings.iter().find(|(k, _)| k.key == key).map(|(_, d)| d.enforced().unwrap());
    assert_eq!(of(LimitKey::Rbps), LimitValue::finite(500));
    assert_eq!(of(LimitKey::Wbps), LimitValue::finite(70));
    assert_eq!(of(LimitKey::Riops), None);
}

#[test]
fn observing_never_reaches_the_kernel_nor_wins_over_enforcing() {
    let mut watch = rule("watch", "/a", 50);
    watch.mode = Mode::Observe;
    watch.rank = 0;
    let mut keep = rule("keep", "/a", 900);
    keep.rank = 5;
    let (devices, workloads) = (devices(&["7:0"]), workloads(&[("/a", 1)]));
    let resolved = resolve(&[watch.clone(), keep], &devices, &workloads, node(V2));
    assert_eq!(enforced(&resolved), [("/a".to_owned(), Some(900))]);
    let resolved = resolve(&[watch], &devices, &workloads, node(V2));
    assert_eq!(enforced(&resolved), []);
    assert_eq!(resolved.settings.values().next().unwrap().winner().unwrap().value, LimitValue::finite(50).unwrap());
}

#[test]
fn v1_splits_a_subtree_and_v2_does_not() {
    let tree = workloads(&[("/a", 0), ("/a/x", 3), ("/a/y", 1), ("/a/empty", 0), ("/ab", 4)]);
    let resolved = resolve(&[rule("r", "/a", 101)], &devices(&["7:0"]), &tree, node(V1));
    assert_eq!(enforced(&resolved), [("/a/x".to_owned(), Some(51)), ("/a/y".to_owned(), Some(50))]);
    assert_eq!(kinds(&resolved, "r"), [ConditionType::SplitAcrossParts]);
    let resolved = resolve(&[rule("r", "/a", 101)], &devices(&["7:0"]), &tree, node(V2));
    assert_eq!(enforced(&resolved), [("/a".to_owned(), Some(101))]);
    let idle = workloads(&[("/a", 0), ("/a/x", 0)]);
    let resolved = resolve(&[rule("r", "/a", 101)], &devices(&["7:0"]), &idle, node(V1));
    assert_eq!(enforced(&resolved), [("/a".to_owned(), Some(101))], "before the first process");
}

#[test]
fn a_node_wide_total_is_split_and_never_below_the_floor() {
    let tree = workloads(&[("/p", 0), ("/p/a", 1), ("/p/b", 1), ("/p/a/in", 1)]);
    let mut total = rule("total", "/p/**", 100);
    total.scope = Scope::Node;
    let resolved = resolve(std::slice::from_ref(&total), &devices(&["7:0"]), &tree, node(V2));
    assert_eq!(enforced(&resolved), [("/p/a".to_owned(), Some(50)), ("/p/b".to_owned(), Some(50))]);
    let resolved = resolve(std::slice::from_ref(&total), &devices(&["7:0"]), &tree, node(V1));
    assert_eq!(enforced(&resolved).iter().map(|(_, v)| v.unwrap()).sum::<u64>(), 100);
    total.limits.insert(LimitKey::Rbps, LimitValue::finite(15).unwrap());
    let resolved = resolve(&[total], &devices(&["7:0"]), &tree, node(V2));
    assert!(kinds(&resolved, "total").contains(&ConditionType::RaisedToFloor));
    assert!(enforced(&resolved).iter().all(|(_, value)| *value == Some(10)));
}

#[test]
fn root_system_and_own_cgroups_are_refused() {
    let mut tree = workloads(&[("/system.slice/db.service", 1), ("/agents", 0), ("/agents/weir", 1), ("/ok", 1)]);
    tree.own_cgroup = Some("/agents/weir".to_owned());
    let mut wide = rule("wide", "/**", 100);
    let resolved = resolve(std::slice::from_ref(&wide), &devices(&["7:0"]), &tree, node(V2));
    assert_eq!(enforced(&resolved), [("/ok".to_owned(), Some(100))]);
    let said = kinds(&resolved, "wide");
    for kind in [ConditionType::RootCgroupRefused, ConditionType::SystemCgroupRefused, ConditionType::OwnCgroupRefused]
    {
        assert!(said.contains(&kind), "{kind:?}");
    }
    wide.allow_system = true;
    let resolved = resolve(&[wide], &devices(&["7:0"]), &tree, node(V2));
    assert_eq!(enforced(&resolved).len(), 4, "all but the root");
    // An agent in the root does not make the whole node its own.
    tree.own_cgroup = Some("/".to_owned());
    let resolved = resolve(&[rule("r", "/ok", 100)], &devices(&["7:0"]), &tree, node(V2));
    assert_eq!(enforced(&resolved).len(), 1);
}

#[test]
fn a_cgroup_above_a_service_of_the_node_is_refused() {
    let tree = workloads(&[("/kube", 0), ("/kube/kubelet.service", 1), ("/kube/pods", 0), ("/kube/pods/a", 1)]);
    for version in [V1, V2] {
        let mut all = rule("all", "/kube", 100);
        let resolved = resolve(std::slice::from_ref(&all), &devices(&["7:0"]), &tree, node(version));
        assert_eq!(enforced(&resolved), []);
        assert_eq!(kinds(&resolved, "all"), [ConditionType::SystemCgroupRefused]);
        all.allow_system = true;
        let resolved = resolve(&[all], &devices(&["7:0"]), &tree, node(version));
        assert!(!enforced(&resolved).is_empty());
        let resolved = resolve(&[rule("pods", "/kube/pods", 100)], &devices(&["7:0"]), &tree, node(version));
        assert!(!enforced(&resolved).is_empty(), "a name beside it is no reason");
    }
}

#[test]
fn device_names_lead_to_one_disk_or_say_why_not() {
    let mut all = devices(&["259:0", "259:1", "253:0"]);
    all.partitions.insert("259:7".parse().unwrap(), "259:1".parse().unwrap());
    all.paths.insert("/dev/part".into(), PathTarget::Block("259:7".parse().unwrap()));
    all.paths.insert("/dev/nvme0".into(), PathTarget::CharacterDevice);
    all.mounts.insert("/over".into(), PathTarget::NoBlockDevice { fs_type: "overlay".into() });
    let top = all.devices.get_mut(&"253:0".parse().unwrap()).unwrap();
    top.kind = DeviceKind::Dm;
    top.kernel_name = "dm-0".into();
    top.stack.below = vec!["loop0".into()];
    let tree = workloads(&[("/a", 1)]);
    let with = |term: DeviceTerm| {
        let mut rule = rule("r", "/a", 100);
        rule.devices = DeviceSelector { any_of: vec![term], exclude: vec![] };
        resolve(&[rule], &all, &tree, node(V2))
    };
    let path = |path: &str| DeviceTerm { path: Some(path.into()), ..DeviceTerm::default() };
    let chosen =
        |resolved: &Resolved| resolved.settings.keys().map(|key| key.device.num.to_string()).collect::<Vec<_>>();
    assert_eq!(chosen(&with(path("/dev/part"))), ["259:1"]);
    assert_eq!(kinds(&with(path("/dev/nvme0")), "r"), [ConditionType::CharacterDevice]);
    assert_eq!(kinds(&with(path("/dev/none")), "r"), [ConditionType::NoDevice]);
    let over = DeviceTerm { mount_path: Some("/over".into()), ..DeviceTerm::default() };
    assert_eq!(kinds(&with(over), "r"), [ConditionType::NoBlockDevice]);
    let md = DeviceTerm { kinds: vec![DeviceKind::Md], ..DeviceTerm::default() };
    assert_eq!(kinds(&with(md), "r"), [ConditionType::NoDevice]);
    // Of a stack only the top; loop1 (259:1) is not in it.
    let every = DeviceTerm { all: true, ..DeviceTerm::default() };
    assert_eq!(chosen(&with(every)), ["253:0", "259:1"]);
}

#[test]
fn of_a_stack_one_layer_is_limited_and_what_that_leaves_is_said() {
    let named = |minor: u32, name: &str, below: &[&str]| {
        let id = DeviceId { num: DevNum { major: 253, minor }, diskseq: None };
        let mut device = BlockDevice::new(id, name, DeviceKind::Dm, 1);
        device.stack.below = below.iter().map(|&name| name.to_owned()).collect();
        device
    };
    let with = |devices: Vec<BlockDevice>, terms: &[&str]| {
        let mut snapshot = DeviceSnapshot::default();
        for device in devices {
            snapshot.paths.insert(device.kernel_name.clone(), PathTarget::Block(device.id.num));
            snapshot.devices.insert(device.id.num, device);
        }
        let term = |path: &&str| match *path {
            "all" => DeviceTerm { all: true, ..DeviceTerm::default() },
            path => DeviceTerm { path: Some(path.to_owned()), ..DeviceTerm::default() },
        };
        let mut rule = rule("r", "/a", 100);
        rule.devices = DeviceSelector { any_of: terms.iter().map(term).collect(), exclude: vec![] };
        let resolved = resolve(&[rule], &snapshot, &workloads(&[("/a", 1)]), node(V2));
        let numbers: Vec<u32> = resolved.settings.keys().map(|key| key.device.num.minor).collect();
        (numbers, resolved.rules["r"].findings.clone())
    };
    // A volume on one partition of a disk; the other has a file system of its own.
    let mut disk = named(0, "disk", &[]);
    for (kernel_name, used_by) in [("p1", vec![]), ("p2", vec!["top".to_owned()])] {
        let num = DevNum { major: 259, minor: 1 };
        let kernel_name = kernel_name.to_owned();
        disk.partitions.push(Partition { kernel_name, num, size_bytes: 1, mount_paths: vec![], used_by });
    }
    let stack = || vec![disk.clone(), named(1, "top", &["disk"])];
    let (chosen, said) = with(stack(), &["all"]);
    assert_eq!((chosen, said.len(), said[0].kind), (vec![1], 1, ConditionType::StackTopTaken));
    assert!(said[0].message.contains("p1") && !said[0].message.contains("p2"), "{}", said[0].message);
    let (chosen, said) = with(stack(), &["disk"]);
    assert_eq!((chosen, said.as_slice()), (vec![0], &[][..]), "a layer that is named alone is limited there");
    // Multipath of requests: its paths take no limit, whoever asks.
    let mut multipath = named(1, "mpath", &["sda"]);
    multipath.stack.request_based = true;
    let paths = || vec![named(0, "sda", &[]), multipath.clone(), named(2, "lv", &["mpath"])];
    let (chosen, said) = with(paths(), &["sda"]);
    assert_eq!((chosen, said[0].kind), (vec![], ConditionType::LimitBypassed));
    assert!(said[0].message.contains("choose mpath"), "{}", said[0].message);
    assert_eq!(with(paths(), &["all"]), (vec![2], vec![]));
    assert_eq!(with(paths(), &["sda", "mpath"]), (vec![1], vec![]));
}

#[test]
fn a_file_leads_to_the_disk_below_it_and_an_unknown_exception_stops_the_rule() {
    let mut all = devices(&["7:0", "7:1"]);
    all.files.insert("/srv/x".into(), PathTarget::Block("7:1".parse().unwrap()));
    all.files.insert("/pool/x".into(), PathTarget::SeveralDevices { fs_type: "btrfs".into(), devices: vec![] });
    all.paths.insert("/dev/nvme0".into(), PathTarget::NvmeController);
    all.mounts.insert("/hidden".into(), PathTarget::Unreadable { error: "no".into() });
    let with = |any_of: DeviceTerm, exclude: Vec<DeviceTerm>| {
        let mut rule = rule("r", "/a", 100);
        rule.devices = DeviceSelector { any_of: vec![any_of], exclude };
        let resolved = resolve(&[rule], &all, &workloads(&[("/a", 1)]), node(V2));
        let chosen: Vec<u32> = resolved.settings.keys().map(|key| key.device.num.minor).collect();
        (chosen, kinds(&resolved, "r"))
    };
    let file = |path: &str| DeviceTerm { file_path: Some(path.into()), ..DeviceTerm::default() };
    let every = || DeviceTerm { all: true, ..DeviceTerm::default() };
    assert_eq!(with(file("/srv/x"), vec![]), (vec![1], vec![]));
    assert_eq!(with(file("/pool/x"), vec![]), (vec![], vec![ConditionType::SeveralDevices]));
    assert_eq!(with(every(), vec![file("/srv/x")]), (vec![0], vec![]));
    let controller = DeviceTerm { path: Some("/dev/nvme0".into()), ..DeviceTerm::default() };
    assert_eq!(with(controller, vec![]), (vec![], vec![ConditionType::ControllerNode]));
    let hidden = DeviceTerm { mount_path: Some("/hidden".into()), ..DeviceTerm::default() };
    assert_eq!(with(every(), vec![hidden]), (vec![], vec![ConditionType::NoDevice]));
}

#[test]
fn what_is_not_built_or_not_known_matches_nothing() {
    let mut pods = rule("pods", "/a", 100);
    pods.workloads = WorkloadSelector {
        any_of: vec![WorkloadTerm { cgroup_path: Some("/a".into()), not_built: true, ..WorkloadTerm::default() }],
        exclude: vec![],
    };
    let mut except = rule("except", "/a", 100);
    except.workloads.exclude = vec![WorkloadTerm { not_built: true, ..WorkloadTerm::default() }];
    let mut newer = rule("newer", "/a", 100);
    newer.unsupported = vec!["scope 7".into()];
    let resolved = resolve(&[pods, except, newer], &devices(&["7:0"]), &workloads(&[("/a", 1)]), node(V2));
    assert!(resolved.settings.is_empty());
    assert_eq!(kinds(&resolved, "pods"), [ConditionType::NoWorkload]);
    assert_eq!(kinds(&resolved, "except"), [ConditionType::NoWorkload], "it would reach more than was meant");
    assert_eq!(kinds(&resolved, "newer"), [ConditionType::UnsupportedByAgent]);
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let paths = prop_oneof![Just("/a"), Just("/a/x"), Just("/a/**"), Just("/b"), Just("/**"), Just("/none")];
    (0u32..20, paths, 0u64..300, 0i32..3, 0i64..5, any::<bool>(), any::<bool>()).prop_map(
        |(uid, path, limit, rank, create_revision, node, observe)| {
            let mut rule = rule(&format!("u{uid}"), path, limit);
            (rule.rank, rule.priority, rule.create_revision) = (rank, -rank, create_revision);
            rule.scope = if node { Scope::Node } else { Scope::Pod };
            rule.mode = if observe { Mode::Observe } else { Mode::Enforce };
            rule
        },
    )
}

fn any_plan() -> impl Strategy<Value = Vec<Rule>> {
    proptest::collection::btree_map(0u32..20, any_rule(), 0..8).prop_map(|rules| {
        let named = rules.into_iter().map(|(uid, rule)| Rule { uid: format!("u{uid}"), ..rule });
        named.collect()
    })
}

proptest! {
    #[test]
    fn the_order_of_rules_changes_nothing(plan in any_plan(), seed in any::<u64>(), v1 in any::<bool>()) {
        let tree = workloads(&[("/a", 1), ("/a/x", 1), ("/a/y", 0), ("/b", 2)]);
        let disks = devices(&["7:0", "7:1"]);
        let node = node(if v1 { V1 } else { V2 });
        let mut shuffled = plan.clone();
        let mut state = seed;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, usize::try_from(state >> 33).unwrap() % (i + 1));
        }
        prop_assert_eq!(resolve(&plan, &disks, &tree, node), resolve(&shuffled, &disks, &tree, node));
    }

    #[test]
    fn a_stricter_rule_of_equal_rank_never_loosens(plan in any_plan(), limit in 10u64..300) {
        let tree = workloads(&[("/a", 1), ("/b", 2)]);
        let disks = devices(&["7:0"]);
        let before = resolve(&plan, &disks, &tree, node(V2));
        let mut more = plan.clone();
        let mut added = rule("added", "/a", limit);
        added.rank = plan.iter().map(|rule| rule.rank).min().unwrap_or(0);
        more.push(added);
        let after = resolve(&more, &disks, &tree, node(V2));
        for (key, desired) in &before.settings {
            let (old, new) = (desired.enforced(), after.settings[key].enforced());
            let same_rank = desired.winner().is_some_and(|winner| winner.rank == more.last().unwrap().rank);
            if let (Some(old), Some(new), true) = (old, new, same_rank) {
                prop_assert!(new <= old);
            }
        }
    }
}
