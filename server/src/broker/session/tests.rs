use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use wholegrain_transport::mqtt::{Properties, Property};

use super::super::message::Publication;
use super::*;

const BOUNDS: QueueBounds = QueueBounds { messages_max: 100, bytes_max: 1 << 20 };

fn delivery_of(number: u64, qos: u8, bytes: usize, expiry_s: Option<u32>, at: Instant) -> Delivery {
    let payload = Bytes::from([&number.to_le_bytes()[..], &vec![0; bytes][..]].concat());
    let properties = Properties(expiry_s.into_iter().map(Property::MessageExpiryInterval).collect());
    let qos = QoS::from_number(qos).unwrap();
    let publication = Publication { topic: "t", payload: &payload, qos, retain: false, properties: &properties, at };
    Delivery { message: Arc::new(publication.to_message()), qos, retain: false, ids: Box::default(), group: None }
}

fn number(delivery: &Delivery) -> u64 {
    u64::from_le_bytes(delivery.message.payload[..8].try_into().unwrap())
}

/// A session with a client that is here.
struct SessionFixture {
    session: Session,
    now: Instant,
}

impl SessionFixture {
    fn new(window: u16) -> Self {
        let mut session = Session::new(BOUNDS);
        session.attach(window);
        Self { session, now: Instant::now() }
    }

    fn put(&mut self, number: u64, qos: u8) -> QueueOutcome {
        self.session.deliver(delivery_of(number, qos, 0, None, self.now))
    }

    /// Everything that may be sent now.
    fn out(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.session.next(self.now)).map(|out| show(&out)).collect()
    }
}

fn show(out: &OutgoingPacket) -> String {
    match out {
        OutgoingPacket::PubRel(id) => format!("rel {id}"),
        OutgoingPacket::Publish { delivery, packet_id, dup } => {
            let (id, dup) = (packet_id.map_or("-".to_owned(), |id| id.to_string()), if *dup { " dup" } else { "" });
            format!("{}:{id}{dup}", number(delivery))
        }
    }
}

#[test]
fn at_most_a_window_is_unacknowledged_and_the_order_is_kept() {
    let mut bench = SessionFixture::new(2);
    for number in 0..5 {
        assert_eq!(bench.put(number, 1 + (number % 2) as u8), QueueOutcome::Queued);
    }
    assert_eq!(bench.out(), ["0:1", "1:2"]);
    assert_eq!(bench.session.puback(1), AckMatch::Fits);
    assert_eq!(bench.out(), ["2:3"]);
    // QoS 2 takes its place until PUBCOMP.
    assert_eq!(bench.session.puback(2), AckMatch::Wrong);
    assert_eq!(bench.session.pubcomp(2), AckMatch::Wrong);
    assert_eq!(bench.session.pubrec(2, ReasonCode::SUCCESS), AckMatch::Fits);
    assert_eq!(bench.session.pubrec(2, ReasonCode::SUCCESS), AckMatch::Fits, "PUBREL was lost, say");
    assert_eq!(bench.out(), [""; 0]);
    assert_eq!(bench.session.pubcomp(2), AckMatch::Fits);
    assert_eq!(bench.out(), ["3:4"]);
    assert_eq!(bench.session.pubrec(3, ReasonCode::SUCCESS), AckMatch::Wrong);
    // A refusal ends the exchange.
    assert_eq!(bench.session.pubrec(4, ReasonCode::UNSPECIFIED_ERROR), AckMatch::Fits);
    assert_eq!(bench.out(), ["4:5"]);
    for (answer, expected) in [
        (bench.session.puback(9), AckMatch::Unknown),
        (bench.session.pubrec(9, ReasonCode::SUCCESS), AckMatch::Unknown),
        (bench.session.pubcomp(4), AckMatch::Unknown),
        (bench.session.puback(3), AckMatch::Fits),
        (bench.session.puback(5), AckMatch::Fits),
    ] {
        assert_eq!(answer, expected);
    }
    assert!(bench.session.is_empty() && bench.session.bytes() == 0);
}

#[test]
fn qos_0_goes_out_though_the_window_is_full_and_else_in_its_place() {
    let mut bench = SessionFixture::new(1);
    for (number, qos) in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)] {
        bench.put(number, qos);
    }
    assert_eq!(bench.out(), ["0:-", "1:1", "2:-", "4:-"]);
    bench.session.puback(1);
    assert_eq!(bench.out(), ["3:2"]);
}

