//! The least that must change: desired x owned x observed -> changes. PURE: no clock, no files.

use std::collections::BTreeMap;

use weir_common::{device::DevNum, units::LimitValue};

use super::observe::Observed;
use crate::{
    devices::DeviceSnapshot,
    ledger::Owned,
    resolve::{Resolved, SettingKey},
};

/// What is to be done about one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write `to`; it is, or becomes, ours. `drift`: it held what was wanted, and somebody changed it.
    Set {
        /// The value.
        to: LimitValue,
        /// A repair.
        drift: bool,
    },
    /// The kernel holds what is wanted: note that it is ours, or for whom, without a write.
    Adopt,
    /// Write the value that was there before, then forget it.
    Restore {
        /// The value.
        to: LimitValue,
    },
    /// Nothing to write: it holds what was there before, or its cgroup or device is gone.
    Forget,
    /// Somebody else's value is there: leave it, and forget it.
    LeaveForeign {
        /// What is there.
        value: LimitValue,
    },
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The setting.
    pub key: SettingKey,
    /// What the kernel holds.
    pub from: LimitValue,
    /// The value before the first touch, where this is the first.
    pub baseline: LimitValue,
    /// What is to be done.
    pub action: Action,
}

impl Change {
    /// The value to write, where one is to be written.
    pub fn writes(&self) -> Option<LimitValue> {
        match self.action {
            Action::Set { to, .. } | Action::Restore { to } => Some(to),
            Action::Adopt | Action::Forget | Action::LeaveForeign { .. } => None,
        }
    }

    /// It takes away: the new value is stricter than what is there.
    pub fn tightens(&self) -> bool {
        self.writes().is_some_and(|to| to < self.from)
    }
}

/// The changes that bring the kernel to what is desired, and put back what is not desired any more. Settings whose cgroup
/// could not be read are left out: nothing is known of them.
pub fn diff(
    resolved: &Resolved,
    owned: &BTreeMap<SettingKey, Owned>,
    observed: &Observed,
    devices: &DeviceSnapshot,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for (key, desired) in &resolved.settings {
        let (Some(to), Some(winner)) = (desired.enforced(), desired.winner()) else { continue };
        let Ok(from) = observed.own(key) else { continue };
        let ours = owned.get(key);
        // A limit of ours on the number's last disk is no baseline of this one.
        let remnant = remnants(owned, key).any(|(_, old)| old.is_ours(from));
        let baseline = if remnant { LimitValue::Unlimited } else { from };
        let action = match ours {
            Some(ours) if from == to && ours.written == to && ours.uid == *winner.uid => continue,
            _ if from == to => Action::Adopt,
            Some(ours) => Action::Set { to, drift: ours.written == to && ours.uid == *winner.uid },
            None => Action::Set { to, drift: false },
        };
        changes.push(Change { key: key.clone(), from, baseline, action });
    }
    for (key, ours) in owned {
        if resolved.settings.get(key).is_some_and(|desired| desired.enforced().is_some()) {
            continue;
        }
        let same_device = devices.devices.get(&key.device.num).is_some_and(|device| device.id == key.device);
        let (from, action) = match observed.own(key) {
            Ok(from) => (from, put_back(key, ours, from, same_device, resolved)),
            // The cgroup is gone, and with it the limit.
            Err(Some(error)) if error.is_gone() => (LimitValue::Unlimited, Action::Forget),
            Err(_) => continue,
        };
        changes.push(Change { key: key.clone(), from, baseline: ours.baseline, action });
    }
    changes
}

fn put_back(key: &SettingKey, ours: &Owned, from: LimitValue, same_device: bool, resolved: &Resolved) -> Action {
    // Another disk under the number: what was before belongs to the one that is gone; ours may still be there and must not be.
    let baseline = if same_device { ours.baseline } else { LimitValue::Unlimited };
    let taken_over = !same_device
        && resolved.settings.iter().any(|(other, desired)| same_place(other, key) && desired.enforced().is_some());
    if from == baseline || taken_over {
        Action::Forget
    } else if ours.is_ours(from) {
        Action::Restore { to: baseline }
    } else {
        Action::LeaveForeign { value: from }
    }
}

/// Settings that are owned at the same place in the kernel for another disk that had the number before.
fn remnants<'a>(
    owned: &'a BTreeMap<SettingKey, Owned>,
    key: &'a SettingKey,
) -> impl Iterator<Item = (&'a SettingKey, &'a Owned)> {
    owned.iter().filter(move |(other, _)| same_place(other, key) && other.device != key.device)
}

fn same_place(a: &SettingKey, b: &SettingKey) -> bool {
    let place = |key: &SettingKey| -> (u64, DevNum) { (key.cgroup.id, key.device.num) };
    place(a) == place(b) && a.key == b.key && a.cgroup == b.cgroup
}
