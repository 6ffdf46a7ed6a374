//! Names in requests about intents: of one, of one that is to be created, of a project or all.

use tonic::Status;

use crate::{
    access::Principal,
    catalog::INTENTS,
    model::{FieldPath, IntentName, ResourceId, Violations},
    wire::errors,
};

pub(super) fn parse_name(field: &str, name: &str) -> Result<IntentName, Status> {
    name.parse().map_err(|error| errors::invalid_field(field, format!("{error}")))
}

/// The project of a request's parent; `None` means all, which only `wildcard` permits.
fn project(parent: &str, wildcard: bool, out: &mut Violations) -> Option<ResourceId> {
    let at = FieldPath::root("parent");
    match parent.strip_prefix("projects/") {
        Some("-") if wildcard => None,
        Some(id) => match id.parse() {
            Ok(id) => Some(id),
            Err(error) => {
                out.add(&at, format!("is projects/{{project}}: {error}"));
                None
            }
        },
        None => {
            if !parent.is_empty() {
                out.add(&at, "is projects/{project}");
            }
            None
        }
    }
}

/// The name of an intent that is to be created.
pub(super) fn new_name(parent: &str, intent_id: &str, given: &str, out: &mut Violations) -> Option<IntentName> {
    let id_at = FieldPath::root("intent_id");
    let name_at = FieldPath::root("intent.name");
    let project = project(parent, false, out);
    let id = (!intent_id.is_empty()).then(|| intent_id.parse::<ResourceId>());
    if let Some(Err(error)) = &id {
        out.add(&id_at, error.to_string());
    }
    let name = (!given.is_empty()).then(|| given.parse::<IntentName>());
    if let Some(Err(error)) = &name {
        out.add(&name_at, error.to_string());
    }
    match (id, name) {
        (None, None) => {
            out.add(&id_at, "is required where intent.name is not given");
            None
        }
        (id, Some(Ok(name))) => {
            let other_id = matches!(&id, Some(Ok(id)) if *id != name.intent);
            if other_id || project.is_some_and(|project| project != name.project) {
                out.add(&name_at, "is another name than parent and intent_id give");
            }
            Some(name)
        }
        (Some(Ok(intent)), None) => {
            let project = match project {
                Some(project) => project,
                None => "default".parse().ok()?,
            };
            Some(IntentName { project, intent })
        }
        _ => None,
    }
}

/// Where the listed intents are kept; of all projects those that the caller may not read are left out elsewhere.
pub(super) fn list_prefix(parent: &str, caller: &Principal) -> Result<String, Status> {
    let mut out = Violations::default();
    let project = project(parent, true, &mut out);
    if !out.is_empty() {
        return Err(errors::invalid(&out));
    }
    if let Some(project) = &project {
        caller.check_view(project)?;
    }
    Ok(project.map_or_else(|| INTENTS.to_owned(), |project| format!("{INTENTS}{}/", project.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parent: &str, id: &str, given: &str) -> Result<String, Vec<String>> {
        let mut out = Violations::default();
        let name = new_name(parent, id, given, &mut out);
        if out.is_empty() {
            Ok(name.unwrap().to_string())
        } else {
            Err(out.as_slice().iter().map(|violation| violation.field.clone()).collect())
        }
    }

    #[test]
    fn names_of_new_intents() {
        assert_eq!(name("", "a", "").unwrap(), "projects/default/intents/a");
        assert_eq!(name("projects/p", "a", "").unwrap(), "projects/p/intents/a");
        assert_eq!(name("", "", "projects/p/intents/a").unwrap(), "projects/p/intents/a");
        assert_eq!(name("projects/p", "a", "projects/p/intents/a").unwrap(), "projects/p/intents/a");
        assert_eq!(name("", "", "").unwrap_err(), ["intent_id"]);
        assert_eq!(name("projects/q", "", "projects/p/intents/a").unwrap_err(), ["intent.name"]);
        assert_eq!(name("", "b", "projects/p/intents/a").unwrap_err(), ["intent.name"]);
        assert_eq!(name("x", "B", "y").unwrap_err(), ["parent", "intent_id", "intent.name"]);
        assert_eq!(name("projects/-", "a", "").unwrap_err(), ["parent"]);
    }
}
