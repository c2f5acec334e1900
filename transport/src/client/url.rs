//! `mqtt://host:port`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// A server's address as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Name or address, without the brackets of IPv6.
    pub host: String,
    pub port: u16,
}

impl Url {
    /// Parses a URL; the error names the problem and its remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some(("mqtt", rest)) => (false, rest),
            Some(("mqtts", rest)) => (true, rest),
            _ => return Err("write mqtt://host:port, or mqtts://host:port for TLS".into()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err("user and password do not go into the URL: configure them by their own keys".into());
        }
        if rest.contains(['/', '?', '#']) {
            return Err("there is nothing after the port in an MQTT URL".into());
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some((host, "")) => (host, ""),
                Some((host, port)) => match port.strip_prefix(':') {
                    Some(port) => (host, port),
                    None => return Err("a colon and the port follow the `]` of an IPv6 address, or nothing".into()),
                },
                None => return Err("an IPv6 address ends with `]`".into()),
            },
            None => rest.split_once(':').unwrap_or((rest, "")),
        };
        if host.is_empty() {
            return Err("the host is missing: write mqtt://host:port".into());
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("the host is no name or address: there is white space in it".into());
        }
        let port = match port {
            "" => {
                if tls {
                    8883
                } else {
                    1883
                }
            }
            text => match text.parse() {
                Ok(port) if port != 0 => port,
                _ => {
                    return Err(format!(
                        "{text:?} is not a port; write a number from 1 to 65535, and an IPv6 address in brackets"
                    ));
                }
            },
        };
        Ok(Self { tls, host: host.to_owned(), port })
    }

    /// The address if the host is one, and no name that has to be looked up.
    pub fn numeric(&self) -> Option<SocketAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port))
    }

    /// The first addresses of the host, at most `count_max`. Blocks for as long as the system's resolver does. The error names the problem and its
    /// remedy.
    pub fn look_up(&self, count_max: usize) -> Result<Vec<SocketAddr>, String> {
        match (self.host.as_str(), self.port).to_socket_addrs() {
            Ok(addresses) => Ok(addresses.take(count_max).collect()),
            Err(error) => Err(format!("cannot look up {:?}: {error}; check the name", self.host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good() {
        let check = |text: &str, tls: bool, host: &str, port: u16| {
            assert_eq!(Url::parse(text), Ok(Url { tls, host: host.into(), port }), "{text}");
        };
        check("mqtt://server", false, "server", 1883);
        check("mqtts://server/", true, "server", 8883);
        check("mqtt://127.0.0.1:2000", false, "127.0.0.1", 2000);
        check("mqtts://[::1]:2000", true, "::1", 2000);
        check("mqtts://[::1]", true, "::1", 8883);
    }

    #[test]
    fn bad() {
        for (text, part) in [
            ("server:1883", "write mqtt://"),
            ("http://server", "write mqtt://"),
            ("mqtt://", "host is missing"),
            ("mqtt://:1883", "host is missing"),
            ("mqtt://h:0", "not a port"),
            ("mqtt://h:x", "not a port"),
            ("mqtt://::1:1883", "host is missing"),
            ("mqtt://fe80::1", "not a port"),
            ("mqtt://[::1", "ends with"),
            ("mqtt://[::1]1883", "follow the `]`"),
            ("mqtt://a b", "white space"),
            ("mqtt://a:b@h", "own keys"),
            ("mqtt://h/path", "nothing after"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