#[test]
fn unacknowledged_messages_are_resent_on_the_next_connection_only() {
    let mut bench = SessionFixture::new(3);
    for (number, qos) in [(0, 1), (1, 2), (2, 2), (3, 1), (4, 0)] {
        bench.put(number, qos);
    }
    assert_eq!(bench.out(), ["0:1", "1:2", "2:3", "4:-"]);
    bench.session.pubrec(2, ReasonCode::SUCCESS);
    assert_eq!(bench.out(), [""; 0]);
    bench.session.detach();
    assert_eq!(bench.session.next(bench.now), None);
    assert_eq!((bench.put(5, 1), bench.put(6, 0)), (QueueOutcome::Queued, QueueOutcome::Away));
    bench.session.attach(3);
    assert_eq!(bench.out(), ["0:1 dup", "rel 2", "2:3 dup"]);
    bench.session.puback(1);
    assert_eq!(bench.out(), ["3:4"]);
    bench.session.pubcomp(2);
    assert_eq!(bench.out(), ["5:5"]);
    // A client that takes fewer at once now gets what it had in parts.
    bench.session.detach();
    bench.session.attach(1);
    assert_eq!(bench.out(), ["2:3 dup"]);
    bench.session.pubrec(3, ReasonCode::SUCCESS);
    assert_eq!(bench.out(), [""; 0]);
    bench.session.pubcomp(3);
    assert_eq!(bench.out(), ["3:4 dup"]);
    bench.session.puback(4);
    assert_eq!(bench.out(), ["5:5 dup"]);
    bench.session.puback(5);
    assert_eq!((bench.session.len(), bench.session.bytes()), (0, 0));
}

#[test]
fn queues_are_bounded_in_messages_and_bytes() {
    let now = Instant::now();
    let mut session = Session::new(QueueBounds { messages_max: 3, bytes_max: 2000 });
    assert_eq!(session.deliver(delivery_of(0, 0, 0, None, now)), QueueOutcome::Away);
    assert_eq!(session.deliver(delivery_of(0, 1, 3000, None, now)), QueueOutcome::Full);
    for _ in 0..3 {
        assert_eq!(session.deliver(delivery_of(0, 1, 100, None, now)), QueueOutcome::Queued);
    }
    assert_eq!(session.deliver(delivery_of(0, 1, 100, None, now)), QueueOutcome::Full);
    // What is sent waits no longer, but its bytes count until it is acknowledged.
    session.attach(10);
    while session.next(now).is_some() {}
    assert_eq!(session.deliver(delivery_of(0, 1, 1500, None, now)), QueueOutcome::Full);
    (1..=3).for_each(|id| assert_eq!(session.puback(id), AckMatch::Fits));
    assert_eq!(session.deliver(delivery_of(0, 1, 1500, None, now)), QueueOutcome::Queued);
}

