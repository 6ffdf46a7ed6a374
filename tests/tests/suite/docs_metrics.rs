//! docs/metrics.md lists what is served, and what is built on it names nothing else.

use std::{collections::BTreeSet, path::Path, process::Command};

use weir_tests::require;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Names in the first column of the tables.
pub(crate) fn documented() -> BTreeSet<String> {
    let name = |line: &str| {
        let cell = line.strip_prefix("| `weir_")?;
        Some(format!("weir_{}", cell.split('`').next()?))
    };
    read("docs/metrics.md").lines().filter_map(name).collect()
}

/// Every name of a metric in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("weir_")).map(str::to_owned).collect()
}

#[test]
fn alerts_and_dashboard_use_what_is_served() {
    let documented = documented();
    assert!(documented.len() > 30, "{documented:?}");
    for file in ["monitoring/alerts.yaml", "monitoring/dashboard.json"] {
        let used = named(&read(file));
        assert!(!used.is_empty(), "{file}");
        for name in used {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let known = documented.contains(&name) || base.is_some_and(|base| documented.contains(base));
            assert!(known, "{file} uses {name}, which docs/metrics.md does not know");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("monitoring/dashboard.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
}

#[test]
fn the_alerts_do_as_their_tests_say() {
    if !require::on_path("promtool") {
        let missing = ["promtool (Debian: prometheus; ./test installs it)".to_owned()];
        require::met("the_alerts_do_as_their_tests_say", &missing);
        return;
    }
    let monitoring = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("monitoring");
    for args in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let out = Command::new("promtool").args(args).current_dir(&monitoring).output().unwrap();
        let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(out.status.success(), "{said}");
    }
    let alerts = read("monitoring/alerts.yaml");
    let tests = read("monitoring/alerts.test.yaml");
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {name}")), "{name} has no test");
    }
}
