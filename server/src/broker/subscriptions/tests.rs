use super::super::replay::SendStep;
use super::super::session::{OutgoingPacket, QueueBounds};
use super::*;
use wholegrain_transport::mqtt::Property;

/// The one schema that is known.
const SCHEMA: SchemaHash = SchemaHash([1; 16]);
const SCHEMA_BYTES: &[u8] = b"a schema";
const ROOM: RetainedBounds =
    RetainedBounds { messages_max: 1000, bytes_max: 1 << 20, client_messages_max: 1000, client_bytes_max: 1 << 20 };

struct SubscriptionsFixture {
    all: Subscriptions,
    metrics: Arc<Metrics>,
    now: Instant,
    /// How many times a schema's bytes were asked for.
    made: Arc<AtomicUsize>,
}

/// A client that is here and takes everything.
fn client(number: u64) -> Arc<SessionHandle> {
    bounded(number, 100)
}

fn bounded(number: u64, messages_max: usize) -> Arc<SessionHandle> {
    let bounds = QueueBounds { messages_max, bytes_max: 1 << 20 };
    let handle = SessionHandle::new(number, (number.to_string(), number.to_string()), bounds);
    handle.lock().session.attach(100);
    Arc::new(handle)
}

/// The next packet for a client, as its task finds it.
fn next(all: &Subscriptions, handle: &SessionHandle, now: Instant) -> Option<OutgoingPacket> {
    loop {
        let mut held = handle.lock();
        let (mut turn, mut next) = (held.next_step(), None);
        if let SendStep::Queue = turn {
            next = held.session.next(now);
            turn = if next.is_none() { held.next_step_when_blocked() } else { turn };
        }
        match turn {
            _ if next.is_some() => return next,
            SendStep::LookUp(filter, after) => {
                let scanned = all.retained_for(&filter, after.as_ref(), 16);
                held.replays().unwrap().found(scanned, now);
            }
            SendStep::Send(kept, options, qos) => {
                held.replays().unwrap().sent();
                let Some(message) = kept.whole(&all.schemas) else { continue };
                let delivery = Delivery { message, qos, retain: true, ids: options.ids(), group: None };
                return held.session.send_retained(delivery);
            }
            SendStep::Wait | SendStep::Queue => return None,
        }
    }
}

/// What it gets: topic, QoS, retain flag, identifiers.
fn got(bench: &SubscriptionsFixture, handle: &SessionHandle) -> Vec<String> {
    let outs = std::iter::from_fn(|| next(&bench.all, handle, bench.now));
    let show = |out| match out {
        OutgoingPacket::Publish { delivery, .. } => {
            let Delivery { message, qos, retain, ids, .. } = delivery;
            let retain = if retain { " retained" } else { "" };
            let ids = if ids.is_empty() { String::new() } else { format!(" {ids:?}") };
            format!("{} {}{retain}{ids}", message.topic, qos as u8)
        }
        OutgoingPacket::PubRel(_) => "rel".to_owned(),
    };
    outs.map(show).collect()
}

fn options(qos: u8) -> SubscriptionOptions {
    SubscriptionOptions { qos: QoS::from_number(qos).unwrap(), no_local: false, retain_as_published: false, id: 0 }
}

impl SubscriptionsFixture {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::default());
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let schemas = SchemaPayloads(Box::new(move |hash| {
            counted.fetch_add(1, Ordering::Relaxed);
            (*hash == SCHEMA).then(|| Bytes::from_static(SCHEMA_BYTES))
        }));
        Self { all: Subscriptions::new(1 << 30, ROOM, schemas, metrics.clone()), metrics, now: Instant::now(), made }
    }

    fn subscribe(&self, filter: &str, handle: &Arc<SessionHandle>, options: SubscriptionOptions) {
        self.subscribe_as(filter, handle, options, RetainHandling::Send);
    }

    fn subscribe_as(
        &self,
        filter: &str,
        handle: &Arc<SessionHandle>,
        options: SubscriptionOptions,
        retained: RetainHandling,
    ) {
        if let Some(replay) = self.all.subscribe(filter, handle, options, retained) {
            handle.lock().start_replay(replay);
        }
    }

    fn message(&self, from: u64, topic: &str, qos: u8, payload: &'static str, retain: bool, expiry_s: Option<u32>) {
        let properties = Properties(expiry_s.into_iter().map(Property::MessageExpiryInterval).collect());
        let (payload, qos) = (&Bytes::from_static(payload.as_bytes()), QoS::from_number(qos).unwrap());
        let publication = Publication { topic, payload, qos, retain, properties: &properties, at: self.now };
        let number = self.all.next_number();
        self.all.publish_message(from, &publication);
        if retain {
            self.all.retain(Some(&from.to_string()), &publication, None, number);
        }
    }

    fn publish(&self, topic: &str, qos: u8) {
        self.message(99, topic, qos, "x", false, None);
    }
}

