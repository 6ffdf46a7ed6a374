//! Which roles clients have: the file of `--access`, YAML or JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
};

use serde::Deserialize;
use weir_common::reload::Source;

use super::{Projects, Rights};
use crate::model::ResourceId;

/// Stands for all projects.
const ALL: &str = "-";

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BindingsError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// It is no such file.
    #[error("{}: {cause}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// Where and why.
        cause: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Role {
    Viewer,
    Editor,
    Admin,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Binding {
    client: String,
    role: Role,
    projects: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    bindings: Vec<Binding>,
}

/// The rights of clients, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<String, Rights>);

impl Bindings {
    /// What a client may do; nothing where it is not named.
    pub fn rights(&self, client: &str) -> Rights {
        self.0.get(client).cloned().unwrap_or_default()
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Where it is wrong, and why.
    pub fn parse(text: &str) -> Result<Bindings, String> {
        let File { bindings } = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let mut all: BTreeMap<String, Rights> = BTreeMap::new();
        for Binding { client, role, projects } in bindings {
            if client.is_empty() {
                return Err("a binding has an empty client".to_owned());
            }
            let wrong = |why: &str| format!("the binding of client {client}: {why}");
            let rights = all.entry(client.clone()).or_default();
            match (role, projects) {
                (Role::Admin, None) => rights.admin = true,
                (Role::Admin, Some(_)) => return Err(wrong("ADMIN is of all projects: leave `projects` out")),
                (Role::Editor, None) => {
                    return Err(wrong("EDITOR needs `projects`, a list of their names; [\"-\"] means all"));
                }
                (Role::Editor, Some(projects)) => {
                    rights.edit = std::mem::take(&mut rights.edit).join(covered(&projects).map_err(|e| wrong(&e))?);
                }
                (Role::Viewer, projects) => {
                    let projects = projects.unwrap_or_else(|| vec![ALL.to_owned()]);
                    rights.view = std::mem::take(&mut rights.view).join(covered(&projects).map_err(|e| wrong(&e))?);
                }
            }
        }
        Ok(Bindings(all))
    }
}

fn covered(projects: &[String]) -> Result<Projects, String> {
    if projects.is_empty() {
        return Err("an empty list of projects gives no right to anything".to_owned());
    }
    if projects.iter().any(|project| project == ALL) {
        return Ok(Projects::All);
    }
    let parse =
        |project: &String| project.parse::<ResourceId>().map_err(|error| format!("project `{project}`: {error}"));
    Ok(Projects::Some(projects.iter().map(parse).collect::<Result<BTreeSet<_>, _>>()?))
}

/// The file of bindings; without a path nobody has a role.
#[derive(Clone, Debug)]
pub struct BindingsFile(pub Option<PathBuf>);

impl Source for BindingsFile {
    type Value = Bindings;
    type Error = BindingsError;

    fn what(&self) -> &'static str {
        "roles of clients"
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().cloned().collect()
    }

    fn make(&self, contents: &[io::Result<Vec<u8>>]) -> Result<Bindings, BindingsError> {
        let (Some(path), Some(content)) = (&self.0, contents.first()) else { return Ok(Bindings::default()) };
        let path = || path.clone();
        let content = content.as_ref().map_err(|e| BindingsError::Read { path: path(), cause: e.to_string() })?;
        let text =
            std::str::from_utf8(content).map_err(|e| BindingsError::Form { path: path(), cause: e.to_string() })?;
        Bindings::parse(text).map_err(|cause| BindingsError::Form { path: path(), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(projects: &[&str]) -> Projects {
        Projects::Some(projects.iter().map(|project| project.parse().unwrap()).collect())
    }

    #[test]
    fn roles_add_up() {
        let text = "
bindings:
- { client: ci, role: EDITOR, projects: [default] }
- { client: ci, role: EDITOR, projects: [web] }
- { client: ci, role: VIEWER }
- { client: ops, role: ADMIN }
- { client: dba, role: VIEWER, projects: [db] }
- { client: bot, role: EDITOR, projects: ['-'] }
";
        let bindings = Bindings::parse(text).unwrap();
        let rights = |admin, edit, view| Rights { admin, edit, view };
        assert_eq!(bindings.rights("ci"), rights(false, some(&["default", "web"]), Projects::All));
        assert_eq!(bindings.rights("ops"), rights(true, Projects::None, Projects::None));
        assert_eq!(bindings.rights("dba"), rights(false, Projects::None, some(&["db"])));
        assert_eq!(bindings.rights("bot"), rights(false, Projects::All, Projects::None));
        assert_eq!(bindings.rights("nobody"), Rights::default());
        let json = r#"{"bindings": [{"client": "ops", "role": "ADMIN"}]}"#;
        assert!(Bindings::parse(json).unwrap().rights("ops").admin);
    }

    #[test]
    fn what_is_wrong_is_refused_and_named() {
        for (text, says) in [
            ("bindings: [{ client: a, role: ADMIN, project: [x] }]", "project"),
            ("bindings: [{ client: a, role: OWNER }]", "OWNER"),
            ("bindings: [{ client: a, role: EDITOR }]", "client a: EDITOR needs"),
            ("bindings: [{ client: a, role: ADMIN, projects: [x] }]", "leave `projects` out"),
            ("bindings: [{ client: a, role: EDITOR, projects: [X] }]", "`X`"),
            ("bindings: [{ client: a, role: EDITOR, projects: [] }]", "empty list"),
            ("bindings: [{ client: '', role: ADMIN }]", "empty client"),
            ("bindings: []\nroles: []", "roles"),
            ("", "end of input"),
        ] {
            let error = Bindings::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
