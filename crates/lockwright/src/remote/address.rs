//! Addresses of spaces behind servers: `tcp://host:port/space`, `rdma://host:port/space`.

use crate::wire::MAX_SPACE;

/// The port of a server, unless another is named.
pub(crate) const PORT: u16 = 5625;

/// The port of a server's RDMA side, where the control connection listens, unless another is named.
pub(crate) const RDMA_PORT: u16 = 5626;

/// The port of a decider, for its control plane and for packets, unless another is named.
pub(crate) const FISS_PORT: u16 = 5627;

/// The server and the space in `rest`, which came after `tcp:` or `rdma:`. `None` if it is no such address.
pub(crate) fn parse(rest: &str, port: u16) -> Option<(String, Vec<u8>)> {
    let rest = rest.strip_prefix("//")?;
    let (server, space) = rest.split_once('/').unwrap_or((rest, ""));
    if space.len() > MAX_SPACE || server.contains(char::is_whitespace) {
        return None;
    }
    // An address of version 6 stands in brackets, and has colons of its own.
    let after = server.rfind(']').map_or(0, |at| at + 1);
    let server = match server[after..].rsplit_once(':') {
        Some((host, number)) if number.parse::<u16>().is_ok() && (after > 0 || !host.is_empty()) => {
            server.to_owned()
        }
        Some(_) => return None,
        None if server.is_empty() => return None,
        None => format!("{server}:{port}"),
    };
    Some((server, space.as_bytes().to_vec()))
}

/// The host's name, as a certificate would have it.
pub(crate) fn host(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_server_and_a_space() {
        let of =
            |text: &str| parse(text, PORT).map(|(server, space)| (server, String::from_utf8(space).unwrap()));
        let is = |server: &str, space: &str| Some((server.to_owned(), space.to_owned()));
        assert_eq!(of("//db7:7000/stock"), is("db7:7000", "stock"));
        assert_eq!(of("//db7"), is("db7:5625", ""));
        assert_eq!(of("//127.0.0.1:7000/shm:"), is("127.0.0.1:7000", "shm:"));
        assert_eq!(of("//127.0.0.1:7000/shm:/dev/shm/x"), is("127.0.0.1:7000", "shm:/dev/shm/x"));
        assert_eq!(of("//[::1]:7000"), is("[::1]:7000", ""));
        assert_eq!(of("//[::1]"), is("[::1]:5625", ""));
        for wrong in ["", "/", "//", "//:7000", "//db7:port", "//db7:70000", "db7:7000", "//a b:1"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!((host("db7:7000"), host("[::1]:7000")), ("db7", "::1"));
    }
}
