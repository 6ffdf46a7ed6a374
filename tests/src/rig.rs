//! Everything that a test of real limits needs at once: a disk, cgroups, a controller, an agent and clients. Dropped in the
//! order that leaves nothing behind.

use std::{path::PathBuf, time::Duration};

use weir_proto::v1;

use crate::{
    cgroup::{self, Hierarchy, Tree},
    disk::Disk,
    fleet::{self, Clients, Scratch, eventually},
    process::Daemon,
};

/// How long anything may take that is not a measurement; emulated guests are slow.
pub const SOON: Duration = Duration::from_secs(30);

/// The rig. Fields are dropped from top to bottom: daemons before cgroups, cgroups before the disk.
pub struct Rig {
    /// Clients of the controller.
    pub clients: Clients,
    /// `host:port` of the controller, kept over restarts.
    pub address: String,
    /// The agent; `None` while a test has it down.
    pub agent: Option<Daemon>,
    /// The controller; `None` while a test has it down.
    pub controller: Option<Daemon>,
    /// The cgroups.
    pub tree: Tree,
    /// The disk.
    pub disk: Disk,
    /// State of the daemons.
    pub scratch: Scratch,
}

impl Rig {
    /// Everything up; the tree of cgroups is named `/weir-test-NAME`.
    ///
    /// # Panics
    /// A step failed.
    pub async fn new(name: &str) -> Rig {
        let scratch = Scratch::new();
        let dir = scratch.path();
        let disk = Disk::new(&dir.join("disk.img"), &dir.join("disk"), 256).expect("a disk");
        let tree = Tree::new(&format!("weir-test-{name}")).expect("cgroups");
        let (controller, address) = fleet::controller(&dir, "127.0.0.1:0").expect("a controller");
        let agent = fleet::agent(&dir, &address, "n1", &[]).expect("an agent");
        let clients = Clients::connect(&address).await.expect("clients");
        Rig { clients, address, agent: Some(agent), controller: Some(controller), tree, disk, scratch }
    }

    /// Where the daemons have their state.
    pub fn dir(&self) -> PathBuf {
        self.scratch.path()
    }

    /// The hierarchy.
    pub fn hierarchy(&self) -> &Hierarchy {
        self.tree.hierarchy()
    }

    /// The read byte limit that the kernel holds for the disk in a child of the tree.
    pub fn kernel_rbps(&self, child: &str) -> Option<u64> {
        cgroup::kernel_rbps(self.hierarchy(), &self.tree.dir().join(child), &self.disk.number)
    }

    /// An intent that limits reads of a child of the tree on the disk.
    pub fn read_limit(&self, id: &str, child: &str, bytes_per_second: Option<i64>) -> v1::Intent {
        fleet::read_limit(id, &self.tree.path_of(child), &self.disk.device, bytes_per_second)
    }

    /// Creates an intent.
    ///
    /// # Panics
    /// It was refused.
    pub async fn create(&mut self, intent: v1::Intent) -> v1::Intent {
        self.clients.intents.create_intent(fleet::create(intent)).await.expect("the intent is valid").into_inner()
    }

    /// Waits until the kernel holds `value` for a child.
    ///
    /// # Panics
    /// Not in time.
    pub async fn kernel_holds(&self, child: &str, value: Option<u64>) {
        let what = format!("the kernel holds rbps={value:?} in {child}");
        eventually(&what, SOON, || async { (self.kernel_rbps(child) == value).then_some(()) }).await;
    }

    /// Waits until the intent's report on this node satisfies `check`.
    ///
    /// # Panics
    /// Not in time; the last report is in the message.
    pub async fn reported(
        &self,
        intent: &str,
        what: &str,
        check: impl Fn(&v1::IntentNodeStatus) -> bool,
    ) -> v1::IntentNodeStatus {
        let last = std::sync::Mutex::new(None);
        let found = tokio::time::timeout(SOON, async {
            loop {
                let status = self.clients.clone().status(intent).await.ok().flatten();
                if let Some(status) = &status
                    && check(status)
                {
                    return status.clone();
                }
                *last.lock().expect("not poisoned") = status;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        found.unwrap_or_else(|_| panic!("{intent}: not reported in time: {what}; last: {last:#?}"))
    }

    /// Deletes an intent and waits until it is gone.
    ///
    /// # Panics
    /// Not in time.
    pub async fn delete(&mut self, intent: &str) {
        let name = fleet::full(intent);
        let request = v1::DeleteIntentRequest { name: name.clone(), ..Default::default() };
        self.clients.intents.delete_intent(request).await.expect("the delete is accepted");
        let clients = self.clients.clone();
        eventually(&format!("{intent} is gone"), SOON, || async {
            let got = clients.clone().intents.get_intent(v1::GetIntentRequest { name: name.clone() }).await;
            got.is_err_and(|status| status.code() == tonic::Code::NotFound).then_some(())
        })
        .await;
    }

    /// Starts the controller again, at the same address.
    ///
    /// # Panics
    /// It was not ready.
    pub fn start_controller(&mut self) {
        let (controller, _) = fleet::controller(&self.dir(), &self.address).expect("the controller starts again");
        self.controller = Some(controller);
    }

    /// Starts the agent again.
    ///
    /// # Panics
    /// It was not ready.
    pub fn start_agent(&mut self) {
        self.agent = Some(fleet::agent(&self.dir(), &self.address, "n1", &[]).expect("the agent starts again"));
    }
}
