//! Clients that hold resources and do nothing: slow senders, vanished peers, sockets that are never read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use wholegrain_transport::mqtt::Version;

use crate::harness::{DEADLINE, PASSWORD, TestServer, wait_until};
use crate::malformed::{connect_keeping, packet, text};

/// How many slow clients there are at once.
const SLOW: usize = 40;
const GAUGES: [&str; 5] = ["sessions", "subscriptions", "in_flight", "in_flight_bytes", "waiting_for_schema"];

/// Nothing is left of all clients but one that is well and has nothing in flight.
#[track_caller]
fn only_one_is_left(server: &TestServer) {
    wait_until("the others are gone", || server.metric("wholegrain_server_connections") == 1.0);
    for gauge in GAUGES {
        let left = if gauge == "sessions" { 1.0 } else { 0.0 };
        wait_until(gauge, || server.metric(&format!("wholegrain_server_{gauge}")) == left);
    }
}

/// CONNECT of 3.1.1 with an identifier of its own and nothing to prove it: many passwords take long to check.
fn connect(number: usize, keep_alive_s: u8) -> Vec<u8> {
    packet(0x10, &[text("MQTT"), vec![4, 2, 0, keep_alive_s], text(&format!("slow{number}"))].concat())
}

/// Clients that send a byte of `bytes` now and then until the server has had enough, and one beside them that is served.
fn trickling(server: &TestServer, tls: bool, greeted: bool, bytes: &[u8]) {
    let mut good = server.agent(&server.mutual(Version::V5, "n2"));
    let address = if tls { server.addresses.mqtt_tls } else { server.addresses.mqtt }.unwrap();
    let mut slow: Vec<TcpStream> = (0..SLOW).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, stream) in slow.iter_mut().enumerate() {
        stream.set_nodelay(true).unwrap();
        if greeted {
            stream.write_all(&connect(number, 60)).unwrap();
        }
    }
    let deadline = Instant::now() + DEADLINE;
    for byte in bytes.iter().cycle() {
        slow.retain_mut(|stream| stream.write_all(&[*byte]).is_ok());
        let id = good.publish("site/well", b"x");
        good.acked(&[id]);
        if slow.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{} slow clients are still there", slow.len());
        std::thread::sleep(Duration::from_millis(5));
    }
    only_one_is_left(server);
}

const QUICK_GREETINGS: &str = "limits = { connect_time_max = \"300ms\" }";
/// Without the bound on greetings, for a password takes a while to check.
const QUICK_PACKETS: &str = "anonymous = true\nlimits = { packet_time_max = \"300ms\", write_time_max = \"300ms\" }";

#[test]
fn greetings_that_trickle() {
    let server = TestServer::start_with(QUICK_GREETINGS);
    // CONNECT with an identifier of 60,000 bytes.
    let greeting = [&[0x10, 0xff, 0xd4, 0x03][..], &text("MQTT"), &[4, 2, 0, 60, 0xea, 0x60]].concat();
    trickling(&server, false, false, &[greeting, vec![b'x'; 60_000]].concat());
    assert_eq!(server.metric("wholegrain_server_connections_refused_total"), SLOW as f64);
}

#[test]
fn handshakes_that_trickle() {
    let server = TestServer::start_with(QUICK_GREETINGS);
    // The beginning of a TLS record of 16 KiB with a ClientHello of as much.
    let hello = [&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3][..], &[7; 16_000]].concat();
    trickling(&server, true, false, &hello);
    assert_eq!(server.metric("wholegrain_server_connections_refused_total"), SLOW as f64);
}

#[test]
fn publishes_that_trickle() {
    let server = TestServer::start_with(QUICK_PACKETS);
    let publish = [&[0x32, 0x80, 0x80, 0x80, 0x01, 0, 1, b'a', 0, 1][..], &[b'x'; 60_000]].concat();
    trickling(&server, false, true, &publish);
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), SLOW as f64);
}

#[test]
fn a_publisher_that_never_reads_is_closed() {
    // Nor with the bound on control packets, over which it would not be read.
    let quick = QUICK_PACKETS.replace(" }", ", control_packets_per_s_max = 1000000000 }");
    let server = TestServer::start_with(&quick);
    let mut good = server.agent(&server.mutual(Version::V5, "n2"));
    let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    stream.write_all(&connect_keeping("n1", PASSWORD, 0)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    // PINGRESP is as long as PINGREQ: unread responses fill both sockets, then the server's buffer.
    let pings = [0xc0, 0].repeat(32 << 10);
    let deadline = Instant::now() + DEADLINE;
    let mut sent = 0;
    while server.metric("wholegrain_server_timeouts_total") == 0.0 {
        assert!(Instant::now() < deadline, "still served");
        // A failure is a full socket, or the server's end. A socket may take half a PINGREQ: the next bytes are its other half, or the
        // server would close for what is no packet.
        sent += stream.write(&pings[sent % 2..]).unwrap_or(0);
        let id = good.publish("site/well", b"x");
        good.acked(&[id]);
    }
    only_one_is_left(&server);
}

#[test]
fn a_subscriber_that_never_reads_is_closed_and_delays_no_other() {
    let server = TestServer::start_with(QUICK_PACKETS);
    let mut good = server.agent(&server.mutual(Version::V5, "n2"));
    let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    stream.write_all(&connect_keeping("n1", PASSWORD, 0)).unwrap();
    let subscribe = packet(0x82, &[vec![0, 1], text("site/#"), vec![1]].concat());
    stream.write_all(&subscribe).unwrap();
    wait_until("the subscription", || server.metric("wholegrain_server_subscriptions") == 1.0);
    let large = vec![7; 256 << 10];
    let deadline = Instant::now() + DEADLINE;
    while server.metric("wholegrain_server_timeouts_total") == 0.0 {
        assert!(Instant::now() < deadline, "still served");
        let id = good.publish("site/large", &large);
        good.acked(&[id]);
    }
    only_one_is_left(&server);
}

#[test]
fn many_half_open_connections_end_by_their_keep_alive() {
    let server = TestServer::start_with("anonymous = true");
    let mut good = server.agent(&server.mutual(Version::V5, "n2"));
    let mut held = Vec::new();
    for number in 0..SLOW {
        let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(&connect(number, 1)).unwrap();
        stream.write_all(&packet(0x82, &[vec![0, 1], text("quiet/#"), vec![1]].concat())).unwrap();
        let mut answer = [0; 4 + 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0, 0x90, 3, 0, 1, 1]);
        // In the middle of a packet it loses its power.
        stream.write_all(&[0x32, 100, 0, 3, b'a']).unwrap();
        held.push(stream);
    }
    only_one_is_left(&server);
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), SLOW as f64);
    let id = good.publish("site/well", b"x");
    good.acked(&[id]);
}
