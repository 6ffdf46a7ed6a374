//! Short names of resources, made whole.

/// `backup` is `projects/{project}/intents/backup`.
pub fn intent(name: &str, project: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("projects/{project}/intents/{name}") }
}

/// `n1` is `nodes/n1`.
pub fn node(name: &str) -> String {
    if name.starts_with("nodes/") { name.to_owned() } else { format!("nodes/{name}") }
}

/// The last part of a name: what a person calls it. Intents of other projects keep theirs.
pub fn short<'a>(name: &'a str, project: &str) -> &'a str {
    let own = format!("projects/{project}/intents/");
    name.strip_prefix(own.as_str()).or_else(|| name.strip_prefix("nodes/")).unwrap_or(name)
}
