//! The broker's time is shared fairly among identities.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use wholegrain_transport::mqtt::Version;

use crate::bounds::{read, subscribe};
use crate::harness::{DEADLINE, PASSWORD, TestServer, wait_for, wait_until};
use crate::malformed::{connect_as, packet, text};

const PINGREQ: [u8; 2] = [0xc0, 0];
const PINGRESP: [u8; 2] = [0xd0, 0];
/// Control packets that each connection has of its own.
const OWN: usize = 16;

/// A client of n1 with an identifier of its own, that has been let in.
fn one_of_many(server: &TestServer, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&connect_as(&format!("c{number}"), "n1", PASSWORD, 60)).unwrap();
    assert_eq!(read(&mut stream), [0x20, 2, 0, 0]);
    stream
}

/// How many PINGRESP are there to be read, without waiting.
fn answered(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut buffer, mut bytes) = ([0; 4096], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(count) => {
                assert!(count > 0, "closed");
                assert!(buffer[..count].iter().all(|byte| [0xd0, 0].contains(byte)));
                bytes += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return bytes / PINGRESP.len(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn control_packets_of_one_identity_wait_and_others_go_on() {
    const CONNECTIONS: usize = 60;
    const PACKETS: usize = 2000;
    let server = TestServer::start_with("limits = { control_packets_per_s_max = 1 }");
    let mut flood: Vec<TcpStream> = (0..CONNECTIONS).map(|number| one_of_many(&server, number)).collect();
    let (begin, before) = (Instant::now(), server.metric("wholegrain_server_received_bytes_total"));
    for stream in &mut flood {
        stream.write_all(&PINGREQ.repeat(PACKETS)).unwrap();
    }
    // Each connection reads all of it at once.
    let sent = (CONNECTIONS * PACKETS * PINGREQ.len()) as f64;
    wait_for("the flood", || (server.metric("wholegrain_server_received_bytes_total") >= before + sent).then_some(()));
    let mut other = server.agent(&server.mutual(Version::V5, "n2"));
    for _ in 0..50 {
        let id = other.publish("site/x", b"1");
        other.acked(&[id]);
    }
    let answered: usize = flood.iter_mut().map(answered).sum();
    // Each connection may exceed the rate by one, and part of the budget has been refilled meanwhile.
    let meanwhile = begin.elapsed().as_secs() as usize + 1;
    let most = 5 + meanwhile + CONNECTIONS * (OWN + 1 + meanwhile);
    assert!(answered >= CONNECTIONS * OWN && answered <= most, "{answered}, and {most} at most");
    assert!(most < CONNECTIONS * PACKETS / 2, "the test took too long to tell anything");
    assert!(server.metric("wholegrain_server_control_delays_total") >= CONNECTIONS as f64);
}

#[test]
fn a_client_that_sends_control_packets_too_fast_is_answered_all_the_same() {
    let server = TestServer::start_with("limits = { control_packets_per_s_max = 200 }");
    let mut stream = one_of_many(&server, 0);
    const PACKETS: usize = OWN + 1100;
    stream.write_all(&PINGREQ.repeat(PACKETS)).unwrap();
    for _ in 0..PACKETS {
        assert_eq!(read(&mut stream), PINGRESP);
    }
    subscribe(&mut stream, &["a/#", "b/#"]);
    assert_eq!(read(&mut stream), [0x90, 4, 0, 1, 0, 0]);
    assert!(server.metric("wholegrain_server_control_delays_total") >= 1.0);
}

#[test]
fn many_quiet_connections_of_one_identity_never_wait() {
    let server = TestServer::start_with("limits = { control_packets_per_s_max = 1 }");
    let mut fleet: Vec<TcpStream> = (0..100).map(|number| one_of_many(&server, number)).collect();
    for stream in &mut fleet {
        subscribe(stream, &["a/#", "b/#", "s/#"]);
        stream.write_all(&PINGREQ.repeat(OWN - 3)).unwrap();
    }
    for stream in &mut fleet {
        assert_eq!(read(stream), [0x90, 5, 0, 1, 0, 0, 0]);
        assert!((0..OWN - 3).all(|_| read(stream) == PINGRESP));
    }
    assert_eq!(server.metric("wholegrain_server_control_delays_total"), 0.0);
}

/// Acknowledgements of unknown packets, and filters, count as control packets; a session that acknowledges its messages does not wait.
#[test]
fn acknowledgements_of_nothing_are_control_packets_and_others_are_not() {
    let server = TestServer::start_with("limits = { control_packets_per_s_max = 1 }");
    let delays = || server.metric("wholegrain_server_control_delays_total");
    let mut stream = one_of_many(&server, 0);
    stream.write_all(&packet(0x82, &[vec![0, 1], text("s/#"), vec![1]].concat())).unwrap();
    assert_eq!(read(&mut stream), [0x90, 3, 0, 1, 1]);
    let mut other = server.agent(&server.mutual(Version::V5, "n2"));
    for _ in 0..OWN + 20 {
        let id = other.publish("s/x", b"1");
        other.acked(&[id]);
        let publish: [u8; 10] = read(&mut stream);
        stream.write_all(&[0x40, 2, publish[7], publish[8]]).unwrap();
    }
    stream.write_all(&PINGREQ).unwrap();
    assert_eq!((read(&mut stream), delays()), (PINGRESP, 0.0));
    stream.write_all(&[0x40, 2, 200, 7].repeat(OWN + 20)).unwrap();
    wait_until("a delay", || delays() > 0.0);
}

/// A busy connection gives way repeatedly, whether it sends or receives.
#[test]
fn busy_connections_take_turns() {
    const UNITS: usize = 256;
    let server = TestServer::start();
    let turns = || server.metric("wholegrain_server_turns_total");
    let mut busy = one_of_many(&server, 0);
    let publish = packet(0x31, &[text("s/0000"), vec![1]].concat());
    let publishes: Vec<u8> = (0..2000)
        .flat_map(|number| {
            let mut one = publish.clone();
            one[6..10].copy_from_slice(format!("{number:04}").as_bytes());
            one
        })
        .collect();
    busy.write_all(&[publishes, PINGREQ.to_vec()].concat()).unwrap();
    assert_eq!(read(&mut busy), PINGRESP);
    let sent = turns();
    assert!(sent >= (2000 / UNITS) as f64, "{sent} turns");
    let mut hears = one_of_many(&server, 1);
    subscribe(&mut hears, &["s/#"]);
    assert_eq!(read(&mut hears), [0x90, 3, 0, 1, 0]);
    let mut retained = vec![0; 2000 * publish.len()];
    hears.read_exact(&mut retained).unwrap();
    assert!(turns() >= sent + (2000 / UNITS) as f64, "{} turns", turns());
    // Payload bytes count too: 16 packets of 64 KiB.
    let before = turns();
    // PUBLISH with 65,545 bytes behind its length.
    let large = [vec![0x30, 0x89, 0x80, 0x04], text("s/large"), vec![7; 64 << 10]].concat();
    busy.write_all(&[large.repeat(16), PINGREQ.to_vec()].concat()).unwrap();
    assert_eq!(read(&mut busy), PINGRESP);
    assert!(turns() > before);
}

/// 100 packets are less than a turn, and their topics of 16 KiB are 25.
#[test]
fn a_topics_bytes_count_in_a_turn() {
    let server = TestServer::start();
    let mut busy = one_of_many(&server, 0);
    let before = server.metric("wholegrain_server_turns_total");
    let topic = format!("s/{}", "x".repeat((16 << 10) - 2));
    let publish = control(0x30, &[text(&topic), vec![1]].concat());
    busy.write_all(&[publish.repeat(100), PINGREQ.to_vec()].concat()).unwrap();
    assert_eq!(read(&mut busy), PINGRESP);
    let turns = server.metric("wholegrain_server_turns_total") - before;
    assert!(turns >= 20.0, "{turns} turns");
}

/// A packet with a length of three bytes.
fn control(first: u8, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    assert!((1 << 14..1 << 21).contains(&length));
    let digits = [length & 0x7f | 0x80, length >> 7 & 0x7f | 0x80, length >> 14].map(|digit| digit as u8);
    [&[first], &digits[..], body].concat()
}

#[test]
fn no_packet_but_publish_is_large() {
    let server = TestServer::start();
    let mut stream = one_of_many(&server, 0);
    // SUBSCRIBE with a million filters; its first bytes have the length.
    stream.write_all(&[0x82, 0x80, 0x80, 0x80, 0x02, 0, 1]).unwrap();
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).is_ok_and(|_| rest.is_empty()) || rest.is_empty());
    assert_eq!(server.metric("wholegrain_server_protocol_errors_total"), 1.0);
    // 1 MiB is taken, and one byte more is not: its length is enough to say so.
    let filters = |last: usize| {
        let lengths = [vec![52_000; 19], vec![last]].concat();
        let filters = lengths.iter().flat_map(|length| [text(&"f".repeat(*length)), vec![0]].concat());
        control(0x82, &[vec![0, 1], filters.collect()].concat())
    };
    let (largest, over) = (filters(60_510), filters(60_511));
    assert_eq!((largest.len(), over.len()), (1 << 20, (1 << 20) + 1));
    let mut stream = one_of_many(&server, 1);
    stream.write_all(&largest).unwrap();
    let answer: [u8; 24] = read(&mut stream);
    assert_eq!(answer[..4], [0x90, 22, 0, 1]);
    let mut stream = one_of_many(&server, 2);
    stream.write_all(&over[..100]).unwrap();
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).is_ok_and(|_| rest.is_empty()) || rest.is_empty());
    assert_eq!(server.metric("wholegrain_server_protocol_errors_total"), 2.0);
}
