//! Clients that violate the protocol do not affect others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use wholegrain_transport::mqtt::Version;

use crate::harness::{DEADLINE, PASSWORD, TestServer, wait_until};
use crate::log;

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 128);
    [&[first, body.len() as u8], body].concat()
}

/// CONNECT of 3.1.1 with a clean session.
fn connect(user: &str, password: &str) -> Vec<u8> {
    connect_keeping(user, password, 60)
}

pub fn connect_keeping(user: &str, password: &str, keep_alive_s: u8) -> Vec<u8> {
    connect_as("raw", user, password, keep_alive_s)
}

pub fn connect_as(client: &str, user: &str, password: &str, keep_alive_s: u8) -> Vec<u8> {
    packet(0x10, &[text("MQTT"), vec![4, 0xc2, 0, keep_alive_s], text(client), text(user), text(password)].concat())
}

pub fn connect_with_will(user: &str, password: &str, keep_alive_s: u8, topic: &str, will: &str) -> Vec<u8> {
    let parts = [
        text("MQTT"),
        vec![4, 0xc6, 0, keep_alive_s],
        text("raw"),
        text(topic),
        text(will),
        text(user),
        text(password),
    ];
    packet(0x10, &parts.concat())
}

/// Sends bytes and waits until the server has closed; returns its response.
fn closed_after(server: &TestServer, bytes: &[u8]) -> Vec<u8> {
    said_until_closed(&mut TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap(), bytes)
}

fn said_until_closed(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server may close before it has taken everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed");
    }
    answer
}

/// CONNECT of MQTT 5 with a clean start.
fn connect_5(user: &str, password: &str) -> Vec<u8> {
    packet(0x10, &[text("MQTT"), vec![5, 0xc2, 0, 60, 0], text("raw"), text(user), text(password)].concat())
}

/// Packets that are invalid after CONNECT in both versions.
const IN_BOTH: &[(&str, &[u8])] = &[
    ("reserved type 0", &[0x00, 0]),
    ("CONNECT again", &[0x10, 0]),
    ("CONNACK", &[0x20, 2, 0, 0]),
    ("PUBLISH with QoS 3", &[0x36, 5, 0, 1, b'a', 0, 1]),
    ("PUBLISH of QoS 0 with DUP", &[0x38, 4, 0, 1, b'a', 0]),
    ("PUBLISH with packet identifier 0", &[0x32, 6, 0, 1, b'a', 0, 0, 0]),
    ("PUBLISH with a wildcard", &[0x30, 4, 0, 1, b'#', 0]),
    ("PUBLISH with a topic cut short", &[0x30, 3, 0, 9, b'a']),
    ("PUBLISH without its identifier", &[0x32, 3, 0, 1, b'a']),
    ("PUBLISH that is not UTF-8", &[0x30, 4, 0, 1, 0xff, 0]),
    ("PUBLISH with U+0000", &[0x30, 4, 0, 1, 0, 0]),
    ("PUBLISH without a topic", &[0x30, 3, 0, 0, 0]),
    ("PUBLISH of nothing", &[0x30, 0]),
    ("PUBACK with wrong flags", &[0x42, 2, 0, 1]),
    ("PUBACK cut short", &[0x40, 1, 0]),
    ("PUBACK of identifier 0", &[0x40, 2, 0, 0]),
    ("PUBREC with wrong flags", &[0x51, 2, 0, 1]),
    ("PUBREC cut short", &[0x50, 0]),
    ("PUBREL with wrong flags", &[0x60, 2, 0, 1]),
    ("PUBREL cut short", &[0x62, 1, 0]),
    ("PUBCOMP with wrong flags", &[0x74, 2, 0, 1]),
    ("PUBCOMP of identifier 0", &[0x70, 2, 0, 0]),
    ("SUBSCRIBE with wrong flags", &[0x80, 7, 0, 1, 0, 0, 1, b'a', 0]),
    ("SUBSCRIBE without filters", &[0x82, 3, 0, 1, 0]),
    ("SUBSCRIBE with a broken filter", &[0x82, 9, 0, 1, 0, 0, 3, b'a', b'#', b'b', 0]),
    ("SUBACK", &[0x90, 4, 0, 1, 0, 0]),
    ("UNSUBSCRIBE without filters", &[0xa2, 3, 0, 1, 0]),
    ("UNSUBSCRIBE with wrong flags", &[0xa0, 6, 0, 1, 0, 0, 1, b'a']),
    ("UNSUBACK", &[0xb0, 4, 0, 1, 0, 0]),
    ("PINGREQ with a body", &[0xc0, 1, 0]),
    ("PINGREQ with flags", &[0xc8, 0]),
    ("PINGRESP", &[0xd0, 0]),
    ("DISCONNECT with flags", &[0xe1, 0]),
    ("AUTH", &[0xf0, 0]),
    ("a length of five bytes", &[0x30, 0xff, 0xff, 0xff, 0xff, 0x01]),
    ("a packet over the limit", &[0x30, 0xff, 0xff, 0xff, 0x7f]),
];

