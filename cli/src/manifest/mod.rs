//! Manifests: files of intents as people write them. Every problem is shown with its file, line and column.

mod shorthand;
pub mod tree;
pub mod units;
mod wording;

use std::{io::Read as _, path::Path};

use serde_saphyr::Spanned;
use tonic_types::StatusExt as _;
use weir_proto::v1;

use self::tree::{Node, Place, Value};
use crate::failure::Failure;

/// Largest manifest, bytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Something in a document that cannot be understood.
#[derive(Debug)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What.
    pub message: String,
}

/// One intent of a manifest.
#[derive(Debug)]
pub struct Document {
    /// The intent.
    pub intent: v1::Intent,
    file: String,
    source: std::rc::Rc<str>,
    tree: Node,
}

impl Document {
    /// A refusal of this intent, with the violated fields shown where they stand.
    pub fn refusal(&self, status: tonic::Status) -> Failure {
        let details = status.get_error_details();
        let located = details.bad_request().map(|bad| {
            let shown = bad.field_violations.iter().map(|violation| {
                let path = violation.field.strip_prefix("intent.").unwrap_or(&violation.field);
                let message = format!("{}: {}", violation.field, violation.description);
                show(&self.file, &self.source, self.tree.locate(path), &message)
            });
            shown.collect::<Vec<_>>().join("\n")
        });
        Failure::Refused(Box::new(status), located)
    }
}

/// Reads all documents of all files; `-` is standard input.
///
/// # Errors
/// The first problem.
pub fn read(files: &[std::path::PathBuf], project: &str) -> Result<Vec<Document>, Failure> {
    let mut documents: Vec<Document> = Vec::new();
    for path in files {
        let (name, text) = load(path)?;
        let found = parse(&name, &text, project)?;
        if found.is_empty() {
            return Err(Failure::Manifest(format!("{name}: there is no document in it")));
        }
        documents.extend(found);
    }
    for (index, document) in documents.iter().enumerate() {
        if documents[..index].iter().any(|other| other.intent.name == document.intent.name) {
            let message = format!("`{}` stands in these manifests twice", document.intent.name);
            let place = document.tree.locate("name");
            return Err(Failure::Manifest(show(&document.file, &document.source, place, &message)));
        }
    }
    Ok(documents)
}

fn load(path: &Path) -> Result<(String, String), Failure> {
    let fail = |name: &str, error: std::io::Error| Failure::Manifest(format!("{name}: {error}"));
    let (name, mut reader): (String, Box<dyn std::io::Read>) = if path == Path::new("-") {
        ("standard input".to_owned(), Box::new(std::io::stdin()))
    } else {
        let name = path.display().to_string();
        let file = std::fs::File::open(path).map_err(|error| fail(&name, error))?;
        (name, Box::new(file))
    };
    let mut text = String::new();
    let read = reader.by_ref().take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| fail(&name, error))?;
    if read as u64 > MAX_BYTES {
        return Err(Failure::Manifest(format!("{name}: more than {MAX_BYTES} bytes")));
    }
    Ok((name, text))
}

fn parse(file: &str, text: &str, project: &str) -> Result<Vec<Document>, Failure> {
    let source: std::rc::Rc<str> = text.into();
    let fail = |problem: Problem| Failure::Manifest(show(file, text, problem.place, &problem.message));
    let trees: Vec<Spanned<Value>> = serde_saphyr::from_multiple(text).map_err(|error| {
        let place = error.location().map(|at| Place { line: at.line(), column: at.column() }).unwrap_or_default();
        let message = wording::syntax(&error.without_snippet().to_string());
        fail(Problem { place, message })
    })?;
    let mut documents = Vec::new();
    let mut all = Vec::new();
    for tree in trees {
        trees_of(Node::from(tree), &mut all);
    }
    for mut tree in all {
        shorthand::expand(&mut tree, text, project).map_err(fail)?;
        let intent: v1::Intent = serde_path_to_error::deserialize(tree.to_json()).map_err(|error| {
            let place = tree.locate(&error.path().to_string());
            fail(Problem {
                place,
                message: format!("{}: {}", error.path(), wording::plain(&error.inner().to_string())),
            })
        })?;
        if intent.name.is_empty() {
            return Err(fail(Problem { place: tree.place, message: "the document has no `name`".to_owned() }));
        }
        documents.push(Document { intent, file: file.to_owned(), source: source.clone(), tree });
    }
    Ok(documents)
}

