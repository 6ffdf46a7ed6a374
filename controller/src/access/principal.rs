//! The caller of a method.

use std::collections::BTreeSet;

use tonic::{Request, Status};

use crate::model::{IntentName, NodeName, ResourceId};

/// Projects that a role covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Projects {
    /// None.
    #[default]
    None,
    /// These.
    Some(BTreeSet<ResourceId>),
    /// All, those that come later too.
    All,
}

impl Projects {
    fn has(&self, project: &ResourceId) -> bool {
        match self {
            Projects::None => false,
            Projects::Some(projects) => projects.contains(project),
            Projects::All => true,
        }
    }

    fn any(&self) -> bool {
        *self != Projects::None
    }

    /// These and those.
    pub(super) fn join(self, other: Projects) -> Projects {
        match (self, other) {
            (Projects::All, _) | (_, Projects::All) => Projects::All,
            (Projects::None, one) | (one, Projects::None) => one,
            (Projects::Some(mut these), Projects::Some(those)) => {
                these.extend(those);
                Projects::Some(these)
            }
        }
    }
}

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Everything that people and programs can do.
    pub admin: bool,
    /// Projects whose intents may be written, and so read.
    pub edit: Projects,
    /// Projects whose intents may be read.
    pub view: Projects,
}

/// The caller of a method, as the request's extensions carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The agent of a node.
    Node(NodeName),
    /// A person or a program.
    Client {
        /// The name in its certificate; of who has a token `serviceaccount:NAMESPACE/NAME`.
        name: String,
        /// What it may do.
        rights: Rights,
    },
    /// Another controller on the same store.
    Controller(String),
    /// Whoever connects where nobody's identity is asked for; may do everything.
    Local,
}

impl Principal {
    /// The caller of a request.
    ///
    /// # Errors
    /// The layer that authenticates did not see it.
    pub fn of<T>(request: &Request<T>) -> Result<Principal, Status> {
        let found = request.extensions().get::<Principal>().cloned();
        found.ok_or_else(|| Status::internal("the request was not authenticated"))
    }

    /// Who it is, for people.
    pub fn describe(&self) -> String {
        match self {
            Principal::Node(node) => format!("the agent of node {node}"),
            Principal::Client { name, .. } => format!("client {name}"),
            Principal::Controller(name) => format!("controller {name}"),
            Principal::Local => "a local caller".to_owned(),
        }
    }

    /// Whether it may do what concerns the whole fleet.
    pub fn is_admin(&self) -> bool {
        match self {
            Principal::Node(_) | Principal::Controller(_) => false,
            Principal::Client { rights, .. } => rights.admin,
            Principal::Local => true,
        }
    }

    /// Whether it may write intents of some project.
    pub fn may_edit_some(&self) -> bool {
        matches!(self, Principal::Client { rights, .. } if rights.edit.any()) || self.is_admin()
    }

    /// Whether it may read at least something.
    pub fn may_view_some(&self) -> bool {
        matches!(self, Principal::Client { rights, .. } if rights.view.any()) || self.may_edit_some()
    }

    /// Whether it may write intents of a project.
    pub fn may_edit(&self, project: &ResourceId) -> bool {
        matches!(self, Principal::Client { rights, .. } if rights.edit.has(project)) || self.is_admin()
    }

    /// Whether it may read intents of a project.
    pub fn may_view(&self, project: &ResourceId) -> bool {
        matches!(self, Principal::Client { rights, .. } if rights.view.has(project)) || self.may_edit(project)
    }

    /// Whether it may read the intent of this name; what is no name is hidden.
    pub fn may_view_named(&self, intent: &str) -> bool {
        intent.parse::<IntentName>().is_ok_and(|name| self.may_view(&name.project)) || self.is_admin()
    }

    /// Whether it is the agent of this node.
    pub fn is_node(&self, node: &NodeName) -> bool {
        match self {
            Principal::Node(own) => own == node,
            Principal::Client { .. } | Principal::Controller(_) => false,
            Principal::Local => true,
        }
    }

    /// # Errors
    /// It may not write intents of the project.
    pub fn check_edit(&self, project: &ResourceId) -> Result<(), Status> {
        if self.may_edit(project) { Ok(()) } else { Err(self.refused("EDITOR", project)) }
    }

    /// # Errors
    /// It may not read intents of the project.
    pub fn check_view(&self, project: &ResourceId) -> Result<(), Status> {
        if self.may_view(project) { Ok(()) } else { Err(self.refused("VIEWER", project)) }
    }

    /// # Errors
    /// It is not the agent of this node.
    pub fn check_node(&self, node: &NodeName) -> Result<(), Status> {
        if self.is_node(node) {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "{} cannot speak for node {node}: the name of --node and the one in its certificate or token must be the same",
            self.describe()
        )))
    }

    fn refused(&self, role: &str, project: &ResourceId) -> Status {
        Status::permission_denied(format!(
            "{} is no {role} of project {}; roles are bound in the controller's --access file",
            self.describe(),
            project.as_str()
        ))
    }
}
