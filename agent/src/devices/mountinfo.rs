//! `/proc/self/mountinfo`: which file systems are mounted where, and on which device. Source: proc_pid_mountinfo(5).

use weir_common::device::DevNum;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number for the mount, unique while it is there.
    pub id: Option<u64>,
    /// st_dev of files on it; major 0 for file systems without a block device of their own.
    pub device: DevNum,
    /// The directory of the file system that is mounted; `/` for all of it, another for a bind mount.
    pub root: String,
    /// Where it is mounted, escapes resolved.
    pub mount_point: String,
    /// Type.
    pub fs_type: String,
    /// What is mounted, for a file system on a disk a path of its device.
    pub source: String,
    /// Options of the file system itself.
    pub super_options: String,
}

/// All mounts in the file's order, in which a later one hides an earlier one at the same point. A line that cannot be
/// understood is passed over, alone.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mount> {
    // id parent maj:min root mount-point options [tag...] - type source super-options
    let fields: Vec<&str> = line.split(' ').collect();
    let separator = fields.iter().skip(6).position(|field| *field == "-")? + 6;
    Some(Mount {
        id: fields.first()?.parse().ok(),
        device: fields.get(2)?.parse().ok()?,
        root: unescape(fields.get(3)?),
        mount_point: unescape(fields.get(4)?),
        fs_type: (*fields.get(separator + 1)?).to_owned(),
        source: unescape(fields.get(separator + 2).copied().unwrap_or_default()),
        super_options: fields.get(separator + 3).copied().unwrap_or_default().to_owned(),
    })
}

/// Resolves the octal escapes (`\040` is a blank).
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The mounts at and below a directory, as they are for who has that as root.
pub fn below(mounts: Vec<Mount>, root: &str) -> Vec<Mount> {
    let root = root.trim_end_matches('/');
    let inside = |mut mount: Mount| {
        let rest = mount.mount_point.strip_prefix(root)?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        mount.mount_point = if rest.is_empty() { "/".to_owned() } else { rest.to_owned() };
        Some(mount)
    };
    mounts.into_iter().filter_map(inside).collect()
}

/// The mount that a path lies on: the one with the longest mount point that contains it; of several at one point the last.
pub fn covering<'a>(mounts: &'a [Mount], path: &str) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| {
            let point = mount.mount_point.trim_end_matches('/');
            path == mount.mount_point || path.strip_prefix(point).is_some_and(|rest| rest.starts_with('/'))
        })
        .max_by_key(|mount| mount.mount_point.trim_end_matches('/').len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r"22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:5 / /data rw - tmpfs tmpfs rw
24 22 259:3 /sub /data rw,noatime shared:2 master:1 - xfs /dev/nvme0n1p1 rw
25 22 8:1 / /my\040disk rw - ext4 /dev/sda1 rw
garbage
26 22 x / /broken rw - ext4 /dev/sdb rw
";

    #[test]
    fn good_absent_and_garbage() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[3].mount_point, "/my disk");
        assert!(parse("").is_empty());
    }

    #[test]
    fn the_longest_and_the_last_cover() {
        let mounts = parse(TEXT);
        let fs = |path: &str| covering(&mounts, path).unwrap().fs_type.clone();
        assert_eq!(fs("/data"), "xfs");
        assert_eq!(fs("/data/below/it"), "xfs");
        assert_eq!(fs("/database"), "ext4");
        assert_eq!(covering(&mounts, "/database").unwrap().mount_point, "/");
        assert_eq!(covering(&mounts, "/my disk/x").unwrap().device, DevNum { major: 8, minor: 1 });
    }

    #[test]
    fn a_container_sees_the_hosts_mounts_below_where_they_are_mounted() {
        let text = "22 1 0:40 / / rw - overlay overlay rw\n23 22 254:1 / /host ro - ext4 /dev/root rw\n24 23 259:3 / \
                    /host/data rw - xfs /dev/nvme0n1p1 rw\n25 22 8:1 / /hostile rw - ext4 /dev/sda1 rw\n";
        let points = |root: &str| -> Vec<String> {
            below(parse(text), root).into_iter().map(|mount| mount.mount_point).collect()
        };
        assert_eq!(points("/host"), ["/", "/data"]);
        assert_eq!(points("/host/"), ["/", "/data"]);
        assert_eq!(points("/"), ["/", "/host", "/host/data", "/hostile"]);
        assert!(points("/elsewhere").is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}", path in "/[a-z/]{0,20}") {
            let mounts = parse(&text);
            covering(&mounts, &path);
        }
    }
}
