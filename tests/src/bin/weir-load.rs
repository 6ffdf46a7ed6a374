//! A load of one process: reads or writes a file over and over, in a cgroup, for a time, and prints what it saw as one line
//! of JSON. Stands in where fio is not at hand; measures with its own clock, apart from Weir.
#![allow(clippy::print_stdout, reason = "its result is for whoever started it")]

use std::{
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use weir_tests::load::Report;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Direction {
    Read,
    Write,
}

/// Reads or writes a file over and over.
#[derive(Parser)]
struct Args {
    /// What to do.
    direction: Direction,
    /// The file; it must exist and have at least one block.
    #[arg(long)]
    file: PathBuf,
    /// Directory of the cgroup to enter first.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// Bytes a call; a multiple of 4096 with --direct.
    #[arg(long, default_value_t = 65536)]
    block: usize,
    /// Length of the load.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Bypass the page cache.
    #[arg(long)]
    direct: bool,
    /// Go on when whoever started it ends.
    #[arg(long)]
    outlive: bool,
    /// Ask for this many bytes per second only; 0 for as many as go.
    #[arg(long, default_value_t = 0)]
    pace: u64,
}

/// Alignment that direct I/O asks of memory on every disk.
const ALIGN: usize = 4096;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if !args.outlive {
        // Whoever started this ends it, also by dying.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    if let Some(cgroup) = &args.cgroup {
        let procs = cgroup.join("cgroup.procs");
        std::fs::write(&procs, std::process::id().to_string()).with_context(|| format!("enter {}", procs.display()))?;
    }
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).context("O_DIRECT is an int")?;
    let write = args.direction == Direction::Write;
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(if args.direct { direct } else { 0 })
        .open(&args.file)
        .with_context(|| format!("open {}", args.file.display()))?;
    let blocks = file.metadata()?.len() / args.block as u64;
    anyhow::ensure!(blocks > 0, "{} is shorter than one block", args.file.display());

    let mut memory = vec![0u8; args.block + ALIGN];
    let offset = memory.as_ptr().align_offset(ALIGN);
    let buffer = &mut memory[offset..offset + args.block];
    let start = Instant::now();
    let length = Duration::from_secs_f64(args.seconds);
    let mut report = Report { bytes: 0, operations: 0, seconds: 0.0, worst_stall_seconds: 0.0 };
    while start.elapsed() < length {
        let at = (report.operations % blocks) * args.block as u64;
        if at == 0 && !args.direct && !write {
            // Another round must reach the device again.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        let before = Instant::now();
        let done =
            if write { rustix::io::pwrite(&file, buffer, at) } else { rustix::io::pread(&file, &mut *buffer, at) };
        let done = done.with_context(|| format!("at offset {at}"))?;
        report.worst_stall_seconds = report.worst_stall_seconds.max(before.elapsed().as_secs_f64());
        report.bytes += done as u64;
        report.operations += 1;
        if args.pace > 0 {
            let due = Duration::from_secs_f64(report.bytes as f64 / args.pace as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()).min(length));
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
