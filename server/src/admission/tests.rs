use std::time::Duration;

use super::*;

const BOUNDS: ConnectionBounds =
    ConnectionBounds { unproven_max: 8, proven_max: 4, identity_max: 2, privileged_max: 1 };

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn enter(admission: &Arc<ConnectionAdmission>, from: &str) -> Option<ConnectionPermit> {
    admission.enter(address(from), HandshakeProgress::Silent)
}

fn unproven_of(admission: &ConnectionAdmission, text: &str) -> usize {
    admission.state().unproven.get(&source(address(text))).map_or(0, count)
}

#[test]
fn a_crowd_of_one_address_gives_way_to_others() {
    let admission = ConnectionAdmission::new("test", BOUNDS);
    let crowd: Vec<Option<ConnectionPermit>> = (0..1000).map(|_| enter(&admission, "10.0.0.1")).collect();
    assert_eq!((admission.counts().0, unproven_of(&admission, "10.0.0.1")), (8, 8));
    let others: Vec<ConnectionPermit> = (2..6).map(|n| enter(&admission, &format!("10.0.0.{n}")).unwrap()).collect();
    assert_eq!((admission.counts().0, unproven_of(&admission, "10.0.0.1")), (8, 4));
    for place in &others {
        assert!(place.prove("somebody", true).is_ok() || admission.counts().1 >= BOUNDS.proven_max);
    }
    drop((crowd, others));
    assert_eq!(admission.counts(), (0, 0));
    assert!(admission.state().unproven.is_empty() && admission.state().proven.is_empty());
}

/// Bare connections of the same address do not close those that have said something, and connections that stop half-way do not close new ones.
#[test]
fn a_crowd_closes_its_own_kind() {
    let admission = ConnectionAdmission::new("test", BOUNDS);
    let enter = || enter(&admission, "10.0.0.1");
    for progress in [HandshakeProgress::Receiving, HandshakeProgress::Encrypted] {
        let honest = enter().unwrap();
        honest.advance(progress);
        let crowd: Vec<Option<ConnectionPermit>> = (0..1000).map(|_| enter()).collect();
        assert_eq!((admission.counts().0, honest.prove("a", false)), (8, Ok(())), "{progress:?}");
        drop(crowd);
    }
    // Who has said something when it is accepted is none of them from the beginning.
    let mut crowd: Vec<Option<ConnectionPermit>> = (0..1000).map(|_| enter()).collect();
    for round in 0..100 {
        let honest = admission.enter(address("10.0.0.1"), HandshakeProgress::Receiving).expect("a place");
        assert_eq!(honest.prove("a", false), Ok(()), "round {round}");
        drop(honest);
        crowd.push(enter());
    }
    drop(crowd);
    for round in 0..100 {
        let crowd: Vec<ConnectionPermit> = (0..8).map(|_| enter().unwrap()).collect();
        crowd.iter().for_each(|place| place.advance(HandshakeProgress::Encrypted));
        let honest = enter().expect("it is not closed");
        honest.advance(HandshakeProgress::Receiving);
        assert_eq!((admission.counts().0, honest.prove("a", false)), (8, Ok(())), "round {round}");
    }
    // Two kinds of crowd at once: who comes now loses nothing to either while it is not of the larger.
    let halfway: Vec<ConnectionPermit> = (0..4).map(|_| enter().unwrap()).collect();
    halfway.iter().for_each(|place| place.advance(HandshakeProgress::Receiving));
    let honest = enter().unwrap();
    honest.advance(HandshakeProgress::Encrypted);
    let silent: Vec<Option<ConnectionPermit>> = (0..1000).map(|_| enter()).collect();
    assert_eq!(honest.prove("a", false), Ok(()));
    drop((halfway, silent, honest));
    assert_eq!(admission.counts(), (0, 0));
    assert!(admission.state().unproven.is_empty());
}

/// A connection that has just come has its bytes on the way: so many others must come after it until it is closed.
#[test]
fn the_oldest_silent_connection_is_displaced() {
    let admission = ConnectionAdmission::new("test", BOUNDS);
    let crowd: Vec<ConnectionPermit> = (0..100).map(|_| enter(&admission, "10.0.0.1").expect("a place")).collect();
    let stay = |place: &ConnectionPermit| {
        place.own().advance(&mut admission.state(), address("10.0.0.1"), HandshakeProgress::Silent)
    };
    assert!(crowd[..92].iter().all(|place| !stay(place)) && crowd[92..].iter().all(stay));
}

/// Who was displaced stays out, however far it comes.
#[test]
fn a_displaced_connection_stays_displaced_when_it_advances() {
    let admission = ConnectionAdmission::new("test", ConnectionBounds { unproven_max: 1, ..BOUNDS });
    let first = enter(&admission, "10.0.0.1");
    let second = enter(&admission, "10.0.0.1");
    for place in [&first, &second].into_iter().flatten() {
        place.advance(HandshakeProgress::Encrypted);
    }
    assert_eq!(admission.counts(), (1, 1));
    drop((first, second));
    assert_eq!(admission.counts(), (0, 0));
}

