//! Which addresses may connect to a plain listener.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

impl IpNetwork {
    /// Whether the range contains `address`. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differ = |ours: u128, theirs: u128, width: u32| {
            let ignored = width - u32::from(self.bits);
            (ours ^ theirs).checked_shr(ignored).unwrap_or(0) != 0
        };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => !differ(ours.to_bits().into(), theirs.to_bits().into(), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => !differ(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no address range: try 10.0.0.0/8, fd00::/8 or a single address");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > width {
            return Err(format!("'{text}' is no address range: an address of this kind has {width} bits"));
        }
        let network = Self { address, bits };
        let mask = |width: u32| u128::MAX.checked_shl(width - u32::from(bits)).unwrap_or(0);
        let beyond = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) & !mask(32),
            IpAddr::V6(address) => address.to_bits() & !mask(128),
        };
        if beyond != 0 {
            return Err(format!("'{text}' has bits set beyond its first {bits}: which address is meant?"));
        }
        Ok(network)
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_the_addresses_that_share_its_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("fe80::/10", "febf::1", true),
            ("fe80::/10", "fec0::1", false),
        ];
        for (network, address, expected) in cases {
            let network: IpNetwork = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for wrong in ["", "lab3", "10.0.0.0/33", "10.0.0.1/8", "::1/64", "10.0.0.0/-1", "10.0.0.0/", "fd00::/129"] {
            assert!(wrong.parse::<IpNetwork>().is_err(), "{wrong}");
        }
    }
}
