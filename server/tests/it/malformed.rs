//! Clients that break the rules, and those beside them who must not notice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use wholegrain_transport::mqtt::Version;

use crate::harness::{DEADLINE, PASSWORD, Server, eventually};

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
    packet(0x10, &[text("MQTT"), vec![4, 0xc2, 0, keep_alive_s], text("raw"), text(user), text(password)].concat())
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

/// Sends bytes and waits until the server has closed; what it answered.
fn closed_after(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server may close before it has taken everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed");
    }
    answer
}

#[test]
fn malformed_packets_of_each_type_close_their_own_connection_only() {
    let server = Server::start();
    let mut good = server.agent(&server.mutual(Version::V5, "n1"));
    let connack = [0x20, 2, 0, 0];
    let after_connect: &[(&str, &[u8])] = &[
        ("reserved type 0", &[0x00, 0]),
        ("CONNECT again", &[0x10, 0]),
        ("CONNACK", &[0x20, 2, 0, 0]),
        ("PUBLISH with QoS 3", &[0x36, 5, 0, 1, b'a', 0, 1]),
        ("PUBLISH with packet identifier 0", &[0x32, 5, 0, 1, b'a', 0, 0]),
        ("PUBLISH with a wildcard", &[0x30, 3, 0, 1, b'#']),
        ("PUBLISH with a topic cut short", &[0x30, 3, 0, 9, b'a']),
        ("PUBLISH that is not UTF-8", &[0x30, 3, 0, 1, 0xff]),
        ("PUBLISH without a topic", &[0x30, 2, 0, 0]),
        ("PUBREL with wrong flags", &[0x60, 2, 0, 1]),
        ("SUBSCRIBE with wrong flags", &[0x80, 6, 0, 1, 0, 1, b'a', 0]),
        ("SUBSCRIBE without filters", &[0x82, 2, 0, 1]),
        ("SUBSCRIBE with a broken filter", &[0x82, 8, 0, 1, 0, 3, b'a', b'#', b'b', 0]),
        ("SUBACK", &[0x90, 3, 0, 1, 0]),
        ("UNSUBSCRIBE without filters", &[0xa2, 2, 0, 1]),
        ("UNSUBACK", &[0xb0, 2, 0, 1]),
        ("PINGREQ with a body", &[0xc0, 1, 0]),
        ("PINGRESP", &[0xd0, 0]),
        ("DISCONNECT with a body in 3.1.1", &[0xe0, 1, 0]),
        ("AUTH in 3.1.1", &[0xf0, 0]),
        ("a length of five bytes", &[0x30, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ("a packet over the limit", &[0x30, 0xff, 0xff, 0xff, 0x7f]),
    ];
    for (what, bytes) in after_connect {
        let answer = closed_after(&server, &[&connect("n1", PASSWORD)[..], bytes].concat());
        assert!(answer.is_empty() || answer == connack, "{what}: {answer:?}");
        let id = good.publish("a/b", what.as_bytes());
        good.acked(&[id]);
    }
    assert_eq!(server.metric("wholegrain_server_protocol_errors_total"), after_connect.len() as f64);
    eventually("only the good one is left", || (server.metric("wholegrain_server_connections") == 1.0).then_some(()));
}

#[test]
fn malformed_greetings_are_refused() {
    let server = Server::start();
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
fn a_connection_cut_anywhere_in_a_packet_harms_nobody() {
    let server = Server::start();
    let mut good = server.agent(&server.mutual(Version::V5, "n1"));
    let whole =
        [connect("n1", PASSWORD), packet(0x32, &[text("a/b"), vec![0, 1], b"payload".to_vec()].concat())].concat();
    for end in 1..whole.len() {
        let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    eventually("all are gone", || (server.metric("wholegrain_server_connections") == 1.0).then_some(()));
    let id = good.publish("a/b", b"");
    good.acked(&[id]);
}
