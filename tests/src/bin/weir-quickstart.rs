//! The driver behind `./quickstart`: a disk, two readers, a controller and an agent on this machine, one intent, and the
//! three numbers. Touches only a loop device, a mount, cgroups and processes of its own, and takes all of it down again.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it speaks to a person")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Parser;
use weir_proto::v1;
use weir_tests::{
    cgroup::{self, Tree},
    disk::{self, Disk},
    fleet::{self, Clients},
    load::{Load, Running},
    process::{Daemon, binary},
    require,
};

/// Name of the tree of cgroups, as docs/examples/quickstart.yaml has it.
const TREE: &str = "weir-quickstart";
/// Where the disk is mounted, as docs/examples/quickstart.yaml has it.
const RUN_DIR: &str = "/run/weir-quickstart";
/// The limit in docs/examples/quickstart.yaml, bytes per second.
const INTENDED: u64 = 10 * 1024 * 1024;
/// How long the readers of `--keep` run, seconds.
const KEPT_SECONDS: f64 = 3600.0;
/// Exit code where this machine cannot.
const CANNOT: u8 = 3;

/// Limits a reader of a disk of its own to 10 MiB/s, and shows what was intended, what the kernel holds, and what the reader gets.
#[derive(Parser)]
#[command(name = "quickstart")]
struct Args {
    /// The manifest to apply.
    #[arg(long)]
    manifest: PathBuf,
    /// Where the disk's image and the state of controller and agent go while it runs.
    #[arg(long, default_value_os_t = std::env::temp_dir().join("weir-quickstart"))]
    work_dir: PathBuf,
    /// Seconds of the live table; at least 12, since the figures are means over 10 s.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(12..=3600))]
    seconds: u64,
    /// Leave everything running, and say how to talk to it.
    #[arg(long)]
    keep: bool,
    /// Take down what `--keep`, or a run that was killed, left behind.
    #[arg(long)]
    down: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let missing = require::throttle();
    if !missing.is_empty() {
        println!("quickstart cannot run here. Missing:");
        for what in missing {
            println!("  - {what}");
        }
        return ExitCode::from(CANNOT);
    }
    let guard = match lock() {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if !args.down && noted(&args.work_dir).next().is_some() {
        println!("quickstart: one that was kept still runs; taking it down first");
    }
    take_down(&args.work_dir);
    if args.down {
        let _gone = fs::remove_dir_all(RUN_DIR);
        println!("quickstart: nothing of it is left");
        return ExitCode::SUCCESS;
    }
    let outcome = tokio::select! {
        outcome = demonstrate(&args) => outcome,
        name = interrupted() => Err(anyhow::anyhow!("{name}: taking everything down")),
    };
    // What `demonstrate` held is gone now, whichever way it ended.
    let code = match outcome {
        Ok(Some(last_line)) => {
            take_down(&args.work_dir);
            println!("{}", last_line.text);
            ExitCode::from(u8::from(!last_line.good))
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            take_down(&args.work_dir);
            ExitCode::FAILURE
        }
    };
    if !args.keep {
        // The lock goes with its file; whoever waits for a name in here has another file open by then.
        let _gone = fs::remove_dir_all(RUN_DIR);
    }
    drop(guard);
    code
}

struct LastLine {
    text: String,
    good: bool,
}

/// The whole demonstration. Everything that it makes is dropped, and thereby undone, when it ends or is dropped itself.
async fn demonstrate(args: &Args) -> anyhow::Result<Option<LastLine>> {
    fs::create_dir_all(&args.work_dir).with_context(|| format!("mkdir {}", args.work_dir.display()))?;

    say("a disk: 256 MiB loop device with ext4, two files on it");
    let tree = Tree::new(TREE)?;
    if tree.enabled_at_root() {
        fs::write(io_marker(), "").context("note that the io controller was enabled")?;
    }
    let disk = Disk::new(&image(&args.work_dir), &Path::new(RUN_DIR).join("disk"), 256)?;
    let files = [disk.file("limited", 64)?, disk.file("neighbour", 64)?];
    let groups = [tree.child("limited")?, tree.child("neighbour")?];
    let hierarchy = tree.hierarchy().clone();
    println!(
        "    {} ({}) at {}, cgroup {} below {}{}",
        disk.device.display(),
        disk.number,
        disk.mount.display(),
        if hierarchy.v2 { "v2" } else { "v1" },
        hierarchy.root.display(),
        if tree.enabled_at_root() { ", io controller enabled for it" } else { "" },
    );

    say("a controller and an agent, on loopback");
    let (mut controller, address) = fleet::controller(&args.work_dir, "127.0.0.1:0")?;
    let mut agent = fleet::agent(&args.work_dir, &address, "quickstart", &[])?;
    println!("    {}\n    {}", controller.ready, agent.ready);
    remember(&args.work_dir, &[&controller, &agent])?;

    say("two readers, as fast as the disk goes");
    let seconds = if args.keep { KEPT_SECONDS } else { args.seconds as f64 + 120.0 };
    let load = Load { outlive: args.keep, ..Load::direct_read(seconds) };
    let readers: Vec<Running> = groups.iter().zip(&files).map(|(group, file)| load.start(group, file)).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;

    say("weirctl apply -f quickstart.yaml --wait");
    let manifest = args.manifest.display().to_string();
    weirctl(&address, &["apply", "-f", &manifest, "--wait", "--timeout", "60s"]).await?;

    say("intended, effective, achieved");
    weirctl(&address, &["watch", "--for", &format!("{}s", args.seconds)]).await?;
    let mut clients = Clients::connect(&address).await?;
    let numbers = numbers(&mut clients).await?;

    if args.keep {
        for reader in readers {
            reader.keep();
        }
        agent.keep();
        controller.keep();
        disk.keep();
        tree.keep();
        println!("\nIt keeps running; the readers end by themselves after an hour. Talk to it:\n");
        let weirctl = binary("weirctl");
        println!("    export WEIR_SERVER=http://{address}");
        for command in ["get intents", "explain quickstart", "nodes", "watch", "delete intent quickstart-limit --wait"]
        {
            println!("    {} {command}", weirctl.display());
        }
        println!("\nTake it down: ./quickstart --down\n");
        println!("{}", numbers.line().text);
        return Ok(None);
    }

    say("weirctl delete -f quickstart.yaml --wait");
    weirctl(&address, &["delete", "-f", &manifest, "--wait", "--timeout", "60s"]).await?;
    let left = cgroup::kernel_rbps(&hierarchy, &groups[0], &disk.number);
    if let Some(left) = left {
        bail!("the limit is still there after the delete: {left} B/s in {}", hierarchy.rbps_file(&groups[0]).display());
    }
    println!("    {} has no limit for {} any more", hierarchy.rbps_file(&groups[0]).display(), disk.number);

    say("taking everything down");
    drop(readers);
    for (daemon, name) in [(&mut agent, "agent"), (&mut controller, "controller")] {
        if !daemon.stop() {
            bail!("the {name} did not end in order:\n{}", daemon.log_tail());
        }
    }
    Ok(Some(numbers.line()))
}

/// The three numbers of the limited reader.
struct Numbers {
    intended: u64,
    effective: u64,
    achieved: f64,
}

impl Numbers {
    fn line(&self) -> LastLine {
        let error = (self.achieved / self.intended as f64 - 1.0).abs() * 100.0;
        let text = format!(
            "quickstart: intended={} effective={} achieved={:.0} error={error:.2}%",
            self.intended, self.effective, self.achieved
        );
        let good = error < 5.0 && self.intended == INTENDED && self.effective == INTENDED;
        LastLine { text, good }
    }
}

async fn numbers(clients: &mut Clients) -> anyhow::Result<Numbers> {
    let status = clients.status("quickstart-limit").await?.context("no node reports quickstart-limit")?;
    let setting = status.settings.first().with_context(|| {
        let conditions: Vec<String> =
            status.conditions.iter().map(|c| format!("{} ({}): {}", c.r#type, c.reason, c.message)).collect();
        format!("quickstart-limit has no setting: {}", conditions.join("; "))
    })?;
    let finite = |value: &Option<v1::LimitValue>| match value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(v1::limit_value::Value::Finite(value)) => Some(*value),
        _ => None,
    };
    let achieved = setting
        .achieved
        .as_ref()
        .with_context(|| format!("the achieved rate is unknown: {}", setting.achieved_unknown))?;
    Ok(Numbers {
        intended: finite(&setting.intended).context("no limit is intended")?,
        effective: finite(&setting.effective).context("no limit is in force")?,
        achieved: achieved.per_second,
    })
}

async fn weirctl(address: &str, args: &[&str]) -> anyhow::Result<()> {
    let mut command = tokio::process::Command::new(binary("weirctl"));
    command.arg("--server").arg(format!("http://{address}")).args(args).kill_on_drop(true);
    let status = command.status().await.context("start weirctl")?;
    if !status.success() {
        bail!("weirctl {}: {status}", args.join(" "));
    }
    Ok(())
}

fn say(step: &str) {
    println!("\n==> {step}");
}

/// Exists while the io controller is enabled at the hierarchy's root on the quickstart's behalf.
fn io_marker() -> PathBuf {
    Path::new(RUN_DIR).join("io-enabled-at-root")
}

fn image(work_dir: &Path) -> PathBuf {
    work_dir.join("disk.img")
}

async fn interrupted() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let handlers = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()));
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) = handlers else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
        _ = hangup.recv() => "hung up",
    }
}

