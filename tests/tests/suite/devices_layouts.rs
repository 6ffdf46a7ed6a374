//! The graph of block devices, from layouts that are kept and from random ones.
//!
//! With WEIR_UPDATE=1 what is expected of the kept ones is written anew.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_tests::layouts::{Layout, Tree};

#[test]
fn every_layout_gives_the_graph_that_is_expected() {
    let layouts = Layout::all().unwrap();
    assert!(layouts.len() >= 30, "{} layouts", layouts.len());
    if std::env::var_os("WEIR_UPDATE").is_some() {
        layouts.iter().for_each(|layout| layout.update().unwrap());
        return;
    }
    let wrong: Vec<String> = layouts.iter().filter_map(|layout| layout.difference().unwrap()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Disks with partitions whose numbers are dealt out at random, and devices stacked on any of them.
#[derive(Clone, Debug)]
struct Random {
    partitions: Vec<usize>,
    numbers: Vec<usize>,
    slaves: Vec<Vec<usize>>,
}

fn random() -> impl Strategy<Value = Random> {
    (
        proptest::collection::vec(0usize..4, 1..6),
        proptest::collection::vec(proptest::collection::vec(0usize..64, 1..4), 0..6),
    )
        .prop_flat_map(|(partitions, slaves)| {
            let count = partitions.iter().sum::<usize>() + partitions.len();
            let numbers = Just((0..count).collect::<Vec<usize>>()).prop_shuffle();
            (Just(partitions), numbers, Just(slaves))
        })
        .prop_map(|(partitions, numbers, slaves)| Random { partitions, numbers, slaves })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_partition_never_leads_to_a_disk_that_is_not_its_own(layout in random()) {
        let mut tree = Tree::new().unwrap();
        let mut numbers = layout.numbers.iter();
        // What a stacked device may lie on, with the whole disks below that.
        let mut lowest: Vec<(String, Vec<String>)> = Vec::new();
        let mut own = BTreeMap::new();
        for (disk, &partitions) in layout.partitions.iter().enumerate() {
            let name = format!("nvme{disk}n1");
            tree.disk(&name, &format!("259:{}", numbers.next().unwrap()), "2048", &[]).unwrap();
            lowest.push((name.clone(), vec![name.clone()]));
            for place in 1..=partitions {
                let (part, number) = (format!("{name}p{place}"), format!("259:{}", numbers.next().unwrap()));
                tree.partition(&name, place, [&part, &number, "8"], &[]).unwrap();
                own.insert(number, name.clone());
                lowest.push((part, vec![name.clone()]));
            }
        }
        for (minor, slaves) in layout.slaves.iter().enumerate() {
            let name = format!("dm-{minor}");
            let mut picked: Vec<(String, Vec<String>)> =
                slaves.iter().map(|slave| lowest[slave % lowest.len()].clone()).collect();
            picked.sort();
            picked.dedup();
            let list: Vec<&str> = picked.iter().map(|(slave, _)| slave.as_str()).collect();
            tree.disk(&name, &format!("253:{minor}"), "2048", &[&format!("slaves={}", list.join(","))]).unwrap();
            let mut disks: Vec<String> = picked.into_iter().flat_map(|(_, disks)| disks).collect();
            disks.sort();
            disks.dedup();
            lowest.push((name, disks));
        }
        let snapshot = tree.take(Vec::new()).unwrap();
        for (number, disk) in own {
            prop_assert_eq!(&snapshot.whole(number.parse().unwrap()).unwrap().kernel_name, &disk);
        }
        for (name, disks) in lowest.iter().filter(|(name, _)| name.starts_with("dm-")) {
            let top = snapshot.named(name).unwrap();
            for disk in snapshot.devices.values().filter(|device| device.kernel_name.starts_with("nvme")) {
                prop_assert_eq!(snapshot.is_below(disk, top), disks.contains(&disk.kernel_name), "{} {}", name, disk.kernel_name);
            }
        }
    }
}
