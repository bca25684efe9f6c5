//! Creating and opening a space file.
//!
//! A file is complete before it gets its name, in one step that fails if the name is taken. So no process sees a
//! half-made file, only one of two creators wins, and a creator that dies leaves nothing behind (on file systems without
//! unnamed files: a temporary file, which the next creator removes).

use super::area::Area;
use super::error::SpaceError;
use super::layout::{
    AT_BOOT, AT_CREATED, AT_PID_NS, AT_TAG, AT_TIME_NS, AT_VERSION, CELL_BYTES, HEADER_BYTES, Layout, MAGIC,
    PAGE, Section, TAG_MAX, VERSION,
};
use super::map::Map;
use super::options::SpaceOptions;
use super::process::{self, Process};
use crate::addr::Width;
use crate::verb::Op;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, ftruncate, linkat, open, unlink};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Losing the race for the name more often than this means that the file is removed as fast as it is created.
const ATTEMPTS: usize = 100;

/// Opens the space at `path`, or creates it.
pub(super) fn open_or_create(path: &Path, options: &SpaceOptions) -> Result<(Arc<Map>, Layout), SpaceError> {
    for _ in 0..ATTEMPTS {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match open(path, flags, Mode::empty()) {
            Ok(file) => return check(file, path),
            Err(Errno::NOENT) if !options.create => return Err(SpaceError::Missing(path.to_owned())),
            Err(Errno::NOENT) => {}
            Err(Errno::LOOP) => return Err(foreign(path, "it is a symbolic link")),
            Err(error) => return Err(SpaceError::System { doing: "open the lock space", error }),
        }
        if let Some(created) = Unnamed::create(path, options)?.publish(path)? {
            return Ok(created);
        }
    }
    Err(SpaceError::System { doing: "create the lock space", error: Errno::EXIST })
}

fn foreign(path: &Path, reason: &'static str) -> SpaceError {
    SpaceError::Foreign { path: path.to_owned(), reason }
}

