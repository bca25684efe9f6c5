//! Who may come, by address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that begin alike: `10.0.0.0/8`, `fd00::/8`, or a single one, `10.0.0.7`.
///
/// ```
/// use lockwright_fabric::backend::tcp::Subnet;
/// let rack: Subnet = "10.7.0.0/16".parse().unwrap();
/// assert!(rack.contains("10.7.3.4".parse().unwrap()));
/// assert!(!rack.contains("10.8.0.1".parse().unwrap()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    ip: IpAddr,
    bits: u8,
}

impl Subnet {
    /// Whether it has this address. That of an IPv4 client on an IPv6 socket counts as IPv4.
    ///
    /// ```
    /// # use lockwright_fabric::backend::tcp::Subnet;
    /// let one: Subnet = "10.0.0.7".parse().unwrap();
    /// assert!(one.contains("::ffff:10.0.0.7".parse().unwrap()));
    /// ```
    pub fn contains(&self, ip: IpAddr) -> bool {
        let differ = |one: u128, other: u128, width: u32| (one ^ other) >> (width - u32::from(self.bits));
        match (self.ip, ip.to_canonical()) {
            _ if self.bits == 0 => self.ip.is_ipv4() == ip.to_canonical().is_ipv4(),
            (IpAddr::V4(own), IpAddr::V4(ip)) => differ(own.to_bits().into(), ip.to_bits().into(), 32) == 0,
            (IpAddr::V6(own), IpAddr::V6(ip)) => differ(own.to_bits(), ip.to_bits(), 128) == 0,
            _ => false,
        }
    }

    /// Its first address, and how many bits of it count.
    ///
    /// ```
    /// # use lockwright_fabric::backend::tcp::Subnet;
    /// let rack: Subnet = "10.7.0.0/16".parse().unwrap();
    /// assert_eq!(rack.prefix(), ("10.7.0.0".parse().unwrap(), 16));
    /// ```
    pub const fn prefix(&self) -> (IpAddr, u8) {
        (self.ip, self.bits)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

/// What is no subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address or a subnet such as 10.0.0.0/8")]
pub struct NoSubnet;

impl FromStr for Subnet {
    type Err = NoSubnet;

    fn from_str(text: &str) -> Result<Self, NoSubnet> {
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let ip = ip.parse::<IpAddr>().map_err(|_| NoSubnet)?.to_canonical();
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| NoSubnet)?;
        if bits > width { Err(NoSubnet) } else { Ok(Self { ip, bits }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_has_the_addresses_that_begin_like_it_and_no_others() {
        let has = |subnet: &str, ip: &str| subnet.parse::<Subnet>().unwrap().contains(ip.parse().unwrap());
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.128/25", "10.0.0.129") && !has("10.0.0.128/25", "10.0.0.127"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && !has("0.0.0.0/0", "::1") && has("::/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1"));
        assert!(has("127.0.0.1", "127.0.0.1") && !has("127.0.0.1", "127.0.0.2"));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "host", "::1/129", "10.0.0.0/-1"] {
            assert_eq!(wrong.parse::<Subnet>(), Err(NoSubnet), "{wrong}");
        }
    }
}
