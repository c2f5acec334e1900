use std::time::Duration;

use super::*;

const BOUNDS: Bounds = Bounds { unproven_max: 8, proven_max: 4, identity_max: 2, privileged_max: 1 };

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn enter(gate: &Arc<Gate>, from: &str) -> Option<Place> {
    gate.enter(address(from), Progress::Silent)
}

fn unproven_of(gate: &Gate, text: &str) -> usize {
    gate.state().unproven.get(&source(address(text))).map_or(0, count)
}

#[test]
fn a_crowd_of_one_address_gives_way_to_others() {
    let gate = Gate::new("test", BOUNDS);
    let crowd: Vec<Option<Place>> = (0..1000).map(|_| enter(&gate, "10.0.0.1")).collect();
    assert_eq!((gate.counts().0, unproven_of(&gate, "10.0.0.1")), (8, 8));
    let others: Vec<Place> = (2..6).map(|n| enter(&gate, &format!("10.0.0.{n}")).unwrap()).collect();
    assert_eq!((gate.counts().0, unproven_of(&gate, "10.0.0.1")), (8, 4));
    for place in &others {
        assert!(place.prove("somebody", true).is_ok() || gate.counts().1 >= BOUNDS.proven_max);
    }
    drop((crowd, others));
    assert_eq!(gate.counts(), (0, 0));
    assert!(gate.state().unproven.is_empty() && gate.state().proven.is_empty());
}

/// Bare connections of the same address do not close those that have said something, and connections that stop half-way do not close new ones.
#[test]
fn a_crowd_closes_its_own_kind() {
    let gate = Gate::new("test", BOUNDS);
    let enter = || enter(&gate, "10.0.0.1");
    for progress in [Progress::Heard, Progress::Encrypted] {
        let honest = enter().unwrap();
        honest.advance(progress);
        let crowd: Vec<Option<Place>> = (0..1000).map(|_| enter()).collect();
        assert_eq!((gate.counts().0, honest.prove("a", false)), (8, Ok(())), "{progress:?}");
        drop(crowd);
    }
    // Who has said something when it is accepted is none of them from the beginning.
    let mut crowd: Vec<Option<Place>> = (0..1000).map(|_| enter()).collect();
    for round in 0..100 {
        let honest = gate.enter(address("10.0.0.1"), Progress::Heard).expect("a place");
        assert_eq!(honest.prove("a", false), Ok(()), "round {round}");
        drop(honest);
        crowd.push(enter());
    }
    drop(crowd);
    for round in 0..100 {
        let crowd: Vec<Place> = (0..8).map(|_| enter().unwrap()).collect();
        crowd.iter().for_each(|place| place.advance(Progress::Encrypted));
        let honest = enter().expect("it is not closed");
        honest.advance(Progress::Heard);
        assert_eq!((gate.counts().0, honest.prove("a", false)), (8, Ok(())), "round {round}");
    }
    // Two kinds of crowd at once: who comes now loses nothing to either while it is not of the larger.
    let halfway: Vec<Place> = (0..4).map(|_| enter().unwrap()).collect();
    halfway.iter().for_each(|place| place.advance(Progress::Heard));
    let honest = enter().unwrap();
    honest.advance(Progress::Encrypted);
    let silent: Vec<Option<Place>> = (0..1000).map(|_| enter()).collect();
    assert_eq!(honest.prove("a", false), Ok(()));
    drop((halfway, silent, honest));
    assert_eq!(gate.counts(), (0, 0));
    assert!(gate.state().unproven.is_empty());
}

/// A connection that has just come has its bytes on the way: so many others must come after it until it is closed.
#[test]
fn of_silent_connections_the_oldest_goes() {
    let gate = Gate::new("test", BOUNDS);
    let crowd: Vec<Place> = (0..100).map(|_| enter(&gate, "10.0.0.1").expect("a place")).collect();
    let stay = |place: &Place| place.own().advance(&mut gate.state(), address("10.0.0.1"), Progress::Silent);
    assert!(crowd[..92].iter().all(|place| !stay(place)) && crowd[92..].iter().all(stay));
}

/// Who was displaced stays out, however far it comes.
#[test]
fn who_was_displaced_does_not_come_back_by_advancing() {
    let gate = Gate::new("test", Bounds { unproven_max: 1, ..BOUNDS });
    let first = enter(&gate, "10.0.0.1");
    let second = enter(&gate, "10.0.0.1");
    for place in [&first, &second].into_iter().flatten() {
        place.advance(Progress::Encrypted);
    }
    assert_eq!(gate.counts(), (1, 1));
    drop((first, second));
    assert_eq!(gate.counts(), (0, 0));
}

