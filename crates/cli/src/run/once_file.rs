//! When a command was last started under a lock of shared memory: a file of lines, in the user's folder for state, since shared
//! memory does not outlive the host.
//!
//! `START BOOT SINCE BY`: milliseconds since 1970, this boot of the host, nanoseconds since that, and host:pid. Within one boot the
//! clock that cannot be set counts. Only the holder of the lock writes. A line is added in one write and forced to the disk, and of
//! all lines the youngest counts: so a `run` that was stopped, and has lost the lock, spoils nothing when it goes on.

use super::args::Args;
use anyhow::{Context, bail};
use nix::time::{ClockId, clock_gettime};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file with more lines is written anew, with the youngest alone.
const MOST_LINES: usize = 1000;
/// The longest piece of a file's name.
const PIECE: usize = 200;

/// How long ago, whose, and the line.
type Start = (Duration, String, String);

/// The file of one lock.
pub(super) struct OnceFile {
    path: PathBuf,
}

impl OnceFile {
    pub(super) fn open(args: &Args) -> anyhow::Result<Self> {
        if args.space.starts_with("shm:lent:") {
            bail!(
                "--once-per is not offered by one-sided spaces: shm: and a server's own spaces (tcp://HOST/NAME) offer it"
            );
        }
        let space = crate::SpaceArg { space: args.space.clone(), trust: args.trust.clone() };
        let space = space.look()?.context("the lock space is gone")?.info()?.path;
        let space = space.canonicalize().unwrap_or(space);
        let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = of("XDG_STATE_HOME").or_else(|| of("HOME").map(|home| home.join(".local/state")));
        let state = state.context(
            "there is no home directory to keep the record of --once-per in: set HOME or XDG_STATE_HOME",
        )?;
        let folder = [state.join("lockwright/once"), in_pieces(space.as_os_str().as_bytes())]
            .iter()
            .collect::<PathBuf>();
        Ok(Self { path: folder.join(in_pieces(args.names[0].as_bytes())) })
    }

    /// How long ago the last start was, and whose.
    pub(super) fn last(&self) -> anyhow::Result<Option<(Duration, String)>> {
        let (starts, _) = self.starts()?;
        Ok(starts.into_iter().map(|(ago, by, _)| (ago, by)).min())
    }

    /// All starts, and whether a line behind them was cut off: what that is about never began.
    fn starts(&self) -> anyhow::Result<(Vec<Start>, bool)> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
            text => text.with_context(|| self.path.display().to_string())?,
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let now = now()?;
        let start = |line: &str| {
            let (ago, by) = parse(line, &now)?;
            Some((ago, by, line.to_owned()))
        };
        let lines = whole.lines().filter(|line| !line.is_empty());
        let starts: Option<Vec<_>> = lines.map(start).collect();
        let starts = starts.with_context(|| format!("{} is no record of --once-per", self.path.display()))?;
        Ok((starts, whole.len() < text.len()))
    }

    /// This is a start. It is on the disk when this returns.
    pub(super) fn add(&self, by: &str) -> anyhow::Result<()> {
        let folder = self.path.parent().context("it is below a folder")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let (starts, is_cut) = self.starts()?;
        if is_cut || starts.len() >= MOST_LINES {
            self.shorten(&starts)?;
        }
        let Now { wall_ms, boot, since_ns } = now()?;
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        file.write_all(format!("{wall_ms} {boot} {since_ns} {by}\n").as_bytes())?;
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        Ok(())
    }

    /// Leaves the youngest line alone.
    fn shorten(&self, starts: &[Start]) -> anyhow::Result<()> {
        let line = starts.iter().min().map_or(String::new(), |(_, _, line)| format!("{line}\n"));
        let fresh = self.path.with_added_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        Ok(())
    }
}

struct Now {
    wall_ms: u64,
    boot: String,
    since_ns: u64,
}

fn now() -> anyhow::Result<Now> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("the boot of this host")?;
    let since = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Now {
        wall_ms: u64::try_from(wall.as_millis())?,
        boot: boot.trim().to_owned(),
        since_ns: u64::try_from(since.as_nanos())?,
    })
}

