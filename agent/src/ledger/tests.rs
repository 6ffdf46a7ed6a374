//! What must hold after any end.

use proptest::prelude::*;
use weir_common::{device::DeviceId, units::LimitKey};

use super::*;
use crate::{kernel::CgroupRef, plan::Directive, resolve::testing::rule};

const BOOT: &str = "boot-1";

fn key(path: &str) -> SettingKey {
    SettingKey {
        cgroup: CgroupRef { path: path.to_owned(), id: 7 },
        device: DeviceId { num: "7:0".parse().unwrap(), diskseq: Some(3) },
        key: LimitKey::Rbps,
    }
}

fn value(n: u64) -> LimitValue {
    LimitValue::finite(n).unwrap_or(LimitValue::Unlimited)
}

fn pending(path: &str, observed: u64, new: u64) -> Pending {
    let fence = Fence { store_epoch: 1, revision: new, facts_generation: 1 };
    Pending {
        key: key(path),
        baseline: value(observed),
        held: value(observed),
        value: value(new),
        fence,
        uid: "u1".into(),
    }
}

fn open(dir: &Path) -> Ledger {
    let (ledger, quarantined) = Ledger::open(dir, BOOT).unwrap();
    assert_eq!(quarantined, []);
    ledger
}

#[test]
fn the_first_baseline_survives_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let uid = ledger.node_uid().to_owned();
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    drop(ledger);
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 10, 20), pending("/b", 0, 5)]).unwrap();
    drop(ledger);
    let ledger = open(dir.path());
    let owned = &ledger.owned()[&key("/a")];
    assert_eq!((owned.baseline, owned.written, owned.earlier), (value(50), value(20), Some(value(10))));
    assert_eq!(ledger.owned()[&key("/b")].baseline, LimitValue::Unlimited);
    assert_eq!(ledger.node_uid(), uid);
}

#[test]
fn what_the_kernel_holds_stays_ours_through_writes_that_fail() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    for new in [20, 30, 40] {
        ledger.begin(&[pending("/a", 10, new)]).unwrap();
    }
    drop(ledger);
    let ledger = open(dir.path());
    let owned = &ledger.owned()[&key("/a")];
    assert!(owned.is_ours(value(10)) && owned.is_ours(value(40)));
    assert_eq!(owned.baseline, value(50));
}

#[test]
fn a_forgotten_setting_begins_anew_and_a_reboot_forgets_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    ledger.forget(&[key("/a")]).unwrap();
    ledger.begin(&[pending("/a", 60, 10)]).unwrap();
    drop(ledger);
    assert_eq!(open(dir.path()).owned()[&key("/a")].baseline, value(60));
    let (ledger, _) = Ledger::open(dir.path(), "boot-2").unwrap();
    assert!(ledger.owned().is_empty());
}

#[test]
fn a_torn_end_is_cut_off_wherever_it_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    drop(ledger);
    let before = std::fs::read(dir.path().join("journal")).unwrap();
    let mut ledger = open(dir.path());
    let kept = std::fs::read(dir.path().join("journal")).unwrap().len();
    ledger.begin(&[pending("/b", 0, 5)]).unwrap();
    drop(ledger);
    let after = std::fs::read(dir.path().join("journal")).unwrap();
    assert!(!before.is_empty());
    for cut in kept..after.len() {
        std::fs::write(dir.path().join("journal"), &after[..cut]).unwrap();
        let ledger = open(dir.path());
        assert_eq!(ledger.owned()[&key("/a")].baseline, value(50), "cut at {cut}");
    }
}

#[test]
fn damage_in_the_middle_is_set_aside_and_the_rest_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    for path in ["/a", "/b", "/c"] {
        ledger.begin(&[pending(path, 50, 10)]).unwrap();
    }
    drop(ledger);
    let file = dir.path().join("journal");
    let text = std::fs::read_to_string(&file).unwrap();
    let damaged: Vec<String> = text
        .lines()
        .map(|line| if line.contains("\"/b\"") { format!("{}x", &line[..line.len() - 1]) } else { line.to_owned() })
        .collect();
    std::fs::write(&file, damaged.join("\n") + "\n").unwrap();
    let (ledger, quarantined) = Ledger::open(dir.path(), BOOT).unwrap();
    assert_eq!(quarantined.len(), 1);
    assert!(quarantined[0].kept_as.exists() && !quarantined[0].plan);
    assert!(ledger.owned().contains_key(&key("/a")) && ledger.owned().contains_key(&key("/c")));
    drop(ledger);
    open(dir.path());
}

