use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use wholegrain_transport::mqtt::{Properties, Property, topic_matches, valid_filter};

use super::*;

const ROOM: RetainedBounds =
    RetainedBounds { messages_max: 10, bytes_max: 1 << 20, client_messages_max: 4, client_bytes_max: 4096 };
const WIDE: RetainedBounds = RetainedBounds {
    messages_max: 1 << 20,
    bytes_max: 1 << 30,
    client_messages_max: 1 << 20,
    client_bytes_max: 1 << 30,
};
const SCHEMA: SchemaHash = SchemaHash([1; 16]);

fn put(
    all: &mut RetainedMessages,
    owner: &str,
    topic: &str,
    payload: &'static str,
    expiry_s: Option<u32>,
) -> Result<RetainOutcome, RetainError> {
    put_at(all, owner, topic, payload, expiry_s, Instant::now(), None)
}

fn put_at(
    all: &mut RetainedMessages,
    owner: &str,
    topic: &str,
    payload: &'static str,
    expiry_s: Option<u32>,
    at: Instant,
    schema: Option<SchemaHash>,
) -> Result<RetainOutcome, RetainError> {
    let properties = Properties(expiry_s.into_iter().map(Property::MessageExpiryInterval).collect());
    let (payload, properties) = (&Bytes::from_static(payload.as_bytes()), &properties);
    let publication = Publication { topic, payload, qos: QoS::AtLeastOnce, retain: true, properties, at };
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    all.put((!owner.is_empty()).then_some(owner), &publication, schema, number)
}

/// All that match, in parts of so much work; and the work.
fn matching(all: &RetainedMessages, filter: &str, work_max: usize) -> (Vec<String>, usize) {
    let (mut topics, mut work, mut after) = (Vec::new(), 0, None);
    loop {
        let scanned = all.matching(filter, after.as_ref(), work_max);
        topics.extend(scanned.found.iter().map(|kept| kept.topic().to_string()));
        work += scanned.work;
        assert!(after.is_none() || scanned.more_after != after, "it gets on: {filter} behind {after:?}");
        after = scanned.more_after;
        if after.is_none() {
            return (topics, work);
        }
    }
}

/// What is counted is what there is.
#[track_caller]
fn check_counts(all: &RetainedMessages) {
    let counted = all.by_topic.values().filter(|kept| kept.schema.is_none() && kept.owner.is_some());
    let sizes: Vec<usize> = counted.map(|kept| kept.message.size()).collect();
    assert_eq!((all.messages, all.bytes), (sizes.len(), sizes.iter().sum()));
    let schemas = all.by_topic.values().filter(|kept| kept.schema.is_some()).count();
    assert_eq!(all.schemas, schemas);
    let (messages, bytes, of_owners) = all.owners.values().fold((0, 0, 0), |(messages, bytes, schemas), usage| {
        assert!(!usage.is_empty());
        (messages + usage.messages, bytes + usage.bytes, schemas + usage.schemas.len())
    });
    assert_eq!((messages, bytes, of_owners), (all.messages, all.bytes, schemas));
    assert_eq!(all.expiring.len(), all.by_topic.values().filter(|kept| kept.message.expiry_s.is_some()).count());
}

/// All texts of up to four of these pieces.
fn texts(pieces: &[&str]) -> Vec<String> {
    let mut texts: Vec<String> = vec![String::new()];
    let mut begin = 0;
    for _ in 0..4 {
        let end = texts.len();
        for at in begin..end {
            texts.extend(pieces.iter().map(|piece| format!("{}{piece}", texts[at])).collect::<Vec<_>>());
        }
        begin = end;
    }
    texts.sort_unstable();
    texts.dedup();
    texts.retain(|text| !text.is_empty());
    texts
}

