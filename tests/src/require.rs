//! Prerequisites of tests: missing ones are a failure under CI=true and a loud SKIPPED elsewhere.

use std::path::Path;

/// Whether a missing prerequisite is a failure.
pub fn strict() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// `true` where every prerequisite is there. Prints `SKIPPED test: reason` otherwise, or panics under CI=true.
pub fn met(test: &str, missing: &[String]) -> bool {
    if missing.is_empty() {
        return true;
    }
    let reason = missing.join("; ");
    assert!(!strict(), "{test} needs: {reason}");
    eprintln!("SKIPPED {test}: {reason}");
    false
}

/// What is missing for tests that throttle a real disk.
pub fn throttle() -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root (run as root, or with sudo)".to_owned());
    }
    if let Err(error) = crate::cgroup::Hierarchy::find() {
        missing.push(format!("{error:#}"));
    }
    for tool in ["losetup", "mkfs.ext4", "mount", "umount"] {
        if !on_path(tool) {
            missing.push(format!("the program `{tool}` (Debian: util-linux, mount, e2fsprogs)"));
        }
    }
    if !Path::new("/dev/loop-control").exists() && std::env::var_os(crate::disk::GIVEN_DISK).is_none() {
        missing.push("loop devices (/dev/loop-control is not there; `modprobe loop`)".to_owned());
    }
    missing
}

/// Whether a program can be found.
pub fn on_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|dir| dir.join(tool).is_file())
}
