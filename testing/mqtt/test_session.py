"""Sessions: the state that the broker keeps between connections, and redelivery (3.1.2.4, 3.1.2.11.2, 4.1, 4.3, 4.4)."""

import wire
from broker import equal, test, true, wait
from wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Will


def begin(t, qos=2, **rest):
    """A persistent session with one subscription."""
    c = t.session("s" + t.name, **rest)
    c.subscribe(t.topic(), qos)
    return c


def resume(t, **rest):
    return t.session("s" + t.name, **{"present": True} | rest)


@test(spec="MQTT-3.2.2-2, MQTT-3.2.2-3, MQTT-3.1.2-4 to 3.1.2-6")
def session_present(t):
    t.session("p" + t.name, present=False).disconnect()
    t.session("p" + t.name, present=True).drop()
    t.session("p" + t.name, present=True).disconnect()
    t.client("p" + t.name, present=False).disconnect()
    # The clean session replaced it and left none.
    t.session("p" + t.name, present=False).disconnect()


@test(spec="3.1.2.4, 4.1")
def subscriptions_are_kept(t):
    begin(t).disconnect()
    c = resume(t)
    for qos in range(3):
        t.helper().publish(t.topic(), f"{qos}", qos)
        equal(c.message().qos, qos, "QoS")


@test(spec="MQTT-3.1.2-4 (5.0), MQTT-3.1.2-6 (3.1.1)")
def a_clean_start_ends_subscriptions_and_queue(t):
    begin(t).disconnect()
    t.helper().publish(t.topic(), b"queued", 1)
    c = t.client("s" + t.name, present=False)
    t.helper().publish(t.topic(), b"live", 1)
    c.subscribe(t.topic("mark"), 1)
    equal(c.until(t.topic("mark")), [], "messages")


@test(spec="MQTT-3.1.2-5 (3.1.1), 4.1")
def messages_wait_for_an_absent_client(t):
    begin(t).disconnect()
    for number in range(20):
        t.helper().publish(t.topic(), str(number), 1 + number % 2)
    got = resume(t).messages(20)
    equal([each.qos for each in got], [1 + number % 2 for number in range(20)], "QoS")
    for parity in (0, 1):
        numbers = [int(each.payload) for each in got if int(each.payload) % 2 == parity]
        equal(numbers, list(range(parity, 20, 2)), "order")


@test(spec="4.1")
def messages_wait_after_the_network_failed(t):
    begin(t).drop()
    wait(0.1)
    t.helper().publish(t.topic(), b"meanwhile", 1)
    equal(resume(t).message().payload, b"meanwhile", "message")


@test(spec="3.1.2.4")
def what_was_acknowledged_is_not_sent_again(t):
    c = begin(t)
    for qos in (1, 2):
        t.helper().publish(t.topic(), f"{qos}", qos)
    c.messages(2)
    c.disconnect()
    equal(resume(t).until(t.topic()), [], "messages")


@test(spec="MQTT-4.4.0-1, MQTT-3.3.1-1")
def qos_1_is_sent_again_after_a_reconnect(t):
    c = begin(t, 1)
    t.helper().publish(t.topic(), b"again", 1)
    first = c.next_message()
    c.drop()
    for _ in range(2):
        c = resume(t)
        again = c.next_message()
        equal((again.payload, again.pid, again.dup), (b"again", first.pid, 1), "payload, identifier, DUP")
        c.drop()
    c = resume(t)
    c.message()
    c.ping()
    c.drop()
    equal(resume(t).until(t.topic()), [], "messages")


@test(spec="MQTT-4.4.0-1, MQTT-4.3.3-1 to 4.3.3-8")
def qos_2_survives_a_reconnect_at_each_step_to_the_client(t):
    c = begin(t)
    t.helper().publish(t.topic(), b"exactly once", 2)
    first = c.next_message()
    equal((first.qos, first.dup), (2, 0), "QoS and DUP")
    c.drop()
    c = resume(t)
    again = c.next_message()
    equal((again.payload, again.pid, again.dup), (b"exactly once", first.pid, 1), "payload, identifier, DUP")
    c.send(wire.ack(t.v, PUBREC, again.pid))
    equal(c.expect(PUBREL).pid, first.pid, "PUBREL")
    c.drop()
    c = resume(t)
    following = c.receive()
    equal((following.kind, following.pid), (PUBREL, first.pid), "what follows a received PUBREC")
    c.send(wire.ack(t.v, PUBCOMP, first.pid))
    c.ping()
    c.drop()
    equal(resume(t).until(t.topic()), [], "messages")


