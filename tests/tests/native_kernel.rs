//! The fake kernel against the real one: the same text to the same files, the same errno and the same read-back. On v1 on the
//! machine itself, on v2 in the guest.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{fs, path::Path};

use weir_agent::kernel::{CgroupVersion, fake::FakeKernel};
use weir_tests::{cgroup::Tree, disk::Disk, fleet::Scratch, require};

/// Bodies after the device number, good and bad.
const V1_BODIES: [&str; 26] = [
    " 1048576",
    " 1",
    " 0",
    "  7",
    "\t8",
    " 10M",
    " 10MB/s",
    " 1e6",
    " 0x100",
    " 1000 2000",
    " -1",
    " abc",
    " max",
    "",
    " ",
    " +5",
    " 18446744073709551614",
    " 18446744073709551615",
    " 18446744073709551616",
    " 18446744073709551617",
    " 4294967294",
    " 4294967295",
    " 007",
    " 1000\n",
    " 1000\n7:2 2000\n",
    " 99999999999999999999999999",
];
const V2_BODIES: [&str; 48] = [
    " rbps=1048576",
    " rbps=2",
    " rbps=1",
    " rbps=0",
    " riops=0",
    " riops=1",
    " riops=2",
    " wbps=max",
    " rbps=max",
    " rbps=max wbps=max riops=max wiops=max",
    " max",
    " default",
    "",
    " ",
    " rbps=10M",
    " rbps=1e6",
    " rbps=-1",
    " rbps=",
    " rbps",
    " foo=1",
    " foo=5",
    " foo=0",
    " =5",
    " rbps=18446744073709551615",
    " rbps=18446744073709551616",
    " rbps=18446744073709551617",
    " rbps=0x100",
    " riops=4294967295",
    " riops=4294967296",
    " riops=4294967294",
    " rbps=100 rbps=200",
    " rbps=100 wbps=0",
    " wbps=0 rbps=100",
    " rbps=100 foo=5",
    " wiops=120 rbps=2097152",
    "  rbps=7",
    "\trbps=8",
    " rbps=maximum",
    " rbps=MAX",
    " RBPS=5",
    " rbps=5,wbps=6",
    " rbps=5  wbps=6",
    " rbps=007",
    " rbps= 5",
    " rbps=+5",
    " rbps=100\n",
    " rbps=100\n7:0 rbps=100\n",
    " rbps=99999999999999999999999999",
];
/// What may stand for a device, `D` being the disk's own number.
const DEVICES: [&str; 11] = ["D", " D", "999:0", "259:70000", "loop0", "/dev/loop0", "7", "7:", ":0", "x:y", "-1:0"];

struct Pair<'a> {
    fake: &'a FakeKernel,
    real_dir: &'a Path,
    v2: bool,
}

impl Pair<'_> {
    fn write(&self, name: &str, text: &str) -> (Option<i32>, Option<i32>) {
        let real = fs::File::options().write(true).open(self.real_dir.join(name)).unwrap();
        let written = rustix::io::write(&real, text.as_bytes()).map(drop).map_err(rustix::io::Errno::raw_os_error);
        let fake = self.fake.write_raw(&self.fake.file("/a", name), text).map_err(rustix::io::Errno::raw_os_error);
        (fake.err(), written.err())
    }

    fn read(&self, name: &str) -> (String, String) {
        let mut real: Vec<String> =
            fs::read_to_string(self.real_dir.join(name)).unwrap().lines().map(str::to_owned).collect();
        real.sort();
        (self.fake.read_raw(&self.fake.file("/a", name)).unwrap().trim_end().to_owned(), real.join("\n"))
    }

    fn reset(&self, name: &str, device: &str) {
        let texts: &[&str] =
            if self.v2 { &[" rbps=max wbps=max riops=max wiops=max", " rbps=1048576"] } else { &[" 0", " 1048576"] };
        for text in texts {
            assert_eq!(self.write(name, &format!("{device}{text}")), (None, None));
        }
    }
}

#[test]
fn the_fake_kernel_answers_as_the_real_one() {
    if !require::met("the_fake_kernel_answers_as_the_real_one", &require::throttle()) {
        return;
    }
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch.path().join("disk.img"), &scratch.path().join("disk"), 64).unwrap();
    let tree = Tree::new("weir-test-differential").unwrap();
    let real_dir = tree.child("a").unwrap();
    let v2 = tree.hierarchy().v2;
    let fake = FakeKernel::new(if v2 { CgroupVersion::V2 } else { CgroupVersion::V1 });
    fake.add_device(disk.number.parse().unwrap());
    fake.add_cgroup("/a");
    let pair = Pair { fake: &fake, real_dir: &real_dir, v2 };

    let files: &[&str] = if v2 {
        &["io.max"]
    } else {
        &[
            "blkio.throttle.read_bps_device",
            "blkio.throttle.write_bps_device",
            "blkio.throttle.read_iops_device",
            "blkio.throttle.write_iops_device",
        ]
    };
    let bodies: &[&str] = if v2 { &V2_BODIES } else { &V1_BODIES };
    let sound = if v2 { " rbps=2097152" } else { " 2097152" };
    let mut compared = 0;
    let mut differ = Vec::new();
    for name in files {
        let texts =
            DEVICES.iter().map(|device| format!("{device}{sound}")).chain(bodies.iter().map(|b| format!("D{b}")));
        for text in texts {
            // An operations limit that truncates to 0 would divide by zero in the kernel at the next I/O; 2^64+1 does not.
            let text = text.replace('D', &disk.number);
            pair.reset(name, &disk.number);
            let (fake_errno, real_errno) = pair.write(name, &text);
            let (fake_text, real_text) = pair.read(name);
            compared += 1;
            if (fake_errno, &fake_text) != (real_errno, &real_text) {
                differ.push(format!(
                    "{name} {text:?}: fake {fake_errno:?} {fake_text:?}, real {real_errno:?} {real_text:?}"
                ));
            }
        }
        let _ignored = pair.write(
            name,
            &format!("{}{}", disk.number, if v2 { " rbps=max wbps=max riops=max wiops=max" } else { " 0" }),
        );
    }
    eprintln!("{compared} inputs compared with the kernel's cgroup {}", if v2 { "v2" } else { "v1" });
    assert!(differ.is_empty(), "{} of {compared} differ:\n{}", differ.len(), differ.join("\n"));
}
