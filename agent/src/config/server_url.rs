//! The servers of `[mqtt]`: one `url`, or a list `urls`. An error in the list has the place of the element.

use std::fmt;

use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use wholegrain_transport::client::Address;

/// The most servers in a list.
pub const SERVERS_MAX: usize = 64;

/// A server as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    pub text: String,
    pub address: Address,
}

impl ServerUrl {
    /// Parses as the client does, so that an accepted URL can be connected to.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut address = Address::parse(text)?;
        address.host = address.host.to_ascii_lowercase();
        Ok(Self { text: text.to_owned(), address })
    }

    /// `host:port`, in one form for each server.
    pub fn host_and_port(&self) -> String {
        match self.address.numeric() {
            Some(address) => address.to_string(),
            None => format!("{}:{}", self.address.host, self.address.port),
        }
    }
}

/// A list of different servers, all with TLS or all without; at least one and at most [`SERVERS_MAX`].
#[derive(Debug)]
pub(super) struct ServerUrls(pub Vec<ServerUrl>);

impl<'de> Deserialize<'de> for ServerUrls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ServerUrlsVisitor)
    }
}

struct ServerUrlsVisitor;

impl<'de> Visitor<'de> for ServerUrlsVisitor {
    type Value = ServerUrls;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of servers, such as [\"mqtts://a.example:8883\", \"mqtts://b.example:8883\"]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ServerUrls, A::Error> {
        let mut servers = Vec::new();
        while let Some(server) = list.next_element_seed(NextServer { before: &servers })? {
            servers.push(server);
        }
        if servers.is_empty() {
            return Err(A::Error::custom("urls is empty; write at least one server, or leave [mqtt] out"));
        }
        Ok(ServerUrls(servers))
    }
}

/// Checks an element against those before it. Within the element, the error has its place.
struct NextServer<'a> {
    before: &'a [ServerUrl],
}

impl<'de> DeserializeSeed<'de> for NextServer<'_> {
    type Value = ServerUrl;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ServerUrl, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NextServer<'_> {
    type Value = ServerUrl;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a server in quotes, such as \"mqtts://a.example:8883\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ServerUrl, E> {
        let server = ServerUrl::parse(text).map_err(|why| E::custom(format!("{text:?}: {why}")))?;
        if let Some(first) = self.before.first().filter(|first| first.address.tls != server.address.tls) {
            let why = format!("{text:?} beside {:?}: use mqtts:// for all servers or mqtt:// for all", first.text);
            return Err(E::custom(why));
        }
        if let Some(same) = self.before.iter().find(|other| other.host_and_port() == server.host_and_port()) {
            return Err(E::custom(format!("{text:?} is the same server as {:?}; write it once", same.text)));
        }
        if self.before.len() == SERVERS_MAX {
            return Err(E::custom(format!(
                "urls has more than {SERVERS_MAX} servers; a name can have several addresses"
            )));
        }
        Ok(server)
    }
}
