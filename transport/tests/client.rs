//! The client against the real Mosquitto, and against a scripted server that misbehaves.

mod mosquitto;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mosquitto::Mosquitto;
use wholegrain_transport::client::{Client, ClientConfig, ClientError, Event, RECEIVE_MAX_V311};
use wholegrain_transport::mqtt::{
    self, Ack, ConnAck, Disconnect, Packet, Properties, Property, Publish, ReasonCode, Version,
};
use wholegrain_transport::tls::{self, Identity};

const DEADLINE: Duration = Duration::from_secs(30);
const VERSIONS: [Version; 2] = [Version::V311, Version::V5];

fn config(scheme: &str, port: u16, version: Version) -> ClientConfig {
    let url = format!("{scheme}://127.0.0.1:{port}");
    ClientConfig { url, version, client_id: format!("test-{version:?}"), ..ClientConfig::default() }
}

/// The next event; fails when none comes.
fn event(client: &mut Client) -> Event {
    client.poll(DEADLINE).unwrap().expect("an event before the deadline")
}

/// Polls until the connection fails.
fn failure(client: &mut Client) -> ClientError {
    let deadline = Instant::now() + DEADLINE;
    loop {
        assert!(Instant::now() < deadline, "no failure before the deadline");
        if let Err(error) = client.poll(DEADLINE) {
            return error;
        }
    }
}