#[test]
fn scans_match_the_definition_in_order_and_in_parts() {
    // `!` stands before the slash and `0` behind it: levels that begin alike stand among what is below them.
    let topics = texts(&["a", "/", "!", "0", "$x"]);
    let filters: Vec<String> =
        texts(&["a", "/", "!", "+", "#", "$x"]).into_iter().filter(|f| valid_filter(f)).collect();
    let mut all = RetainedMessages::new(WIDE);
    topics.iter().for_each(|topic| assert!(put(&mut all, "n1", topic, "1", None).is_ok()));
    assert!(topics.len() > 500 && filters.len() > 300, "{} {}", topics.len(), filters.len());
    for filter in &filters {
        let expected: Vec<&String> = topics.iter().filter(|topic| topic_matches(filter, topic)).collect();
        for work_max in [1, 7, usize::MAX] {
            assert_eq!(matching(&all, filter, work_max).0.iter().collect::<Vec<_>>(), expected, "{filter} {work_max}");
        }
    }
}

/// Of 60,000 messages: what is looked at grows with what is found and with the devices that have to be jumped over, not with
/// everything that is there.
#[test]
fn work_is_proportional_to_matches() {
    let mut all = RetainedMessages::new(WIDE);
    for device in 0..100 {
        for metric in 0..600 {
            put(&mut all, "n1", &format!("site/d{device:03}/m{metric}"), "1", None).unwrap();
        }
    }
    for (filter, found, work_max) in [
        ("site/d007/m3", 1, 12),
        ("site/d007/+", 600, 620),
        ("site/d007/#", 600, 620),
        ("site/+/m3", 100, 600),
        ("site/+/none", 0, 600),
        ("other/#", 0, 6),
        ("+/+/+/+", 0, 60_100),
        ("+/d099/m1", 1, 12),
        ("none/+/none/+", 0, 4),
        ("site/none", 0, 4),
    ] {
        let (topics, work) = matching(&all, filter, usize::MAX);
        println!("{filter}: {} found with {work}", topics.len());
        assert_eq!(topics.len(), found, "{filter}");
        assert!(work <= work_max, "{filter}: {work} looked at");
    }
    // A part is as long as its bound says, and long topics count more.
    assert_eq!(all.matching("#", None, 100).found.len(), 100);
    let long = "x".repeat(60_000);
    put(&mut all, "n1", &long, "1", None).unwrap();
    assert!(all.matching(&long, None, usize::MAX).work > 200);
}

#[test]
fn one_client_cannot_take_the_room_of_others() {
    let mut all = RetainedMessages::new(ROOM);
    for topic in ["1", "2", "3", "4"] {
        put(&mut all, "a", topic, "x", None).unwrap();
    }
    assert_eq!(put(&mut all, "a", "5", "x", None), Err(RetainError::Client));
    // In the place of an own message there is room, and a refused one takes nothing away.
    put(&mut all, "a", "4", "y", None).unwrap();
    put(&mut all, "b", "5", "x", None).unwrap();
    assert_eq!(put(&mut all, "a", "5", "x", None), Err(RetainError::Client), "it is b's");
    assert_eq!(matching(&all, "#", 9).0, ["1", "2", "3", "4", "5"]);
    put(&mut all, "a", "1", "", None).unwrap();
    put(&mut all, "a", "5", "x", None).unwrap();
    check_counts(&all);
    // Bytes count as messages do.
    let large: &'static str = Box::leak("x".repeat(4000).into_boxed_str());
    assert_eq!(put(&mut all, "a", "5", large, None), Err(RetainError::Client));
    assert!(
        put(&mut all, "b", "6", "x", None).is_ok() && put(&mut all, "b", "7", large, None) == Err(RetainError::Client)
    );
    // All together: the server's own never count.
    for (owner, topic) in [("b", "8"), ("b", "9"), ("c", "10"), ("c", "11")] {
        put(&mut all, owner, topic, "x", None).unwrap();
    }
    assert_eq!(all.messages, 9);
    put(&mut all, "c", "13", "x", None).unwrap();
    assert_eq!(put(&mut all, "d", "14", "x", None), Err(RetainError::All));
    assert!(put(&mut all, "", "$SYS/x", "x", None).is_ok());
    put(&mut all, "d", "13", "x", None).unwrap();
    check_counts(&all);
    for topic in all.by_topic.keys().cloned().collect::<Vec<_>>() {
        assert!(all.remove(&topic));
    }
    assert!(all.owners.is_empty());
    check_counts(&all);
}

