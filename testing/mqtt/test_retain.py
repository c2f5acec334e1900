"""Retained messages (3.3.1.3)."""

from broker import equal, test, true, wait
from wire import Will


@test(spec="MQTT-3.3.1-5, MQTT-3.3.1-8")
def a_new_subscriber_gets_it(t):
    for qos in range(3):
        t.retain(t.topic(str(qos)), f"kept {qos}", qos)
    c = t.client()
    for qos in range(3):
        c.subscribe(t.topic(str(qos)), 2)
        got = c.message()
        equal((got.payload.decode(), got.qos, got.retain, got.dup), (f"kept {qos}", qos, 1, 0), "payload, QoS, flags")


@test(spec="MQTT-3.8.4-8, 3.3.1.3")
def its_quality_is_lowered_to_what_was_granted(t):
    t.retain(t.topic(), b"kept", 2)
    for qos in range(3):
        c = t.client()
        c.subscribe(t.topic(), qos)
        equal(c.message().qos, qos, "QoS")


@test(spec="MQTT-3.3.1-5")
def the_last_one_counts(t):
    for payload in (b"1", b"2", b"3"):
        t.retain(t.topic(), payload)
    c = t.client()
    c.subscribe([(t.topic(), 1), (t.name + "mark", 1)])
    equal([got.payload for got in c.until(t.name + "mark")], [b"3"], "messages")


@test(spec="MQTT-3.3.1-6, MQTT-3.3.1-7 (5.0); MQTT-3.3.1-10, MQTT-3.3.1-11 (3.1.1)")
def an_empty_one_takes_it_away(t):
    t.retain(t.topic(), b"kept")
    live = t.client()
    live.subscribe(t.topic(), 1)
    live.message()
    t.helper().publish(t.topic(), b"", 1, retain=True)
    equal((live.message().payload), b"", "the empty message itself")
    c = t.client()
    c.subscribe([(t.topic(), 1), (t.name + "mark", 1)])
    equal(c.until(t.name + "mark"), [], "messages")


@test(spec="MQTT-3.3.1-8 (5.0), MQTT-3.3.1-12 (3.1.1)")
def a_message_without_the_flag_changes_nothing(t):
    t.retain(t.topic(), b"kept")
    t.helper().publish(t.topic(), b"plain", 1)
    t.helper().publish(t.topic(), b"", 1)
    c = t.client()
    c.subscribe([(t.topic(), 1), (t.name + "mark", 1)])
    equal([got.payload for got in c.until(t.name + "mark")], [b"kept"], "messages")


@test(spec="MQTT-3.3.1-9 (3.1.1), MQTT-3.3.1-12 (5.0)")
def those_who_listen_already_see_no_flag(t):
    c = t.client()
    c.subscribe(t.topic(), 1)
    t.retain(t.topic(), b"kept")
    got = c.message()
    equal((got.payload, got.retain), (b"kept", 0), "payload and flag")


@test(spec="MQTT-3.3.1-6 (3.1.1), MQTT-3.3.1-9 (5.0)")
def subscribing_again_brings_it_again(t):
    t.retain(t.topic(), b"kept")
    c = t.client()
    for _ in range(3):
        c.subscribe(t.topic(), 1)
        got = c.message()
        equal((got.payload, got.retain), (b"kept", 1), "payload and flag")


@test(spec="3.3.1.3, 4.7")
def wildcards_find_them_all(t):
    names = ["a", "a/b", "a/b/c", "d", "d/b"]
    for name in names:
        t.retain(t.topic(name), name)
    for each, wanted in (("#", names), ("+", ["a", "d"]), ("+/b", ["a/b", "d/b"]), ("a/#", ["a", "a/b", "a/b/c"])):
        c = t.client()
        c.subscribe([(t.topic(each), 1), (t.name + "mark", 1)])
        got = c.until(t.name + "mark")
        equal(sorted(message.payload.decode() for message in got), wanted, f"retained messages for {each!r}")
        true(all(message.retain for message in got), "retain flags")


@test(spec="3.3.1.3")
def it_outlives_its_publisher(t):
    c = t.client()
    t.retained.add(t.topic())
    c.publish(t.topic(), b"kept", 1, retain=True)
    c.disconnect()
    c = t.client()
    c.subscribe(t.topic(), 1)
    equal(c.message().payload, b"kept", "message")


@test(5, spec="3.3.2.3.3")
def it_expires(t):
    t.retain(t.topic("a"), b"soon", props={"message_expiry": 1})
    t.retain(t.topic("b"), b"later", props={"message_expiry": 60})
    wait(2.2)
    c = t.client()
    c.subscribe([(t.topic("#"), 1), (t.name + "mark", 1)])
    got = c.until(t.name + "mark")
    equal([each.payload for each in got], [b"later"], "messages")
    true(55 <= got[0].props["message_expiry"] <= 58, f"expiry {got[0].props['message_expiry']} after 2 s of 60")


@test(5, spec="3.3.2.3")
def its_properties_are_kept(t):
    props = {"content_type": "a", "user": [("x", "1"), ("x", "2")], "correlation_data": b"\x00", "payload_format": 1}
    t.retain(t.topic(), b"kept", props=props)
    c = t.client()
    c.subscribe(t.topic(), 1)
    equal(c.message().props, props, "properties")


@test(spec="MQTT-3.1.2-15 (5.0), MQTT-3.1.2-17 (3.1.1)")
def a_will_may_be_retained(t):
    t.retained.add(t.topic())
    watcher = t.client()
    watcher.subscribe(t.topic(), 1)
    t.client(will=Will(t.topic(), b"died", 1, True)).drop()
    equal(watcher.message().retain, 0, "flag for those who listen")
    c = t.client()
    c.subscribe(t.topic(), 1)
    got = c.message()
    equal((got.payload, got.retain), (b"died", 1), "payload and flag")


@test(spec="3.3.1.3")
def a_subscription_by_two_filters_in_one_packet(t):
    t.retain(t.topic("a"), b"kept")
    c = t.client()
    c.subscribe([(t.topic("a"), 1), (t.topic("+"), 0), (t.name + "mark", 1)])
    got = c.until(t.name + "mark")
    true(1 <= len(got) <= 2 and all(each.payload == b"kept" for each in got), f"messages: {got}")
