//! The order in which an agent tries its servers. Each address of each server is a candidate.
//!
//! Rendezvous hashing (highest random weight; Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): the weight of a
//! candidate is a hash of the agent's name with the candidate's. Agents spread evenly over the candidates, and if one is removed, only its agents move,
//! evenly to all others. The hash is fixed, so that other programs can compute it: docs/several-servers.md describes it.
//!
//! No I/O: the addresses of names come from the caller.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::config::ServerUrl;

/// The most addresses of a name that are candidates.
pub const ADDRESSES_MAX: usize = 64;
/// The most candidates; those of the lowest weights are left out.
pub const CANDIDATES_MAX: usize = 256;
/// The longest text that is kept of a failure, in characters: a server can give a reason of 64 KiB.
const PROBLEM_CHARS_MAX: usize = 300;

/// One address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The server's URL as configured.
    pub url: String,
    pub address: SocketAddr,
}

/// The weight of a candidate for an agent: the first eight bytes, in network order, of the SHA-256 of the agent's name, a zero byte and the candidate's
/// name. A candidate's name is `host:port`, followed by `/` and the address if the host has several.
pub fn weight(agent: &str, candidate: &str) -> u64 {
    let hash = Sha256::new().chain_update(agent).chain_update([0]).chain_update(candidate).finalize();
    hash.iter().take(8).fold(0, |weight, byte| weight << 8 | u64::from(*byte))
}

/// The servers of the configuration with the addresses that are known of each.
#[derive(Debug, Clone, Default)]
pub struct AddressTable {
    servers: Vec<KnownServer>,
}

#[derive(Debug, Clone)]
struct KnownServer {
    url: ServerUrl,
    /// Whether the host is an address and no name.
    is_numeric: bool,
    /// Sorted, so that all agents use the same of too many.
    addresses: Vec<SocketAddr>,
    looked_up: Option<Instant>,
}

impl AddressTable {
    /// Of these servers, with the addresses that `before` has of them.
    pub fn new(servers: &[ServerUrl], before: &AddressTable) -> Self {
        let of = |url: &ServerUrl| match url.address.numeric() {
            Some(address) => {
                KnownServer { url: url.clone(), is_numeric: true, addresses: vec![address], looked_up: None }
            }
            None => {
                let old = before.servers.iter().find(|old| old.url.host_and_port() == url.host_and_port());
                let (addresses, looked_up) = old.map(|old| (old.addresses.clone(), old.looked_up)).unwrap_or_default();
                KnownServer { url: url.clone(), is_numeric: false, addresses, looked_up }
            }
        };
        Self { servers: servers.iter().map(of).collect() }
    }

    /// Whether any server has a name, whose addresses can change.
    pub fn has_names(&self) -> bool {
        self.servers.iter().any(|server| !server.is_numeric)
    }

    /// The servers with names, those first whose addresses are unknown or oldest.
    pub fn due(&self) -> Vec<ServerUrl> {
        let mut due: Vec<&KnownServer> = self.servers.iter().filter(|server| !server.is_numeric).collect();
        due.sort_by_key(|server| server.looked_up);
        due.into_iter().map(|server| server.url.clone()).collect()
    }

    /// Notes the addresses of a server's name. None at all change nothing: those of before may still be good.
    pub fn found(&mut self, url: &ServerUrl, mut addresses: Vec<SocketAddr>, now: Instant) {
        let Some(server) = self.servers.iter_mut().find(|server| server.url == *url) else { return };
        server.looked_up = Some(now);
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        if !addresses.is_empty() {
            server.addresses = addresses;
        }
    }

    /// The candidates in the order of an agent, the preferred one first.
    pub fn candidates(&self, agent: &str) -> Vec<Candidate> {
        let mut weighted = Vec::new();
        for server in &self.servers {
            let host_and_port = server.url.host_and_port();
            for address in &server.addresses {
                let name = match server.addresses.len() {
                    1 => host_and_port.clone(),
                    _ => format!("{host_and_port}/{}", address.ip()),
                };
                let candidate = Candidate { url: server.url.text.clone(), address: *address };
                weighted.push((weight(agent, &name), name, candidate));
            }
        }
        weighted.sort_by(|(a_weight, a_name, _), (b_weight, b_name, _)| (b_weight, b_name).cmp(&(a_weight, a_name)));
        weighted.truncate(CANDIDATES_MAX);
        weighted.into_iter().map(|(_, _, candidate)| candidate).collect()
    }
}