/// A connection whose bytes are here when it loses its place has just not been looked at in time.
#[tokio::test]
async fn who_was_displaced_before_its_bytes_were_looked_at_comes_back() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let later = Instant::now() + Duration::from_secs(3600);
    for (says_something, is_heard) in [(true, true), (false, false)] {
        let gate = Gate::new("test", BOUNDS);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let place = loop {
            if let Some(place) = enter(&gate, "10.0.0.1") {
                break place;
            }
        };
        if says_something {
            client.write_all(b"x").await.unwrap();
            while arrived(&stream) != Arrived::Bytes {
                tokio::task::yield_now().await;
            }
        }
        // Until it has been displaced.
        let mut crowd = Vec::new();
        while gate.state().unproven[&address("10.0.0.1")].iter().flatten().any(|one| one.id == place.own().waiting.id) {
            crowd.extend(enter(&gate, "10.0.0.1"));
        }
        let before = gate.displaced.load(Relaxed);
        assert_eq!((place.heard(&stream, later).await, gate.counts().0), (is_heard, 8));
        assert_eq!(gate.displaced.load(Relaxed), before, "one more was closed, and one was not");
        if is_heard {
            let over = tokio::time::timeout(Duration::from_millis(1), place.over(later)).await;
            assert!(over.is_err(), "it has a place");
        }
        assert_eq!(place.prove("a", false).is_ok(), is_heard);
        drop((place, crowd));
        assert_eq!(gate.counts(), (0, 0));
    }
}

/// Clients that went before they were accepted, or before they said anything, are none that said something.
#[tokio::test]
async fn who_has_gone_has_no_place_and_is_not_heard() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (gate, later) = (Gate::new("test", BOUNDS), Instant::now() + Duration::from_secs(3600));
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let place = gate.enter(address("10.0.0.1"), Progress::of(&stream).expect("it is there")).unwrap();
    drop(client);
    assert!(!place.heard(&stream, later).await);
    assert_eq!(gate.state().unproven[&address("10.0.0.1")][Progress::Silent as usize].len(), 1);
    assert_eq!(Progress::of(&stream), None);
}

#[test]
fn a_host_with_many_addresses_of_ipv6_is_one_and_mapped_addresses_are_ipv4() {
    let gate = Gate::new("test", BOUNDS);
    let _crowd: Vec<Option<Place>> = (0..100).map(|n| enter(&gate, &format!("2001:db8::{n}"))).collect();
    assert_eq!(unproven_of(&gate, "2001:db8::ffff"), 8);
    let _other = enter(&gate, "2001:db8:0:1::1").unwrap();
    assert_eq!((unproven_of(&gate, "2001:db8::"), unproven_of(&gate, "2001:db8:0:1::")), (7, 1));
    let _mapped = enter(&gate, "::ffff:10.0.0.1").unwrap();
    assert_eq!(unproven_of(&gate, "10.0.0.1"), 1);
}

#[tokio::test]
async fn who_is_displaced_or_late_is_told_and_who_has_proved_it_is_not() {
    let gate = Gate::new("test", Bounds { unproven_max: 1, ..BOUNDS });
    let later = Instant::now() + Duration::from_secs(3600);
    // The two addresses have one each, so chance decides which of them goes.
    let (mut first, mut second) = (enter(&gate, "10.0.0.1"), None);
    while second.is_none() {
        first = first.or_else(|| enter(&gate, "10.0.0.1"));
        second = enter(&gate, "10.0.0.2");
    }
    let (first, second) = (first.unwrap(), second.unwrap());
    first.over(later).await;
    assert_eq!(first.prove("a", false), Err(Full::Displaced));
    second.over(Instant::now()).await;
    assert_eq!(second.prove("a", false), Ok(()));
    let over = tokio::time::timeout(Duration::from_millis(1), second.over(Instant::now())).await;
    assert!(over.is_err(), "it has proved who it is");
}

#[test]
fn identities_have_bounds_and_administrators_room() {
    let gate = Gate::new("test", BOUNDS);
    let enter = || enter(&gate, "10.0.0.1").unwrap();
    let (a, b, c, d, e, admin, another) = (enter(), enter(), enter(), enter(), enter(), enter(), enter());
    assert_eq!([&a, &b].map(|place| place.prove("alice", false)), [Ok(()); 2]);
    assert_eq!(c.prove("alice", false), Err(Full::Identity(2)));
    assert_eq!([&c, &d].map(|place| place.prove("bob", false)), [Ok(()); 2]);
    assert_eq!(e.prove("carol", false), Err(Full::All(4)));
    assert_eq!((admin.prove("root", true), another.prove("root", true)), (Ok(()), Err(Full::All(4))));
    // Said again, nothing changes; said of somebody else, the place is that one's.
    assert_eq!((a.prove("alice", false), gate.counts()), (Ok(()), (2, 7)));
    drop(d);
    assert_eq!((a.prove("bob", false), c.prove("alice", false), gate.counts().1), (Ok(()), Ok(()), 6));
    drop((a, b, c, e, admin, another));
    assert_eq!(gate.counts(), (0, 0));
}
