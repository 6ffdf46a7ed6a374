//! Carries changes out, in the order that keeps every promise: durable before written, taken away before given, read back
//! before forgotten.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use weir_common::device::DeviceId;

use super::{
    Enforcer, Input,
    diff::{Action, Change, diff},
    ledger_trouble,
    observe::Observed,
    report::Cause,
};
use crate::{
    condition::{Access, ConditionType, Finding},
    kernel::{CgroupRef, CgroupVersion, KernelError, LimitSet},
    ledger::Pending,
    resolve::{Resolved, SettingKey},
    trace::Writing,
};

/// Changes that go into one write(2).
struct Write {
    cgroup: CgroupRef,
    device: DeviceId,
    changes: Vec<Change>,
}

impl Enforcer {
    /// Brings the kernel to `wanted`. Returns the number of writes that were tried.
    pub(super) fn enforce(&mut self, wanted: &Resolved, observed: &mut Observed, input: &Input<'_>) -> usize {
        let changes: Vec<Change> = diff(wanted, self.ledger.owned(), observed, input.devices)
            .into_iter()
            .filter(|change| change.writes().is_none() || self.may_write(&change.key, input))
            .collect();
        self.note_foreign(&changes);

        let pending = self.pending(&changes, wanted);
        if let Err(error) = self.ledger.begin(&pending) {
            for write in &pending {
                self.failed(&write.key, ledger_trouble(&error), input);
            }
            return 0;
        }

        let (tighten, loosen): (Vec<Change>, Vec<Change>) =
            changes.iter().filter(|change| change.writes().is_some()).cloned().partition(Change::tightens);
        let mut writes = 0;
        for write in self.grouped(tighten) {
            writes += 1;
            self.carry_out(&write, wanted, observed, input);
        }
        // Do not give where taking failed.
        let stuck: BTreeSet<Arc<str>> = wanted
            .settings
            .iter()
            .filter(|(key, _)| self.trouble.contains_key(key))
            .filter_map(|(_, desired)| desired.winner()?.split.clone())
            .collect();
        let free = |change: &Change| {
            let split = wanted.settings.get(&change.key).and_then(|desired| desired.winner()?.split.as_ref());
            split.is_none_or(|split| !stuck.contains(split))
        };
        for write in self.grouped(loosen.into_iter().filter(free).collect()) {
            writes += 1;
            self.carry_out(&write, wanted, observed, input);
        }
        self.forget_what_is_back(&changes, wanted, observed);
        self.heal(wanted, observed);
        writes
    }

    /// What holds what is wanted is in no trouble any more, whoever brought it there.
    fn heal(&mut self, wanted: &Resolved, observed: &Observed) {
        let healed: Vec<SettingKey> = self
            .trouble
            .keys()
            .filter(|key| self.ledger.owned().contains_key(key))
            .filter(|key| {
                let value = wanted.settings.get(key).and_then(|desired| desired.enforced());
                value.is_some_and(|value| observed.own(key).is_ok_and(|held| held == value))
            })
            .cloned()
            .collect();
        for key in healed {
            self.succeeded(&key);
        }
    }

    /// What must be durable before anything is written.
    fn pending(&self, changes: &[Change], wanted: &Resolved) -> Vec<Pending> {
        let fence = self.ledger.plan().map(|plan| plan.fence).unwrap_or_default();
        changes
            .iter()
            .filter_map(|change| {
                let value = match change.action {
                    Action::Set { to, .. } => to,
                    Action::Adopt => change.from,
                    Action::Restore { .. } | Action::Forget | Action::LeaveForeign { .. } => return None,
                };
                let uid = wanted.settings.get(&change.key)?.winner()?.uid.to_string();
                Some(Pending {
                    key: change.key.clone(),
                    baseline: change.baseline,
                    held: change.from,
                    value,
                    fence,
                    uid,
                })
            })
            .collect()
    }

    /// v2 takes all keys of a device in one write, v1 has a file for each.
    fn grouped(&self, changes: Vec<Change>) -> Vec<Write> {
        let single = self.kernel.version() == CgroupVersion::V1;
        let mut writes: BTreeMap<(CgroupRef, DeviceId, usize), Write> = BTreeMap::new();
        for (index, change) in changes.into_iter().enumerate() {
            let (cgroup, device) = (change.key.cgroup.clone(), change.key.device);
            let slot = if single { index } else { 0 };
            writes
                .entry((cgroup.clone(), device, slot))
                .or_insert_with(|| Write { cgroup, device, changes: Vec::new() })
                .changes
                .push(change);
        }
        writes.into_values().collect()
    }

