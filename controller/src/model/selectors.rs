//! Selectors: terms ANDed inside and ORed between, minus `exclude`. Nothing is implied: an empty selector or term is
//! invalid, and so is one that can match nothing.

use serde::{Deserialize, Serialize};
use weir_common::glob;

use super::{DeviceKind, FieldPath, Labels, Violations};

/// Most terms in each list of a selector.
const MAX_TERMS: usize = 64;
/// Most values in a list of a term.
const MAX_VALUES: usize = 256;
/// Longest glob or exact text, bytes.
const MAX_TEXT: usize = 512;
/// Longest path, bytes.
const MAX_PATH: usize = 4096;
/// Longest key of a label that a selector asks for, characters (Kubernetes' prefix, slash and name).
const MAX_LABEL_KEY: usize = 317;

/// A term of a selector.
pub trait Term: PartialEq {
    /// Whether it matches everything.
    fn is_all(&self) -> bool;
}

/// Any term of `any_of`, none of `exclude`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selector<T> {
    /// At least one term.
    pub any_of: Vec<T>,
    /// Takes away.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<T>,
}

impl<T: Term> Selector<T> {
    /// A selector of terms; `None` stands for a term that was found invalid already.
    pub fn new(at: &FieldPath, any_of: Vec<Option<T>>, exclude: Vec<Option<T>>, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        if any_of.is_empty() {
            out.add(&at.field("any_of"), "at least one term is needed; nothing is implied");
        }
        for (name, len) in [("any_of", any_of.len()), ("exclude", exclude.len())] {
            if len > MAX_TERMS {
                out.add(&at.field(name), format!("{len} terms are more than {MAX_TERMS}"));
            }
        }
        for (i, term) in exclude.iter().enumerate().filter_map(|(i, term)| Some((i, term.as_ref()?))) {
            let here = at.field("exclude").index(i);
            if term.is_all() {
                out.add(&here, "excludes everything: the selector can match nothing");
            } else if any_of.iter().flatten().any(|chosen| chosen == term) {
                out.add(&here, "repeats a term of any_of, which then can match nothing");
            }
        }
        let complete = any_of.iter().chain(&exclude).all(Option::is_some);
        (complete && out.as_slice().len() == before).then(|| Selector {
            any_of: any_of.into_iter().flatten().collect(),
            exclude: exclude.into_iter().flatten().collect(),
        })
    }
}

/// Chooses nodes.
pub type NodeSelector = Selector<NodeTerm>;
/// Chooses workloads; matched by agents.
pub type WorkloadSelector = Selector<WorkloadTerm>;
/// Chooses devices; matched by agents.
pub type DeviceSelector = Selector<DeviceTerm>;

/// A term over nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeTerm {
    /// Every node.
    All,
    /// All given fields must match.
    Match {
        /// Globs over the name; empty means not asked for.
        names: Vec<String>,
        /// Labels that must be there, exactly; empty means not asked for.
        labels: Labels,
    },
}

impl Term for NodeTerm {
    fn is_all(&self) -> bool {
        *self == NodeTerm::All
    }
}

impl NodeTerm {
    /// A valid term, or violations.
    pub fn new(at: &FieldPath, all: bool, names: Vec<String>, labels: Labels, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        check_texts(&at.field("names"), &names, out);
        check_match_labels(&at.field("match_labels"), &labels, out);
        let empty = names.is_empty() && labels.is_empty();
        check_all(at, all, empty, out);
        (out.as_slice().len() == before).then_some(if all { NodeTerm::All } else { NodeTerm::Match { names, labels } })
    }

    fn matches(&self, name: &str, labels: &Labels) -> bool {
        match self {
            NodeTerm::All => true,
            NodeTerm::Match { names, labels: wanted } => {
                (names.is_empty() || names.iter().any(|pattern| glob::matches(pattern, name)))
                    && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
            }
        }
    }
}

impl NodeSelector {
    /// Whether a node with this name and these labels is chosen.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.any_of.iter().any(|term| term.matches(name, labels))
            && !self.exclude.iter().any(|term| term.matches(name, labels))
    }
}

/// Quality-of-service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QosClass {
    /// Guaranteed.
    Guaranteed,
    /// Burstable.
    Burstable,
    /// BestEffort.
    BestEffort,
}

/// A term over workloads; all given fields must match, an empty field is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadTerm {
    /// Glob over the path below the hierarchy's root.
    pub cgroup_path: String,
    /// Glob over the systemd unit's name.
    pub systemd_unit: String,
    /// Globs over the namespace.
    pub namespaces: Vec<String>,
    /// Globs over the pod's name.
    pub pod_names: Vec<String>,
    /// Labels of the pod, exactly.
    pub labels: Labels,
    /// Classes.
    pub qos_classes: Vec<QosClass>,
    /// Globs over the container's name.
    pub container_names: Vec<String>,
    /// Pod uid, exactly.
    pub pod_uid: String,
}

