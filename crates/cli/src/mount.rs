//! `lockwright mount`: the files of a folder with locks of a space, until it is unmounted or told to stop.

use crate::SpaceArg;
use crate::serve::{Events, stop_signals};
use anyhow::{Context, Result};
use lockwright_mount::{MountOptions, Mounted, Unmounted};
use lockwright_term::{Outcome, say};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Mount a folder's files, with locks (fcntl, lockf, flock) that come from a space
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockwright mount /srv/data /data        programs that lock files below /data lock in this host's shared memory
  lockwright mount /data /data            the same for a folder in its own place
  lockwright mount --space tcp://locks.example/files --name data /srv/data /data    with other hosts, which say the same
  lockwright ls --space tcp://locks.example/files    who has locked what: fcntl:NAME:INODE and flock:NAME:INODE
  umount /data                            ends it, as SIGTERM and SIGINT do

Files are passed through. Among hosts, they are known by --name and their inode number: every host must mount the same files
under the same name, from NFS, a cluster file system or whatever gives them the same inode numbers everywhere.
A space that cannot be reached, or that has taken a lock away, fails locks with ENOLCK.
As root, every user may enter, and the kernel reads and writes files by itself where it can (Linux 6.9, no file system that is
itself a stack). Others need fusermount3 (package fuse3).

Exit codes: 0, it was unmounted or told to stop; 2, it could not be mounted.")]
pub(crate) struct Args {
    /// Folder whose files are passed through
    source: PathBuf,
    /// Folder where they appear; it may be the same
    dir: PathBuf,
    #[command(flatten)]
    space: SpaceArg,
    /// What SOURCE is called among all hosts that mount it; needed unless the space is in this host's memory
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Read and write files here, not in the kernel: slower, but nobody writes any more once this program is gone
    #[arg(long)]
    no_passthrough: bool,
    /// Seconds that names and attributes are remembered: only where nobody changes them from elsewhere
    #[arg(long, value_name = "SECS", value_parser = crate::run::seconds, default_value = "0")]
    cache: Duration,
    /// Let other users enter; without root /etc/fuse.conf must allow it
    #[arg(long)]
    allow_other: bool,
    /// What to log on standard error: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "warn")]
    log: Targets,
    /// Say what is mounted as a JSON object
    #[arg(long)]
    json: bool,
}

/// How long it can go unnoticed that the folder was unmounted, or a signal has come.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &Args, out: &mut impl Write) -> Result<Outcome> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(args.log.clone()).init();
    let events = Events::open(stop_signals()?)?;
    // The secret's file can be a pipe: whatever starting waits for, a signal ends it.
    let (options, trust) = (options(args), args.space.trust.clone());
    let start = move || -> Result<Mounted> { Ok(Mounted::new(&options, &trust.options()?)?) };
    let mounted = match events.during("lockwright-start", start)? {
        Ok(mounted) => mounted?,
        Err(came) => {
            say!("stopped by {came} before it was mounted");
            return Ok(Outcome::Clean);
        }
    };
    let (at, source, space) = (mounted.at().display(), args.source.display(), &args.space.space);
    if args.json {
        let said = json!({ "mounted": at.to_string(), "source": source.to_string(), "space": space });
        writeln!(out, "{said}")?;
    } else {
        writeln!(out, "mounted {source} at {at}, with locks from {space}")?;
    }
    out.flush()?;
    let mut told = false;
    while !mounted.wait(LOOK) {
        let Some(came) = events.came()? else { continue };
        if told {
            say!("stopped by {came}: files that are open fail from now on");
            return Ok(Outcome::Clean);
        }
        told = true;
        match mounted.unmount().with_context(|| format!("cannot unmount {at}"))? {
            Unmounted::Clean => {}
            Unmounted::InUse => {
                say!(
                    "{at} is in use: it is out of sight, and ends with the last file that is closed (or another {came})"
                );
            }
        }
    }
    Ok(Outcome::Clean)
}

fn options(args: &Args) -> MountOptions {
    MountOptions {
        source: args.source.clone(),
        at: args.dir.clone(),
        space: args.space.space.clone(),
        name: args.name.clone(),
        passthrough: !args.no_passthrough,
        allow_other: args.allow_other || rustix::process::geteuid().is_root(),
        cache: args.cache,
    }
}
