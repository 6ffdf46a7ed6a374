//! What weirctl alone understands, turned into the contract's own form: amounts with units, short enum values, short names,
//! `kind` and `apiVersion`.

use super::{
    Problem,
    tree::{Node, Place, Value},
    units::{self, Amount},
};

/// Enum fields and the prefix of their values in the contract.
const ENUMS: [(&[&str], &str); 3] =
    [(&["mode"], "MODE_"), (&["scope"], "SCOPE_"), (&["controls", "readahead", "mode"], "READAHEAD_MODE_")];

/// Expands a whole document of a file with this text.
///
/// # Errors
/// The first thing that is no short form of anything.
pub fn expand(document: &mut Node, source: &str, project: &str) -> Result<(), Problem> {
    frame(document)?;
    if let Some(Node { value: Value::Text(name), .. }) = document.get_mut("name")
        && !name.contains('/')
    {
        *name = crate::names::intent(name, project);
    }
    let Some(spec) = document.get_mut("spec") else { return Ok(()) };
    for (path, prefix) in ENUMS {
        let field = path.iter().try_fold(&mut *spec, |node, key| node.get_mut(key));
        if let Some(field) = field {
            enum_value(field, prefix);
        }
    }
    for selector in ["any_of", "exclude"] {
        each(spec, "devices", selector, |term| list_of_enums(term, "kinds", "DEVICE_KIND_"));
        each(spec, "workloads", selector, |term| list_of_enums(term, "qos_classes", "QOS_CLASS_"));
    }
    if let Some(limits) = spec.get_mut("controls").and_then(|controls| controls.get_mut("limits")) {
        for key in ["rbps", "wbps"] {
            limit(limits, key, source, true)?;
        }
        for key in ["riops", "wiops"] {
            limit(limits, key, source, false)?;
        }
    }
    if let Some(controls) = spec.get_mut("controls")
        && let Some(weight) = controls.get_mut("weight")
        && matches!(weight.value, Value::Number(_))
    {
        *weight = wrapped("weight", weight.clone());
    }
    Ok(())
}

/// Takes out `kind` and `apiVersion`, which other tools expect and the contract does not have.
fn frame(document: &mut Node) -> Result<(), Problem> {
    let Value::Map(entries) = &mut document.value else {
        return Err(Problem { place: document.place, message: "a document is a map with `name` and `spec`".into() });
    };
    for (key, at, node) in entries.iter() {
        let expected = match key.as_str() {
            "kind" => "Intent",
            "apiVersion" => "weir/v1",
            _ => continue,
        };
        if !matches!(&node.value, Value::Text(text) if text == expected) {
            return Err(Problem { place: *at, message: format!("`{key}` can only be `{expected}`") });
        }
    }
    entries.retain(|(key, _, _)| key != "kind" && key != "apiVersion");
    Ok(())
}

fn each(spec: &mut Node, selector: &str, list: &str, change: impl Fn(&mut Node)) {
    if let Some(Node { value: Value::List(terms), .. }) =
        spec.get_mut(selector).and_then(|selector| selector.get_mut(list))
    {
        terms.iter_mut().for_each(change);
    }
}

fn list_of_enums(term: &mut Node, field: &str, prefix: &str) {
    if let Some(Node { value: Value::List(values), .. }) = term.get_mut(field) {
        values.iter_mut().for_each(|value| enum_value(value, prefix));
    }
}

fn enum_value(node: &mut Node, prefix: &str) {
    if let Value::Text(text) = &mut node.value
        && !text.starts_with(prefix)
    {
        *text = format!("{prefix}{}", text.to_ascii_uppercase());
    }
}

fn wrapped(key: &str, node: Node) -> Node {
    Node { place: node.place, value: Value::Map(vec![(key.to_owned(), Place::default(), node)]) }
}

/// A limit in its short form; the contract's own form is left alone.
fn limit(limits: &mut Node, key: &str, source: &str, bytes: bool) -> Result<(), Problem> {
    let Some(node) = limits.get_mut(key) else { return Ok(()) };
    let place = node.place;
    let problem = |message: String| Problem { place, message: format!("{key}: {message}") };
    let amount = match &node.value {
        Value::Map(entries) => return own_form(entries, key),
        Value::Text(text) => units::parse(text, bytes).map_err(problem)?,
        Value::Number(number) => {
            // As it stands in the file: 0x10 and 1e6 have become numbers by now. An alias stands for a number elsewhere.
            let written = place.scalar(source);
            let plain = if written.starts_with('*') { number.to_string() } else { written.to_owned() };
            Amount::Value(units::parse_plain(&plain, number).map_err(problem)?)
        }
        Value::Null | Value::Bool(_) | Value::List(_) => {
            return Err(problem("an amount such as 10MiB, a percentage, or `unlimited` is expected".to_owned()));
        }
    };
    let (field, value) = match amount {
        Amount::Value(value) => {
            (if bytes { "bytesPerSecond" } else { "operationsPerSecond" }, Value::Text(value.to_string()))
        }
        Amount::Percent(percent) => {
            let number = serde_json::Number::from_f64(percent).ok_or_else(|| problem("no percentage".to_owned()))?;
            ("percentOfCapacity", Value::Number(number))
        }
        Amount::Unlimited => ("unlimited", Value::Bool(true)),
    };
    *node = wrapped(field, Node { place, value });
    Ok(())
}

/// An amount with a unit in the contract's own form, where units are in the fields' names.
fn own_form(entries: &[(String, Place, Node)], key: &str) -> Result<(), Problem> {
    for (field, _, node) in entries {
        let counted = matches!(super::tree::snake(field).as_str(), "bytes_per_second" | "operations_per_second");
        if let Value::Text(text) = &node.value
            && counted
            && text.parse::<i64>().is_err()
        {
            let message = format!("`{field}` is a whole number; with a unit write `{key}: {text}`");
            return Err(Problem { place: node.place, message });
        }
    }
    Ok(())
}
