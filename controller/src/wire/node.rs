//! Nodes, their facts and devices. What agents send is read with tolerance: a row that makes no sense is left out, the
//! others count.

use weir_common::{device::DeviceId, units::Floor};
use weir_proto::v1;

use crate::model::{CgroupVersion, Device, DeviceKind, Directive, NodeFacts, Partition};

use super::{device_id_from_wire, intent_to_wire::device_kind_to_wire, spec::device_kind_from_wire, to_i64, to_u64};

/// Most devices that are kept of a node.
const MAX_DEVICES: usize = 4096;
/// Most labels that are kept of a node.
const MAX_LABELS: usize = 256;

pub(crate) fn directive_to_wire(directive: Directive) -> i32 {
    let directive = match directive {
        Directive::Active => v1::Directive::Active,
        Directive::Paused => v1::Directive::Paused,
        Directive::Released => v1::Directive::Released,
    };
    directive.into()
}

/// Facts as an agent sent them.
pub(crate) fn facts_from_wire(facts: v1::NodeFacts) -> NodeFacts {
    let v1::NodeFacts {
        labels,
        kernel_release,
        cgroup_version,
        devices,
        floor_bytes_per_second,
        floor_operations_per_second,
    } = facts;
    let cgroup_version = match v1::CgroupVersion::try_from(cgroup_version) {
        Ok(v1::CgroupVersion::V1) => Some(CgroupVersion::V1),
        Ok(v1::CgroupVersion::V2) => Some(CgroupVersion::V2),
        Ok(v1::CgroupVersion::Unspecified) | Err(_) => None,
    };
    let mut devices: Vec<Device> = devices.into_iter().take(MAX_DEVICES).filter_map(device_from_wire).collect();
    devices.sort_by(|a, b| a.kernel_name.cmp(&b.kernel_name));
    NodeFacts {
        labels: labels.into_iter().take(MAX_LABELS).collect(),
        kernel_release,
        cgroup_version,
        devices,
        floor: Floor {
            bytes_per_second: to_u64(floor_bytes_per_second),
            operations_per_second: to_u64(floor_operations_per_second),
        },
    }
}

pub(crate) fn facts_to_wire(facts: &NodeFacts) -> v1::NodeFacts {
    let NodeFacts { labels, kernel_release, cgroup_version, devices, floor } = facts;
    let version = match cgroup_version {
        Some(CgroupVersion::V1) => v1::CgroupVersion::V1,
        Some(CgroupVersion::V2) => v1::CgroupVersion::V2,
        None => v1::CgroupVersion::Unspecified,
    };
    v1::NodeFacts {
        labels: labels.clone(),
        kernel_release: kernel_release.clone(),
        cgroup_version: version.into(),
        devices: devices.iter().map(device_to_wire).collect(),
        floor_bytes_per_second: to_i64(floor.bytes_per_second),
        floor_operations_per_second: to_i64(floor.operations_per_second),
    }
}

fn device_from_wire(device: v1::Device) -> Option<Device> {
    let v1::Device {
        kernel_name,
        id,
        kind,
        model,
        serial,
        size_bytes,
        rotational,
        by_id,
        mount_paths,
        scheduler,
        read_ahead_kib,
        below,
        firmware,
        wwid,
        max_sectors_kib,
        queue_requests,
        writeback_throttle_us,
        logical_block_bytes,
        layer,
        mapped_name,
        backing_file,
        backing_disk,
        hidden_paths,
        bypassed_by,
        partitions,
    } = device;
    Some(Device {
        kernel_name,
        id: device_id_from_wire(id?)?,
        kind: device_kind_from_wire(kind).unwrap_or(DeviceKind::Other),
        model,
        serial,
        size_bytes: to_u64(size_bytes),
        rotational,
        by_id,
        mount_paths,
        scheduler,
        read_ahead_kib: read_ahead_kib.map(to_u64),
        below,
        firmware,
        wwid,
        max_sectors_kib: max_sectors_kib.map(to_u64),
        queue_requests: queue_requests.map(to_u64),
        writeback_throttle_us: writeback_throttle_us.map(to_u64),
        logical_block_bytes: logical_block_bytes.map(to_u64),
        layer,
        mapped_name,
        backing_file,
        backing_disk,
        hidden_paths,
        bypassed_by,
        partitions: partitions.into_iter().filter_map(partition_from_wire).collect(),
    })
}

fn partition_from_wire(partition: v1::Partition) -> Option<Partition> {
    let v1::Partition { kernel_name, major, minor, size_bytes, mount_paths, used_by } = partition;
    let num = device_id_from_wire(v1::DeviceId { major, minor, diskseq: None })?.num;
    Some(Partition { kernel_name, num, size_bytes: to_u64(size_bytes), mount_paths, used_by })
}

fn partition_to_wire(partition: &Partition) -> v1::Partition {
    v1::Partition {
        kernel_name: partition.kernel_name.clone(),
        major: partition.num.major,
        minor: partition.num.minor,
        size_bytes: to_i64(partition.size_bytes),
        mount_paths: partition.mount_paths.clone(),
        used_by: partition.used_by.clone(),
    }
}

pub(crate) fn device_to_wire(device: &Device) -> v1::Device {
    let Device {
        kernel_name,
        id,
        kind,
        model,
        serial,
        size_bytes,
        rotational,
        by_id,
        mount_paths,
        scheduler,
        read_ahead_kib,
        below,
        firmware,
        wwid,
        max_sectors_kib,
        queue_requests,
        writeback_throttle_us,
        logical_block_bytes,
        layer,
        mapped_name,
        backing_file,
        backing_disk,
        hidden_paths,
        bypassed_by,
        partitions,
    } = device;
    v1::Device {
        kernel_name: kernel_name.clone(),
        id: Some(device_id_to_wire(*id)),
        kind: device_kind_to_wire(*kind),
        model: model.clone(),
        serial: serial.clone(),
        size_bytes: to_i64(*size_bytes),
        rotational: *rotational,
        by_id: by_id.clone(),
        mount_paths: mount_paths.clone(),
        scheduler: scheduler.clone(),
        read_ahead_kib: read_ahead_kib.map(to_i64),
        below: below.clone(),
        firmware: firmware.clone(),
        wwid: wwid.clone(),
        max_sectors_kib: max_sectors_kib.map(to_i64),
        queue_requests: queue_requests.map(to_i64),
        writeback_throttle_us: writeback_throttle_us.map(to_i64),
        logical_block_bytes: logical_block_bytes.map(to_i64),
        layer: layer.clone(),
        mapped_name: mapped_name.clone(),
        backing_file: backing_file.clone(),
        backing_disk: backing_disk.clone(),
        hidden_paths: hidden_paths.clone(),
        bypassed_by: bypassed_by.clone(),
        partitions: partitions.iter().map(partition_to_wire).collect(),
    }
}

pub(super) fn device_id_to_wire(id: DeviceId) -> v1::DeviceId {
    v1::DeviceId { major: id.num.major, minor: id.num.minor, diskseq: id.diskseq }
}