@test(spec="MQTT-4.3.3-2 (3.1.1), MQTT-4.3.3-9 to 4.3.3-13 (5.0), MQTT-4.4.0-1")
def qos_2_survives_a_reconnect_at_each_step_from_the_client(t):
    listener = t.client()
    listener.subscribe(t.topic(), 2)
    c = t.session("q" + t.name)
    again = {"present": True}
    c.start(t.topic(), b"exactly once", 2, pid=5)
    c.expect(PUBREC, pid=5)
    c.drop()
    c = t.session("q" + t.name, **again)
    c.start(t.topic(), b"exactly once", 2, pid=5, dup=True)
    c.expect(PUBREC, pid=5)
    c.send(wire.ack(t.v, PUBREL, 5))
    c.expect(PUBCOMP, pid=5)
    c.drop()
    c = t.session("q" + t.name, **again)
    c.send(wire.ack(t.v, PUBREL, 5))
    c.expect(PUBCOMP, pid=5)
    equal([got.payload for got in listener.until(t.topic())], [b"exactly once"], "messages")


@test(spec="MQTT-4.6.0-1, MQTT-4.4.0-1")
def what_is_sent_again_keeps_its_order(t):
    c = begin(t, 1)
    for number in range(12):
        t.helper().publish(t.topic(), str(number), 1)
    seen = [c.next_message() for _ in range(3)]
    c.send(wire.ack(t.v, PUBACK, seen[0].pid))
    c.ping()
    c.drop()
    got = resume(t).until(t.topic())
    equal([int(each.payload) for each in got], list(range(1, 12)), "order")
    equal([each.dup for each in got[:2]], [1, 1], "DUP of what was sent before")


@test(spec="3.1.4-3, 4.1")
def takeover_of_a_session(t):
    a = begin(t)
    t.helper().publish(t.topic(), b"unacknowledged", 1)
    first = a.next_message()
    b = resume(t)
    a.gone([0x8E])
    again = b.next_message()
    equal((again.payload, again.pid, again.dup), (b"unacknowledged", first.pid, 1), "payload, identifier, DUP")
    b.acknowledge(again)
    t.helper().publish(t.topic(), b"live", 2)
    equal(b.message().payload, b"live", "message")


@test(spec="4.1")
def subscriptions_of_a_session_can_be_changed_later(t):
    c = begin(t, 1)
    c.disconnect()
    c = resume(t)
    c.unsubscribe(t.topic())
    c.subscribe(t.topic("b"), 1)
    c.disconnect()
    t.helper().publish(t.topic(), b"old", 1)
    t.helper().publish(t.topic("b"), b"new", 1)
    equal([got.payload for got in resume(t).until(t.topic("b"))], [b"new"], "messages")


@test(spec="4.1")
def a_long_queue_keeps_its_order(t):
    begin(t, 1).disconnect()
    sender = t.helper()
    for number in range(300):
        sender.start(t.topic(), str(number), 1)
        if number % 10 == 9:
            for _ in range(10):
                sender.expect(PUBACK)
    c = resume(t, props={"receive_maximum": 7} if t.v == 5 else None)
    got = [int(each.payload) for each in c.until(t.topic())]
    equal(got, sorted(set(got)), "order")
    true(len(got) >= 100, f"{len(got)} of 300 messages were kept")


@test(5, spec="3.1.2.11.2, 3.14.2.2.2")
def session_expiry_0_and_none(t):
    for props in (None, {"session_expiry": 0}):
        t.client("e" + t.name, clean=False, props=props, present=False).disconnect()
    t.client("e" + t.name, clean=False, present=False).disconnect()


@test(5, spec="MQTT-3.1.2-23, MQTT-4.1.0-2")
def session_expiry_in_seconds(t):
    t.session("e" + t.name, expiry=1).disconnect()
    t.session("e" + t.name, expiry=1, present=True).drop()
    wait(2.5)
    t.session("e" + t.name, expiry=1, present=False).disconnect()