#[test]
fn each_client_gets_a_message_once_with_the_highest_qos_and_all_identifiers() {
    let bench = SubscriptionsFixture::new();
    let one = client(1);
    bench.subscribe("a/b", &one, SubscriptionOptions { id: 7, ..options(1) });
    bench.subscribe("a/+", &one, SubscriptionOptions { id: 8, ..options(2) });
    bench.subscribe("a/#", &one, options(0));
    bench.subscribe("a/#", &one, options(0));
    assert_eq!(bench.metrics.subscriptions.get(), 3);
    bench.publish("a/b", 2);
    bench.publish("a/b", 1);
    bench.publish("a/b/c", 2);
    bench.publish("b", 2);
    assert_eq!(got(&bench, &one), ["a/b 2 [7, 8]", "a/b 1 [7, 8]", "a/b/c 0"]);
    assert!(bench.all.unsubscribe(1, "a/#") && bench.all.unsubscribe(1, "a/b"));
    assert!(!bench.all.unsubscribe(1, "a/b") && !bench.all.unsubscribe(2, "a/+"));
    bench.publish("a/b/c", 0);
    bench.publish("a/b", 0);
    assert_eq!(got(&bench, &one), ["a/b 0 [8]"]);
    assert_eq!(bench.metrics.subscriptions.get(), 1);
}

#[test]
fn retained_messages_go_to_new_subscribers_until_they_expire_or_are_taken_away() {
    let mut bench = SubscriptionsFixture::new();
    bench.message(9, "s/a", 1, "1", true, None);
    bench.message(9, "s/a", 2, "2", true, None);
    bench.message(9, "s/b", 0, "3", true, None);
    bench.message(9, "s/b", 0, "", true, None);
    bench.message(9, "s/c", 0, "4", true, Some(10));
    bench.message(9, "$SYS/x", 0, "5", true, None);
    let one = client(1);
    bench.subscribe("#", &one, options(1));
    let mut all = got(&bench, &one);
    all.sort_unstable();
    assert_eq!(all, ["s/a 1 retained", "s/c 0 retained"]);
    bench.now += std::time::Duration::from_secs(11);
    bench.subscribe("#", &one, options(2));
    assert_eq!(got(&bench, &one), ["s/a 2 retained"]);
    assert_eq!(bench.all.retained_count(), 3);
    bench.all.purge(bench.now);
    assert_eq!((bench.all.retained_count(), bench.metrics.messages_expired.get()), (2, 1));
}

#[test]
fn a_retained_schema_is_read_from_the_store() {
    let bench = SubscriptionsFixture::new();
    let retain = |topic: &str, schema| {
        let (payload, properties) = (Bytes::from_static(SCHEMA_BYTES), Properties::new());
        let (payload, properties) = (&payload, &properties);
        let publication =
            Publication { topic, payload, qos: QoS::AtLeastOnce, retain: true, properties, at: bench.now };
        bench.all.retain(Some("n1"), &publication, Some(schema), bench.all.next_number());
    };
    retain("schema/a", SCHEMA);
    retain("schema/gone", SchemaHash([2; 16]));
    assert_eq!(bench.made.load(Ordering::Relaxed), 0);
    let one = client(1);
    bench.subscribe("schema/+", &one, options(1));
    let out = next(&bench.all, &one, bench.now);
    let Some(OutgoingPacket::Publish { delivery, .. }) = out else { panic!("{out:?}") };
    assert_eq!((&*delivery.message.topic, &delivery.message.payload[..]), ("schema/a", SCHEMA_BYTES));
    assert!(delivery.retain && got(&bench, &one).is_empty(), "the schema that is known no longer is not sent");
    // A message that is not acknowledged counts with its payload.
    assert_eq!(one.lock().session.bytes(), delivery.message.size());
    bench.message(9, "schema/a", 1, "no schema", true, None);
    bench.subscribe("schema/a", &one, options(1));
    assert_eq!((got(&bench, &one).len(), bench.all.retained_count()), (2, 2), "as it is published, and retained");
}

