"""Wills (3.1.2.5, 3.1.3.2, 3.14.4)."""

import time

import wire
from broker import equal, test, true, wait
from wire import Silent, Will


def watcher(t, qos=2):
    c = t.client()
    c.subscribe(t.topic("will"), qos)
    return c


@test(spec="MQTT-3.1.2-8")
def published_when_the_network_fails(t):
    w = watcher(t)
    for qos in range(3):
        t.client(will=Will(t.topic("will"), f"died {qos}", qos)).drop()
        got = w.message()
        equal((got.payload.decode(), got.qos, got.retain), (f"died {qos}", qos, 0), "payload, QoS, flag")


@test(spec="MQTT-3.1.2-8")
def published_when_the_client_closes_without_a_word(t):
    w = watcher(t)
    t.client(will=Will(t.topic("will"), b"", 1)).link.close()
    equal(w.message().payload, b"", "an empty will")


@test(spec="MQTT-3.1.2-10, MQTT-3.14.4-3")
def not_published_after_disconnect(t):
    w = watcher(t)
    t.client(will=Will(t.topic("will"), b"no", 1)).disconnect()
    equal(w.until(t.topic("will")), [], "wills")


@test(5, spec="3.14.2.1")
def published_after_disconnect_with_will(t):
    w = watcher(t)
    t.client(will=Will(t.topic("will"), b"as wished", 1)).disconnect(4)
    equal(w.message().payload, b"as wished", "will")


@test(spec="MQTT-3.1.2-8")
def published_after_a_protocol_error(t):
    w = watcher(t)
    c = t.client(will=Will(t.topic("will"), b"erred", 1))
    c.send(b"\x36\x05\x00\x01a\x00\x01")
    c.gone()
    equal(w.message().payload, b"erred", "will")


@test(spec="MQTT-3.1.2-8, 3.1.4")
def published_when_replaced(t):
    w = watcher(t)
    a = t.client("w" + t.name, will=Will(t.topic("will"), b"taken", 1))
    t.client("w" + t.name)
    a.gone([0x8E])
    equal(w.message().payload, b"taken", "will")


@test(spec="3.1.2.5")
def published_once(t):
    w = watcher(t)
    t.client(will=Will(t.topic("will"), b"once", 2)).drop()
    w.message()
    equal(w.until(t.topic("will")), [], "more wills")


@test(spec="3.1.2.5")
def the_will_of_the_latest_connect_counts(t):
    w = watcher(t)
    t.client("w" + t.name, will=Will(t.topic("will"), b"old", 1)).disconnect()
    t.client("w" + t.name, will=Will(t.topic("will"), b"new", 1)).drop()
    equal(w.message().payload, b"new", "will")
    equal(w.until(t.topic("will")), [], "more wills")


@test(spec="3.1.2.5")
def waits_in_a_session(t):
    t.session("l" + t.name).subscribe(t.topic("will"), 1)
    t.session("l" + t.name, present=True).disconnect()
    t.client(will=Will(t.topic("will"), b"died", 1)).drop()
    wait(0.2)
    equal(t.session("l" + t.name, present=True).message().payload, b"died", "will")


@test(spec="3.1.3.4")
def a_large_will(t):
    w = watcher(t)
    t.client(will=Will(t.topic("will"), b"w" * 30_000, 1)).drop()
    equal(len(w.message().payload), 30_000, "bytes")


@test(5, spec="3.1.3.2")
def its_properties_arrive(t):
    w = watcher(t)
    props = {
        "payload_format": 1, "content_type": "text/plain", "response_topic": t.topic("r"), "correlation_data": b"\x00c",
        "user": [("a", "1"), ("a", "2")],
    }
    t.client(will=Will(t.topic("will"), b"died", 1, False, props | {"message_expiry": 60})).drop()
    got = w.message()
    true(58 <= got.props.pop("message_expiry", 0) <= 60, "expiry")
    equal(got.props, props, "properties")


@test(5, spec="MQTT-3.1.3-9, 3.1.3.2.2")
def delayed(t):
    w = watcher(t)
    will = Will(t.topic("will"), b"late", 1, False, {"will_delay": 1})
    t.session("d" + t.name, will=will).drop()
    start = time.monotonic()
    equal(w.message().payload, b"late", "will")
    true(time.monotonic() - start >= 0.8, "published before its delay")


@test(5, spec="MQTT-3.1.3-9")
def not_published_when_the_client_is_back_in_time(t):
    w = watcher(t)
    will = Will(t.topic("will"), b"no", 1, False, {"will_delay": 1})
    t.session("d" + t.name, will=will).drop()
    wait(0.2)
    t.session("d" + t.name, present=True).ping()
    w.quiet(2)


@test(5, spec="MQTT-3.1.2-8, 3.1.3.2.2")
def published_when_the_session_ends_before_the_delay(t):
    w = watcher(t)
    will = Will(t.topic("will"), b"session over", 1, False, {"will_delay": 600})
    t.session("d" + t.name, expiry=1, will=will).drop()
    equal(w.message(8).payload, b"session over", "will")
    t.client("e" + t.name, will=will).drop()
    equal(w.message(3).payload, b"session over", "will of a client without a session")


@test(5, spec="MQTT-3.1.2-8, 3.1.4")
def published_when_a_clean_start_ends_the_session(t):
    w = watcher(t)
    will = Will(t.topic("will"), b"ended", 1, False, {"will_delay": 600})
    t.session("d" + t.name, will=will).drop()
    wait(0.2)
    t.client("d" + t.name, clean=True, present=False)
    equal(w.message(3).payload, b"ended", "will")


@test(spec="MQTT-3.1.2-8")
def not_published_for_a_refused_client(t):
    w = watcher(t)
    c = t.open()
    c.send(wire.connect(t.v, t.name, will=Will(t.topic("will"), b"no", 1), name="MQTX"))
    try:
        c.gone()
    except (AssertionError, Silent):
        pass
    equal(w.until(t.topic("will")), [], "wills")
