//! Where a server is asked to listen.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use evermap_server::ListenAddress;
use evermap_server::server::{ClientCertificates, Security};

/// One place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Every address of a host, as far as the machine has its family.
    Tcp { addresses: Vec<SocketAddr>, encryption: Encryption },
    /// A socket in the file system, with the permissions of its file.
    Unix { path: PathBuf, mode: u32 },
}

/// What the prefix of an address says about TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Encryption {
    /// Nothing: connections use TLS if the server has a certificate.
    #[default]
    IfConfigured,
    /// `notls:`
    Never,
    /// `btls:`: clients are not asked for certificates.
    Basic,
    /// `mtls:`: clients have to present certificates.
    Mutual,
}

impl Encryption {
    /// Splits the prefix from an address.
    pub(super) fn split(address: &str) -> (Encryption, &str) {
        let prefixes = [
            ("notls:", Encryption::Never),
            ("btls:", Encryption::Basic),
            ("mtls:", Encryption::Mutual),
        ];
        let found = prefixes
            .iter()
            .find_map(|&(prefix, encryption)| Some((encryption, address.strip_prefix(prefix)?)));
        found.unwrap_or((Encryption::IfConfigured, address))
    }

    /// Returns what the server has to know about a listener.
    pub(super) fn security(self, has_certificate: bool) -> Security {
        let clients = match self {
            Encryption::IfConfigured if !has_certificate => return Security::Plain,
            Encryption::Never => return Security::Plain,
            Encryption::IfConfigured => None,
            Encryption::Basic => Some(ClientCertificates::Ignored),
            Encryption::Mutual => Some(ClientCertificates::Required),
        };
        Security::Tls { clients }
    }
}

impl Endpoint {
    /// Parses an address of `--listen`: a host and a port, perhaps with a prefix.
    pub(super) fn parse(text: &str) -> Result<Endpoint, String> {
        let (encryption, address) = Encryption::split(text);
        let addresses = address.to_socket_addrs().map_err(|error| {
            format!("{error}; an address has a host and a port, for example 127.0.0.1:11211")
        })?;
        Endpoint::of(addresses.collect(), encryption)
    }

    /// Returns an endpoint with the addresses of a host, of which there must be one.
    pub(super) fn of(
        mut addresses: Vec<SocketAddr>,
        encryption: Encryption,
    ) -> Result<Endpoint, String> {
        // The system lists an address once for each kind of socket.
        addresses.dedup();
        match addresses.is_empty() {
            true => Err("the host has no address".into()),
            false => Ok(Endpoint::Tcp { addresses, encryption }),
        }
    }

    /// Returns the endpoint of every address of the machine.
    pub(super) fn anywhere(port: u16) -> Endpoint {
        let hosts: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = hosts.map(|host| SocketAddr::new(host, port)).into();
        Endpoint::Tcp { addresses, encryption: Encryption::IfConfigured }
    }

    /// Returns the first address.
    pub(super) fn first_address(&self) -> Option<ListenAddress> {
        match self {
            Endpoint::Tcp { addresses, .. } => addresses.first().copied().map(ListenAddress::Tcp),
            Endpoint::Unix { path, .. } => Some(ListenAddress::Unix(path.clone())),
        }
    }

    /// Returns the endpoint with another use of TLS.
    pub(super) fn with(self, encryption: Encryption) -> Endpoint {
        match self {
            Endpoint::Tcp { addresses, .. } => Endpoint::Tcp { addresses, encryption },
            unix => unix,
        }
    }

    /// Returns the endpoint of the loopback interface.
    pub(super) fn loopback(port: u16) -> Endpoint {
        Endpoint::Tcp {
            addresses: vec![(Ipv4Addr::LOCALHOST, port).into()],
            encryption: Encryption::IfConfigured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_prefix() {
        let parse = |text| Endpoint::parse(text);
        let tcp = |address: &str, encryption| {
            Ok(Endpoint::Tcp { addresses: vec![address.parse().unwrap()], encryption })
        };
        assert_eq!(parse("127.0.0.1:1"), tcp("127.0.0.1:1", Encryption::IfConfigured));
        assert_eq!(parse("notls:127.0.0.1:1"), tcp("127.0.0.1:1", Encryption::Never));
        assert_eq!(parse("btls:[::1]:2"), tcp("[::1]:2", Encryption::Basic));
        assert_eq!(parse("mtls:[::]:2"), tcp("[::]:2", Encryption::Mutual));
        for bad in ["", "nowhere", "127.0.0.1", "127.0.0.1:65536", "tls:127.0.0.1:1", ":1:2"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
