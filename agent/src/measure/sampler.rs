//! To be written.

use std::{sync::Arc, time::Duration};

use weir_common::{device::DeviceId, units::LimitKey};

use super::{Achieved, Measurement, Target};
use crate::kernel::Kernel;

pub(super) struct Shared;

pub(super) fn start(_kernel: Arc<dyn Kernel>, _period: Duration) -> std::io::Result<Arc<Shared>> {
    Ok(Arc::new(Shared))
}

impl Shared {
    pub(super) fn set_targets(&self, _targets: Vec<Target>) {}
    pub(super) fn latest(&self) -> Vec<Measurement> {
        Vec::new()
    }
    pub(super) fn achieved(&self, _: u64, _: DeviceId, _: LimitKey, _: Duration) -> Result<Achieved, String> {
        Err("no sampler yet".to_owned())
    }
}