fn parse(line: &str, now: &Now) -> Option<(Duration, String)> {
    let words: Vec<_> = line.split(' ').collect();
    let [wall_ms, boot, since_ns, by] = words[..] else { return None };
    let (wall_ms, since_ns) = (wall_ms.parse::<u64>().ok()?, since_ns.parse::<u64>().ok()?);
    let ago = if boot == now.boot {
        Duration::from_nanos(now.since_ns.saturating_sub(since_ns))
    } else {
        Duration::from_millis(now.wall_ms.saturating_sub(wall_ms))
    };
    Some((ago, by.to_owned()))
}

/// Any bytes as a path: letters and digits as they are, others as %XX, in pieces that are no longer than a file's name may be. All
/// but the last end with `+`, so that none is a file and a folder.
fn in_pieces(bytes: &[u8]) -> PathBuf {
    let text = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => write!(text, "{}", char::from(*byte)),
            byte => write!(text, "%{byte:02X}"),
        };
        text
    });
    let pieces: Vec<_> = text.as_bytes().chunks(PIECE).map(|piece| String::from_utf8_lossy(piece)).collect();
    let last = pieces.len().saturating_sub(1);
    let piece = |(at, piece): (usize, &std::borrow::Cow<'_, str>)| {
        if at < last { format!("{piece}+") } else { piece.to_string() }
    };
    pieces.iter().enumerate().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OnceFile {
        let path = std::env::temp_dir().join(format!("lockwright-once-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        OnceFile { path }
    }

    #[test]
    fn the_youngest_start_counts_and_a_line_that_was_cut_off_does_not() {
        let file = file("youngest");
        assert_eq!(file.last().unwrap(), None);
        file.add("one:1").unwrap();
        let Now { wall_ms, boot, since_ns } = now().unwrap();
        let early =
            format!("{} {boot} {} late:7\n", wall_ms - 5_000_000, since_ns.saturating_sub(5_000_000_000));
        let mut text = fs::read_to_string(&file.path).unwrap();
        text.push_str(&early);
        text.push_str("17 cut");
        fs::write(&file.path, &text).unwrap();
        assert_eq!(file.last().unwrap().unwrap().1, "one:1");
        file.add("two:2").unwrap();
        assert_eq!(file.last().unwrap().unwrap().1, "two:2");
        fs::write(&file.path, "something else\n").unwrap();
        assert!(file.last().is_err());
        fs::remove_file(&file.path).unwrap();
    }

    #[test]
    fn within_a_boot_the_clock_that_cannot_be_set_counts_and_else_the_other() {
        let now = Now { wall_ms: 10_000, boot: "b".to_owned(), since_ns: 7_000_000_000 };
        let ago = |line| parse(line, &now).map(|(ago, _)| ago.as_millis());
        assert_eq!(ago("99 b 5000000000 x"), Some(2000));
        assert_eq!(ago("9000 a 5000000000 x"), Some(1000));
        assert_eq!(ago("90000 a 5 x"), Some(0), "the clock was set back");
        assert_eq!(ago("9000 a x"), None);
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let file = file("grow");
        for _ in 0..MOST_LINES + 3 {
            let line = "1 other 1 x:1\n";
            let mut open = OpenOptions::new().append(true).create(true).open(&file.path).unwrap();
            open.write_all(line.as_bytes()).unwrap();
        }
        file.add("last:1").unwrap();
        assert_eq!(
            fs::read_to_string(&file.path).unwrap().lines().filter(|line| !line.is_empty()).count(),
            2
        );
        assert_eq!(file.last().unwrap().unwrap().1, "last:1");
        fs::remove_file(&file.path).unwrap();
    }

    #[test]
    fn any_two_names_have_files_of_their_own() {
        let long = [b'a'; 255];
        let names: [&[u8]; 6] = [b"a", b"a/b", b"..", b"a+", &long, &long[..200]];
        let paths: std::collections::BTreeSet<_> = names.iter().map(|name| in_pieces(name)).collect();
        assert_eq!(paths.len(), names.len());
        assert!(paths.iter().all(|path| path.iter().all(|piece| piece.len() <= PIECE + 1)));
    }
}
