use wholegrain_testkit::Random;

use super::*;

fn open() -> OpenSession {
    let keys = SessionKeys::derive(CipherSuite::Sha1, b"key");
    OpenSession { console: 7, managed: 8, keys, sent: 0, received: 0, earlier: 0 }
}

#[test]
fn a_sequence_number_counts_once() {
    let mut session = open();
    let mut check = |sequence: u32, expected: bool| {
        assert_eq!(session.take_sequence(sequence), expected, "{sequence}");
    };
    [(0, false), (5, true), (5, false), (4, true), (4, false), (6, true), (5, false), (4, false)]
        .into_iter()
        .for_each(|(sequence, expected)| check(sequence, expected));
    check(100, true);
    check(68, true);
    check(67, false);
    check(6, false);
    check(132, true);
    check(100, false);
    check(101, true);
}

#[test]
fn messages_are_read_only_as_they_were_sent() {
    // A message of the console has the form of one of the controller.
    let mut message = Vec::new();
    let mut sender = OpenSession { managed: 7, ..open() };
    sender.put_command(&mut message, &IpmiCommand::new(CLOSE_SESSION, [1, 2, 3, 4]), 9);
    let bytes = &message[RMCP.len()..];
    assert!(open().receive(bytes).is_ok());
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 4;
        let is_stray = at > 0;
        // The first byte is checked before.
        assert!(open().receive(&damaged).is_err() == is_stray || at == 0, "byte {at}");
        assert!(open().receive(&bytes[..at]).is_err(), "{at} bytes");
    }
    let mut random = Random::seeded();
    for _ in 0..20_000 {
        let length = random.below(120) as usize;
        assert!(open().receive(&random.bytes(length)).is_err());
    }
}

#[test]
fn an_exchange_survives_every_datagram() {
    let identity = LanIdentity {
        user: b"u".to_vec(),
        password: SecretText::new("p"),
        kg: None,
        level: 2,
        suites: vec![CipherSuite::Sha256, CipherSuite::Sha1],
    };
    let mut random = Random::seeded();
    for _ in 0..5_000 {
        let (mut session, mut out) = (LanSession::default(), Vec::new());
        session.begin(&identity, &mut out);
        for kind in [PAYLOAD_OPENED, PAYLOAD_RAKP2, PAYLOAD_RAKP4, PROTECTED] {
            let (mut datagram, mut payload) = (Vec::new(), Vec::new());
            if let Some(handshake) = &session.handshake {
                payload.extend_from_slice(&[handshake.tag, random.below(3) as u8 * 4, 0, 0]);
                payload.extend_from_slice(&handshake.console.to_le_bytes());
            }
            let length = random.below(80) as usize;
            payload.extend(random.bytes(length));
            put_plain(&mut datagram, kind, &payload);
            let _ = session.receive(&identity, &datagram, &mut out);
            assert!(!session.is_open(), "nobody without the password opens a session");
        }
    }
}
