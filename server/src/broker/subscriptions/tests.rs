use super::super::session::{Out, QueueBounds};
use super::*;
use wholegrain_transport::mqtt::Property;

/// The one schema that is known.
const SCHEMA: SchemaHash = SchemaHash([1; 16]);
const SCHEMA_BYTES: &[u8] = b"a schema";

struct Bench {
    all: Subscriptions,
    metrics: Arc<Metrics>,
    now: Instant,
    /// How many times a schema's bytes were asked for.
    made: Arc<AtomicUsize>,
}

/// A client that is here and takes everything.
fn client(number: u64) -> Arc<Handle> {
    bounded(number, 100)
}

fn bounded(number: u64, messages_max: usize) -> Arc<Handle> {
    let bounds = QueueBounds { messages_max, bytes_max: 1 << 20 };
    let handle = Handle::new(number, (number.to_string(), number.to_string()), bounds);
    handle.lock().session.attach(100);
    Arc::new(handle)
}

/// What waits for it: topic, QoS, retain flag, identifiers.
fn got(handle: &Handle, now: Instant) -> Vec<String> {
    let mut held = handle.lock();
    let outs = std::iter::from_fn(|| held.session.next(now));
    let show = |out| match out {
        Out::Publish { delivery, .. } => {
            let Delivery { message, qos, retain, ids, .. } = delivery;
            let retain = if retain { " retained" } else { "" };
            let ids = if ids.is_empty() { String::new() } else { format!(" {ids:?}") };
            format!("{} {}{retain}{ids}", message.topic, qos as u8)
        }
        Out::PubRel(_) => "rel".to_owned(),
    };
    outs.map(show).collect()
}

fn options(qos: u8) -> Options {
    Options { qos: QoS::from_number(qos).unwrap(), no_local: false, retain_as_published: false, id: 0 }
}

impl Bench {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::default());
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let schemas = Schemas(Box::new(move |hash| {
            counted.fetch_add(1, Ordering::Relaxed);
            (*hash == SCHEMA).then(|| Bytes::from_static(SCHEMA_BYTES))
        }));
        Self { all: Subscriptions::new(1 << 30, schemas, metrics.clone()), metrics, now: Instant::now(), made }
    }

    fn subscribe(&self, filter: &str, handle: &Arc<Handle>, options: Options) {
        self.all.subscribe(filter, handle, options, RetainHandling::Send, self.now);
    }

    fn message(&self, from: u64, topic: &str, qos: u8, payload: &'static str, retain: bool, expiry_s: Option<u32>) {
        let properties = Properties(expiry_s.into_iter().map(Property::MessageExpiryInterval).collect());
        let (payload, qos) = (&Bytes::from_static(payload.as_bytes()), QoS::from_number(qos).unwrap());
        let publication = Publication { topic, payload, qos, retain, properties: &properties, at: self.now };
        self.all.publish_message(from, &publication);
        if retain {
            self.all.retain(&publication, None);
        }
    }

    fn publish(&self, topic: &str, qos: u8) {
        self.message(99, topic, qos, "x", false, None);
    }
}

#[test]
fn each_client_gets_a_message_once_with_the_highest_qos_and_all_identifiers() {
    let bench = Bench::new();
    let one = client(1);
    bench.subscribe("a/b", &one, Options { id: 7, ..options(1) });
    bench.subscribe("a/+", &one, Options { id: 8, ..options(2) });
    bench.subscribe("a/#", &one, options(0));
    bench.subscribe("a/#", &one, options(0));
    assert_eq!(bench.metrics.subscriptions.get(), 3);
    bench.publish("a/b", 2);
    bench.publish("a/b", 1);
    bench.publish("a/b/c", 2);
    bench.publish("b", 2);
    assert_eq!(got(&one, bench.now), ["a/b 2 [7, 8]", "a/b 1 [7, 8]", "a/b/c 0"]);
    assert!(bench.all.unsubscribe(1, "a/#") && bench.all.unsubscribe(1, "a/b"));
    assert!(!bench.all.unsubscribe(1, "a/b") && !bench.all.unsubscribe(2, "a/+"));
    bench.publish("a/b/c", 0);
    bench.publish("a/b", 0);
    assert_eq!(got(&one, bench.now), ["a/b 0 [8]"]);
    assert_eq!(bench.metrics.subscriptions.get(), 1);
}