/// Subscribes, publishes `count` messages, sees each acknowledged and received once.
fn exchange(client: &mut Client, count: usize) {
    let id = client.subscribe("t/#").unwrap();
    assert_eq!(event(client), Event::Subscribed { packet_id: id, reason: ReasonCode::GRANTED_QOS_1 });
    let mut waiting = HashSet::new();
    let mut received = HashSet::new();
    let mut sent = 0;
    while sent < count || !waiting.is_empty() || received.len() < count {
        while sent < count && client.in_flight() < 15 {
            let payload = vec![sent as u8; 1 + sent * 37];
            waiting.insert(client.publish(&format!("t/{sent}"), &payload, true, false).unwrap());
            sent += 1;
        }
        client.flush().unwrap();
        match event(client) {
            Event::Acked { packet_id, reason } => {
                assert!(!reason.is_error());
                assert!(waiting.remove(&packet_id));
            }
            Event::Message { topic, payload, retain } => {
                let number: usize = topic.strip_prefix("t/").unwrap().parse().unwrap();
                assert_eq!(&payload[..], vec![number as u8; 1 + number * 37]);
                assert!(!retain);
                assert!(received.insert(number));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn publishes_and_receives_over_tcp() {
    let broker = Mosquitto::start("allow_anonymous true");
    for version in VERSIONS {
        let mut client = Client::connect(&config("mqtt", broker.port, version)).unwrap();
        exchange(&mut client, 200);
        assert!(client.receive_max() >= 20);
        let id = client.publish("t/kept", b"x", true, true).unwrap();
        let mut events = [event(&mut client), event(&mut client)];
        events.sort_by_key(|event| matches!(event, Event::Message { .. }));
        assert!(matches!(events[0], Event::Acked { packet_id, .. } if packet_id == id));
        client.disconnect().unwrap();
        let mut client = Client::connect(&config("mqtt", broker.port, version)).unwrap();
        client.subscribe("t/kept").unwrap();
        assert!(matches!(event(&mut client), Event::Subscribed { .. }));
        assert!(matches!(event(&mut client), Event::Message { retain: true, .. }));
        client.publish("t/kept", b"", false, true).unwrap();
        client.disconnect().unwrap();
    }
}

#[test]
fn a_given_address_is_used_and_tls_verifies_the_name_of_the_url() {
    let broker =
        Mosquitto::start("allow_anonymous true\ncafile DIR/ca.pem\ncertfile DIR/server.pem\nkeyfile DIR/server.key");
    let tls = Some(tls::client_config(&broker.path("ca.pem"), None).unwrap());
    let address = Some(format!("127.0.0.1:{}", broker.port).parse().unwrap());
    let connect = |host: &str| {
        // The port of the URL is not used either.
        let url = format!("mqtts://{host}:1");
        Client::connect(&ClientConfig { url, address, tls: tls.clone(), ..config("mqtts", 1, Version::V5) })
    };
    let mut client = connect("localhost").unwrap();
    exchange(&mut client, 3);
    assert_eq!(Some(client.peer()), address);
    let error = connect("other.example").err().unwrap().to_string();
    assert!(error.contains("host name that the certificate has"), "{error}");
}

#[test]
fn password_right_and_wrong() {
    let broker = Mosquitto::start("allow_anonymous false\npassword_file DIR/users");
    for version in VERSIONS {
        let with = |user: Option<&str>, password: Option<&str>| {
            let (user, password) = (user.map(str::to_owned), password.map(str::to_owned));
            Client::connect(&ClientConfig { user, password, ..config("mqtt", broker.port, version) })
        };
        exchange(&mut with(Some("agent"), Some("secret")).unwrap(), 3);
        for (user, password) in [(Some("agent"), Some("wrong")), (None, None)] {
            let error = with(user, password).err().unwrap();
            assert!(matches!(error, ClientError::Refused { reason: ReasonCode::NOT_AUTHORIZED, .. }), "{error}");
            assert!(error.to_string().contains("refused the connection: not authorized"), "{error}");
        }
        let error = with(None, Some("secret")).err().unwrap().to_string();
        assert!(error.contains("a password without a user"), "{error}");
    }
}

#[test]
fn tls_with_certificates_on_both_sides() {
    let broker = Mosquitto::start(
        "allow_anonymous true\ncafile DIR/ca.pem\ncertfile DIR/server.pem\nkeyfile DIR/server.key\nrequire_certificate true",
    );
    let with = |version: Version, ca: &Path, name: Option<&str>| {
        let pair = name.map(|name| (broker.path(&format!("{name}.pem")), broker.path(&format!("{name}.key"))));
        let identity = pair.as_ref().map(|(cert, key)| Identity { cert, key });
        let tls = Some(tls::client_config(ca, identity).unwrap());
        Client::connect(&ClientConfig { tls, ..config("mqtts", broker.port, version) })
    };
    let ca = broker.path("ca.pem");
    for version in VERSIONS {
        let mut client = with(version, &ca, Some("client")).unwrap();
        exchange(&mut client, 200);
        client.disconnect().unwrap();
        for name in [None, Some("stranger")] {
            let error = with(version, &ca, name).err().unwrap().to_string();
            assert!(error.contains("cannot connect") && error.contains("client certificate"), "{error}");
        }
        let error = with(version, &broker.path("other-ca.pem"), Some("client")).err().unwrap().to_string();
        assert!(error.contains("give the authority that issued"), "{error}");
        let error = Client::connect(&config("mqtts", broker.port, version)).err().unwrap().to_string();
        assert!(error.contains("needs the CA"), "{error}");
        let error = Client::connect(&config("mqtt", broker.port, version)).err().unwrap().to_string();
        assert!(error.contains("TLS or not"), "{error}");
    }
}

#[test]
fn a_broker_that_dies_is_an_error() {
    for version in VERSIONS {
        let mut broker = Mosquitto::start("allow_anonymous true");
        let mut client = Client::connect(&config("mqtt", broker.port, version)).unwrap();
        exchange(&mut client, 3);
        broker.kill();
        let error = failure(&mut client);
        assert!(matches!(error, ClientError::Closed { .. } | ClientError::Io { .. }), "{error}");
        let error = Client::connect(&config("mqtt", broker.port, version)).err().unwrap().to_string();
        assert!(error.contains("cannot connect to MQTT server mqtt://127.0.0.1"), "{error}");
    }
}

/// Mosquitto cuts a client that is silent for 1.5 times its keep-alive.
#[test]
fn pings_keep_the_connection() {
    let broker = Mosquitto::start("allow_anonymous true");
    let quiet = ClientConfig { keep_alive: Duration::from_secs(1), ..config("mqtt", broker.port, Version::V5) };
    let mut client = Client::connect(&quiet).unwrap();
    assert_eq!(client.poll(Duration::from_secs(4)).unwrap(), None);
    exchange(&mut client, 1);
}

#[test]
fn another_thread_wakes_it() {
    let broker = Mosquitto::start("allow_anonymous true");
    let mut client = Client::connect(&config("mqtt", broker.port, Version::V5)).unwrap();
    let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let start = Instant::now();
    let thread = std::thread::spawn(move || theirs.write_all(&[1]).map(|()| theirs));
    assert_eq!(client.poll_or_wake(DEADLINE, ours.as_fd()).unwrap(), None);
    assert!(start.elapsed() < DEADLINE, "it waited to the end");
    ours.read_exact(&mut [0]).unwrap();
    thread.join().unwrap().unwrap();
}

/// One side of a connection that the test plays itself.
struct Peer {
    tcp: TcpStream,
    buffer: BytesMut,
    version: Version,
}

impl Peer {
    fn send(&mut self, packet: &Packet) {
        let mut out = BytesMut::new();
        mqtt::encode(packet, self.version, &mut out).unwrap();
        self.tcp.write_all(&out).unwrap();
    }

    fn receive(&mut self) -> Packet {
        loop {
            if let Some(packet) = mqtt::decode(&mut self.buffer, Some(self.version), 1 << 20).unwrap() {
                return packet;
            }
            let mut bytes = [0; 4096];
            let count = self.tcp.read(&mut bytes).unwrap();
            assert!(count > 0, "the client hung up");
            self.buffer.extend_from_slice(&bytes[..count]);
        }
    }
}

/// Connects a client to the test, which answers with these properties.
fn played(change: impl FnOnce(&mut ClientConfig), properties: Properties) -> (Client, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config("mqtt", listener.local_addr().unwrap().port(), Version::V5);
    change(&mut config);
    let version = config.version;
    let thread = std::thread::spawn(move || Client::connect(&config).unwrap());
    let (tcp, _) = listener.accept().unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut peer = Peer { tcp, buffer: BytesMut::new(), version };
    assert!(matches!(peer.receive(), Packet::Connect(connect) if connect.clean_start && connect.version == version));
    peer.send(&Packet::ConnAck(ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties }));
    (thread.join().unwrap(), peer)
}

/// A server that cannot store acknowledges nothing, but answers pings; one that hangs answers nothing.
#[test]
fn a_server_that_answers_nothing_is_left_and_one_that_only_stores_nothing_is_not() {
    let (mut client, mut peer) =
        played(|config| config.answer_timeout = Some(Duration::from_secs(3)), Properties::new());
    client.publish("a", b"1", true, false).unwrap();
    client.flush().unwrap();
    assert!(matches!(peer.receive(), Packet::Publish(_)));
    let thread = std::thread::spawn(move || {
        for _ in 0..2 {
            assert_eq!(peer.receive(), Packet::PingReq);
            peer.send(&Packet::PingResp);
        }
        assert_eq!(peer.receive(), Packet::PingReq);
        peer
    });
    let error = failure(&mut client);
    assert!(matches!(error, ClientError::Timeout { what: "answer a ping", .. }), "{error}");
    thread.join().unwrap();
    // Without a message in flight nothing is asked before the keep-alive interval ends.
    let (mut client, mut peer) = played(
        |config| {
            (config.answer_timeout, config.keep_alive) = (Some(Duration::from_millis(30)), Duration::from_secs(2));
        },
        Properties::new(),
    );
    assert_eq!(client.poll(Duration::from_millis(300)).unwrap(), None);
    assert!(matches!(failure(&mut client), ClientError::Timeout { what: "answer a ping", .. }));
    assert_eq!(peer.receive(), Packet::PingReq);
}

#[test]
fn what_the_server_takes_is_respected() {
    let properties = Properties::new().with(Property::ReceiveMaximum(2)).with(Property::MaximumPacketSize(100));
    let (mut client, mut peer) = played(|_| {}, properties);
    assert_eq!(client.receive_max(), 2);
    let ids = [client.publish("a", b"1", true, false).unwrap(), client.publish("a", b"2", true, false).unwrap()];
    assert!(matches!(client.publish("a", b"3", true, false), Err(ClientError::WindowFull(2))));
    assert!(matches!(client.publish("a", &[0; 100], false, false), Err(ClientError::TooLarge { max: 100, .. })));
    assert_eq!(client.publish("a", b"4", false, false).unwrap(), 0);
    client.flush().unwrap();
    let mut got = |wanted: &[u8]| {
        let Packet::Publish(Publish { payload, packet_id, .. }) = peer.receive() else { panic!() };
        assert_eq!(&payload[..], wanted);
        packet_id
    };
    assert_eq!([got(b"1"), got(b"2")], ids.map(Some));
    assert_eq!(got(b"4"), None);
    peer.send(&Packet::PubAck(Ack { reason: ReasonCode::QUOTA_EXCEEDED, ..Ack::success(ids[1]) }));
    assert_eq!(event(&mut client), Event::Acked { packet_id: ids[1], reason: ReasonCode::QUOTA_EXCEEDED });
    client.publish("a", b"5", true, false).unwrap();
    let (client, _peer) = played(|config| config.version = Version::V311, Properties::new());
    assert_eq!(client.receive_max(), RECEIVE_MAX_V311);
}

#[test]
fn the_last_reason_of_the_server_is_reported() {
    let (mut client, mut peer) = played(|_| {}, Properties::new());
    let id = client.publish("a", b"1", true, false).unwrap();
    client.flush().unwrap();
    peer.receive();
    peer.send(&Packet::PubAck(Ack::success(id)));
    let properties = Properties::new().with(Property::ReasonString("maintenance".into()));
    peer.send(&Packet::Disconnect(Disconnect { reason: ReasonCode::SERVER_SHUTTING_DOWN, properties }));
    drop(peer);
    assert!(matches!(event(&mut client), Event::Acked { .. }));
    let error = failure(&mut client).to_string();
    assert!(error.contains("server shutting down: maintenance"), "{error}");
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    let check = |bytes: &[u8], part: &str| {
        let (mut client, mut peer) = played(|_| {}, Properties::new());
        peer.tcp.write_all(bytes).unwrap();
        let error = failure(&mut client).to_string();
        assert!(error.contains(part), "{error}");
    };
    check(&[0x00, 0x00], "packet type 0");
    check(&[0x20, 0x03, 0, 0, 0], "CONNACK");
    check(&[0x30, 0xff, 0xff, 0xff, 0x7f], "at most 1048576 taken");
    check(&[0x30, 0x06, 0, 0, 0x03, 0x23, 0, 1], "topic alias");
    check(&[0x34, 0x06, 0, 1, b'a', 0, 1, 0], "QoS 2");
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config("mqtt", listener.local_addr().unwrap().port(), Version::V5);
    config.connect_timeout = Duration::from_millis(300);
    let error = Client::connect(&config).err().unwrap().to_string();
    assert!(error.contains("did not answer within 300ms"), "{error}");

    let (mut client, mut peer) = played(|config| config.keep_alive = Duration::from_secs(1), Properties::new());
    let error = failure(&mut client);
    assert!(matches!(error, ClientError::Timeout { what: "answer a ping", .. }), "{error}");
    assert_eq!(peer.receive(), Packet::PingReq);
}

/// The server accepts and never reads: the buffers fill, and neither memory nor time is without bound.
#[test]
fn a_server_that_takes_nothing_is_given_up() {
    let (mut client, _peer) = played(|config| config.send_timeout = Duration::from_millis(300), Properties::new());
    let payload = vec![0; 1 << 20];
    let error = (0..1000)
        .find_map(|_| {
            assert!(client.unsent_bytes() < 4 << 20);
            client.publish("a", &payload, false, false).err()
        })
        .expect("a failure before a gigabyte is buffered");
    assert!(matches!(error, ClientError::Timeout { what: "take what was sent", .. }), "{error}");
}

#[test]
fn something_else_is_said_to_be_no_mqtt_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = config("mqtt", listener.local_addr().unwrap().port(), Version::V5);
    let thread = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        tcp
    });
    let error = Client::connect(&config).err().unwrap().to_string();
    assert!(error.contains("MQTT server?"), "{error}");
    thread.join().unwrap();
}