/// The last failure of each candidate since its last success.
#[derive(Debug, Clone, Default)]
pub struct FailureTable {
    failures: Vec<CandidateFailure>,
}

#[derive(Debug, Clone)]
struct CandidateFailure {
    candidate: Candidate,
    at: Instant,
    problem: String,
}

impl FailureTable {
    pub fn failed(&mut self, candidate: &Candidate, problem: &str, at: Instant) {
        self.succeeded(candidate);
        let problem = problem.chars().take(PROBLEM_CHARS_MAX).collect();
        self.failures.push(CandidateFailure { candidate: candidate.clone(), at, problem });
    }

    pub fn succeeded(&mut self, candidate: &Candidate) {
        self.failures.retain(|failure| failure.candidate != *candidate);
    }

    /// Forgets candidates that no longer exist.
    pub fn keep(&mut self, candidates: &[Candidate]) {
        self.failures.retain(|failure| candidates.contains(&failure.candidate));
    }

    pub fn problem(&self, candidate: &Candidate) -> Option<&str> {
        self.failures.iter().find(|failure| failure.candidate == *candidate).map(|failure| failure.problem.as_str())
    }

    /// The order of attempts after a connection was lost: the agent's order, but those that failed within `recent` come last, the one whose failure is
    /// oldest first.
    pub fn attempts(&self, candidates: Vec<Candidate>, recent: Duration, now: Instant) -> Vec<Candidate> {
        let failed_at = |candidate: &Candidate| {
            let failure = self.failures.iter().find(|failure| failure.candidate == *candidate)?;
            (now.saturating_duration_since(failure.at) < recent).then_some(failure.at)
        };
        let mut attempts = candidates;
        attempts.sort_by_cached_key(failed_at);
        attempts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn table(urls: &[&str]) -> AddressTable {
        let urls: Vec<ServerUrl> = urls.iter().map(|url| ServerUrl::parse(url).unwrap()).collect();
        AddressTable::new(&urls, &AddressTable::default())
    }

    fn resolve(table: &mut AddressTable, host: &str, addresses: &[&str]) {
        let url = table.due().into_iter().find(|url| url.address.host == host).unwrap();
        let addresses = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), url.address.port)).collect();
        table.found(&url, addresses, Instant::now());
    }

    /// The number of agents at each candidate, by the index in their order.
    fn counts<'a>(orders: impl Iterator<Item = &'a Vec<Candidate>>, index: usize) -> BTreeMap<SocketAddr, usize> {
        let mut counts = BTreeMap::new();
        orders.for_each(|order| *counts.entry(order[index].address).or_default() += 1);
        counts
    }

    fn orders(table: &AddressTable) -> Vec<Vec<Candidate>> {
        (0..1000).map(|node| table.candidates(&format!("node{node:04}"))).collect()
    }

    const THREE: [&str; 3] = ["mqtts://10.0.0.1:8883", "mqtts://10.0.0.2", "mqtts://10.0.0.3"];

    /// Computed with Python: `int.from_bytes(hashlib.sha256(b"node0042\0a.example:8883").digest()[:8])`.
    #[test]
    fn the_weight_is_what_other_programs_compute() {
        assert_eq!(weight("node0042", "a.example:8883"), 0xaf46_6aeb_e85b_3ead);
        assert_eq!(weight("node0042", "a.example:8883/192.0.2.1"), 0xbe8a_7f61_6d99_5a4c);
        assert_eq!(weight("node0042", "[2001:db8::1]:8883"), 0x1313_e580_d4ee_6722);
    }

    #[test]
    fn agents_spread_evenly_over_three_servers() {
        let orders = orders(&table(&THREE));
        for index in 0..3 {
            let counts = counts(orders.iter(), index);
            // The standard deviation of a third of 1000 is 15.
            assert!(counts.len() == 3 && counts.values().all(|count| (285..=382).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn without_a_server_only_its_agents_move_and_they_spread_over_the_others() {
        let (all, two) = (orders(&table(&THREE)), orders(&table(&THREE[..2])));
        let gone: SocketAddr = "10.0.0.3:8883".parse().unwrap();
        let (moved, stayed): (Vec<_>, Vec<_>) = all.iter().zip(&two).partition(|(all, _)| all[0].address == gone);
        assert!(stayed.iter().all(|(all, two)| all[0] == two[0]), "an agent of another server moved");
        assert!(moved.iter().all(|(all, two)| all[1] == two[0]), "the next in order is the first without it");
        let counts = counts(moved.iter().map(|(_, two)| *two), 0);
        let half = moved.len() / 2;
        assert!(counts.len() == 2 && counts.values().all(|count| count.abs_diff(half) <= 40), "{counts:?}");
    }

    #[test]
    fn each_address_of_a_name_is_a_candidate_and_agents_spread_over_them() {
        let mut table = table(&["mqtts://cluster.example", "mqtts://10.0.0.9"]);
        assert_eq!(table.candidates("n1").len(), 1, "the name has no addresses yet");
        assert!(table.has_names());
        resolve(&mut table, "cluster.example", &["10.0.0.2", "10.0.0.1", "2001:db8::1", "10.0.0.2"]);
        let counts = counts(orders(&table).iter(), 0);
        assert!(counts.len() == 4 && counts.values().all(|count| (200..=300).contains(count)), "{counts:?}");
        let first = table.candidates("n1");
        resolve(&mut table, "cluster.example", &[]);
        assert_eq!(table.candidates("n1"), first, "no answer changes nothing");
        resolve(&mut table, "cluster.example", &["10.0.0.1", "10.0.0.2", "2001:db8::1"]);
        assert_eq!(table.candidates("n1"), first, "the order of the answer changes nothing");
    }

    #[test]
    fn a_name_with_one_address_keeps_its_agents_when_the_address_changes() {
        let mut table = table(&["mqtt://a", "mqtt://b"]);
        let place = |table: &AddressTable| -> Vec<usize> {
            let is_a = |candidate: &Candidate| candidate.url == "mqtt://a";
            orders(table).iter().map(|order| order.iter().position(is_a).unwrap()).collect()
        };
        resolve(&mut table, "a", &["10.0.0.1"]);
        resolve(&mut table, "b", &["10.0.0.2"]);
        let before = place(&table);
        resolve(&mut table, "a", &["10.0.0.77"]);
        assert_eq!(place(&table), before);
    }

    #[test]
    fn bounds_hold() {
        let mut table = table(&["mqtt://a", "mqtt://b", "mqtt://c", "mqtt://d", "mqtt://e"]);
        let addresses: Vec<String> = (0..100).map(|last| format!("10.0.0.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        ["a", "b", "c", "d", "e"].iter().for_each(|host| resolve(&mut table, host, &addresses));
        assert_eq!(table.candidates("n1").len(), CANDIDATES_MAX);
        assert!(table.candidates("n1").iter().all(|c| c.address < "10.0.0.64:1".parse().unwrap()), "the same for all");
    }

    #[test]
    fn a_reload_keeps_known_addresses_of_servers_that_stay() {
        let mut old = table(&["mqtt://a", "mqtt://b"]);
        resolve(&mut old, "a", &["10.0.0.1"]);
        let urls = ["mqtt://c", "mqtt://A:1883"].map(|url| ServerUrl::parse(url).unwrap());
        let new = AddressTable::new(&urls, &old);
        assert_eq!(new.candidates("n1").iter().map(|c| c.address.to_string()).collect::<Vec<_>>(), ["10.0.0.1:1883"]);
        assert_eq!(new.due()[0].address.host, "c", "the unknown one first");
    }

    #[test]
    fn what_failed_lately_is_tried_last_and_the_oldest_failure_first() {
        let candidates = table(&THREE).candidates("n1");
        let (mut failures, start, recent) = (FailureTable::default(), Instant::now(), Duration::from_secs(60));
        let order = |failures: &FailureTable, now: Instant| -> Vec<usize> {
            let attempts = failures.attempts(candidates.clone(), recent, now);
            attempts.iter().map(|tried| candidates.iter().position(|c| c == tried).unwrap()).collect()
        };
        assert_eq!(order(&failures, start), [0, 1, 2]);
        failures.failed(&candidates[1], "b", start);
        failures.failed(&candidates[0], "a", start + Duration::from_secs(1));
        assert_eq!(order(&failures, start + Duration::from_secs(2)), [2, 1, 0]);
        assert_eq!(order(&failures, start + Duration::from_secs(60)), [1, 2, 0], "the failure of 1 is old");
        failures.succeeded(&candidates[0]);
        assert_eq!(order(&failures, start + Duration::from_secs(2)), [0, 2, 1]);
        assert_eq!((failures.problem(&candidates[0]), failures.problem(&candidates[1])), (None, Some("b")));
        failures.keep(&candidates[..1]);
        assert_eq!(order(&failures, start), [0, 1, 2]);
    }
}