impl Term for WorkloadTerm {
    fn is_all(&self) -> bool {
        // Every cgroup there is: as good as `all`, which this kind of term does not have.
        *self == WorkloadTerm { cgroup_path: "/**".to_owned(), ..WorkloadTerm::default() }
    }
}

impl WorkloadTerm {
    /// The term itself, where it is valid.
    pub fn checked(self, at: &FieldPath, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        if self == WorkloadTerm::default() {
            out.add(at, "an empty term is invalid: say which workloads are meant");
        }
        if !self.cgroup_path.is_empty() {
            check_path(&at.field("cgroup_path"), &self.cgroup_path, out);
        }
        check_text(&at.field("systemd_unit"), &self.systemd_unit, out);
        if self.systemd_unit.contains('/') {
            out.add(&at.field("systemd_unit"), "is the name of a unit, which has no `/`");
        }
        check_texts(&at.field("namespaces"), &self.namespaces, out);
        check_texts(&at.field("pod_names"), &self.pod_names, out);
        check_match_labels(&at.field("match_labels"), &self.labels, out);
        check_texts(&at.field("container_names"), &self.container_names, out);
        check_text(&at.field("pod_uid"), &self.pod_uid, out);
        (out.as_slice().len() == before).then_some(self)
    }

    /// Fields, as the contract names them, that no agent matches yet; a term with one of them matches nothing.
    pub(super) fn not_built(&self) -> Vec<&'static str> {
        let WorkloadTerm {
            cgroup_path: _,
            systemd_unit: _,
            namespaces,
            pod_names,
            labels,
            qos_classes,
            container_names,
            pod_uid,
        } = self;
        [
            ("namespaces", !namespaces.is_empty()),
            ("pod_names", !pod_names.is_empty()),
            ("match_labels", !labels.is_empty()),
            ("qos_classes", !qos_classes.is_empty()),
            ("container_names", !container_names.is_empty()),
            ("pod_uid", !pod_uid.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, used)| used.then_some(name))
        .collect()
    }
}

/// A term over devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTerm {
    /// Every device on which limits take effect.
    All,
    /// All given fields must match.
    Match(DeviceMatch),
}

impl Term for DeviceTerm {
    fn is_all(&self) -> bool {
        *self == DeviceTerm::All
    }
}

/// Fields of a device term; an empty one is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFields {
    /// Kinds.
    pub kinds: Vec<DeviceKind>,
    /// Glob over the model.
    pub model: String,
    /// Glob over the serial number.
    pub serial: String,
    /// Name below /dev/disk/by-id.
    pub by_id: String,
    /// Device node.
    pub path: String,
    /// Mount point.
    pub mount_path: String,
    /// File or directory.
    pub file_path: String,
    /// Volume claim of the matched pod.
    pub volume_claim: String,
    /// The device behind the matched pod's root file system.
    pub pod_root_filesystem: bool,
}

/// [`DeviceFields`] that were checked.
pub type DeviceMatch = DeviceFields;

impl DeviceTerm {
    /// A valid term, or violations.
    pub fn new(at: &FieldPath, all: bool, fields: DeviceFields, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        check_all(at, all, fields == DeviceFields::default(), out);
        check_text(&at.field("model"), &fields.model, out);
        check_text(&at.field("serial"), &fields.serial, out);
        check_text(&at.field("by_id"), &fields.by_id, out);
        check_text(&at.field("volume_claim"), &fields.volume_claim, out);
        if fields.by_id.contains('/') {
            out.add(&at.field("by_id"), "is a name below /dev/disk/by-id, without `/`");
        }
        for (name, path) in
            [("path", &fields.path), ("mount_path", &fields.mount_path), ("file_path", &fields.file_path)]
        {
            if !path.is_empty() {
                check_path(&at.field(name), path, out);
            }
        }
        (out.as_slice().len() == before).then_some(if all { DeviceTerm::All } else { DeviceTerm::Match(fields) })
    }

    /// As [`WorkloadTerm::not_built`].
    pub(super) fn not_built(&self) -> Vec<&'static str> {
        let DeviceTerm::Match(fields) = self else { return Vec::new() };
        [("volume_claim", !fields.volume_claim.is_empty()), ("pod_root_filesystem", fields.pod_root_filesystem)]
            .into_iter()
            .filter_map(|(name, used)| used.then_some(name))
            .collect()
    }
}

fn check_all(at: &FieldPath, all: bool, others_empty: bool, out: &mut Violations) {
    match (all, others_empty) {
        (true, false) => out.add(&at.field("all"), "`all` stands alone: leave the other fields out"),
        (false, true) => out.add(at, "an empty term is invalid: say `all: true` where everything is meant"),
        _ => {}
    }
}

fn check_text(at: &FieldPath, text: &str, out: &mut Violations) {
    if text.len() > MAX_TEXT {
        out.add(at, format!("is longer than {MAX_TEXT} bytes"));
    }
    if text.chars().any(char::is_control) {
        out.add(at, "has control characters");
    }
}