/// Checks a file and its header before anything in it is used.
fn check(file: OwnedFd, path: &Path) -> Result<(Arc<Map>, Layout), SpaceError> {
    let stat = fstat(&file).map_err(SpaceError::system("look at the lock space"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(foreign(path, "it is not a regular file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(SpaceError::OtherOwner { path: path.to_owned(), owner: stat.st_uid });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(SpaceError::Exposed { path: path.to_owned(), mode: stat.st_mode & 0o7777 });
    }
    let size = stat.st_size as u64;
    if size < HEADER_BYTES {
        return Err(foreign(path, "it is too short"));
    }
    let header = Map::new(file, path, HEADER_BYTES, HEADER_BYTES)?;
    if header.u64(0).load(SeqCst) != MAGIC {
        return Err(foreign(path, "it has no magic number"));
    }
    let found = header.u64(AT_VERSION).load(SeqCst);
    if found != VERSION {
        return Err(SpaceError::OtherVersion { path: path.to_owned(), found, ours: VERSION });
    }
    let boot = [AT_BOOT, AT_BOOT + 8].map(|at| header.u64(at).load(SeqCst));
    if boot != halves(process::boot_id()?) {
        return Err(SpaceError::OtherBoot(path.to_owned()));
    }
    if header.u64(AT_PID_NS).load(SeqCst) != process::pid_namespace()? {
        return Err(SpaceError::OtherNamespace(path.to_owned()));
    }
    if header.u64(AT_TIME_NS).load(SeqCst) != process::time_namespace()? {
        return Err(SpaceError::OtherTimeNamespace(path.to_owned()));
    }
    let layout = Layout::read(&header)?;
    let limits = (0..layout.areas()).map(|area| (area, header.u64(Layout::limit_at(area)).load(SeqCst)));
    for (area, limit) in limits {
        if limit > layout.shape.reserve || !limit.is_multiple_of(16) || size < layout.area(area) + limit {
            return Err(SpaceError::Damaged("it is shorter than its header says"));
        }
    }
    let map = Map::new(header.duplicate_file()?, path, layout.span(), layout.meta_bytes)?;
    Ok((Arc::new(map), layout))
}

/// Allocates what every client reads, and what the first one needs: a space that could not take a client is not made.
/// Everything else is allocated with the client or the name that it is for.
fn allocate_basics(map: &Map, layout: &Layout) -> Result<(), SpaceError> {
    use Section::{Clients, Hints, Mailboxes, NameIndex, Names, Refs};
    let start = |section| layout.start(section);
    let first = [
        (0, start(Mailboxes)),
        (start(Mailboxes), layout.shape.cells * CELL_BYTES),
        (start(Hints), start(NameIndex) - start(Hints)),
        (start(Names), PAGE),
        (start(Refs), PAGE),
    ];
    debug_assert!(start(Clients) < start(Mailboxes), "the header and the clients come first");
    first.into_iter().try_for_each(|(start, bytes)| map.allocate(start, bytes))
}

const fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

/// A complete space file without its name.
pub(super) struct Unnamed {
    map: Arc<Map>,
    layout: Layout,
    /// The temporary name, where the file system has no unnamed files.
    temporary: Option<PathBuf>,
}

impl Unnamed {
    /// Creates a file in the folder of `path`.
    pub(super) fn create(path: &Path, options: &SpaceOptions) -> Result<Self, SpaceError> {
        let layout = Layout::new(options.shape()?)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let (file, temporary) = match open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
            Ok(file) => (file, None),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let (file, name) = temporary(path, mode)?;
                (file, Some(name))
            }
            Err(error) => {
                return Err(SpaceError::System { doing: "create a lock space in its folder", error });
            }
        };
        let regions = options.regions.iter().map(|bytes| bytes.next_multiple_of(16)).cycle();
        let limits: Vec<_> = (0..layout.areas()).zip(regions).collect();
        let end = limits.iter().map(|(area, bytes)| layout.area(*area) + bytes).max().unwrap_or(0);
        let end = end.max(layout.meta_bytes).next_multiple_of(PAGE);
        ftruncate(&file, end).map_err(SpaceError::system("give the lock space its size"))?;
        let map = Arc::new(Map::new(file, path, layout.span(), layout.meta_bytes)?);
        allocate_basics(&map, &layout)?;

        map.u64(0).store(MAGIC, SeqCst);
        map.u64(AT_VERSION).store(VERSION, SeqCst);
        for (at, half) in [AT_BOOT, AT_BOOT + 8].into_iter().zip(halves(process::boot_id()?)) {
            map.u64(at).store(half, SeqCst);
        }
        map.u64(AT_PID_NS).store(process::pid_namespace()?, SeqCst);
        map.u64(AT_TIME_NS).store(process::time_namespace()?, SeqCst);
        map.u64(AT_CREATED).store(process::now().0, SeqCst);
        layout.write(&map);
        let mut tag = options.tag.clone().into_bytes();
        tag.resize(TAG_MAX, 0);
        write_bytes(&map, AT_TAG, &tag);
        for (area, bytes) in limits {
            map.u64(Layout::limit_at(area)).store(bytes, SeqCst);
        }
        for (addr, value) in &options.initial {
            let index = u64::from(addr.node.0) * layout.shape.regions + u64::from(addr.region.0);
            let inside = u64::from(addr.node.0) < layout.shape.nodes
                && u64::from(addr.region.0) < layout.shape.regions;
            if inside {
                map.allocate(layout.area(index) + addr.offset.min(layout.shape.reserve - 8), 8)?;
            }
            let area = inside.then(|| Area::new(&map, &layout, index));
            area.and_then(|area| area.execute(addr.offset, Width::W64, &Op::Write(u128::from(*value))))
                .ok_or(SpaceError::BadOptions("an initial word lies outside the lock memory"))?;
        }
        Ok(Self { map, layout, temporary })
    }

    /// Gives the file its name; `None` if another process was first.
    pub(super) fn publish(self, path: &Path) -> Result<Option<(Arc<Map>, Layout)>, SpaceError> {
        let from = match &self.temporary {
            None => PathBuf::from(format!("/proc/self/fd/{}", self.map.file().as_raw_fd())),
            Some(name) => name.clone(),
        };
        let linked = linkat(CWD, &from, CWD, path, AtFlags::SYMLINK_FOLLOW);
        if let Some(name) = &self.temporary {
            let _ = unlink(name);
        }
        match linked {
            Ok(()) => Ok(Some((self.map, self.layout))),
            Err(Errno::EXIST) => Ok(None),
            Err(error) => Err(SpaceError::System { doing: "give the lock space its name", error }),
        }
    }
}

/// A temporary file whose name has its creator's pid and start time; removes those of dead processes.
fn temporary(path: &Path, mode: Mode) -> Result<(OwnedFd, PathBuf), SpaceError> {
    let own = Process::own()?;
    let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let prefix = format!(".{base}.");
    for entry in
        path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".tmp"));
        let mut numbers = maker.into_iter().flat_map(|maker| maker.split('.')).map(str::parse::<u64>);
        if let (Some(Ok(pid)), Some(Ok(start))) = (numbers.next(), numbers.next())
            && u32::try_from(pid).is_ok_and(|pid| Process { pid, start }.has_ended())
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut last = Errno::EXIST;
    for number in 0..ATTEMPTS {
        let name = path.with_file_name(format!("{prefix}{}.{}.{number}.tmp", own.pid, own.start));
        match open(&name, flags, mode) {
            Ok(file) => return Ok((file, name)),
            Err(error) => last = error,
        }
    }
    Err(SpaceError::System { doing: "create a temporary file for the lock space", error: last })
}