#[test]
fn expired_messages_are_not_sent() {
    let mut bench = SessionFixture::new(1);
    for (number, qos, expiry_s) in [(0, 1, 5), (1, 1, 5), (2, 0, 5), (3, 1, 60)] {
        bench.session.deliver(delivery_of(number, qos, 0, Some(expiry_s), bench.now));
    }
    assert_eq!(show(&bench.session.next(bench.now).unwrap()), "0:1");
    bench.now += Duration::from_secs(6);
    bench.session.puback(1);
    match bench.session.next(bench.now) {
        Some(OutgoingPacket::Publish { delivery, .. }) => {
            assert_eq!((number(&delivery), delivery.message.left_s(bench.now)), (3, Some(54)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((bench.session.take_expired(), bench.session.take_expired()), (2, 0));
}

#[test]
fn messages_too_large_for_the_client_count_as_acknowledged() {
    let mut bench = SessionFixture::new(1);
    bench.put(0, 1);
    bench.put(1, 1);
    assert_eq!(bench.out(), ["0:1"]);
    bench.session.too_large(1);
    assert_eq!(bench.out(), ["1:2"]);
}

#[test]
fn the_clients_own_qos_2_messages_are_accepted_once() {
    let mut session = Session::new(BOUNDS);
    session.attach(10);
    assert_eq!((session.arrived(7), session.arrived(7)), (Qos2Arrival::New, Qos2Arrival::UnderWay));
    assert_eq!(session.released(7), AckMatch::Wrong, "before PUBREC");
    session.accepted(7);
    assert_eq!((session.arrived(7), session.arrived(8)), (Qos2Arrival::Accepted, Qos2Arrival::New));
    session.arrived(9);
    session.refused(9);
    assert_eq!(session.arrived(9), Qos2Arrival::New);
    // Whether 8 was stored is not known: it is new when it comes again. 7 is known to be accepted.
    session.detach();
    session.attach(10);
    assert_eq!(
        (session.arrived(7), session.arrived(8), session.unreleased()),
        (Qos2Arrival::Accepted, Qos2Arrival::New, 2)
    );
    assert_eq!(
        (session.released(7), session.released(7), session.released(1)),
        (AckMatch::Fits, AckMatch::Unknown, AckMatch::Unknown)
    );
    assert_eq!(session.arrived(7), Qos2Arrival::New, "the number is free again");
    assert!((1000..).take(UNRELEASED_MAX - 2).all(|id| session.arrived(id) == Qos2Arrival::New));
    assert_eq!(session.arrived(1), Qos2Arrival::TooMany);
}

#[test]
fn packet_identifiers_are_never_0_and_never_given_twice() {
    let mut bench = SessionFixture::new(2);
    bench.put(0, 1);
    assert_eq!(bench.out(), ["0:1"]);
    for round in 0..70_000u64 {
        bench.put(round, 1);
        let Some(OutgoingPacket::Publish { packet_id: Some(id), .. }) = bench.session.next(bench.now) else { panic!() };
        assert!(id > 1, "1 is still under way");
        assert_eq!(bench.session.puback(id), AckMatch::Fits);
    }
}

#[test]
fn of_shared_subscriptions_everything_but_qos_2_under_way_may_go_to_others() {
    let mut bench = SessionFixture::new(2);
    let group: Arc<str> = "$share/g/t".into();
    for (number, qos) in [(0, 1), (1, 2), (2, 2), (3, 1)] {
        let delivery = Delivery { group: Some(group.clone()), ..delivery_of(number, qos, 0, None, bench.now) };
        bench.session.deliver(delivery);
    }
    bench.put(4, 1);
    assert_eq!(bench.out(), ["0:1", "1:2"]);
    assert_eq!(bench.session.groups(), [group]);
    assert!(bench.session.take_shared(Some("$share/other/t")).is_empty());
    let taken: Vec<_> = bench.session.take_shared(Some("$share/g/t")).iter().map(number).collect();
    assert_eq!(taken, [0, 2, 3]);
    assert_eq!(bench.out(), ["4:3"], "its place in the window is free");
    assert_eq!(bench.session.pubrec(2, ReasonCode::SUCCESS), AckMatch::Fits);
}

/// A packet under way between the two.
#[derive(Debug)]
enum WirePacket {
    Message { number: u64, qos: u8, packet_id: Option<u16> },
    PubRel(u16),
    PubAck(u16),
    PubRec(u16),
    PubComp(u16),
}

/// Connections that break at random moments: everything of QoS 1 arrives, in order of first arrival, everything of QoS 2
/// exactly once, in order.
#[test]
fn nothing_is_lost_and_qos_2_is_not_doubled_over_broken_connections() {
    for seed in 0..200u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut dice = |sides: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % sides
        };
        let now = Instant::now();
        let mut session = Session::new(BOUNDS);
        session.attach(3);
        let (mut down, mut up) = (VecDeque::new(), VecDeque::new());
        let (mut known, mut got, mut sent) = (HashSet::new(), [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for step in 0..2000u64 {
            let draining = step > 1500;
            match dice(if draining { 3 } else { 6 }) {
                0 => match session.next(now) {
                    Some(OutgoingPacket::Publish { delivery, packet_id, .. }) => down.push_back(WirePacket::Message {
                        number: number(&delivery),
                        qos: delivery.qos as u8,
                        packet_id,
                    }),
                    Some(OutgoingPacket::PubRel(id)) => down.push_back(WirePacket::PubRel(id)),
                    None => {}
                },
                1 => match down.pop_front() {
                    Some(WirePacket::Message { number, qos: 1, packet_id: Some(id) }) => {
                        got[0].push(number);
                        up.push_back(WirePacket::PubAck(id));
                    }
                    Some(WirePacket::Message { number, qos: 2, packet_id: Some(id) }) => {
                        if known.insert(id) {
                            got[1].push(number);
                        }
                        up.push_back(WirePacket::PubRec(id));
                    }
                    Some(WirePacket::PubRel(id)) => {
                        known.remove(&id);
                        up.push_back(WirePacket::PubComp(id));
                    }
                    Some(other) => panic!("seed {seed}: {other:?}"),
                    None => {}
                },
                2 => {
                    let answer = match up.pop_front() {
                        Some(WirePacket::PubAck(id)) => session.puback(id),
                        Some(WirePacket::PubRec(id)) => {
                            down.push_back(WirePacket::PubRel(id));
                            session.pubrec(id, ReasonCode::SUCCESS)
                        }
                        Some(WirePacket::PubComp(id)) => session.pubcomp(id),
                        _ => AckMatch::Fits,
                    };
                    assert_ne!(answer, AckMatch::Wrong, "seed {seed} step {step}");
                }
                3 if dice(10) == 0 => {
                    down.clear();
                    up.clear();
                    session.detach();
                    session.attach(1 + dice(4) as u16);
                }
                3 => {}
                _ => {
                    let qos = 1 + dice(2);
                    if session.deliver(delivery_of(step, qos as u8, 0, None, now)) == QueueOutcome::Queued {
                        sent[qos as usize - 1].push(step);
                    }
                }
            }
        }
        let left = session.len();
        let mut first = HashSet::new();
        got[0].retain(|number| first.insert(*number));
        for qos in [0, 1] {
            assert!(!got[qos].is_empty() && sent[qos].starts_with(&got[qos]), "seed {seed} QoS {}", qos + 1);
            assert!(sent[qos].len() - got[qos].len() <= left, "seed {seed}: {left} left");
        }
    }
}
