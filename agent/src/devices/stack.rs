//! Which device lies above which, and where a limit takes effect. PURE. The rules were found by real limits on real stacks:
//! docs/devices.md has the table.

use std::collections::BTreeSet;

use super::{BlockDevice, DeviceSnapshot};

impl DeviceSnapshot {
    /// The device with this kernel name.
    pub fn named(&self, kernel_name: &str) -> Option<&BlockDevice> {
        self.devices.values().find(|device| device.kernel_name == kernel_name)
    }

    /// Whether `device` lies anywhere below `top` in a stack (not: is `top` itself).
    pub fn is_below(&self, device: &BlockDevice, top: &BlockDevice) -> bool {
        // The kernel's graph has no circles, but what was read of it while it changed might.
        let mut seen = BTreeSet::new();
        let mut left: Vec<&str> = top.stack.below.iter().map(String::as_str).collect();
        while let Some(name) = left.pop() {
            if !seen.insert(name) {
                continue;
            }
            if name == device.kernel_name {
                return true;
            }
            left.extend(self.named(name).into_iter().flat_map(|next| next.stack.below.iter().map(String::as_str)));
        }
        false
    }

    /// The device above this one whose I/O a limit on this one does not see; `None` where a limit on it takes effect.
    ///
    /// Device mapper's multipath is the case: it hands whole requests to its paths, below the place where the kernel
    /// throttles. All other layers hand on bios, which are throttled again at each device that they come to.
    pub fn bypassed_by(&self, device: &BlockDevice) -> Option<&BlockDevice> {
        self.devices.values().find(|top| top.stack.request_based && self.is_below(device, top))
    }

    /// What of a device's contents is reached without going through any of `tops`: file systems mounted from itself, and its
    /// partitions that none of them is made of.
    pub fn beside<'a>(&self, device: &'a BlockDevice, tops: &[&BlockDevice]) -> Vec<&'a str> {
        let through = |name: &String| {
            self.named(name)
                .is_some_and(|holder| tops.iter().any(|top| top.id == holder.id || self.is_below(holder, top)))
        };
        let free = device.partitions.iter().filter(|partition| !partition.used_by.iter().any(through));
        free.map(|partition| partition.kernel_name.as_str()).collect()
    }
}