#[test]
fn a_damaged_plan_is_set_aside_and_a_newer_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let fence = Fence { store_epoch: 1, revision: 4, facts_generation: 1 };
    let plan = Plan { store_uid: "s".into(), fence, directive: Directive::Paused, rules: vec![rule("u1", "/a", 100)] };
    ledger.store_plan(plan.clone()).unwrap();
    drop(ledger);
    assert_eq!(open(dir.path()).plan(), Some(&plan));

    let file = dir.path().join("plan");
    std::fs::write(&file, files::checked_line(r#"{"format":99,"plan":{}}"#)).unwrap();
    assert!(matches!(Ledger::open(dir.path(), BOOT), Err(OpenError::NewerFormat { found: 99, .. })));
    std::fs::write(&file, b"00000000 {}\n").unwrap();
    let (ledger, quarantined) = Ledger::open(dir.path(), BOOT).unwrap();
    assert_eq!(ledger.plan(), None);
    assert!(quarantined[0].plan && quarantined[0].kept_as.exists());
}

#[test]
fn a_second_one_is_told_who_holds_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = Ledger::open(dir.path(), BOOT).unwrap_err().to_string();
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_long_life_does_not_grow_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let many: Vec<Pending> = (1..50).map(|i| pending(&format!("/{i}"), 0, i)).collect();
    for _ in 0..60 {
        ledger.begin(&many).unwrap();
    }
    let size = std::fs::metadata(dir.path().join("journal")).unwrap().len();
    assert!(size < 512 * 1024, "{size}");
    assert_eq!(ledger.owned().len(), 49);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("journal"), &bytes).unwrap();
        std::fs::write(dir.path().join("plan"), &bytes).unwrap();
        let (ledger, _) = Ledger::open(dir.path(), BOOT).unwrap();
        prop_assert!(ledger.owned().is_empty());
    }
}

#[test]
fn a_release_in_the_wrong_directory_says_so_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong");
    let error = Ledger::open_present(&wrong, BOOT).unwrap_err();
    assert!(error.to_string().contains("holds no state of an agent"), "{error}");
    assert!(!wrong.exists());
    // A directory that is there, with somebody else's files, is no ledger either.
    std::fs::write(dir.path().join("notes"), "").unwrap();
    assert!(matches!(Ledger::open_present(dir.path(), BOOT), Err(OpenError::NoState { .. })));
    assert!(!dir.path().join("lock").exists());
    drop(open(&wrong));
    // Without its identity it still has a journal.
    std::fs::remove_file(wrong.join("node-uid")).unwrap();
    assert!(Ledger::open_present(&wrong, BOOT).is_ok());
}

#[test]
fn a_journal_that_cannot_be_written_is_known_all_the_same_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    drop(ledger);
    // As with a file system that is full: nothing can be written beside.
    let beside = dir.path().join("journal.new");
    std::fs::create_dir(&beside).unwrap();
    let mut ledger = open(dir.path());
    assert_eq!(ledger.owned()[&key("/a")].baseline, value(50));
    assert!(ledger.begin(&[pending("/b", 0, 5)]).is_err(), "what is not durable may not be written");
    assert!(ledger.forget(&[key("/a")]).is_err());
    assert_eq!(ledger.owned().len(), 1);
    std::fs::remove_dir(&beside).unwrap();
    ledger.begin(&[pending("/b", 0, 5)]).unwrap();
    drop(ledger);
    assert_eq!(open(dir.path()).owned().len(), 2);
    // A ledger that never was cannot begin like this.
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("journal.new")).unwrap();
    assert!(Ledger::open(other.path(), BOOT).is_err());
}

#[test]
fn a_damaged_journal_is_never_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    ledger.begin(&[pending("/a", 50, 10)]).unwrap();
    ledger.begin(&[pending("/b", 60, 10)]).unwrap();
    drop(ledger);
    let journal = dir.path().join("journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    // The new one cannot be written, as where the agent is killed between the two steps.
    std::fs::create_dir(dir.path().join("journal.new")).unwrap();
    for _ in 0..2 {
        let (ledger, quarantined) = Ledger::open(dir.path(), BOOT).unwrap();
        assert_eq!(quarantined.len(), 1);
        assert!(!ledger.owned().is_empty(), "what could be read is still owned at the second start");
    }
}

#[test]
fn a_lost_journal_makes_another_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let uid = open(dir.path()).node_uid().to_owned();
    assert_eq!(open(dir.path()).node_uid(), uid);
    std::fs::write(dir.path().join("journal"), "").unwrap();
    let ledger = open(dir.path());
    assert!(ledger.journal_lost());
    let emptied = ledger.node_uid().to_owned();
    drop(ledger);
    assert!(!open(dir.path()).journal_lost());
    assert_ne!(emptied, uid);
    assert_eq!(open(dir.path()).node_uid(), emptied, "once");
    std::fs::remove_file(dir.path().join("journal")).unwrap();
    assert_ne!(open(dir.path()).node_uid(), emptied);
}