#[test]
fn retained_messages_go_to_new_subscribers_until_they_expire_or_are_taken_away() {
    let mut bench = Bench::new();
    bench.message(9, "s/a", 1, "1", true, None);
    bench.message(9, "s/a", 2, "2", true, None);
    bench.message(9, "s/b", 0, "3", true, None);
    bench.message(9, "s/b", 0, "", true, None);
    bench.message(9, "s/c", 0, "4", true, Some(10));
    bench.message(9, "$SYS/x", 0, "5", true, None);
    let one = client(1);
    bench.subscribe("#", &one, options(1));
    let mut all = got(&one, bench.now);
    all.sort_unstable();
    assert_eq!(all, ["s/a 1 retained", "s/c 0 retained"]);
    bench.now += std::time::Duration::from_secs(11);
    bench.subscribe("#", &one, options(2));
    assert_eq!(got(&one, bench.now), ["s/a 2 retained"]);
    assert_eq!(bench.all.retained(), 3);
    bench.all.purge(bench.now);
    assert_eq!((bench.all.retained(), bench.metrics.messages_expired.get()), (2, 1));
    assert!(bench.all.read().retained.is_counted_right());
}

#[test]
fn a_retained_schema_is_not_kept_and_comes_from_who_has_it() {
    let bench = Bench::new();
    let retain = |topic: &str, schema| {
        let (payload, properties) = (Bytes::from_static(SCHEMA_BYTES), Properties::new());
        let (payload, properties) = (&payload, &properties);
        let publication =
            Publication { topic, payload, qos: QoS::AtLeastOnce, retain: true, properties, at: bench.now };
        bench.all.retain(&publication, Some(schema));
    };
    retain("schema/a", SCHEMA);
    retain("schema/gone", SchemaHash([2; 16]));
    assert_eq!(bench.all.read().retained.payload_bytes(), 0);
    let one = client(1);
    bench.subscribe("schema/+", &one, options(1));
    let out = one.lock().session.next(bench.now);
    let Some(Out::Publish { delivery, .. }) = out else { panic!("{out:?}") };
    assert_eq!((&*delivery.message.topic, &delivery.message.payload[..]), ("schema/a", SCHEMA_BYTES));
    assert!(delivery.retain && got(&one, bench.now).is_empty(), "the schema that is known no longer is not sent");
    // A message that waits counts with its payload.
    assert_eq!(one.lock().session.bytes(), delivery.message.size());
    bench.message(9, "schema/a", 1, "no schema", true, None);
    bench.subscribe("schema/a", &one, options(1));
    assert_eq!((got(&one, bench.now).len(), bench.all.retained()), (2, 2), "as it is published, and retained");
    assert!(bench.all.read().retained.is_counted_right());
}

#[test]
fn schemas_that_find_no_room_are_counted_and_not_made() {
    let bench = Bench::new();
    let properties = Properties::new();
    let payload = Bytes::from_static(SCHEMA_BYTES);
    for i in 0..10 {
        let topic = &format!("s/{i}");
        let (payload, properties, qos) = (&payload, &properties, QoS::AtLeastOnce);
        let publication = Publication { topic, payload, qos, retain: true, properties, at: bench.now };
        bench.all.retain(&publication, Some(SCHEMA));
    }
    let size = bench.all.read().retained.matching("s/0").remove(0).whole(&bench.all.schemas).unwrap().size();
    let bounds = QueueBounds { messages_max: 100, bytes_max: 3 * size };
    let one = Arc::new(Handle::new(1, ("1".to_owned(), "1".to_owned()), bounds));
    one.lock().session.attach(100);
    bench.subscribe("s/#", &one, options(1));
    assert_eq!((one.lock().session.len(), bench.metrics.messages_dropped.get()), (3, 7));
    assert_eq!(bench.made.load(Ordering::Relaxed), 1 + 3 + 1, "for the size, those that fit, and one that does not");
}

#[test]
fn more_retained_messages_than_may_wait_are_delivered() {
    let bench = Bench::new();
    (0..50).for_each(|i| bench.message(9, &format!("s/{i}"), 0, "1", true, None));
    let one = bounded(1, 4);
    bench.subscribe("s/#", &one, options(0));
    assert_eq!(got(&one, bench.now).len(), 50);
}

