//! net/snmp and net/netstat: pairs of lines, `Tcp: RtoMin …` with the names and `Tcp: 200 …` with the values.

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::parse::{NumberFormat, ParseOutcome, TextParser, ValueSink};
use crate::plan::{SensorPlan, Slot};
use crate::scan;

/// The sampled protocols. `IcmpMsg`, `UdpLite` and `MPTcpExt` are ignored: `IcmpMsg` gets a new column with the first message of
/// each type.
const PROTOCOLS: [&str; 6] = ["Ip", "Icmp", "Tcp", "Udp", "TcpExt", "IpExt"];

/// The pairs of a file, with the slots of their values.
#[derive(Debug, Default)]
pub struct PairTable {
    pairs: Vec<Pair>,
}

#[derive(Debug)]
struct Pair {
    /// The line of names, with its newline.
    names: Box<[u8]>,
    /// The length of the beginning of both lines, such as `Tcp: `.
    prefix_len: usize,
    slots: Box<[Slot]>,
}

/// Adds the sensors of net/snmp or net/netstat, `<group>/<protocol>/<name>`.
pub fn plan(group: &str, bytes: &[u8], plan: &mut SensorPlan<'_>) -> PairTable {
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

/// The protocol and the columns of a line of names, if the protocol is sampled.
fn sampled(names: &[u8]) -> Option<(&str, &str)> {
    let (protocol, columns) = std::str::from_utf8(names).ok()?.split_once(": ")?;
    PROTOCOLS.contains(&protocol).then_some((protocol, columns))
}

impl TextParser for PairTable {
    /// The values of a pair whose names have changed stay gaps, as its columns may have other meanings.
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        let mut outcome = ParseOutcome::default();
        let (mut at, mut number, mut found) = (0, 1, 0);
        while at < bytes.len() {
            let values_at = scan::next_line(bytes, at);
            let next = scan::next_line(bytes, values_at);
            if next == values_at || bytes[next - 1] != b'\n' {
                outcome.bad_line(number);
            }
            match self.pair(&bytes[at..values_at], found, &mut outcome) {
                Some(pair) => {
                    found += 1;
                    if !pair.parse(&bytes[..next], values_at, sink) {
                        outcome.bad_line(number + 1);
                    }
                }
                None if !looks_like_names(&bytes[at..values_at]) => outcome.bad_line(number),
                None => sink.ignored(values_at..next.saturating_sub(1)),
            }
            (at, number) = (next, number + 2);
        }
        outcome.layout_changed |= found != self.pairs.len();
        outcome
    }

    fn slots(&self) -> Vec<u32> {
        self.pairs.iter().flat_map(|pair| pair.slots.iter().filter_map(|slot| *slot)).collect()
    }
}

impl PairTable {
    fn pair(&self, names: &[u8], expected: usize, outcome: &mut ParseOutcome) -> Option<&Pair> {
        if let Some(pair) = self.pairs.get(expected).filter(|pair| *pair.names == *names) {
            return Some(pair);
        }
        let found = self.pairs.iter().find(|pair| *pair.names == *names);
        outcome.layout_changed |= found.is_some() || sampled(names).is_some();
        found
    }
}

impl Pair {
    /// Reads the line of values from `start` to the end of `bytes`. Gives whether it has one value for each name.
    fn parse(&self, bytes: &[u8], start: usize, sink: &mut impl ValueSink) -> bool {
        let mut at = start + self.prefix_len;
        if bytes.get(start..at) != Some(&self.names[..self.prefix_len]) {
            return false;
        }
        for slot in &self.slots {
            let number = scan::int_at(bytes, at).filter(|&(_, end)| scan::is_end_of_value(bytes, end));
            let Some((value, end)) = number else { return false };
            sink.number(*slot, value, at..end, NumberFormat::Int);
            at = end + 1;
        }
        // With more values than names the line does not match.
        at == bytes.len()
    }
}

/// Whether a line of a protocol that is not sampled could be a line of names.
fn looks_like_names(line: &[u8]) -> bool {
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

/// Descriptions of well-known counters, mostly from RFC 4293 (IP), RFC 4022 (TCP) and RFC 4113 (UDP).
fn describe(protocol: &str, name: &str) -> &'static str {
    match (protocol, name) {
        ("Ip", "InReceives") => "Datagrams received, those with errors included.",
        ("Ip", "InDelivers") => "Datagrams delivered to upper-layer protocols.",
        ("Ip", "OutRequests") => "Datagrams that upper-layer protocols requested to send.",
        ("Ip", "InDiscards") => "Received datagrams dropped, mostly for lack of buffers.",
        ("Ip", "OutDiscards") => "Outgoing datagrams dropped, mostly for lack of buffers.",
        ("Ip", "ReasmFails") => "Failed reassemblies of fragments.",
        ("IpExt", "InOctets") => "Bytes received in IP datagrams.",
        ("IpExt", "OutOctets") => "Bytes sent in IP datagrams.",
        ("Icmp", "InMsgs") => "ICMP messages received, those with errors included.",
        ("Icmp", "InErrors") => "ICMP messages received with errors.",
        ("Icmp", "InDestUnreachs") => "Messages received that a destination is unreachable.",
        ("Icmp", "OutMsgs") => "ICMP messages that were to be sent, those with errors included.",
        ("Icmp", "OutErrors") => "ICMP messages not sent for an error.",
        ("Icmp", "OutDestUnreachs") => "Messages sent that a destination is unreachable.",
        ("Tcp", "ActiveOpens") => "Connections opened by this node.",
        ("Tcp", "PassiveOpens") => "Connections accepted.",
        ("Tcp", "AttemptFails") => "Connection attempts that failed.",
        ("Tcp", "EstabResets") => "Established connections that were reset.",
        ("Tcp", "CurrEstab") => "Connections established now.",
        ("Tcp", "InSegs") => "Segments received, those with errors included.",
        ("Tcp", "OutSegs") => "Segments sent, excluding those with only retransmitted data.",
        ("Tcp", "RetransSegs") => "Segments retransmitted.",
        ("Tcp", "InErrs") => "Segments received with errors.",
        ("Tcp", "OutRsts") => "Segments sent with the reset flag.",
        ("Tcp", "MaxConn") => "The most connections possible; -1: no fixed bound.",
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
    use crate::testing::{self, Filled, filled};

    const GOOD: &str = "Ip: Forwarding InReceives\nIp: 2 6448\nIcmpMsg: InType3\nIcmpMsg: 1\nTcp: MaxConn InSegs\nTcp: -1 18446744073709551615\n";

    fn table() -> PairTable {
        let (sensors, table) = testing::planned(|sensors| plan("net/snmp", GOOD.as_bytes(), sensors));
        let names: Vec<String> = sensors.into_iter().map(|sensor| sensor.name).collect();
        assert_eq!(
            names,
            ["net/snmp/Ip/Forwarding", "net/snmp/Ip/InReceives", "net/snmp/Tcp/MaxConn", "net/snmp/Tcp/InSegs"]
        );
        table
    }

    #[track_caller]
    fn check(text: &str, values: [Option<i64>; 4], layout_changed: bool, garbage: Option<u32>) {
        let Filled { values: found, outcome } = filled(4, |row| table().parse(text.as_bytes(), row));
        assert_eq!(found, values, "{text:?}");
        assert_eq!(outcome, ParseOutcome { layout_changed, garbage }, "{text:?}");
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