/// Writes `bytes` at `offset`, word by word.
pub(super) fn write_bytes(map: &Map, offset: u64, bytes: &[u8]) {
    for (at, chunk) in (offset..).step_by(8).zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        map.u64(at).store(u64::from_le_bytes(word), SeqCst);
    }
}

/// Reads `len` bytes at `offset`.
pub(super) fn read_bytes(map: &Map, offset: u64, len: usize) -> Vec<u8> {
    let words = (offset..).step_by(8).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flat_map(|at| map.u64(at).load(SeqCst).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const HALF_WAY: &str = "LOCKWRIGHT_TEST_HALF_WAY";

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("lockwright-unit-{}-{name}.space", std::process::id()))
    }

    #[test]
    fn a_creator_killed_half_way_leaves_nothing() {
        if let Some(path) = std::env::var_os(HALF_WAY) {
            let path = PathBuf::from(path);
            // Both ways to create a file, neither finished.
            let _unnamed = Unnamed::create(&path, &SpaceOptions::default()).unwrap();
            let _temporary = temporary(&path, Mode::RUSR | Mode::WUSR).unwrap();
            std::process::abort();
        }
        let path = place("half-way");
        let name = "backend::shm::file::tests::a_creator_killed_half_way_leaves_nothing";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(HALF_WAY, &path)
            .output()
            .unwrap();
        assert!(!child.status.success());
        assert!(!path.exists(), "nobody sees a half-made file");
        let left = || {
            let files = std::fs::read_dir(path.parent().unwrap()).unwrap().flatten();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            files.filter(|file| file.file_name().to_string_lossy().contains(&name)).count()
        };
        assert_eq!(left(), 1, "the temporary file of the killed creator");
        // The next creator removes it and creates its own.
        let (_, mine) = temporary(&path, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(left(), 1);
        std::fs::remove_file(mine).unwrap();
        open_or_create(&path, &SpaceOptions::default()).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_with_a_temporary_name_becomes_a_space_like_any_other() {
        let path = place("temporary");
        let (_, name) = temporary(&path, Mode::RUSR | Mode::WUSR).unwrap();
        let mut unnamed = Unnamed::create(&path, &SpaceOptions::default()).unwrap();
        // As on a file system without unnamed files, whose file would be this one.
        std::fs::remove_file(&name).unwrap();
        linkat(
            CWD,
            format!("/proc/self/fd/{}", unnamed.map.file().as_raw_fd()),
            CWD,
            &name,
            AtFlags::SYMLINK_FOLLOW,
        )
        .unwrap();
        unnamed.temporary = Some(name.clone());
        assert!(unnamed.publish(&path).unwrap().is_some());
        assert!(!name.exists());
        open_or_create(&path, &SpaceOptions::default().create(false)).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn only_the_first_of_two_creators_wins() {
        let path = place("two");
        let (first, second) = (
            Unnamed::create(&path, &SpaceOptions::default()).unwrap(),
            Unnamed::create(&path, &SpaceOptions::default()).unwrap(),
        );
        assert!(first.publish(&path).unwrap().is_some());
        assert!(second.publish(&path).unwrap().is_none());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn files_that_are_not_ours_are_refused_and_left_alone() {
        let path = place("foreign");
        let open = || open_or_create(&path, &SpaceOptions::default()).map(drop);
        for content in [&b""[..], b"hello", &[7; 20_000]] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(open(), Err(SpaceError::Foreign { .. })));
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(open().is_err());
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(open(), Err(SpaceError::Foreign { .. })));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_space_of_another_version_boot_or_namespace_is_refused() {
        let path = place("versions");
        let (map, layout) = open_or_create(&path, &SpaceOptions::default()).unwrap();
        let open = || open_or_create(&path, &SpaceOptions::default()).map(drop);
        let with = |at: u64, value: u64| {
            let before = map.u64(at).swap(value, SeqCst);
            let opened = open();
            map.u64(at).store(before, SeqCst);
            opened.unwrap_err()
        };
        for other in [VERSION - 1, VERSION + 1] {
            let refused = with(AT_VERSION, other);
            assert!(
                matches!(refused, SpaceError::OtherVersion { found, ours: VERSION, .. } if found == other)
            );
        }
        assert!(matches!(with(AT_BOOT, 0), SpaceError::OtherBoot(_)));
        assert!(matches!(with(AT_PID_NS, 1), SpaceError::OtherNamespace(_)));
        assert!(matches!(with(AT_TIME_NS, 1), SpaceError::OtherTimeNamespace(_)));
        assert!(matches!(with(48, 3), SpaceError::Damaged(_)));
        assert!(matches!(with(128, 3), SpaceError::Damaged(_)));
        assert!(matches!(with(Layout::limit_at(0), layout.shape.reserve + 16), SpaceError::Damaged(_)));
        assert_eq!(open(), Ok(()));
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        let missing = open_or_create(&path, &SpaceOptions::default().create(false)).map(drop);
        assert_eq!(missing, Err(SpaceError::Missing(path)));
    }
}
