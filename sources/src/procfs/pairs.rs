//! Files of line pairs, `Tcp: RtoMin …` with the names and `Tcp: 200 …` with the values: net/snmp and net/netstat.

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::kept::{Fill, Form, Parse};
use crate::plan::{Plan, Slot};
use crate::scan;
use crate::table::Parsed;

/// The protocols that are sampled. `Icmp`, `IcmpMsg`, `UdpLite` and `MPTcpExt` are passed over: `IcmpMsg` gets new columns
/// as messages of new types come.
const PROTOCOLS: [&str; 5] = ["Ip", "Tcp", "Udp", "TcpExt", "IpExt"];

/// What the pairs of a file are, and where their values go.
#[derive(Debug, Default)]
pub struct PairTable {
    pairs: Vec<Pair>,
}

#[derive(Debug)]
struct Pair {
    /// The whole line of names, with its newline.
    names: Box<[u8]>,
    /// The beginning of both lines, such as `Tcp: `.
    prefix_len: usize,
    slots: Box<[Slot]>,
}

/// Takes the sensors of net/snmp or net/netstat, named `<group>/<protocol>/<name>`.
pub fn plan(group: &str, bytes: &[u8], plan: &mut Plan<'_>) -> PairTable {
    let mut table = PairTable::default();
    let mut lines = scan::lines(bytes);
    while let (Some(names), Some(_values)) = (lines.next(), lines.next()) {
        let Some((protocol, columns)) = sampled(names) else { continue };
        let slots =
            columns.split(' ').filter(|name| !name.is_empty()).map(|name| plan.add(sensor(group, protocol, name)));
        let slots: Box<[Slot]> = slots.collect();
        table.pairs.push(Pair { names: [names, b"\n"].concat().into(), prefix_len: protocol.len() + 2, slots });
    }
    table
}

/// The protocol and the columns of a line of names, if that protocol is sampled.
fn sampled(names: &[u8]) -> Option<(&str, &str)> {
    let (protocol, columns) = std::str::from_utf8(names).ok()?.split_once(": ")?;
    PROTOCOLS.contains(&protocol).then_some((protocol, columns))
}

impl Parse for PairTable {
    /// A pair whose names have changed stays gaps: its columns may mean something else.
    fn parse(&self, bytes: &[u8], fill: &mut impl Fill) -> Parsed {
        let mut parsed = Parsed::default();
        let (mut at, mut number, mut found) = (0, 1, 0);
        while at < bytes.len() {
            let values_at = scan::next_line(bytes, at);
            let next = scan::next_line(bytes, values_at);
            if next == values_at || bytes[next - 1] != b'\n' {
                parsed.bad_line(number);
            }
            match self.pair(&bytes[at..values_at], found, &mut parsed) {
                Some(pair) => {
                    found += 1;
                    if !pair.parse(&bytes[..next], values_at, fill) {
                        parsed.bad_line(number + 1);
                    }
                }
                None if !is_like_names(&bytes[at..values_at]) => parsed.bad_line(number),
                None => fill.passed_over(values_at..next.saturating_sub(1)),
            }
            (at, number) = (next, number + 2);
        }
        parsed.layout_changed |= found != self.pairs.len();
        parsed
    }

    fn slots(&self) -> Vec<u32> {
        self.pairs.iter().flat_map(|pair| pair.slots.iter().filter_map(|slot| *slot)).collect()
    }
}

impl PairTable {
    fn pair(&self, names: &[u8], expected: usize, parsed: &mut Parsed) -> Option<&Pair> {
        if let Some(pair) = self.pairs.get(expected).filter(|pair| *pair.names == *names) {
            return Some(pair);
        }
        let found = self.pairs.iter().find(|pair| *pair.names == *names);
        parsed.layout_changed |= found.is_some() || sampled(names).is_some();
        found
    }
}

impl Pair {
    /// Whether the line of values, from `start` to the end of the bytes, had one for each name.
    fn parse(&self, bytes: &[u8], start: usize, fill: &mut impl Fill) -> bool {
        let mut at = start + self.prefix_len;
        if bytes.get(start..at) != Some(&self.names[..self.prefix_len]) {
            return false;
        }
        for slot in &self.slots {
            let number = scan::int_at(bytes, at).filter(|&(_, end)| scan::is_end_of_value(bytes, end));
            let Some((value, end)) = number else { return false };
            fill.number(*slot, value, at..end, Form::Int);
            at = end + 1;
        }
        // A value more than there are names is no value of a name that is known.
        at == bytes.len()
    }
}

/// Whether a line of a protocol that is not sampled could be one of names.
fn is_like_names(line: &[u8]) -> bool {
    let Some(line) = line.strip_suffix(b"\n") else { return false };
    let protocol = line.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    protocol > 0
        && line.get(protocol) == Some(&b':')
        && line.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
}

fn sensor(group: &str, protocol: &str, name: &str) -> SensorDef {
    let path = format!("{group}/{}/{}", sanitize_level(protocol), sanitize_level(name));
    let description = describe(protocol, name);
    match (protocol, name) {
        ("Ip", "Forwarding" | "DefaultTTL") | ("Tcp", "RtoAlgorithm" | "MaxConn" | "CurrEstab") => {
            SensorDef::gauge(path, "1", description)
        }
        ("Ip", "ReasmTimeout") => SensorDef::gauge(path, "s", description),
        ("Tcp", "RtoMin" | "RtoMax") => SensorDef::gauge(path, "s", description).scaled(1e-3),
        ("TcpExt", "TCPMemoryPressuresChrono") => SensorDef::counter(path, "s", description).scaled(1e-3),
        ("IpExt", name) if name.ends_with("Octets") => SensorDef::counter(path, "By", description),
        _ => SensorDef::counter(path, "1", description),
    }
}