/// Packets that are invalid in 3.1.1.
const IN_311: &[(&str, &[u8])] = &[
    ("SUBSCRIBE with QoS 3", &[0x82, 6, 0, 1, 0, 1, b'a', 3]),
    ("SUBSCRIBE with options of 5", &[0x82, 6, 0, 1, 0, 1, b'a', 4]),
    ("SUBSCRIBE cut short", &[0x82, 5, 0, 1, 0, 1, b'a']),
    ("UNSUBSCRIBE cut short", &[0xa2, 4, 0, 1, 0, 9]),
    ("PUBACK with a reason", &[0x40, 3, 0, 1, 0]),
    ("DISCONNECT with a body", &[0xe0, 1, 0]),
];

/// Packets that are invalid in 5, mostly properties.
const IN_5: &[(&str, &[u8])] = &[
    ("PUBLISH with a property twice", &[0x30, 8, 0, 1, b'a', 4, 1, 1, 1, 1]),
    ("PUBLISH with a property of others", &[0x30, 7, 0, 1, b'a', 3, 0x21, 0, 1]),
    ("PUBLISH with an unknown property", &[0x30, 6, 0, 1, b'a', 2, 0x7f, 0]),
    ("PUBLISH with properties beyond its end", &[0x30, 4, 0, 1, b'a', 9]),
    ("PUBLISH with a property cut short", &[0x30, 6, 0, 1, b'a', 2, 2, 0]),
    ("PUBLISH with topic alias 0", &[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 0]),
    ("PUBLISH with a topic alias never offered", &[0x30, 7, 0, 1, b'a', 3, 0x23, 0xff, 0xff]),
    ("PUBLISH with an alias that has no topic", &[0x30, 6, 0, 0, 3, 0x23, 0, 1]),
    ("PUBLISH with a payload format of 2", &[0x30, 6, 0, 1, b'a', 2, 1, 2]),
    ("PUBLISH with a subscription identifier", &[0x30, 6, 0, 1, b'a', 2, 0x0b, 1]),
    ("PUBLISH to answer on a wildcard", &[0x30, 8, 0, 1, b'a', 4, 8, 0, 1, b'#']),
    ("PUBLISH with a user property not UTF-8", &[0x30, 10, 0, 1, b'a', 6, 0x26, 0, 1, 0xff, 0, 0]),
    ("PUBACK with a reason of others", &[0x40, 3, 0, 1, 0x8d]),
    ("PUBREC with a property of others", &[0x50, 7, 0, 1, 0, 3, 0x23, 0, 1]),
    ("PUBREL with a reason of others", &[0x62, 3, 0, 1, 0x10]),
    ("PUBCOMP with bytes after its end", &[0x70, 5, 0, 1, 0, 0, 0]),
    ("SUBSCRIBE with identifier 0", &[0x82, 9, 0, 1, 2, 0x0b, 0, 0, 1, b'a', 0]),
    ("SUBSCRIBE with two identifiers", &[0x82, 11, 0, 1, 4, 0x0b, 1, 0x0b, 2, 0, 1, b'a', 0]),
    ("SUBSCRIBE with retain handling 3", &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30]),
    ("SUBSCRIBE with reserved options", &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x40]),
    ("UNSUBSCRIBE with a property of others", &[0xa2, 8, 0, 1, 2, 0x0b, 1, 0, 1, b'a']),
    ("DISCONNECT with a reason of others", &[0xe0, 1, 0x86]),
    ("DISCONNECT with a session that begins at the end", &[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 9]),
    ("AUTH with a method that was not agreed on", &[0xf0, 6, 0x18, 4, 0x15, 0, 1, b'x']),
];