/// One quickstart at a time: its names are fixed.
fn lock() -> anyhow::Result<fs::File> {
    fs::create_dir_all(RUN_DIR).with_context(|| format!("mkdir {RUN_DIR}"))?;
    let path = Path::new(RUN_DIR).join("lock");
    let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| anyhow::anyhow!("another quickstart runs ({} is locked)", path.display()))?;
    Ok(file)
}

/// Notes the daemons' identities, for `--down` and for the run after one that was killed.
fn remember(work_dir: &Path, daemons: &[&Daemon]) -> anyhow::Result<()> {
    let lines: Vec<String> =
        daemons.iter().map(|daemon| format!("{} {}", daemon.pid(), start_time(daemon.pid()))).collect();
    fs::write(work_dir.join("pids"), lines.join("\n")).context("note the process ids")
}

/// Start time of a process in clock ticks since boot: with the pid it is an identity.
fn start_time(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().nth(19).unwrap_or_default().to_owned()
}

/// The daemons of an earlier quickstart that still run.
fn noted(work_dir: &Path) -> impl Iterator<Item = rustix::process::Pid> + use<> {
    let text = fs::read_to_string(work_dir.join("pids")).unwrap_or_default();
    let pids = text.lines().filter_map(|line| {
        let (pid, started) = line.split_once(' ')?;
        let runs = !started.is_empty() && start_time(pid.parse().ok()?) == started;
        rustix::process::Pid::from_raw(pid.parse().ok()?).filter(|_| runs)
    });
    pids.collect::<Vec<_>>().into_iter()
}

/// Removes whatever a quickstart left: its processes, mount, loop device, cgroups and files.
fn take_down(work_dir: &Path) {
    for pid in noted(work_dir) {
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        std::thread::sleep(Duration::from_millis(500));
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    Tree::remove_leftovers(TREE, io_marker().exists());
    let _gone = fs::remove_file(io_marker());
    disk::tear_down(&Path::new(RUN_DIR).join("disk"), Some(&image(work_dir)));
    // Only what a quickstart puts there: the directory may have been given by hand.
    for name in ["pids", "store.redb", "controller.log", "agent.log", "disk.img"] {
        let _gone = fs::remove_file(work_dir.join(name));
    }
    let _gone = fs::remove_dir_all(work_dir.join("agent"));
    let _gone = fs::remove_dir(work_dir);
}