/// The well known ones; the names and meanings of most are those of RFC 4293 (IP), RFC 4022 (TCP) and RFC 4113 (UDP).
fn describe(protocol: &str, name: &str) -> &'static str {
    match (protocol, name) {
        ("Ip", "InReceives") => "Datagrams received, those with errors included.",
        ("Ip", "InDelivers") => "Datagrams delivered to the protocols above.",
        ("Ip", "OutRequests") => "Datagrams handed over by the protocols above to be sent.",
        ("Ip", "InDiscards") => "Received datagrams dropped for lack of buffers or the like.",
        ("Ip", "OutDiscards") => "Datagrams to be sent dropped for lack of buffers or the like.",
        ("Ip", "ReasmFails") => "Failures to put fragments together.",
        ("IpExt", "InOctets") => "Bytes received in IP datagrams.",
        ("IpExt", "OutOctets") => "Bytes sent in IP datagrams.",
        ("Tcp", "ActiveOpens") => "Connections opened from here.",
        ("Tcp", "PassiveOpens") => "Connections accepted.",
        ("Tcp", "AttemptFails") => "Connection attempts that failed.",
        ("Tcp", "EstabResets") => "Established connections that were reset.",
        ("Tcp", "CurrEstab") => "Connections established now.",
        ("Tcp", "InSegs") => "Segments received, those with errors included.",
        ("Tcp", "OutSegs") => "Segments sent, without those retransmitted only.",
        ("Tcp", "RetransSegs") => "Segments retransmitted.",
        ("Tcp", "InErrs") => "Segments received with errors.",
        ("Tcp", "OutRsts") => "Segments sent with the reset flag.",
        ("Tcp", "MaxConn") => "The most connections there can be; -1: no fixed bound.",
        ("TcpExt", "ListenOverflows") => "Connections dropped because a listener's queue was full.",
        ("TcpExt", "ListenDrops") => "Connection requests dropped by listeners.",
        ("TcpExt", "TCPTimeouts") => "Retransmission timeouts.",
        ("TcpExt", "TCPLostRetransmit") => "Retransmitted segments that were lost again.",
        ("TcpExt", "TCPFastRetrans") => "Fast retransmissions.",
        ("TcpExt", "TCPMemoryPressuresChrono") => "Time that TCP was short of memory.",
        ("Udp", "InDatagrams") => "Datagrams delivered.",
        ("Udp", "NoPorts") => "Datagrams received for a port where nobody listens.",
        ("Udp", "InErrors") => "Received datagrams that could not be delivered for another reason.",
        ("Udp", "OutDatagrams") => "Datagrams sent.",
        ("Udp", "RcvbufErrors") => "Received datagrams dropped because the socket's buffer was full.",
        ("Udp", "SndbufErrors") => "Datagrams not sent because the socket's buffer was full.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::GroupOptions;
    use crate::testing::{Filled, filled};

    const GOOD: &str = "Ip: Forwarding InReceives\nIp: 2 6448\nIcmpMsg: InType3\nIcmpMsg: 1\nTcp: MaxConn InSegs\nTcp: -1 18446744073709551615\n";

    fn table() -> PairTable {
        let options = GroupOptions::default();
        let mut report = |text: String| panic!("{text}");
        let mut group = Plan::new(&options, &options, &mut report);
        let table = plan("net/snmp", GOOD.as_bytes(), &mut group);
        let names: Vec<String> = group.into_sensors().into_iter().map(|sensor| sensor.name).collect();
        assert_eq!(
            names,
            ["net/snmp/Ip/Forwarding", "net/snmp/Ip/InReceives", "net/snmp/Tcp/MaxConn", "net/snmp/Tcp/InSegs"]
        );
        table
    }

    #[track_caller]
    fn check(text: &str, values: [Option<i64>; 4], layout_changed: bool, garbage: Option<u32>) {
        let Filled { values: found, parsed } = filled(4, |row| table().parse(text.as_bytes(), row));
        assert_eq!(found, values, "{text:?}");
        assert_eq!(parsed, Parsed { layout_changed, garbage }, "{text:?}");
    }

    #[test]
    fn pairs() {
        let all = [Some(2), Some(6448), Some(-1), Some(-1)];
        check(GOOD, all, false, None);
        check(&GOOD.replace("InType3\nIcmpMsg: 1", "InType3 InType8\nIcmpMsg: 1 2"), all, false, None);
        check(
            "Tcp: MaxConn InSegs\nTcp: -1 5\nIp: Forwarding InReceives\nIp: 2 6\n",
            [Some(2), Some(6), Some(-1), Some(5)],
            true,
            None,
        );
        check("Tcp: MaxConn InSegs\nTcp: -1 5\n", [None, None, Some(-1), Some(5)], true, None);
        check(&GOOD.replace("InSegs", "New InSegs"), [Some(2), Some(6448), None, None], true, None);
        check(&GOOD.replace("6448", "x"), [Some(2), None, Some(-1), Some(-1)], false, Some(2));
        check(&GOOD.replace("6448", "6448 1"), [Some(2), Some(6448), Some(-1), Some(-1)], false, Some(2));
        check(&GOOD.replace("Ip: 2", "Iq: 2"), [None, None, Some(-1), Some(-1)], false, Some(2));
        check("Tcp: MaxConn InSegs\n", [None; 4], true, Some(1));
        check(&GOOD.replace("Icmp", "\u{1}cmp"), all, false, Some(3));
    }
}
