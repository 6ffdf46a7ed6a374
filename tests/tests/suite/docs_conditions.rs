//! docs/conditions.md names every condition type, and every reason that stands in the code.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn sources(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
}

/// CamelCase words of two letters and more.
fn is_name(text: &str) -> bool {
    text.len() > 1 && text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
}

/// The names among the string literals of a call's first arguments, as far as they stand there as literals.
fn literals(call: &str) -> impl Iterator<Item = &str> {
    let end = call.find(';').unwrap_or(call.len());
    call[..end].split('"').skip(1).step_by(2).filter(|literal| is_name(literal))
}

#[test]
fn every_condition_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = fs::read_to_string(root.join("docs/conditions.md")).unwrap();
    let documented: BTreeSet<&str> = document
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('|').skip(1).take(2))
        .flat_map(|cell| cell.split(','))
        .map(str::trim)
        .collect();
    let mut files = Vec::new();
    for part in ["agent/src", "controller/src"] {
        sources(&root.join(part), &mut files);
    }
    let mut missing = BTreeSet::new();
    let mut seen = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // What stands below is the file's own tests.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let types = text
            .split("ConditionType::")
            .skip(1)
            .filter_map(|rest| rest.split_once(" => \""))
            .filter(|(variant, _)| is_name(variant))
            .map(|(_, rest)| rest.split('"').next().unwrap_or_default());
        let reasons = ["Finding::holds(", "Condition::holds("].into_iter().flat_map(|call| text.split(call).skip(1));
        for name in types.chain(reasons.flat_map(literals)) {
            seen += 1;
            if !documented.contains(name) {
                missing.insert(format!("{name} ({})", file.display()));
            }
        }
    }
    assert!(seen > 40, "only {seen} names were found: the code is written in another way now");
    assert!(missing.is_empty(), "docs/conditions.md does not name {missing:#?}");
}
