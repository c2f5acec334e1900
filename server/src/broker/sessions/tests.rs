use super::super::message::Publication;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

struct RegistryFixture {
    sessions: Sessions,
    metrics: Arc<Metrics>,
    now: Instant,
}

fn will(delay_s: u64) -> Will {
    Will {
        topic: "w".to_owned(),
        payload: Bytes::new(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Properties::new(),
        delay: delay_s.secs(),
        identity: "n1".to_owned(),
        anonymous: false,
    }
}

trait SequenceOfTimes {
    fn secs(self) -> Duration;
}

impl SequenceOfTimes for u64 {
    fn secs(self) -> Duration {
        Duration::from_secs(self)
    }
}

impl RegistryFixture {
    fn new(kept_max: usize) -> Self {
        let metrics = Arc::new(Metrics::default());
        let queue = QueueBounds { messages_max: 10, bytes_max: 10_000 };
        let sessions = Sessions::new(SessionBounds { kept_max, queue }, metrics.clone());
        Self { sessions, metrics, now: Instant::now() }
    }

    fn enter(
        &self,
        name: &str,
        clean: bool,
        expiry_s: u64,
        will: Option<Will>,
    ) -> (Arc<SessionHandle>, Arc<ConnectionSignals>, bool, Vec<SessionCleanup>) {
        let link = Arc::new(ConnectionSignals::default());
        let entering = ConnectOptions { clean, expiry: expiry_s.secs(), window: 10, will };
        let (handle, present, leftovers) = self.sessions.enter((name.to_owned(), name.to_owned()), &link, entering);
        (handle, link, present, leftovers)
    }

    fn leave(
        &self,
        handle: &Arc<SessionHandle>,
        link: &Arc<ConnectionSignals>,
        with_will: bool,
    ) -> Vec<SessionCleanup> {
        self.sessions.leave(handle, link, DisconnectOptions { with_will, expiry: None }, self.now)
    }

    fn counts(&self) -> (usize, usize) {
        assert_eq!(self.metrics.sessions.get(), (self.sessions.counts().0 + self.sessions.counts().1) as i64);
        self.sessions.counts()
    }
}

fn wills(leftovers: &[SessionCleanup]) -> usize {
    leftovers.iter().filter(|leftovers| leftovers.will.is_some()).count()
}

#[test]
fn a_session_is_kept_as_long_as_asked_and_then_ends() {
    let mut bench = RegistryFixture::new(10);
    let (first, link, present, _) = bench.enter("a", false, 5, None);
    assert!(!present);
    assert!(first.lock().add_filter("f", 1));
    assert!(bench.leave(&first, &link, false).iter().all(|leftovers| leftovers.filters.is_empty()));
    assert_eq!((bench.counts(), bench.sessions.deadline()), ((0, 1), Some(bench.now + 5 * SECOND)));
    let (again, link, present, _) = bench.enter("a", false, 5, None);
    assert!(present && Arc::ptr_eq(&first, &again));
    assert_eq!((bench.counts(), bench.sessions.deadline()), ((1, 0), None));
    bench.leave(&again, &link, false);
    bench.now += 5 * SECOND;
    let ended = bench.sessions.due(bench.now);
    assert_eq!(ended[0].filters, [Box::from("f")]);
    assert_eq!((bench.counts(), bench.metrics.sessions_expired.get()), ((0, 0), 1));
    assert!(!bench.enter("a", false, 5, None).2);
    // Without an expiry it ends with the connection; DISCONNECT may say something new.
    let (handle, link, ..) = bench.enter("b", false, 0, None);
    assert_eq!(bench.leave(&handle, &link, false).len(), 1);
    assert!(handle.lock().ended && !bench.enter("b", false, 7, None).2);
}

#[test]
fn a_clean_start_ends_the_old_session_and_a_new_connection_sends_the_old_one_away() {
    let bench = RegistryFixture::new(10);
    let (first, link, ..) = bench.enter("a", false, 5, None);
    assert!(first.lock().add_filter("f", 1));
    let (second, second_link, present, leftovers) = bench.enter("a", false, 5, None);
    assert!(present && link.is_replaced() && Arc::ptr_eq(&first, &second) && leftovers.is_empty());
    assert!(first.lock_for(&link).is_none() && first.lock_for(&second_link).is_some());
    assert!(bench.leave(&first, &link, true).is_empty(), "a replaced connection leaves nothing");
    let (third, _, present, leftovers) = bench.enter("a", true, 5, None);
    assert!(!present && second_link.is_replaced() && third.number != first.number);
    assert_eq!((leftovers[0].filters.len(), first.lock().ended, bench.counts()), (1, true, (1, 0)));
    // A session that was not to be kept is not resumed either.
    bench.enter("b", false, 0, None);
    assert!(!bench.enter("b", false, 5, None).2);
    assert_eq!(bench.metrics.takeovers.get(), 3);
}

#[test]
fn wills_are_published_when_they_are_due() {
    let mut bench = RegistryFixture::new(10);
    // At once, when the client vanishes; not when it says disconnect.
    for (expiry_s, with_will, expected) in [(0, true, 1), (0, false, 0), (60, true, 1), (60, false, 0)] {
        let (handle, link, ..) = bench.enter("a", true, expiry_s, Some(will(0)));
        assert_eq!(wills(&bench.leave(&handle, &link, with_will)), expected, "{expiry_s} {with_will}");
        assert_eq!(wills(&bench.sessions.due(bench.now + 100 * SECOND)), 0);
    }
    // Later, but not later than the session's end.
    for (delay_s, expiry_s, at_s) in [(3, 60, 3), (60, 3, 3), (3, 3, 3)] {
        let (handle, link, ..) = bench.enter("a", true, expiry_s, Some(will(delay_s)));
        assert_eq!(wills(&bench.leave(&handle, &link, true)), 0);
        assert_eq!(wills(&bench.sessions.due(bench.now + at_s.secs() - Duration::from_millis(1))), 0);
        assert_eq!(wills(&bench.sessions.due(bench.now + at_s.secs())), 1, "{delay_s} {expiry_s}");
        bench.now += 100 * SECOND;
        assert_eq!(wills(&bench.sessions.due(bench.now)), 0);
        assert_eq!(bench.counts(), (0, 0));
    }
    // Not when the client is back in time; but when it comes back without its session.
    for (clean, expected) in [(false, 0), (true, 1)] {
        let (handle, link, ..) = bench.enter("a", true, 60, Some(will(3)));
        bench.leave(&handle, &link, true);
        let (_, _, present, leftovers) = bench.enter("a", clean, 0, None);
        assert_eq!((present, wills(&leftovers)), (!clean, expected));
        assert_eq!(wills(&bench.sessions.due(bench.now + 10 * SECOND)), 0);
    }
    // Replaced: a will without delay is due, a delayed one only if the session ends.
    for (delay_s, clean, expected) in [(0, false, 1), (0, true, 1), (3, false, 0), (3, true, 1)] {
        bench.enter("b", true, 60, Some(will(delay_s)));
        let (handle, link, _, leftovers) = bench.enter("b", clean, 60, None);
        assert_eq!(wills(&leftovers), expected, "{delay_s} {clean}");
        assert_eq!(wills(&bench.leave(&handle, &link, true)), 0, "the new connection has none");
        bench.now += 100 * SECOND;
        bench.sessions.due(bench.now);
    }
}

#[test]
fn too_many_kept_sessions_end_beginning_with_the_one_that_would_end_first() {
    let bench = RegistryFixture::new(2);
    for (name, expiry_s) in [("a", 30), ("b", 10), ("c", 20)] {
        let (handle, link, ..) = bench.enter(name, false, expiry_s, Some(will(60)));
        let leftovers = bench.leave(&handle, &link, true);
        assert_eq!(wills(&leftovers), usize::from(name == "c"), "the ended one's will");
    }
    assert_eq!((bench.counts(), bench.metrics.sessions_dropped.get()), ((0, 2), 1));
    assert_eq!(["a", "b", "c"].map(|name| bench.enter(name, false, 0, None).2), [true, false, true]);
}

#[test]
fn bytes_that_wait_are_counted_over_all_sessions_and_bounded() {
    let bench = RegistryFixture::new(10);
    let (handle, link, ..) = bench.enter("a", false, 60, None);
    let payload = Bytes::from(vec![0; 1000]);
    let (qos, properties, at) = (QoS::AtLeastOnce, &Properties::new(), bench.now);
    let message = Publication { topic: "t", payload: &payload, qos, retain: false, properties, at }.to_message();
    let delivery = Delivery { message: Arc::new(message), qos, retain: false, ids: Box::default(), group: None };
    let size = delivery.message.size() as i64;
    let put = |bound| handle.deliver(delivery.clone(), bound, &bench.metrics);
    assert_eq!((put(1500), put(1500), put(1500)), (QueueOutcome::Queued, QueueOutcome::Queued, QueueOutcome::Full));
    assert_eq!(bench.metrics.queued_bytes.get(), 2 * size);
    SessionHandle::with(&mut handle.lock(), &bench.metrics, |session| session.next(bench.now));
    SessionHandle::with(&mut handle.lock(), &bench.metrics, |session| session.puback(1));
    assert_eq!(bench.metrics.queued_bytes.get(), size);
    bench.leave(&handle, &link, false);
    assert_eq!(bench.metrics.queued_bytes.get(), size);
    bench.enter("a", true, 0, None);
    assert_eq!(bench.metrics.queued_bytes.get(), 0);
    assert_eq!(put(1500), QueueOutcome::Away, "it is over");
}

#[test]
fn subscriptions_are_bounded_in_number_and_bytes() {
    let bench = RegistryFixture::new(1);
    let (handle, ..) = bench.enter("a", false, 5, None);
    let mut held = handle.lock();
    assert!(held.add_filter("a", 2) && held.add_filter("b", 2) && held.add_filter("a", 2) && !held.add_filter("c", 2));
    assert!(held.remove_filter("a") && !held.remove_filter("a"));
    let longest = "x".repeat(65_535);
    assert!(held.add_filter(&longest, 100) && !held.add_filter(&longest.replace('x', "y"), 100));
    assert!(held.remove_filter(&longest) && held.add_filter(&longest.replace('x', "y"), 100));
}

#[test]
fn an_identity_that_is_no_longer_valid_loses_its_sessions_and_wills() {
    let bench = RegistryFixture::new(10);
    let (_, link, ..) = bench.enter("a", false, 60, Some(will(0)));
    let (away, away_link, ..) = bench.enter("b", false, 60, Some(will(30)));
    bench.leave(&away, &away_link, true);
    let (_, other, ..) = bench.enter("c", false, 60, None);
    let ended = bench.sessions.end_of(&["a".to_owned(), "b".to_owned()]);
    assert_eq!((ended.len(), wills(&ended), bench.counts()), (2, 0, (1, 0)));
    assert!(link.is_ended() && !other.is_ended() && away.lock().ended);
    assert_eq!(bench.sessions.deadline(), None);
}

#[test]
fn one_client_cannot_keep_sessions_at_the_cost_of_others() {
    let bench = RegistryFixture::new(1000);
    let most = kept_per_client(1000);
    assert_eq!(most, KEPT_PER_CLIENT_MIN);
    let (other, link, ..) = bench.enter("other", false, 1, None);
    assert!(bench.leave(&other, &link, false).iter().all(|left| left.filters.is_empty()));
    let enter = |client: usize| {
        let link = Arc::new(ConnectionSignals::default());
        let entering = ConnectOptions { clean: false, expiry: (60 + client as u64).secs(), window: 10, will: None };
        let (handle, present, _) = bench.sessions.enter(("many".to_owned(), client.to_string()), &link, entering);
        (handle, link, present)
    };
    for client in 0..3 * most {
        let (handle, link, present) = enter(client);
        assert!(!present);
        bench.leave(&handle, &link, false);
    }
    assert_eq!((bench.counts(), bench.metrics.sessions_dropped.get()), ((0, most + 1), 2 * most as u64));
    assert!(enter(3 * most - 1).2 && !enter(0).2, "those that would end first are gone");
    assert!(bench.enter("other", false, 1, None).2);
    // When all are gone nothing is left of their identities.
    bench.sessions.end_of(&["many".to_owned(), "other".to_owned()]);
    let inner = bench.sessions.lock();
    assert!(inner.clients.is_empty() && inner.due.is_empty() && inner.by_key.is_empty());
}

#[test]
fn one_client_cannot_take_the_room_in_which_messages_wait() {
    let bench = RegistryFixture::new(10);
    let total = 16_000;
    let delivery = |bytes: usize| {
        let payload = Bytes::from(vec![0; bytes]);
        let (qos, properties, at) = (QoS::AtLeastOnce, &Properties::new(), bench.now);
        let message = Publication { topic: "t", payload: &payload, qos, retain: false, properties, at }.to_message();
        Delivery { message: Arc::new(message), qos, retain: false, ids: Box::default(), group: None }
    };
    let many: Vec<_> = (0..4)
        .map(|client| {
            let entering = ConnectOptions { clean: true, expiry: Duration::ZERO, window: 10, will: None };
            bench.sessions.enter(("many".to_owned(), client.to_string()), &Arc::default(), entering).0
        })
        .collect();
    let put = |handle: &SessionHandle, bytes| handle.deliver(delivery(bytes), total, &bench.metrics);
    // As much as one session may have; what is there before is looked at, not what is after.
    assert_eq!(
        (put(&many[0], 9000), put(&many[1], 1500), put(&many[2], SPARE_BYTES)),
        (QueueOutcome::Queued, QueueOutcome::Queued, QueueOutcome::Full)
    );
    assert_eq!(
        (put(&many[1], 10), put(&many[3], 10)),
        (QueueOutcome::Full, QueueOutcome::Queued),
        "who has nothing gets a small one"
    );
    let (other, ..) = bench.enter("other", true, 0, None);
    assert_eq!(
        (put(&other, 1500), put(&other, 200), put(&other, 1500)),
        (QueueOutcome::Queued, QueueOutcome::Queued, QueueOutcome::Queued)
    );
    bench.sessions.end_of(&["many".to_owned()]);
    assert_eq!(bench.metrics.queued_bytes.get(), other.lock().session.bytes() as i64);
    let entering = ConnectOptions { clean: true, expiry: Duration::ZERO, window: 10, will: None };
    let again = bench.sessions.enter(("many".to_owned(), "0".to_owned()), &Arc::default(), entering).0;
    assert_eq!((put(&again, 1500), put(&again, 10)), (QueueOutcome::Queued, QueueOutcome::Queued));
}