fn check_texts(at: &FieldPath, texts: &[String], out: &mut Violations) {
    if texts.len() > MAX_VALUES {
        out.add(at, format!("{} values are more than {MAX_VALUES}", texts.len()));
        return;
    }
    for (i, text) in texts.iter().enumerate() {
        if text.is_empty() {
            out.add(&at.index(i), "is empty");
        }
        check_text(&at.index(i), text, out);
    }
}

fn check_match_labels(at: &FieldPath, labels: &Labels, out: &mut Violations) {
    if labels.len() > MAX_TERMS {
        out.add(at, format!("{} labels are more than {MAX_TERMS}", labels.len()));
    }
    for (key, value) in labels {
        let here = at.key(key);
        if key.is_empty() || key.chars().count() > MAX_LABEL_KEY {
            out.add(&here, format!("a key has 1 to {MAX_LABEL_KEY} characters"));
        }
        check_text(&here, key, out);
        check_text(&here, value, out);
    }
}

/// Absolute, no empty component, neither `.` nor `..`.
fn check_path(at: &FieldPath, path: &str, out: &mut Violations) {
    if path.len() > MAX_PATH {
        out.add(at, format!("is longer than {MAX_PATH} bytes"));
    }
    if path.chars().any(char::is_control) {
        out.add(at, "has control characters");
    }
    let Some(rest) = path.strip_prefix('/') else {
        out.add(at, "is relative: it begins with `/`");
        return;
    };
    if rest.is_empty() {
        return;
    }
    if rest.split('/').any(str::is_empty) {
        out.add(at, "has an empty component (`//` or a `/` at the end)");
    }
    if rest.split('/').any(|part| part == "." || part == "..") {
        out.add(at, "has a component `.` or `..`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(check: impl FnOnce(&FieldPath, &mut Violations)) -> Vec<String> {
        let mut out = Violations::default();
        check(&FieldPath::root("s"), &mut out);
        out.as_slice().iter().map(|violation| violation.field.clone()).collect()
    }

    fn names(names: &[&str]) -> NodeTerm {
        NodeTerm::Match { names: names.iter().map(|&n| n.to_owned()).collect(), labels: Labels::new() }
    }

    #[test]
    fn contradictions_and_emptiness_are_named() {
        assert_eq!(fields(|at, out| assert!(NodeSelector::new(at, vec![], vec![], out).is_none())), ["s.any_of"]);
        let contradiction = |exclude: NodeTerm| {
            fields(|at, out| {
                assert!(NodeSelector::new(at, vec![Some(names(&["a"]))], vec![Some(exclude)], out).is_none());
            })
        };
        assert_eq!(contradiction(NodeTerm::All), ["s.exclude[0]"]);
        assert_eq!(contradiction(names(&["a"])), ["s.exclude[0]"]);
        assert!(
            fields(|at, out| {
                assert!(NodeSelector::new(at, vec![Some(NodeTerm::All)], vec![Some(names(&["a"]))], out).is_some());
            })
            .is_empty()
        );
    }

    #[test]
    fn all_stands_alone() {
        let term = |all, names: &[&str]| {
            let names = names.iter().map(|&n| n.to_owned()).collect();
            fields(|at, out| drop(NodeTerm::new(at, all, names, Labels::new(), out)))
        };
        assert_eq!(term(true, &["a"]), ["s.all"]);
        assert_eq!(term(false, &[]), ["s"]);
        assert_eq!(term(false, &["a", ""]), ["s.names[1]"]);
        assert!(term(true, &[]).is_empty());
    }

    #[test]
    fn paths() {
        let path = |path: &str| {
            let term = WorkloadTerm { cgroup_path: path.to_owned(), ..WorkloadTerm::default() };
            fields(|at, out| drop(term.checked(at, out)))
        };
        for good in ["/", "/a", "/a/*", "/a/**/b", "/a/..b", "/..."] {
            assert!(path(good).is_empty(), "{good}");
        }
        for bad in ["a", "a/b", "/a//b", "//", "/a/", "/a/../b", "/..", "/.", "/a\n"] {
            assert_eq!(path(bad), ["s.cgroup_path"], "{bad}");
        }
        assert_eq!(path(""), ["s"]);
    }

    #[test]
    fn nodes_are_matched_by_name_and_labels() {
        let labels: Labels = [("disk".to_owned(), "nvme".to_owned())].into();
        let term = NodeTerm::Match { names: vec!["db-*".into(), "x".into()], labels: labels.clone() };
        let selector = Selector { any_of: vec![term], exclude: vec![names(&["db-9"])] };
        assert!(selector.matches("db-1", &labels));
        assert!(!selector.matches("db-9", &labels));
        assert!(!selector.matches("db-1", &Labels::new()));
        assert!(!selector.matches("web-1", &labels));
    }
}
