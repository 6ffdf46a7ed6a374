//! `weirctl devices`: a node's block devices as a tree, disks first, and where limits take effect in it.

use std::collections::BTreeMap;

use weir_proto::v1;

use crate::{args::Output, client::Client, failure::Failure, names, print, text};

const HEAD: [&str; 7] = ["DEVICE", "NUMBER", "KIND", "SIZE", "MODEL", "LIMITS", "MOUNTED AT"];

/// The block devices of a node as a tree.
///
/// # Errors
/// The controller's.
pub async fn tree(client: &mut Client, node: &str, output: Output) -> Result<(), Failure> {
    let request = v1::ListDevicesRequest { parent: names::node(node) };
    let list = client.fleet.list_devices(request).await?.into_inner();
    if print::list("devices", &list.devices, output)? {
        return Ok(());
    }
    if list.devices.is_empty() {
        return print::line("no block devices");
    }
    print::line(&print::table(&HEAD, rows(&list.devices)))
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// One row for each place at which a device is in the tree: what lies on several disks is below each of them.
fn rows(devices: &[v1::Device]) -> Vec<Vec<String>> {
    let tree = Tree { by_name: devices.iter().map(|device| (device.kernel_name.as_str(), device)).collect() };
    let mut rows = Vec::new();
    // A device whose lower ones are not there (any more) is a root too.
    for device in devices.iter().filter(|device| device.below.iter().all(|name| !tree.by_name.contains_key(&**name))) {
        tree.device(device, "", "", &mut Vec::new(), &mut rows);
    }
    rows
}

struct Tree<'a> {
    by_name: BTreeMap<&'a str, &'a v1::Device>,
}