/// The intents of a document: itself, or those of a list as `get intents -o yaml` prints it. An empty document has none.
fn trees_of(document: Node, all: &mut Vec<Node>) {
    match document.value {
        Value::Null => {}
        Value::Map(mut entries) if entries.len() == 1 && entries[0].0 == "intents" => match entries.pop() {
            Some((_, _, Node { value: Value::List(intents), .. })) => all.extend(intents),
            Some((_, _, other)) => all.push(other),
            None => {}
        },
        value => all.push(Node { place: document.place, value }),
    }
}

/// `file:line:column: message`, the line, and a mark below the column.
fn show(file: &str, source: &str, place: Place, message: &str) -> String {
    if place.line == 0 {
        return format!("{file}: {message}");
    }
    let head = format!("{file}:{}:{}: {message}", place.line, place.column);
    let index = usize::try_from(place.line).unwrap_or(usize::MAX) - 1;
    match source.lines().nth(index) {
        Some(line) => {
            let number = place.line.to_string();
            let before: String =
                line.chars().take(usize::try_from(place.column).unwrap_or(1).saturating_sub(1)).collect();
            // Tabs stay tabs, so that the mark stands below.
            let indent: String = before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            format!("{head}\n  {number} | {line}\n  {} | {indent}^", " ".repeat(number.len()))
        }
        None => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
kind: Intent
name: backup
spec:
  nodes: { anyOf: [{ all: true }] }
  workloads: { any_of: [{ cgroupPath: /backup }] }
  devices: { anyOf: [{ kinds: [nvme, DEVICE_KIND_LOOP] }] }
  controls: { limits: { rbps: 1.5MiB, wbps: 1000000, riops: 2k, wiops: unlimited }, weight: 200 }
  mode: observe
---
name: projects/other/intents/second
spec: { controls: { limits: { rbps: 20%, wbps: -5 } } }
";

    fn parsed(text: &str) -> Result<Vec<Document>, String> {
        parse("m.yaml", text, "default").map_err(|failure| failure.text())
    }

    #[test]
    fn short_forms_become_the_contracts_own() {
        let documents = parsed(GOOD).unwrap();
        let json = serde_json::to_value(&documents[0].intent).unwrap();
        assert_eq!(json["name"], "projects/default/intents/backup");
        let limits = &json["spec"]["controls"]["limits"];
        assert_eq!(limits["rbps"]["bytesPerSecond"], "1572864");
        assert_eq!(limits["wbps"]["bytesPerSecond"], "1000000");
        assert_eq!(limits["riops"]["operationsPerSecond"], "2000");
        assert_eq!(limits["wiops"]["unlimited"], true);
        assert_eq!(json["spec"]["controls"]["weight"]["weight"], 200);
        assert_eq!(json["spec"]["mode"], "MODE_OBSERVE");
        assert_eq!(json["spec"]["devices"]["anyOf"][0]["kinds"][0], "DEVICE_KIND_NVME");
        let second = serde_json::to_value(&documents[1].intent).unwrap();
        assert_eq!(second["name"], "projects/other/intents/second");
        assert_eq!(second["spec"]["controls"]["limits"]["rbps"]["percentOfCapacity"], 20.0);
        // The controller names the field of what is negative.
        assert_eq!(second["spec"]["controls"]["limits"]["wbps"]["bytesPerSecond"], "-5");
        // A list as it is printed can be applied again, an anchor stands for its value, and comments end a number.
        let list = format!("{{\"intents\": [{json}, {second}]}}");
        assert_eq!(parsed(&list).unwrap().len(), 2);
        assert!(parsed("{\"intents\": []}").unwrap().is_empty());
        let limits = "name: a\nspec:\n  controls:\n    limits:\n      rbps: &x 70000 # bytes\n      wbps: *x\n";
        let limits = serde_json::to_value(&parsed(limits).unwrap()[0].intent).unwrap();
        let limits = &limits["spec"]["controls"]["limits"];
        assert_eq!(limits["rbps"]["bytesPerSecond"], "70000");
        assert_eq!(limits["wbps"]["bytesPerSecond"], "70000");
        // What is printed can be applied again.
        let again = parsed(&serde_saphyr::to_string(&documents[0].intent).unwrap()).unwrap();
        assert_eq!(again[0].intent, documents[0].intent);
        assert_eq!(parsed(&json.to_string()).unwrap()[0].intent, documents[0].intent);
    }

    #[test]
    fn the_examples_are_manifests() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/examples");
        let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= 4, "{files:?}");
        for file in files {
            let documents = read(std::slice::from_ref(&file), "default").map_err(|failure| failure.text());
            assert!(documents.is_ok_and(|documents| !documents.is_empty()), "{}", file.display());
        }
    }

    #[test]
    fn problems_have_line_column_and_the_line_itself() {
        for (text, at, what) in [
            ("name: a\nspec:\n  controls:\n    limits:\n      rbps: 10M\n", "m.yaml:5:13", "MiB"),
            ("name: a\nspec:\n  colour: red\n", "m.yaml:3:3", "colour"),
            ("name: a\nspec:\n  controls: { limits: { rbps: [1] } }\n", "m.yaml:3:", "amount"),
            ("name: a\nspec:\n  mode: SOMETIMES\n", "m.yaml:3:3", "`SOMETIMES`, expected one of `ENFORCE`, `OBSERVE`"),
            ("name: a\nspec:\n  priority: 3.5\n", "m.yaml:3:3", "whole number"),
            ("name: a\nspec:\n  - x\n", "m.yaml:2:1", "spec"),
            ("name: a\nspec: {\n", "m.yaml:", ""),
            ("kind: Pod\nname: a\n", "m.yaml:1:1", "Intent"),
            ("name: a\nname: b\n", "m.yaml:2:1: the key `name` stands here twice\n", ""),
            ("name: a\nspec:\n  controls:\n    limits: { rbps: 0x10 }\n", "m.yaml:4:21", "write 16"),
            ("name: a\nspec:\n  controls:\n    limits: { rbps: 1e6 }\n", "m.yaml:4:21", "write 1000000"),
            ("name: a\nspec:\n  controls:\n    limits: { riops: 1.5}\n", "m.yaml:4:22", "no whole number"),
            ("name: a\nspec:\n  controls:\n    limits: { riops: 010 }\n", "m.yaml:4:22", "decimal"),
            ("name: a\nspec:\n  controls:\n    limits: { rbps: 9223372036854775808 }\n", "m.yaml:4:21", "too large"),
            ("name: a\nspec:\n  controls:\n    limits: { rbps: -5MiB }\n", "m.yaml:4:21", "negative"),
            (
                "name: a\nspec:\n  controls:\n    limits: { rbps: { bytesPerSecond: 10MiB } }\n",
                "m.yaml:4:39",
                "write `rbps: 10MiB`",
            ),
            ("{\"name\": \"a\",\n \"spec\": {\"nodes\": 7}}\n", "m.yaml:2:11", "nodes"),
            ("name: a\n---\nname: b\nspec: { priority: high }\n", "m.yaml:4:9", "priority"),
            ("intents:\n- name: a\n- name: b\n  colour: red\n", "m.yaml:4:3", "colour"),
            ("intents: none\n", "m.yaml:1:10", "map"),
            ("spec: {}\n", "m.yaml:1:1", "name"),
            ("- a\n", "m.yaml:1:1", "map"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(at) && error.contains(what), "{text}\n{error}");
            assert!(error.contains(" | "), "{error}");
        }
    }

    proptest::proptest! {
        /// Whatever stands in a manifest: an answer, never a panic.
        #[test]
        fn any_text_is_answered(text in "(\\PC|[-:{}\\[\\]&*!|>#\n\t ]){0,80}") {
            let _answer = parsed(&text);
        }

        /// The same with a good manifest that was damaged at one place.
        #[test]
        fn a_damaged_manifest_is_answered(at in 0..GOOD.len(), damage in "\\PC{0,3}") {
            // GOOD is ASCII: every place is a boundary.
            let _answer = parsed(&format!("{}{damage}{}", &GOOD[..at], &GOOD[at + 1..]));
        }
    }

    #[test]
    fn a_refused_field_is_shown_where_it_stands() {
        let documents = parsed(GOOD).unwrap();
        let mut details = tonic_types::ErrorDetails::new();
        details.add_bad_request_violation("intent.spec.controls.limits.wbps.bytes_per_second", "is too low");
        let status = tonic::Status::with_error_details(tonic::Code::InvalidArgument, "no", details);
        let text = documents[0].refusal(status).text();
        assert!(text.contains("m.yaml:7:39") && text.contains("is too low"), "{text}");
    }
}
