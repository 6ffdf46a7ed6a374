//! A disk of our own with a file system on it: a loop device, or the device that the environment gives (a guest's).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

/// Environment variable that names a whole disk to use, and to overwrite, instead of a loop device.
pub const GIVEN_DISK: &str = "WEIR_TEST_DISK";

/// A mounted file system on a disk of its own. Unmounted and detached on drop.
#[derive(Debug)]
pub struct Disk {
    /// Device node, for instance `/dev/loop0`.
    pub device: PathBuf,
    /// `MAJ:MIN`.
    pub number: String,
    /// Where it is mounted.
    pub mount: PathBuf,
    image: Option<PathBuf>,
    keep: bool,
}

impl Disk {
    /// Makes one of `mib` MiB, mounted at `mount`, with its image (if it is a loop device) at `image`.
    ///
    /// # Errors
    /// The step that failed with the program's own words.
    pub fn new(image: &Path, mount: &Path, mib: u64) -> anyhow::Result<Disk> {
        fs::create_dir_all(mount).with_context(|| format!("mkdir {}", mount.display()))?;
        let given = std::env::var_os(GIVEN_DISK).map(PathBuf::from);
        let (device, image) = match given {
            Some(device) => (device, None),
            None => {
                let file = fs::File::create(image).with_context(|| format!("create {}", image.display()))?;
                file.set_len(mib * 1024 * 1024)?;
                (attach(image)?, Some(image.to_owned()))
            }
        };
        let mut disk =
            Disk { device: device.clone(), number: String::new(), mount: mount.to_owned(), image, keep: false };
        disk.number = number(&device)?;
        let device = device.display().to_string();
        run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device])?;
        run("mount", &[&device, &mount.display().to_string()])?;
        Ok(disk)
    }

    /// Leaves it mounted.
    pub fn keep(mut self) {
        self.keep = true;
    }

    /// Makes a file of `mib` MiB with contents, so that reads reach the device.
    ///
    /// # Errors
    /// Writing failed.
    pub fn file(&self, name: &str, mib: usize) -> anyhow::Result<PathBuf> {
        let path = self.mount.join(name);
        let mut file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let block: Vec<u8> = (0..1024 * 1024).map(|i: u32| i.to_le_bytes()[0]).collect();
        for _ in 0..mib {
            std::io::Write::write_all(&mut file, &block)?;
        }
        file.sync_all()?;
        Ok(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        tear_down(&self.mount, self.image.as_deref());
    }
}

/// Unmounts `mount` where it is a mount point, and detaches every loop device behind `image`. For leftovers too.
pub fn tear_down(mount: &Path, image: Option<&Path>) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let at = format!(" {} ", mount.display());
    if mounts.lines().any(|line| line.contains(&at)) {
        let mount = mount.display().to_string();
        // A reader that was just ended may hold it for a moment.
        let mut last = Ok(());
        for _ in 0..50 {
            last = run("umount", &[&mount]);
            if last.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Err(error) = last {
            eprintln!("{error:#}");
        }
    }
    if let Some(image) = image.filter(|image| image.exists()) {
        let listed = Command::new("losetup").arg("-n").arg("-O").arg("NAME").arg("-j").arg(image).output();
        for device in listed.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default().lines() {
            if let Err(error) = run("losetup", &["-d", device.trim()]) {
                eprintln!("{error:#}");
            }
        }
        let _gone = fs::remove_file(image);
    }
    let _gone = fs::remove_dir(mount);
}

fn attach(image: &Path) -> anyhow::Result<PathBuf> {
    let image = image.display().to_string();
    // Direct I/O to the backing file where its file system has it: no second page cache between.
    let device = output("losetup", &["--direct-io=on", "--find", "--show", &image])
        .or_else(|_| output("losetup", &["--find", "--show", &image]))?;
    Ok(PathBuf::from(device.trim()))
}

fn number(device: &Path) -> anyhow::Result<String> {
    use std::os::unix::fs::MetadataExt as _;
    let rdev = fs::metadata(device).with_context(|| format!("stat {}", device.display()))?.rdev();
    Ok(format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev)))
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    output(program, args).map(drop)
}

fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
