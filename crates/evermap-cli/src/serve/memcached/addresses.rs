//! The addresses of `-l`, `-p` and `-s`.

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};

use super::options::{Options, Port};
use super::wrong::Wrong;
use crate::serve::endpoints::{Encryption, Endpoint};

/// Returns what the options ask for. Nothing if a service manager may decide.
pub(super) fn endpoints(options: &Options) -> Result<Vec<Endpoint>, Wrong> {
    let mut endpoints = Vec::new();
    for text in &options.listen {
        endpoints.push(endpoint(text, options.port)?);
    }
    if let Some(path) = &options.socket {
        endpoints.push(Endpoint::Unix { path: path.clone(), mode: options.socket_mode });
    }
    Ok(endpoints)
}

/// Returns where memcached listens if nothing is said: at every address of the machine.
pub(super) fn default_endpoint(options: &Options) -> Endpoint {
    Endpoint::anywhere(number(options.port))
}

/// Parses one address of `-l`: a host, perhaps with a port, and with a prefix that says whether it
/// uses TLS.
fn endpoint(text: &str, port: Port) -> Result<Endpoint, Wrong> {
    let wrong = |why: &dyn std::fmt::Display| Wrong(format!("-l {text}: {why}"));
    let (encryption, rest) = Encryption::split(text);
    let rest = without_tag(rest).map_err(|why| wrong(&why))?;
    let (host, own_port) = split_port(rest).map_err(|why| wrong(&why))?;
    let port = match (own_port, port) {
        (Some(port), _) => port,
        (None, Port::Off) => return Err(wrong(&"-p 0 needs a port here, as in 127.0.0.1:11211")),
        (None, port) => number(port),
    };
    // All addresses of the machine, of one family.
    if host == "*" {
        return Ok(Endpoint::anywhere(port).with(encryption));
    }
    let addresses = (host, port).to_socket_addrs().map_err(|error| wrong(&error))?;
    Endpoint::of(addresses.collect(), encryption).map_err(|why| wrong(&why))
}

/// Returns the port to bind, where 0 stands for any.
fn number(port: Port) -> u16 {
    match port {
        Port::Number(port) => port.get(),
        Port::Any | Port::Off => 0,
    }
}

/// Removes `tag[NAME]:`, which names a listener in memcached's statistics.
fn without_tag(text: &str) -> Result<&str, &'static str> {
    match text.strip_prefix("tag[") {
        None => Ok(text),
        Some(rest) => rest.split_once("]:").map(|(_, rest)| rest).ok_or("a tag is tag[NAME]:"),
    }
}

/// Splits a port from a host. The host of an IPv6 address is in brackets if it has a port.
fn split_port(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let parse = |port: &str| port.parse::<u16>().map_err(|_| "the port is a number up to 65535");
    if text.is_empty() {
        return Err("there is no address");
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("there is no ] after the address")?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(parse(port)?))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("a port follows after :"),
        };
    }
    // An address of IPv6 without brackets has several colons, and no port.
    if text.parse::<Ipv6Addr>().is_ok() || text.parse::<IpAddr>().is_ok() {
        return Ok((text, None));
    }
    match text.split_once(':') {
        Some((host, port)) => Ok((host, Some(parse(port)?))),
        None => Ok((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::num::NonZero;

    use super::*;

    const PORT: Port = Port::Number(NonZero::new(11211).unwrap());

    fn of(text: &str) -> Result<(Vec<SocketAddr>, Encryption), String> {
        match endpoint(text, PORT).map_err(|error| error.to_string())? {
            Endpoint::Tcp { addresses, encryption } => Ok((addresses, encryption)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hosts_and_ports() {
        let one = |address: &str| vec![address.parse::<SocketAddr>().unwrap()];
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:11211"),
            ("127.0.0.1:22", "127.0.0.1:22"),
            ("::1", "[::1]:11211"),
            ("[::1]", "[::1]:11211"),
            ("[::1]:22", "[::1]:22"),
            ("0.0.0.0", "0.0.0.0:11211"),
            ("tag[x]:127.0.0.1:22", "127.0.0.1:22"),
        ] {
            assert_eq!(of(text), Ok((one(address), Encryption::IfConfigured)), "{text}");
        }
        assert_eq!(of("notls:127.0.0.1:5"), Ok((one("127.0.0.1:5"), Encryption::Never)));
        assert_eq!(of("mtls:[::1]:5"), Ok((one("[::1]:5"), Encryption::Mutual)));
        assert_eq!(of("*:7").unwrap().0.len(), 2);
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for bad in ["", "127.0.0.1:x", "127.0.0.1:70000", "[::1", "[::1]x", "tag[x:1", "a b"] {
            let error = of(bad).unwrap_err();
            assert!(error.starts_with(&format!("-l {bad}: ")), "{error}");
        }
        assert!(endpoint("127.0.0.1", Port::Off).is_err());
    }
}