/// Twenty thousand clients, each with some messages, that take them away again: nothing is left, not even room for them.
#[test]
fn memory_of_a_burst_of_clients_is_released() {
    let mut all = RetainedMessages::new(WIDE);
    let topics = || (0..20_000).flat_map(|client| (0..3).map(move |number| (format!("c{client}"), number)));
    for (client, number) in topics() {
        put(&mut all, &client, &format!("burst/{client}/{number}"), "x", (number == 1).then_some(100)).unwrap();
    }
    let room = all.owners.capacity();
    for (client, number) in topics() {
        put(&mut all, &client, &format!("burst/{client}/{number}"), "", None).unwrap();
    }
    check_counts(&all);
    assert!(all.by_topic.is_empty() && all.expiring.is_empty() && all.owners.is_empty());
    assert!(all.owners.capacity() * 100 < room, "room for {} of {room} clients", all.owners.capacity());
}

#[test]
fn schemas_have_a_separate_limit_and_the_oldest_is_dropped() {
    let (mut all, now) = (RetainedMessages::new(ROOM), Instant::now());
    for topic in ["1", "2", "3", "4"] {
        put(&mut all, "a", topic, "x", None).unwrap();
    }
    for group in 0..SCHEMAS_PER_CLIENT_MAX + 3 {
        let topic = format!("schema/a/job/{group}");
        let put = put_at(&mut all, "a", &topic, "s", None, now, Some(SCHEMA)).unwrap();
        assert_eq!(put.removed, group >= SCHEMAS_PER_CLIENT_MAX);
    }
    // One that is announced again is the newest.
    put_at(&mut all, "a", "schema/a/job/3", "s", None, now, Some(SCHEMA)).unwrap();
    put_at(&mut all, "a", "schema/a/job/x", "s", None, now, Some(SCHEMA)).unwrap();
    let (kept, _) = matching(&all, "schema/a/#", 99);
    assert_eq!(kept.len(), SCHEMAS_PER_CLIENT_MAX);
    for (topic, is_there) in [("schema/a/job/3", true), ("schema/a/job/4", false), ("schema/a/job/x", true)] {
        assert_eq!(kept.iter().any(|own| own == topic), is_there, "{topic}");
    }
    put_at(&mut all, "b", "schema/b/1", "s", None, now, Some(SCHEMA)).unwrap();
    check_counts(&all);
    // A topic that was a schema's may become an ordinary message's, which counts as one.
    assert_eq!(put(&mut all, "a", "schema/a/job/3", "x", None), Err(RetainError::Client));
    put(&mut all, "b", "schema/b/1", "x", None).unwrap();
    check_counts(&all);
}

#[test]
fn expired_messages_are_found_without_a_scan() {
    let (mut all, now) = (RetainedMessages::new(WIDE), Instant::now());
    for i in 0..3000 {
        put_at(&mut all, "a", &format!("t/{i}"), "x", Some(1 + i % 3), now, None).unwrap();
    }
    put_at(&mut all, "a", "t/0", "x", None, now, None).unwrap();
    assert!(!all.has_expired(now));
    let later = now + Duration::from_secs(2);
    let mut gone = Vec::new();
    while all.has_expired(later) {
        gone.push(all.purge(later));
    }
    assert_eq!(gone, [PURGED_AT_ONCE_MAX, 1999 - PURGED_AT_ONCE_MAX]);
    check_counts(&all);
    assert_eq!(all.count(), 1001);
}
