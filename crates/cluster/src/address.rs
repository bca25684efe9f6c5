//! Addresses of clusters: `etcd://HOST:PORT,HOST:PORT/NAME`, and `cluster://…/NAME/SPACE` of a space in one.

/// etcd's port for clients, unless another is named.
const PORT: u16 = 2379;

/// The cluster called `name`, on the etcd whose members are these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAddress {
    /// `host:port` of each.
    pub endpoints: Vec<String>,
    /// The cluster's name.
    pub name: String,
}

impl ClusterAddress {
    /// The address in `rest`, which came after `etcd:` or `cluster:`, and what follows the cluster's name. `None` if it is none.
    pub fn parse(rest: &str) -> Option<(Self, &str)> {
        let (members, path) = rest.strip_prefix("//")?.split_once('/')?;
        let (name, space) = path.split_once('/').unwrap_or((path, ""));
        let endpoints: Vec<_> = members.split(',').map(endpoint).collect::<Option<_>>()?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_named = (1..=100).contains(&name.len()) && name.bytes().all(is_name);
        is_named.then(|| (Self { endpoints, name: name.to_owned() }, space))
    }
}

fn endpoint(text: &str) -> Option<String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return None;
    }
    // An address of version 6 stands in brackets, and has colons of its own.
    let after = text.rfind(']').map_or(0, |at| at + 1);
    match text[after..].rsplit_once(':') {
        Some((host, port)) => {
            (port.parse::<u16>().is_ok() && (after > 0 || !host.is_empty())).then(|| text.to_owned())
        }
        None => Some(format!("{text}:{PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_the_members_of_etcd_the_cluster_and_a_space() {
        let (address, space) = ClusterAddress::parse("//a,b:1,[::1]:2/prod/stock").unwrap();
        assert_eq!(address.endpoints, ["a:2379", "b:1", "[::1]:2"]);
        assert_eq!((address.name.as_str(), space), ("prod", "stock"));
        assert_eq!(ClusterAddress::parse("//a/prod").unwrap().1, "");
        for wrong in ["", "//a", "//a/", "//,a/prod", "//a:x/prod", "//a b/prod", "//a/pr od", "//:1/prod"] {
            assert_eq!(ClusterAddress::parse(wrong), None, "{wrong}");
        }
    }
}
