//! Whose a connection over loopback is. Linux lists every socket of a network namespace with its user, in `/proc/net/tcp` and
//! `/proc/net/tcp6`; the client's end of a connection is the line that has the server's addresses the other way round.
//!
//! What this file must not do: believe a line whose user is not known. The kernel says 0, which is root's, for sockets that
//! no process has open any more: a client could ask and close at once.

use lockwright_fabric::backend::tcp::ConnectionInfo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the kernel says of users that this user namespace has no number for.
const OVERFLOW_UID: u32 = 65534;
/// The kernel's `TCP_ESTABLISHED`.
const ESTABLISHED: &str = "01";

/// An open socket of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    uid: u32,
    inode: u64,
}

/// The user of a client on loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientUser {
    pub(crate) uid: u32,
    /// Whether it is the server's own user, or root.
    pub(crate) is_trusted: bool,
}

/// Whose process the client is, if it is on loopback and that can be found out.
pub(crate) fn user(connection: &ConnectionInfo) -> Option<ClientUser> {
    let ConnectionInfo { client, server, inode } = *connection;
    if !client.ip().to_canonical().is_loopback() {
        return None;
    }
    let theirs = find(&sockets(), client, server)?;
    // Listed afterwards, the server's own end shows that the client's was not another connection's with the same port.
    let own = find(&sockets(), server, client).filter(|own| own.inode == inode)?;
    Some(ClientUser { uid: theirs.uid, is_trusted: is_of_user_or_root(theirs.uid, own.uid) })
}

const fn is_of_user_or_root(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own && uid != OVERFLOW_UID
}

/// The sockets of this network namespace, as the kernel lists them.
fn sockets() -> String {
    let list = |path| std::fs::read_to_string(path).unwrap_or_default();
    list("/proc/net/tcp") + &list("/proc/net/tcp6")
}

/// The end of a connection that is at `local`.
fn find(list: &str, local: SocketAddr, remote: SocketAddr) -> Option<Socket> {
    let ends = (canonical(local), canonical(remote));
    list.lines().filter_map(parse).find(|socket| (socket.local, socket.remote) == ends)
}

/// A line of the list; `None` if it is no open socket of an established connection.
fn parse(line: &str) -> Option<Socket> {
    // sl local remote st tx:rx tr:when retransmits uid timeout inode
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    fields.next().filter(|state| *state == ESTABLISHED)?;
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok().filter(|inode| *inode != 0)?;
    Some(Socket { local, remote, uid, inode })
}

/// An address as the kernel writes it: words in the machine's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (at, octets) in octets.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(at * 8)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// An IPv4 address is one, also where an IPv6 socket has it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
    const REST: &str = "1 0000000000000000 20 4 30 10 -1";

    fn line(local: &str, remote: &str, state: &str, uid: u32, inode: u64) -> String {
        format!(
            "   7: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} {REST}"
        )
    }

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_line_names_both_ends_and_the_user() {
        let socket = parse(&line("0100007F:9C40", "0200007F:15F9", "01", 1000, 4711)).unwrap();
        assert_eq!((socket.local, socket.remote), (at("127.0.0.1:40000"), at("127.0.0.2:5625")));
        assert_eq!((socket.uid, socket.inode), (1000, 4711));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_line_of_ipv6_has_four_words_for_an_address() {
        let here = "00000000000000000000000001000000";
        let other = "B80D0120000000000000000067452301";
        let socket = parse(&line(&format!("{here}:9C40"), &format!("{other}:15F9"), "01", 5, 6)).unwrap();
        assert_eq!((socket.local, socket.remote), (at("[::1]:40000"), at("[2001:db8::123:4567]:5625")));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn an_ipv4_address_of_an_ipv6_socket_is_an_ipv4_address() {
        let mapped = "0000000000000000FFFF00000100007F";
        let list = line(&format!("{mapped}:9C40"), &format!("{mapped}:15F9"), "01", 5, 6);
        let found = find(&list, at("[::ffff:127.0.0.1]:40000"), at("127.0.0.1:5625")).unwrap();
        assert_eq!((found.local, found.uid), (at("127.0.0.1:40000"), 5));
    }

    #[test]
    fn only_open_sockets_of_established_connections_count() {
        let with = |state, inode| parse(&line("0100007F:9C40", "0100007F:15F9", state, 0, inode));
        assert!(with("01", 9).is_some());
        for state in ["02", "03", "04", "05", "06", "07", "08", "09", "0A", "0B", "0C"] {
            assert_eq!(with(state, 9), None, "state {state}");
        }
        assert_eq!(with("01", 0), None, "no process has it open");
    }

    #[test]
    fn what_is_no_line_of_a_socket_is_passed_over() {
        let good = line("0100007F:9C40", "0100007F:15F9", "01", 5, 6);
        for cut in 0..good.find(" 6 1 ").unwrap() {
            assert_eq!(parse(&good[..cut]), None, "{cut}");
        }
        for bad in
            [HEAD, "", "7: 0100007F:9C40", "7: 0100007F 0100007F:15F9 01", "7: 0100007é:1 0100007F:1 01"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert_eq!(parse(&line("+100007F:9C40", "0100007F:15F9", "0A", 5, 6)), None);
        assert!(find(&format!("{HEAD}\n{good}\n"), at("127.0.0.1:40000"), at("127.0.0.1:5625")).is_some());
    }

    #[test]
    fn root_and_the_servers_own_user_are_trusted_and_nobody_of_whom_nothing_is_known() {
        assert!(is_of_user_or_root(0, 1000) && is_of_user_or_root(1000, 1000));
        assert!(!is_of_user_or_root(1001, 1000) && !is_of_user_or_root(1000, 0));
        assert!(!is_of_user_or_root(OVERFLOW_UID, OVERFLOW_UID));
    }

    /// A connection of this process to itself.
    fn connected(listen: &str) -> (TcpStream, TcpStream, ConnectionInfo) {
        let listener = TcpListener::bind(listen).unwrap();
        let client = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        let (server, from) = listener.accept().unwrap();
        let owned = std::os::fd::OwnedFd::from(server.try_clone().unwrap());
        let inode = std::fs::File::from(owned).metadata().unwrap().ino();
        let info = ConnectionInfo { client: from, server: server.local_addr().unwrap(), inode };
        (client, server, info)
    }

    #[test]
    fn the_kernel_knows_whose_a_connection_is_until_it_is_closed() {
        for listen in ["127.0.0.1:0", "[::]:0"] {
            // Where there is no IPv6 there is nothing to be seen of it.
            if TcpListener::bind(listen).is_err() {
                continue;
            }
            let is_trusted = |info: &ConnectionInfo| user(info).is_some_and(|user| user.is_trusted);
            let (client, _server, info) = connected(listen);
            assert!(is_trusted(&info), "{listen}");
            assert!(!is_trusted(&ConnectionInfo { inode: info.inode + 1, ..info }), "another connection");
            drop(client);
            assert!(!is_trusted(&info), "{listen}: its socket is root's now, or nobody's");
        }
    }
}