#[test]
fn a_client_gets_all_retained_messages_before_later_ones() {
    let bench = SubscriptionsFixture::new();
    (0..500).for_each(|i| bench.message(9, &format!("s/{i:03}"), 1, "1", true, None));
    // Ten may wait, and two be unacknowledged; all together have 30 times the bytes that may wait.
    let bounds = QueueBounds { messages_max: 10, bytes_max: 2200 };
    let one = Arc::new(SessionHandle::new(1, ("1".to_owned(), "1".to_owned()), bounds));
    one.lock().session.attach(2);
    bench.subscribe("s/#", &one, options(1));
    let mut topics = Vec::new();
    let mut acknowledged = 0;
    while let Some(out) = next(&bench.all, &one, bench.now) {
        let OutgoingPacket::Publish { delivery, packet_id, .. } = out else { panic!("{out:?}") };
        if topics.is_empty() {
            bench.publish("s/499", 1);
            // It replaces one that is still to come, and is sent as what it is.
            bench.message(9, "s/300", 0, "2", true, None);
        }
        topics.push((delivery.message.topic.to_string(), delivery.retain));
        acknowledged += 1;
        packet_id.inspect(|&id| _ = one.lock().session.puback(id));
    }
    let mut expected: Vec<(String, bool)> =
        (0..500).filter(|i| *i != 300).map(|i| (format!("s/{i:03}"), true)).collect();
    expected.extend([("s/499".to_owned(), false), ("s/300".to_owned(), false)]);
    assert_eq!((topics, acknowledged), (expected, 501));
    assert_eq!(bench.metrics.messages_dropped.get(), 0);
}

#[test]
fn retained_messages_wait_for_acknowledgements_and_give_way_before_the_queue_is_full() {
    let bench = SubscriptionsFixture::new();
    (0..3).for_each(|i| bench.message(9, &format!("s/{i}"), 1, "1", true, None));
    let one = bounded(1, 4);
    one.lock().session.attach(1);
    bench.subscribe("s/#", &one, options(1));
    assert_eq!(got(&bench, &one), ["s/0 1 retained"]);
    (0..2).for_each(|_| bench.publish("s/2", 0));
    assert_eq!(got(&bench, &one), [""; 0], "what came later waits behind");
    bench.publish("s/2", 0);
    assert_eq!(got(&bench, &one), ["s/2 0"], "so much that messages would soon be lost");
    one.lock().session.puback(1);
    assert_eq!(got(&bench, &one), ["s/1 1 retained"]);
    // The client comes back: first what it has not acknowledged, then the rest.
    let mut held = one.lock();
    held.replays().unwrap().detach();
    held.session.detach();
    held.session.attach(9);
    drop(held);
    assert_eq!(got(&bench, &one), ["s/1 1 retained", "s/2 1 retained"]);
    assert!(one.lock().replays().is_none());
}

#[test]
fn a_renewed_subscription_starts_again_and_a_removed_one_sends_nothing() {
    let bench = SubscriptionsFixture::new();
    (0..40).for_each(|i| bench.message(9, &format!("s/{i:02}"), 0, "1", true, None));
    let one = client(1);
    bench.subscribe("s/#", &one, options(0));
    bench.subscribe("s/00", &one, options(0));
    assert!(next(&bench.all, &one, bench.now).is_some());
    (0..1000).for_each(|_| bench.subscribe("s/#", &one, options(0)));
    assert_eq!(got(&bench, &one).len(), 1 + 40, "each filter once");
    bench.subscribe("s/#", &one, options(0));
    assert!(next(&bench.all, &one, bench.now).is_some());
    one.lock().add_filter("s/#", 9);
    assert!(bench.all.unsubscribe(1, "s/#") && one.lock().remove_filter("s/#"));
    assert_eq!(got(&bench, &one), [""; 0]);
    // Of QoS 0 nothing waits for a client that is away.
    bench.subscribe("s/#", &one, options(0));
    one.lock().replays().unwrap().detach();
    assert!(one.lock().replays().is_none());
}

/// So that thousands of sessions of one filter cost each of them little.
#[test]
fn sessions_of_one_filter_come_and_go_in_any_order() {
    let bench = SubscriptionsFixture::new();
    let all: Vec<Arc<SessionHandle>> = (1..=50).map(client).collect();
    for at in (0..50).map(|i| i * 7 % 50) {
        bench.subscribe("t", &all[at], options(0));
        bench.subscribe("$share/g/t", &all[at], options(0));
        bench.subscribe(&format!("$share/{}/t", at % 5), &all[at], options(0));
    }
    bench.publish("t", 0);
    let total: usize = all.iter().map(|one| got(&bench, one).len()).sum();
    assert_eq!(total, 50 + 1 + 5);
    for at in (0..50).map(|i| i * 11 % 50) {
        assert!(bench.all.unsubscribe(at as u64 + 1, "t") && !bench.all.unsubscribe(at as u64 + 1, "t"));
        bench.publish("t", 0);
    }
    assert_eq!(bench.metrics.subscriptions.get(), 100);
}