/// How many cases one server is asked: fewer than the lines that it logs at most in a while.
const CASES_MAX: usize = (wholegrain_server::log_limit::LINES_MAX - 2) as usize;

/// Each case closes its own connection with a log line that gives the reason; another client is not affected.
fn each_closes_its_own_connection_only(version: Version, cases: &[(&str, &[u8])]) {
    let log = log::CapturedLog::start();
    let (greeting, connack) = match version {
        Version::V311 => (connect("n1", PASSWORD), &[0x20, 2, 0, 0][..]),
        Version::V5 => (connect_5("n1", PASSWORD), &[0x20][..]),
    };
    for cases in cases.chunks(CASES_MAX) {
        let server = TestServer::start();
        let mut good = server.agent(&server.mutual(Version::V5, "n1"));
        for (what, bytes) in cases {
            let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
            let address = stream.local_addr().unwrap();
            let answer = said_until_closed(&mut stream, &[&greeting[..], bytes].concat());
            assert!(answer.is_empty() || answer.starts_with(connack), "{what}: {answer:?}");
            let line = log.line_of(address, what);
            assert!(line.contains("closed the connection of n1: "), "{what}: {line}");
            let id = good.publish("a/b", what.as_bytes());
            good.acked(&[id]);
        }
        assert_eq!(server.metric("wholegrain_server_protocol_errors_total"), cases.len() as f64);
        for (gauge, left) in [("connections", 1.0), ("sessions", 1.0), ("subscriptions", 0.0), ("in_flight", 0.0)] {
            let name = format!("wholegrain_server_{gauge}");
            wait_until("only the good one is left", || server.metric(&name) == left);
        }
    }
}

#[test]
fn malformed_packets_of_each_type_in_3_1_1() {
    each_closes_its_own_connection_only(Version::V311, &[IN_BOTH, IN_311].concat());
}

#[test]
fn malformed_packets_of_each_type_in_5() {
    each_closes_its_own_connection_only(Version::V5, &[IN_BOTH, IN_5].concat());
}

#[test]
fn malformed_greetings_are_refused() {
    let server = TestServer::start();
    let mut good = server.agent(&server.mutual(Version::V5, "n1"));
    let greetings: &[(&str, &[u8], &[u8])] = &[
        ("PINGREQ first", &[0xc0, 0], &[]),
        ("HTTP", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", &[]),
        ("TLS to the plain port", &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], &[]),
        ("another protocol", &packet(0x10, &[text("MQTX"), vec![4, 2, 0, 60], text("raw")].concat()), &[]),
        ("level 3", &packet(0x10, &[text("MQTT"), vec![3, 2, 0, 60], text("raw")].concat()), &[0x20, 2, 0, 1]),
        ("the reserved flag", &packet(0x10, &[text("MQTT"), vec![4, 3, 0, 60], text("raw")].concat()), &[]),
        ("a CONNECT of half a gigabyte", &[0x10, 0xff, 0xff, 0xff, 0x7f], &[]),
        (
            "no identifier and a kept session",
            &packet(0x10, &[text("MQTT"), vec![4, 0, 0, 60], text("")].concat()),
            &[0x20, 2, 0, 2],
        ),
    ];
    for (what, bytes, expected) in greetings {
        assert_eq!(closed_after(&server, bytes), *expected, "{what}");
    }
    assert_eq!(server.metric("wholegrain_server_connections_refused_total"), greetings.len() as f64);
    let id = good.publish("a/b", b"");
    good.acked(&[id]);
}

#[test]
fn a_connection_cut_within_a_packet_affects_no_other() {
    let server = TestServer::start();
    let mut good = server.agent(&server.mutual(Version::V5, "n1"));
    let whole =
        [connect("n1", PASSWORD), packet(0x32, &[text("a/b"), vec![0, 1], b"payload".to_vec()].concat())].concat();
    for end in 1..whole.len() {
        let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    wait_until("all are gone", || server.metric("wholegrain_server_connections") == 1.0);
    let id = good.publish("a/b", b"");
    good.acked(&[id]);
}
