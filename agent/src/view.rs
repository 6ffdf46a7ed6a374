//! Where the loop looks at its node: the machine itself, or a modelled one in a simulation. Reads; writes nothing.

use std::{io, path::Path, sync::Arc};

use crate::{
    devices::{DeviceSnapshot, Named, Sources},
    kernel::Kernel,
    workloads::WorkloadSnapshot,
};

/// A look at a node.
pub trait NodeView: Send + 'static {
    /// The block devices, and where the given names lead.
    ///
    /// # Errors
    /// Something that is there cannot be read, and must not pass for gone.
    fn devices(&self, named: &Named) -> io::Result<DeviceSnapshot>;

    /// The cgroups.
    ///
    /// # Errors
    /// As for `devices`.
    fn workloads(&self) -> io::Result<WorkloadSnapshot>;
}

/// This machine.
pub struct Machine {
    /// The kernel, whose hierarchy is walked.
    pub kernel: Arc<dyn Kernel>,
    /// Where devices are looked up.
    pub sources: Sources,
}

impl Machine {
    /// The machine behind a kernel, with devices where Linux has them below the host's root.
    pub fn new(kernel: Arc<dyn Kernel>, host_root: &Path) -> Machine {
        Machine { kernel, sources: Sources { host_root: host_root.to_owned(), ..Sources::default() } }
    }
}

impl NodeView for Machine {
    fn devices(&self, named: &Named) -> io::Result<DeviceSnapshot> {
        DeviceSnapshot::take(&self.sources, named)
    }

    fn workloads(&self) -> io::Result<WorkloadSnapshot> {
        WorkloadSnapshot::take(&self.kernel.root(), self.kernel.version())
    }
}
