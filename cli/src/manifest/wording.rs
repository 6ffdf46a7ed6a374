//! What the deserializer says, in words for whoever wrote the manifest.

/// The message with its list of names shortened to what a person would write, and without the library's own terms.
pub fn plain(message: &str) -> String {
    if message.contains("untagged enum") {
        return "a whole number is expected".to_owned();
    }
    let Some((head, list)) = message.split_once(", expected one of ") else { return message.to_owned() };
    let names: Vec<&str> = list.split(", ").map(|name| name.trim_matches('`')).collect();
    let wanted: Vec<String> = names
        .iter()
        // Each field of two words is listed in both spellings, each enum with the value that stands for nothing.
        .filter(|name| !name.ends_with("_UNSPECIFIED"))
        .filter(|name| !names.contains(&camel(name).as_str()) || !name.contains('_'))
        .map(|name| format!("`{}`", short_value(name, &names)))
        .collect();
    // What was typed stood there without the prefix, most likely.
    let head = match names.iter().find_map(|name| name.strip_suffix("UNSPECIFIED")) {
        Some(prefix) => head.replace("variant", "value").replacen(&format!("`{prefix}"), "`", 1),
        None => head.to_owned(),
    };
    match wanted.as_slice() {
        [] => head,
        [one] => format!("{head}, expected {one}"),
        several => format!("{head}, expected one of {}", several.join(", ")),
    }
}

/// What the parser of YAML says, without its place, which is shown beside, and without its own terms.
pub fn syntax(message: &str) -> String {
    let message = message.split_once(" at line ").map_or(message, |(before, _)| before);
    match message.strip_prefix("duplicate mapping key: ") {
        Some(rest) => format!("the key `{}` stands here twice", rest.split(", set ").next().unwrap_or(rest)),
        None => message.to_owned(),
    }
}

/// `OBSERVE` for `MODE_OBSERVE` where the enum's prefix is known from its unspecified value.
fn short_value<'a>(name: &'a str, all: &[&str]) -> &'a str {
    let prefix = all.iter().find_map(|other| other.strip_suffix("UNSPECIFIED"));
    prefix.and_then(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else {
            out.push(if upper { c.to_ascii_uppercase() } else { c });
            upper = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn lists_are_what_a_person_writes() {
        let fields = "unknown field `x`, expected one of `any_of`, `anyOf`, `exclude`";
        assert_eq!(plain(fields), "unknown field `x`, expected one of `anyOf`, `exclude`");
        let values = "unknown variant `MODE_X`, expected one of `MODE_UNSPECIFIED`, `MODE_ENFORCE`, `MODE_OBSERVE`";
        assert_eq!(plain(values), "unknown value `X`, expected one of `ENFORCE`, `OBSERVE`");
        assert_eq!(plain("unknown field `x`, expected one of `a_b`, `aB`"), "unknown field `x`, expected `aB`");
        assert_eq!(plain("invalid type: map, expected a string"), "invalid type: map, expected a string");
        assert_eq!(plain("data did not match any variant of untagged enum Content"), "a whole number is expected");
    }
}
