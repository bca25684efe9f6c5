//! Whose a process of this host is.

use std::os::unix::fs::MetadataExt;

/// The user of a process; `None`: there is none of this number.
pub(crate) fn of_process(pid: u32) -> Option<String> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|folder| name_of(folder.uid()))
}

/// What the user with this number is called: the number itself, where `/etc/passwd` has no name for it.
pub(crate) fn name_of(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&users, uid).map_or_else(|| uid.to_string(), str::to_owned)
}

fn find(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number_and_called_by_it_where_there_is_no_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\n:x:5::\n+nis\ndb:x:117:120::/var:/bin/false\n";
        assert_eq!((find(users, 0), find(users, 117)), (Some("root"), Some("db")));
        assert_eq!((find(users, 5), find(users, 120)), (None, None));
        assert_eq!(name_of(u32::MAX - 7), (u32::MAX - 7).to_string());
        assert_eq!(of_process(std::process::id()), of_process(1).filter(|_| is_root()).or_else(own));
    }

    fn own() -> Option<String> {
        std::fs::metadata("/proc/self").ok().map(|folder| name_of(folder.uid()))
    }

    fn is_root() -> bool {
        own().as_deref() == Some("root")
    }
}