    /// One write, and what the kernel holds afterwards.
    fn carry_out(&mut self, write: &Write, wanted: &Resolved, observed: &mut Observed, input: &Input<'_>) {
        let mut limits: LimitSet =
            write.changes.iter().filter_map(|change| Some((change.key.key, change.writes()?))).collect();
        if self.kernel.version() == CgroupVersion::V2 {
            // Every key of this device that is ours is named, and no other: theirs are theirs.
            for key in Observed::keys_of(&write.cgroup, write.device) {
                let value = wanted.settings.get(&key).and_then(|desired| desired.enforced());
                if let (Some(value), true, Ok(held)) =
                    (value, self.ledger.owned().contains_key(&key), observed.own(&key))
                    && held == value
                {
                    limits.entry(key.key).or_insert(value);
                }
            }
        }
        let tracing = self.trace(write, &limits, wanted, input);
        let result = self.kernel.write_limits(&write.cgroup, write.device.num, &limits);
        observed.read_again(&*self.kernel, &write.cgroup);
        let (mut read_back, mut failure) = (Vec::new(), None::<Finding>);
        for change in &write.changes {
            let Some(to) = change.writes() else { continue };
            self.written_at.insert(change.key.clone(), input.now);
            let finding = match (&result, observed.own(&change.key)) {
                (Err(error), _) => Some(self.write_failed(&change.key, error)),
                (Ok(()), Err(Some(error))) => Some(self.write_failed(&change.key, error)),
                (Ok(()), Ok(held)) if held != to => Some(self.differs(&change.key, to, held)),
                (Ok(()), _) => None,
            };
            if let Ok(held) = observed.own(&change.key) {
                read_back.push(format!("{}={held}", change.key.key));
            }
            match finding {
                Some(finding) => {
                    let errno = finding.access.as_ref().map(Access::errno_name).filter(|name| !name.is_empty());
                    *self.counts.failed.entry(errno.unwrap_or_else(|| finding.reason.to_owned())).or_default() += 1;
                    failure = failure.or_else(|| Some(finding.clone()));
                    self.failed(&change.key, finding, input);
                }
                None => {
                    self.succeeded(&change.key);
                    // A value that was never seen there was not changed by anybody.
                    let repair = change.action == (Action::Set { to, drift: true })
                        && self.confirmed.get(&change.key) == Some(&to);
                    let cause = match change.action {
                        Action::Restore { .. } => Cause::Restore,
                        _ if repair => Cause::Repair,
                        _ => Cause::Change,
                    };
                    *self.counts.written.entry(cause).or_default() += 1;
                    if repair {
                        self.counts.repairs += 1;
                        *self.repairs.entry(change.key.clone()).or_default() += 1;
                    }
                }
            }
        }
        tracing.ended(&read_back.join(" "), failure.as_ref());
    }

    /// Spans of one write, for the intents whose settings change by it.
    fn trace(&self, write: &Write, limits: &LimitSet, wanted: &Resolved, input: &Input<'_>) -> Writing {
        let uid = |change: &'_ Change| match change.action {
            Action::Set { .. } | Action::Adopt => Some(wanted.settings.get(&change.key)?.winner()?.uid.as_ref()),
            Action::Restore { .. } | Action::Forget | Action::LeaveForeign { .. } => {
                Some(self.ledger.owned().get(&change.key)?.uid.as_str())
            }
        };
        let file = write.changes.first().map(|change| self.kernel.limit_file(&write.cgroup, change.key.key));
        let value: Vec<String> = limits.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let value = format!("{} {}", write.device.num, value.join(" "));
        input.traces.write(write.changes.iter().filter_map(uid), &file.unwrap_or_default(), &value)
    }

    fn write_failed(&self, key: &SettingKey, error: &KernelError) -> Finding {
        if let Some(ancestor) = self.kernel.io_withheld_by(&key.cgroup) {
            return Finding::holds(
                ConditionType::ControllerNotEnabled,
                "IoNotInSubtreeControl",
                format!(
                    "{ancestor} does not pass the io controller on (no `io` in its cgroup.subtree_control): {error}"
                ),
            )
            .with_access(error.into());
        }
        Finding::holds(ConditionType::WriteFailed, "KernelRefused", format!("{key}: {error}")).with_access(error.into())
    }

    fn differs(
        &self,
        key: &SettingKey,
        to: weir_common::units::LimitValue,
        held: weir_common::units::LimitValue,
    ) -> Finding {
        let access = Access {
            file: self.kernel.limit_file(&key.cgroup, key.key),
            value: Some(to.to_string()),
            errno: None,
            read_back: Some(held.to_string()),
        };
        Finding::holds(
            ConditionType::ReadBackDiffers,
            "KernelHoldsAnother",
            format!("{key}: {to} was written and taken, {held} was read back"),
        )
        .with_access(access)
    }

    /// Foreign values that stay are told in the node's conditions: the rule that they would belong to is gone.
    fn note_foreign(&mut self, changes: &[Change]) {
        /// How many are remembered.
        const REMEMBERED: usize = 64;
        for change in changes {
            if let Action::LeaveForeign { value } = change.action
                && self.foreign_kept.insert(change.key.clone(), value) != Some(value)
            {
                tracing::warn!(setting = %change.key, %value, "somebody else's value is left in place");
            }
        }
        while self.foreign_kept.len() > REMEMBERED {
            self.foreign_kept.pop_last();
        }
    }

    /// Settings are forgotten once the kernel was read with their baseline, or they are gone.
    fn forget_what_is_back(&mut self, changes: &[Change], wanted: &Resolved, observed: &Observed) {
        let done: Vec<SettingKey> = changes
            .iter()
            .filter(|change| match change.action {
                Action::Forget | Action::LeaveForeign { .. } => true,
                Action::Restore { to } => match observed.own(&change.key) {
                    Ok(held) => held == to,
                    Err(error) => error.is_some_and(KernelError::is_gone),
                },
                // Written to, and gone meanwhile.
                Action::Set { .. } => observed.own(&change.key).err().flatten().is_some_and(KernelError::is_gone),
                Action::Adopt => false,
            })
            .map(|change| change.key.clone())
            .collect();
        if let Err(error) = self.ledger.forget(&done) {
            tracing::warn!(%error, "settings that were put back could not be forgotten yet");
            return;
        }
        for key in done.iter().filter(|key| !wanted.settings.contains_key(key)) {
            self.succeeded(key);
        }
    }
}