@test(5, spec="3.1.2.11.2")
def session_expiry_never(t):
    t.session("e" + t.name, expiry=0xFFFFFFFF).disconnect()
    c = t.session("e" + t.name, expiry=0xFFFFFFFF, present=True)
    granted = c.connack.props.get("session_expiry", 0xFFFFFFFF)
    true(granted > 0, "no session at all")
    c.disconnect(0, {"session_expiry": 0})


@test(5, spec="3.14.2.2.2")
def session_expiry_changed_by_disconnect(t):
    t.session("e" + t.name, expiry=1).disconnect(0, {"session_expiry": 60})
    wait(2.2)
    t.session("e" + t.name, expiry=60, present=True).disconnect(0, {"session_expiry": 0})
    t.session("e" + t.name, expiry=60, present=False).disconnect(0, {"session_expiry": 0})


@test(5, spec="MQTT-3.14.2-2 (3.14.2.2.2)")
def session_expiry_cannot_begin_at_disconnect(t):
    c = t.client("e" + t.name)
    c.send(wire.disconnect(5, 0, {"session_expiry": 60}))
    c.gone([0x82])


@test(5, spec="3.1.2.4, 3.1.2.11.2")
def clean_start_with_expiry_begins_a_session(t):
    t.session("e" + t.name, clean=True, present=False).subscribe(t.topic(), 1)
    t.session("e" + t.name, clean=False, present=True).disconnect()
    t.session("e" + t.name, clean=True, present=False).disconnect()


@test(5, spec="3.1.2.11.2")
def the_last_expiry_counts(t):
    t.session("e" + t.name, expiry=60).disconnect()
    t.client("e" + t.name, clean=False, present=True).disconnect()
    t.client("e" + t.name, clean=False, present=False).disconnect()


@test(spec="4.1")
def an_expired_session_hears_nothing(t):
    if t.v == 4:
        t.client("s" + t.name).subscribe(t.topic(), 1)
    else:
        begin(t, expiry=1).drop()
        wait(2.5)
    t.helper().publish(t.topic(), b"too late", 1)
    c = t.session("s" + t.name, present=False)
    c.subscribe(t.topic("mark"), 1)
    equal(c.until(t.topic("mark")), [], "messages")


@test(spec="3.1.2.5")
def a_will_is_not_part_of_the_session(t):
    watcher = t.client()
    watcher.subscribe(t.topic("will"), 1)
    t.session("w" + t.name, will=Will(t.topic("will"), b"first", 1)).disconnect()
    t.session("w" + t.name, present=True).drop()
    equal(watcher.until(t.topic("will")), [], "wills")


@test(5, spec="4.9, 3.1.2.11.3")
def receive_maximum_is_of_the_connection(t):
    c = begin(t, 1, props={"receive_maximum": 1})
    for number in range(4):
        t.helper().publish(t.topic(), str(number), 1)
    c.next_message()
    c.quiet()
    c.drop()
    c = resume(t, props={"receive_maximum": 3})
    held = [c.next_message() for _ in range(3)]
    c.quiet()
    for got in held:
        c.acknowledge(got)
    c.message()


@test(spec="4.1, 3.1.2.4")
def a_311_session_goes_on_in_5_and_back(t):
    other = 9 - t.v
    begin(t, 1).disconnect()
    t.helper().publish(t.topic(), b"queued", 1)
    c = t.session("s" + t.name, v=other, present=True)
    equal(c.message().payload, b"queued", "message")
    c.disconnect()
    resume(t).disconnect()


@test(spec="3.1.2.4")
def qos_0_does_not_disturb_a_kept_session(t):
    begin(t).disconnect()
    t.helper().publish(t.topic(), b"zero", 0)
    t.helper().publish(t.topic(), b"one", 1)
    got = [each.payload for each in resume(t).until(t.topic())]
    true(got in ([b"one"], [b"zero", b"one"]), f"messages: {got}")


@test(5, spec="MQTT-3.3.4-3, 4.1")
def subscription_identifiers_are_kept(t):
    c = t.session("s" + t.name)
    c.subscribe(t.topic(), 1, props={"subscription_id": 42})
    c.disconnect()
    t.helper().publish(t.topic(), b"queued", 1)
    c = resume(t)
    equal(c.message().props.get("subscription_id"), [42], "identifier of a queued message")
    t.helper().publish(t.topic(), b"live", 1)
    equal(c.message().props.get("subscription_id"), [42], "identifier of a live message")