#[test]
fn the_options_of_mqtt_5_hold() {
    let bench = Bench::new();
    bench.message(9, "t", 0, "1", true, None);
    let one = client(1);
    let options = Options { no_local: true, retain_as_published: true, ..options(0) };
    bench.all.subscribe("t", &one, options, RetainHandling::DoNotSend, bench.now);
    bench.all.subscribe("t", &one, options, RetainHandling::SendIfNew, bench.now);
    assert_eq!(got(&one, bench.now), [""; 0]);
    bench.all.subscribe("t", &one, options, RetainHandling::Send, bench.now);
    bench.message(1, "t", 0, "own", true, None);
    bench.message(2, "t", 0, "x", true, None);
    bench.message(2, "t", 0, "x", false, None);
    assert_eq!(got(&one, bench.now), ["t 0 retained", "t 0 retained", "t 0"]);
}

#[test]
fn a_slow_subscriber_loses_messages_and_they_are_counted() {
    let bench = Bench::new();
    let one = bounded(1, 2);
    bench.subscribe("t", &one, options(0));
    (0..5).for_each(|_| bench.publish("t", 0));
    assert_eq!((got(&one, bench.now).len(), bench.metrics.messages_dropped.get()), (2, 3));
}

#[test]
fn a_shared_subscription_gives_each_message_to_one_member_that_can_take_it() {
    let bench = Bench::new();
    let [one, two] = [bounded(1, 2), bounded(2, 100)];
    let other = client(3);
    for handle in [&one, &two] {
        bench.subscribe("$share/g/t/+", handle, Options { id: 5, ..options(1) });
    }
    bench.subscribe("$share/h/t/a", &other, options(2));
    bench.subscribe("t/a", &one, options(0));
    bench.publish("t/a", 1);
    bench.publish("t/b", 1);
    assert_eq!((got(&one, bench.now).len(), got(&two, bench.now).len(), got(&other, bench.now).len()), (2, 1, 1));
    // One has room for two only; the others take the rest. Whoever is away gets nothing while somebody is here.
    (0..10).for_each(|_| bench.publish("t/b", 1));
    assert_eq!((got(&one, bench.now).len(), got(&two, bench.now).len()), (2, 8));
    two.lock().session.detach();
    (0..2).for_each(|_| bench.publish("t/b", 1));
    assert_eq!(got(&one, bench.now), ["t/b 1 [5]", "t/b 1 [5]"]);
    // What one has not acknowledged goes to the other, which waits for it though it is away.
    let moved = one.lock().session.take_shared(Some("$share/g/t/+"));
    assert!(!bench.all.has_other_member("$share/g/t/+", 1) && bench.all.has_other_member("$share/g/t/+", 2));
    moved.into_iter().for_each(|delivery| bench.all.pass_on(delivery, 1));
    two.lock().session.attach(100);
    assert!(got(&two, bench.now).len() > 2);
    assert_eq!(bench.metrics.messages_dropped.get(), 0);
    assert!(bench.all.unsubscribe(1, "$share/g/t/+") && bench.all.unsubscribe(2, "$share/g/t/+"));
    bench.publish("t/b", 1);
    assert!(got(&one, bench.now).is_empty() && got(&two, bench.now).is_empty());
}

#[test]
fn the_generation_and_the_filters_below_a_level_are_known() {
    let bench = Bench::new();
    let (one, two) = (client(1), client(2));
    let before = bench.all.generation();
    bench.subscribe("text/a/+", &one, options(0));
    bench.subscribe("$share/g/text/#", &two, options(0));
    bench.subscribe("+/x", &two, options(0));
    bench.subscribe("other/#", &two, options(0));
    let after = bench.all.generation();
    assert_ne!(before, after);
    let mut below = bench.all.filters_below("text");
    below.sort_unstable();
    assert_eq!(below, ["+/x", "text/#", "text/a/+"]);
    assert!(bench.all.filters_below("$SYS").is_empty());
    assert!(!bench.all.unsubscribe(1, "none") && bench.all.generation() == after);
    assert!(bench.all.unsubscribe(1, "text/a/+") && bench.all.generation() != after);
    assert_eq!(bench.all.filters_below("text").len(), 2);
}
