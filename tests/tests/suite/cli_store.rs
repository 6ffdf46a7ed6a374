//! `weir-controller store`: what it makes, and that a failure leaves nothing behind.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use weir_tests::{
    etcd::{self, Etcd},
    fleet::Scratch,
    process::binary,
};

fn store(path: &Path, args: &[&str]) -> Output {
    Command::new(binary("weir-controller")).arg("--store").arg(path).arg("store").args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_a_whole_backup_is_restored_and_no_failure_leaves_a_file() {
    let scratch = Scratch::new();
    let (live, copy) = (scratch.path().join("store.redb"), scratch.path().join("copy"));
    let backup = scratch.path().join("backup");
    let to = backup.display().to_string();

    let absent = store(&live, &["backup", &to]);
    assert!(!absent.status.success() && said(&absent).contains("store.redb"), "{}", said(&absent));
    assert_eq!(names(&scratch.path()), Vec::<String>::new());

    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/v0.1/backup.jsonl");
    let restored = store(&live, &["restore", fixture]);
    assert!(restored.status.success(), "{}", said(&restored));
    let made = store(&live, &["backup", &to]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = std::fs::read(&backup).unwrap();
    let again = store(&live, &["backup", &to]);
    assert!(!again.status.success() && said(&again).contains("exists"), "{}", said(&again));
    assert_eq!(std::fs::read(&backup).unwrap(), bytes);

    // What is cut off anywhere, or has one byte changed, is refused whole.
    let middle = bytes.len() / 2;
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    let damaged: Vec<Vec<u8>> = [0, 1, middle, bytes.len() - 2]
        .into_iter()
        .flat_map(|at| [bytes[..at].to_vec(), flipped(at)])
        .chain([[&bytes[..], &bytes[..]].concat(), vec![0; 4096]])
        .collect();
    for (case, bytes) in damaged.iter().enumerate() {
        let file = scratch.path().join("damaged");
        std::fs::write(&file, bytes).unwrap();
        let refused = store(&copy, &["restore", &file.display().to_string()]);
        assert_eq!(refused.status.code(), Some(1), "case {case}: {}", said(&refused));
        assert!(said(&refused).contains("damaged"), "case {case} names the file: {}", said(&refused));
        std::fs::remove_file(file).unwrap();
        assert_eq!(names(&scratch.path()), ["backup", "store.redb"], "case {case}");
    }
    assert!(store(&copy, &["restore", &to]).status.success(), "it was whole all the while");
}

#[test]
fn under_a_mistyped_prefix_of_etcd_there_is_nothing_to_copy_and_nothing_is_made() {
    if !etcd::controllers_can("under_a_mistyped_prefix_of_etcd_there_is_nothing_to_copy_and_nothing_is_made") {
        return;
    }
    let (scratch, etcd) = (Scratch::new(), Etcd::start());
    let place = etcd.location("/weirr/");
    let backup = scratch.path().join("backup").display().to_string();
    for work in [&["backup", &backup][..], &["raise-epoch"]] {
        // Twice: the first attempt made nothing that the second would find. The flag may come last, as messages name it.
        for _ in 0..2 {
            let out =
                Command::new(binary("weir-controller")).arg("store").args(work).args(["--store", &place]).output();
            let out = out.unwrap();
            assert_eq!(out.status.code(), Some(1), "{}", said(&out));
            assert!(said(&out).contains("no store of Weir under /weirr"), "{}", said(&out));
        }
    }
    assert_eq!(names(&scratch.path()), Vec::<String>::new());
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/v0.1/backup.jsonl");
    let restored = store(Path::new(&place), &["restore", fixture]);
    assert!(restored.status.success(), "{}", said(&restored));
    let copied = store(Path::new(&place), &["backup", &backup]);
    assert!(copied.status.success() && !said(&copied).starts_with("0 items"), "{}", said(&copied));
}