/// What is one step further from the disk.
enum Child<'a> {
    Device(&'a v1::Device),
    Partition(&'a v1::Partition),
    Path(&'a str),
}

impl<'a> Tree<'a> {
    /// Adds the rows of a device and of all that lies on it. `mark` leads to its own row, `indent` to those below it.
    fn device(
        &self,
        device: &'a v1::Device,
        mark: &str,
        indent: &str,
        above: &mut Vec<&'a str>,
        rows: &mut Vec<Vec<String>>,
    ) {
        let name = if device.mapped_name.is_empty() {
            device.kernel_name.clone()
        } else {
            format!("{} ({})", device.kernel_name, device.mapped_name)
        };
        let model = match (device.backing_file.is_empty(), device.backing_disk.is_empty()) {
            (true, _) => dash(&device.model),
            (false, true) => device.backing_file.clone(),
            (false, false) => format!("{} on {}", device.backing_file, device.backing_disk),
        };
        let limits = match device.bypassed_by.as_str() {
            "" => "here".to_owned(),
            by => format!("no effect: use {by}"),
        };
        let kind = text::word(device.kind().as_str_name(), "DEVICE_KIND_");
        let whole = device.partitions.iter().flat_map(|partition| &partition.mount_paths);
        let parts: Vec<&String> = whole.collect();
        let own: Vec<&str> =
            device.mount_paths.iter().filter(|path| !parts.contains(path)).map(String::as_str).collect();
        rows.push(vec![
            format!("{mark}{name}"),
            text::device(device.id.as_ref()),
            if device.layer.is_empty() { kind } else { format!("{kind} {}", device.layer) },
            text::size(device.size_bytes),
            model,
            limits,
            dash(&own.join(",")),
        ]);
        // The kernel's graph has no circles; what was read of it while it changed might.
        if above.contains(&device.kernel_name.as_str()) {
            return;
        }
        above.push(&device.kernel_name);
        let mut children: Vec<Child<'a>> = device.hidden_paths.iter().map(|path| Child::Path(path)).collect();
        children.extend(device.partitions.iter().map(Child::Partition));
        let in_partition: Vec<&String> = device.partitions.iter().flat_map(|partition| &partition.used_by).collect();
        let on_whole = self
            .by_name
            .values()
            .filter(|other| other.below.contains(&device.kernel_name) && !in_partition.contains(&&other.kernel_name));
        children.extend(on_whole.map(|other| Child::Device(other)));
        self.children(&children, device, indent, above, rows);
        above.pop();
    }

    fn children(
        &self,
        children: &[Child<'a>],
        disk: &'a v1::Device,
        indent: &str,
        above: &mut Vec<&'a str>,
        rows: &mut Vec<Vec<String>>,
    ) {
        for (index, child) in children.iter().enumerate() {
            let last = index + 1 == children.len();
            let mark = format!("{indent}{}", if last { "└─" } else { "├─" });
            let next = format!("{indent}{}", if last { "  " } else { "│ " });
            match child {
                Child::Device(device) => self.device(device, &mark, &next, above, rows),
                Child::Path(path) => {
                    let limits = format!("on {}", disk.kernel_name);
                    let cells = [
                        format!("{mark}{path}"),
                        "-".into(),
                        "path".into(),
                        "-".into(),
                        "-".into(),
                        limits,
                        "-".into(),
                    ];
                    rows.push(cells.to_vec());
                }
                Child::Partition(partition) => {
                    rows.push(vec![
                        format!("{mark}{}", partition.kernel_name),
                        format!("{}:{}", partition.major, partition.minor),
                        "partition".to_owned(),
                        text::size(partition.size_bytes),
                        "-".to_owned(),
                        format!("on {}", disk.kernel_name),
                        dash(&partition.mount_paths.join(",")),
                    ]);
                    let users: Vec<Child<'a>> = partition
                        .used_by
                        .iter()
                        .filter_map(|name| self.by_name.get(name.as_str()))
                        .map(|device| Child::Device(device))
                        .collect();
                    self.children(&users, disk, &next, above, rows);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, below: &[&str]) -> v1::Device {
        v1::Device {
            kernel_name: name.to_owned(),
            id: Some(v1::DeviceId { major: 8, minor: 0, diskseq: None }),
            kind: v1::DeviceKind::SataSsd.into(),
            size_bytes: 1 << 30,
            below: below.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        }
    }

    fn partition(name: &str, used_by: &[&str], mounted: &[&str]) -> v1::Partition {
        v1::Partition {
            kernel_name: name.to_owned(),
            used_by: used_by.iter().map(|&name| name.to_owned()).collect(),
            mount_paths: mounted.iter().map(|&path| path.to_owned()).collect(),
            ..Default::default()
        }
    }

    fn column(rows: &[Vec<String>], index: usize) -> Vec<&str> {
        rows.iter().map(|row| row[index].as_str()).collect()
    }

    #[test]
    fn what_lies_on_what_and_where_limits_act() {
        let mut sda = device("sda", &[]);
        sda.partitions = vec![partition("sda1", &[], &["/boot"]), partition("sda2", &["dm-0"], &[])];
        sda.mount_paths = vec!["/boot".to_owned()];
        let mut dm = device("dm-0", &["sda"]);
        (dm.kind, dm.layer, dm.mapped_name) = (v1::DeviceKind::Dm.into(), "crypt".into(), "home".into());
        dm.mount_paths = vec!["/home".to_owned()];
        let mut path = device("sdb", &[]);
        path.bypassed_by = "dm-1".to_owned();
        let rows = rows(&[sda, dm, path, device("dm-1", &["sdb"])]);
        assert_eq!(column(&rows, 0), ["sda", "├─sda1", "└─sda2", "  └─dm-0 (home)", "sdb", "└─dm-1"]);
        assert_eq!(column(&rows, 5), ["here", "on sda", "on sda", "here", "no effect: use dm-1", "here"]);
        assert_eq!(column(&rows, 6), ["-", "/boot", "-", "/home", "-", "-"]);
        assert_eq!(rows[3][2], "dm crypt");
    }

    #[test]
    fn several_parents_none_and_circles() {
        let mirror = rows(&[device("sda", &[]), device("sdb", &[]), device("md0", &["sda", "sdb"])]);
        assert_eq!(column(&mirror, 0), ["sda", "└─md0", "sdb", "└─md0"]);
        let orphan = rows(&[device("dm-0", &["gone"])]);
        assert_eq!(column(&orphan, 0), ["dm-0"]);
        // Nothing leads to a circle; one behind a root ends.
        let mut one = device("dm-1", &["sda"]);
        one.below.push("dm-2".to_owned());
        assert!(rows(&[device("sda", &[]), one, device("dm-2", &["dm-1"])]).len() < 6);
    }
}