#[test]
fn the_options_of_mqtt_5_hold() {
    let bench = SubscriptionsFixture::new();
    bench.message(9, "t", 0, "1", true, None);
    let one = client(1);
    let options = SubscriptionOptions { no_local: true, retain_as_published: true, ..options(0) };
    bench.subscribe_as("t", &one, options, RetainHandling::DoNotSend);
    bench.subscribe_as("t", &one, options, RetainHandling::SendIfNew);
    assert_eq!(got(&bench, &one), [""; 0]);
    bench.subscribe_as("t", &one, options, RetainHandling::Send);
    assert_eq!(got(&bench, &one), ["t 0 retained"]);
    bench.message(1, "t", 0, "own", true, None);
    bench.message(2, "t", 0, "x", true, None);
    bench.message(2, "t", 0, "x", false, None);
    assert_eq!(got(&bench, &one), ["t 0 retained", "t 0"]);
}

#[test]
fn a_slow_subscriber_loses_messages_and_they_are_counted() {
    let bench = SubscriptionsFixture::new();
    let one = bounded(1, 2);
    bench.subscribe("t", &one, options(0));
    (0..5).for_each(|_| bench.publish("t", 0));
    assert_eq!((got(&bench, &one).len(), bench.metrics.messages_dropped.get()), (2, 3));
}

#[test]
fn a_shared_subscription_gives_each_message_to_one_member_that_can_take_it() {
    let bench = SubscriptionsFixture::new();
    let [one, two] = [bounded(1, 2), bounded(2, 100)];
    let other = client(3);
    for handle in [&one, &two] {
        bench.subscribe("$share/g/t/+", handle, SubscriptionOptions { id: 5, ..options(1) });
    }
    bench.subscribe("$share/h/t/a", &other, options(2));
    bench.subscribe("t/a", &one, options(0));
    bench.publish("t/a", 1);
    bench.publish("t/b", 1);
    assert_eq!((got(&bench, &one).len(), got(&bench, &two).len(), got(&bench, &other).len()), (2, 1, 1));
    // One has room for two only; the others take the rest. Whoever is away gets nothing while somebody is here.
    (0..10).for_each(|_| bench.publish("t/b", 1));
    assert_eq!((got(&bench, &one).len(), got(&bench, &two).len()), (2, 8));
    two.lock().session.detach();
    (0..2).for_each(|_| bench.publish("t/b", 1));
    assert_eq!(got(&bench, &one), ["t/b 1 [5]", "t/b 1 [5]"]);
    // What one has not acknowledged goes to the other, which waits for it though it is away.
    let moved = one.lock().session.take_shared(Some("$share/g/t/+"));
    assert!(!bench.all.has_other_member("$share/g/t/+", 1) && bench.all.has_other_member("$share/g/t/+", 2));
    moved.into_iter().for_each(|delivery| bench.all.pass_on(delivery, 1));
    two.lock().session.attach(100);
    assert!(got(&bench, &two).len() > 2);
    assert_eq!(bench.metrics.messages_dropped.get(), 0);
    assert!(bench.all.unsubscribe(1, "$share/g/t/+") && bench.all.unsubscribe(2, "$share/g/t/+"));
    bench.publish("t/b", 1);
    assert!(got(&bench, &one).is_empty() && got(&bench, &two).is_empty());
}

#[test]
fn the_generation_and_the_filters_below_a_level_are_known() {
    let bench = SubscriptionsFixture::new();
    let (one, two) = (client(1), client(2));
    assert!(!bench.all.wants_paths());
    let before = bench.all.text_generation();
    bench.subscribe("text/a/+", &one, options(0));
    bench.subscribe("$share/g/text/#", &two, options(0));
    bench.subscribe("+/x", &two, options(0));
    let after = bench.all.text_generation();
    assert_ne!(before, after);
    assert!(bench.all.wants_paths(), "+ is the first level of /x too");
    bench.subscribe("other/#", &two, options(0));
    assert_eq!(bench.all.text_generation(), after);
    let mut below = bench.all.filters_below("text");
    below.sort_unstable();
    assert_eq!(below, ["+/x", "text/#", "text/a/+"]);
    assert!(bench.all.filters_below("$SYS").is_empty());
    assert!(!bench.all.unsubscribe(1, "none") && bench.all.text_generation() == after);
    assert!(bench.all.unsubscribe(1, "text/a/+") && bench.all.text_generation() != after);
    assert_eq!(bench.all.filters_below("text").len(), 2);
    assert!(bench.all.unsubscribe(2, "+/x") && !bench.all.wants_paths());
    for filter in ["/a", "$share/g//#", "#"] {
        bench.subscribe(filter, &one, options(0));
        assert!(bench.all.wants_paths(), "{filter}");
        assert!(bench.all.unsubscribe(1, filter) && !bench.all.wants_paths(), "{filter}");
    }
}