/// A connection whose bytes are here when it loses its place has just not been looked at in time.
#[tokio::test]
async fn a_connection_displaced_with_unread_bytes_is_admitted_again() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let later = Instant::now() + Duration::from_secs(3600);
    for (says_something, is_heard) in [(true, true), (false, false)] {
        let admission = ConnectionAdmission::new("test", BOUNDS);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let place = loop {
            if let Some(place) = enter(&admission, "10.0.0.1") {
                break place;
            }
        };
        if says_something {
            client.write_all(b"x").await.unwrap();
            while received_input(&stream) != ReceivedInput::Bytes {
                tokio::task::yield_now().await;
            }
        }
        // Until it has been displaced.
        let mut crowd = Vec::new();
        while admission.state().unproven[&address("10.0.0.1")]
            .iter()
            .flatten()
            .any(|one| one.id == place.own().waiting.id)
        {
            crowd.extend(enter(&admission, "10.0.0.1"));
        }
        let before = admission.displaced.load(Relaxed);
        assert_eq!((place.heard(&stream, later).await, admission.counts().0), (is_heard, 8));
        assert_eq!(admission.displaced.load(Relaxed), before, "one more was closed, and one was not");
        if is_heard {
            let over = tokio::time::timeout(Duration::from_millis(1), place.over(later)).await;
            assert!(over.is_err(), "it has a place");
        }
        assert_eq!(place.prove("a", false).is_ok(), is_heard);
        drop((place, crowd));
        assert_eq!(admission.counts(), (0, 0));
    }
}

/// Clients that went before they were accepted, or before they said anything, are none that said something.
#[tokio::test]
async fn a_closed_connection_has_no_permit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (admission, later) = (ConnectionAdmission::new("test", BOUNDS), Instant::now() + Duration::from_secs(3600));
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let place = admission.enter(address("10.0.0.1"), HandshakeProgress::of(&stream).expect("it is there")).unwrap();
    drop(client);
    assert!(!place.heard(&stream, later).await);
    assert_eq!(admission.state().unproven[&address("10.0.0.1")][HandshakeProgress::Silent as usize].len(), 1);
    assert_eq!(HandshakeProgress::of(&stream), None);
}

#[test]
fn a_host_with_many_addresses_of_ipv6_is_one_and_mapped_addresses_are_ipv4() {
    let admission = ConnectionAdmission::new("test", BOUNDS);
    let _crowd: Vec<Option<ConnectionPermit>> =
        (0..100).map(|n| enter(&admission, &format!("2001:db8::{n}"))).collect();
    assert_eq!(unproven_of(&admission, "2001:db8::ffff"), 8);
    let _other = enter(&admission, "2001:db8:0:1::1").unwrap();
    assert_eq!((unproven_of(&admission, "2001:db8::"), unproven_of(&admission, "2001:db8:0:1::")), (7, 1));
    let _mapped = enter(&admission, "::ffff:10.0.0.1").unwrap();
    assert_eq!(unproven_of(&admission, "10.0.0.1"), 1);
}

#[tokio::test]
async fn displaced_and_late_connections_are_notified_and_authenticated_ones_are_not() {
    let admission = ConnectionAdmission::new("test", ConnectionBounds { unproven_max: 1, ..BOUNDS });
    let later = Instant::now() + Duration::from_secs(3600);
    // The two addresses have one each, so chance decides which of them goes.
    let (mut first, mut second) = (enter(&admission, "10.0.0.1"), None);
    while second.is_none() {
        first = first.or_else(|| enter(&admission, "10.0.0.1"));
        second = enter(&admission, "10.0.0.2");
    }
    let (first, second) = (first.unwrap(), second.unwrap());
    first.over(later).await;
    assert_eq!(first.prove("a", false), Err(AdmissionError::Displaced));
    second.over(Instant::now()).await;
    assert_eq!(second.prove("a", false), Ok(()));
    let over = tokio::time::timeout(Duration::from_millis(1), second.over(Instant::now())).await;
    assert!(over.is_err(), "it has proved who it is");
}

#[test]
fn identities_have_bounds_and_administrators_room() {
    let admission = ConnectionAdmission::new("test", BOUNDS);
    let enter = || enter(&admission, "10.0.0.1").unwrap();
    let (a, b, c, d, e, admin, another) = (enter(), enter(), enter(), enter(), enter(), enter(), enter());
    assert_eq!([&a, &b].map(|place| place.prove("alice", false)), [Ok(()); 2]);
    assert_eq!(c.prove("alice", false), Err(AdmissionError::Identity(2)));
    assert_eq!([&c, &d].map(|place| place.prove("bob", false)), [Ok(()); 2]);
    assert_eq!(e.prove("carol", false), Err(AdmissionError::All(4)));
    assert_eq!((admin.prove("root", true), another.prove("root", true)), (Ok(()), Err(AdmissionError::All(4))));
    // Said again, nothing changes; said of somebody else, the place is that one's.
    assert_eq!((a.prove("alice", false), admission.counts()), (Ok(()), (2, 7)));
    drop(d);
    assert_eq!((a.prove("bob", false), c.prove("alice", false), admission.counts().1), (Ok(()), Ok(()), 6));
    drop((a, b, c, e, admin, another));
    assert_eq!(admission.counts(), (0, 0));
}
