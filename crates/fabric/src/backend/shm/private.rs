//! A folder in which nobody else can put anything: for files that are opened by a name that others can guess.
//!
//! Every user may create files in `/dev/shm`. One who puts a FIFO or a file of their own where a process looks for its file
//! can stop that process, or feed it data. Files that have to be found by their names therefore lie one level deeper:
//!
//! | folder | if |
//! |---|---|
//! | `$LOCKWRIGHT_DIR/lockwright-UID` | that is set; then it is the only one |
//! | `$XDG_RUNTIME_DIR/lockwright`, `/run/user/UID/lockwright` | the folder above is this user's and closed to others |
//! | `/dev/shm/lockwright-UID` | |
//!
//! Files are made in the first one that can be used and looked for in all: of two processes of a user, only one may have
//! `XDG_RUNTIME_DIR`. A folder is checked by its descriptor and files are opened relative to that, so nothing can be
//! exchanged in between. A file is checked before it is read.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, open, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The rights of all but the owner.
const OTHERS: u32 = 0o077;

/// A folder of this user, closed to all others.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: OwnedFd,
    path: PathBuf,
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Where private folders are looked for, and what they are called there. `true`: others can write into the place.
fn places() -> Vec<(PathBuf, String, bool)> {
    let of =
        |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let numbered = format!("lockwright-{}", user());
    if let Some(folder) = of("LOCKWRIGHT_DIR") {
        return vec![(folder, numbered, true)];
    }
    let usual = PathBuf::from(format!("/run/user/{}", user()));
    let mut runtime: Vec<_> = of("XDG_RUNTIME_DIR").into_iter().chain([usual]).collect();
    runtime.dedup();
    let runtime = runtime.into_iter().map(|folder| (folder, "lockwright".to_owned(), false));
    runtime.chain([(PathBuf::from("/dev/shm"), numbered, true)]).collect()
}

impl PrivateFolder {
    /// The folder to make files in; it is made if it is not there.
    ///
    /// # Errors
    /// If another user's file is in its place, in one line that says what can be done.
    pub fn create() -> io::Result<Self> {
        let mut refused = None;
        for (place, name, is_public) in places() {
            match Self::at(&place, &name, is_public, true) {
                Ok(folder) => return Ok(folder),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// The folders that are there, in the order in which they are looked into.
    pub fn existing() -> Vec<Self> {
        let there = |(place, name, is_public): (PathBuf, String, bool)| {
            Self::at(&place, &name, is_public, false).ok()
        };
        places().into_iter().filter_map(there).collect()
    }

    fn at(place: &Path, name: &str, is_public: bool, create: bool) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = place.join(name);
        // The place itself may be reached by a link; what is in it may not.
        let place = open(place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if !is_public {
            check_folder(&fstat(&place)?).map_err(|why| refused(&path, &why))?;
        }
        if create {
            match mkdirat(&place, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let folder = match openat(&place, name, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused(&path, "is not a folder")),
            Err(Errno::ACCESS) => return Err(refused(&path, "is not open to you")),
            Err(error) => return Err(error.into()),
        };
        check_folder(&fstat(&folder)?).map_err(|why| refused(&path, &why))?;
        Ok(Self { folder, path })
    }

    /// Where the file called `name` is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file for reading, if it is a regular one that only this user can read. Waits for nobody, whatever it is.
    ///
    /// # Errors
    /// If it is not there, or not such a file.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty())?;
        check_file(&fstat(&file)?)?;
        Ok(file.into())
    }

    /// Creates a file that is not there yet.
    ///
    /// # Errors
    /// If it is, or there is no room.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Removes a file; none is as good.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The names of the files in it that are text.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.folder)?;
        let name = |entry: rustix::fs::DirEntry| Some(entry.file_name().to_str().ok()?.to_owned());
        Ok(entries.flatten().filter_map(name).collect())
    }
}

fn refused(path: &Path, why: &str) -> io::Error {
    let way_out = "give --secret-file, or set XDG_RUNTIME_DIR to a folder of your own with mode 0700";
    io::Error::other(format!("{} {why}; {way_out}", path.display()))
}

fn check_folder(stat: &Stat) -> Result<(), String> {
    match stat.st_mode & 0o7777 {
        _ if stat.st_uid != user() => Err(format!("belongs to user {}, not to you", stat.st_uid)),
        mode if mode & OTHERS != 0 => Err(format!("is open to others (mode {mode:04o}, not 0700)")),
        _ => Ok(()),
    }
}

fn check_file(stat: &Stat) -> io::Result<()> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    if stat.st_uid != user() || stat.st_mode & OTHERS != 0 {
        return Err(io::Error::other("it is not this user's own"));
    }
    Ok(())
}

/// Opens a file that a user has named and that this program writes: one that is there must be a regular file. Waits for
/// nobody, whatever it is.
///
/// # Errors
/// If it is something else, or the system refuses.
pub fn open_regular(path: &Path, create: bool) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = if create { flags | OFlags::CREATE } else { flags };
    let file = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    Ok(file.into())
}
