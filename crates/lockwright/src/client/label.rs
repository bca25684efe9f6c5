//! How this process is called in listings of a server: pid, user and host, program.

use crate::inspect::user;

/// The label of this process, whose program may be called by another name.
pub(crate) fn of(program: Option<&str>) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname").trim().replace(char::is_whitespace, "-");
    let program = program.map_or_else(|| read("/proc/self/comm"), str::to_owned);
    let user = user::of_process(std::process::id()).unwrap_or_default().replace(char::is_whitespace, "-");
    let of_user = if user.is_empty() { user } else { user + "@" };
    format!("{} {of_user}{host} {}", std::process::id(), program.trim())
}

/// The same, and below it the one-sided space that it wants to be in, if it does.
#[cfg(feature = "rdma")]
pub(crate) fn with_wish(program: Option<&str>, space: &[u8], one_sided: bool) -> String {
    let label = of(program);
    if one_sided { format!("{label}\n{}", String::from_utf8_lossy(space)) } else { label }
}
