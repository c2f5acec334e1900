"""PUBLISH and its acknowledgements: QoS, order, flags, text, properties, aliases, flow control (3.3 to 3.7, 4)."""

import wire
from broker import each_closes, equal, test, true, wait
from wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Silent

MALFORMED = (0x81, 0x82)


@test(spec="MQTT-3.8.4-8, MQTT-4.3.1-1, MQTT-4.3.2-1, MQTT-4.3.3-1")
def every_quality_to_every_quality(t):
    sender = t.client()
    for granted in range(3):
        c = t.client()
        c.subscribe(t.topic(str(granted)), granted)
        for qos in range(3):
            sender.publish(t.topic(str(granted)), f"{qos} to {granted}", qos)
            got = c.message()
            equal((got.payload.decode(), got.qos), (f"{qos} to {granted}", min(qos, granted)), "message and QoS")
            equal((got.topic, got.retain, got.dup), (t.topic(str(granted)), 0, 0), "topic and flags")


@test(spec="3.3.3")
def payloads_of_many_sizes(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    for size in (0, 1, 113, 127, 128, 16383, 16384, 200_000):
        for qos in range(3):
            payload = bytes(i * 7 % 256 for i in range(size))
            t.helper().publish(t.topic(), payload, qos)
            got = c.message()
            true(got.payload == payload, f"{size} bytes with QoS {qos} came as {len(got.payload)}")


@test(spec="MQTT-4.6.0-1 to 4.6.0-6")
def order(t):
    sender = t.client()
    for qos in range(3):
        c = t.client()
        c.subscribe(t.topic(str(qos)), qos)
        for number in range(100):
            sender.publish(t.topic(str(qos)), str(number), qos)
        equal([int(got.payload) for got in c.messages(100)], list(range(100)), f"order with QoS {qos}")


@test(spec="MQTT-4.6.0-2 to 4.6.0-4")
def order_of_acknowledgements(t):
    c = t.client()
    window = min(c.connack.props.get("receive_maximum", 65535), 10)
    first = [c.start(t.topic(), b"x", 1) for _ in range(window)]
    equal([c.expect(PUBACK).pid for _ in first], first, "order of PUBACK")
    second = [c.start(t.topic(), b"x", 2) for _ in range(window)]
    equal([c.expect(PUBREC).pid for _ in second], second, "order of PUBREC")
    for pid in second:
        c.send(wire.ack(t.v, PUBREL, pid))
    equal([c.expect(PUBCOMP).pid for _ in second], second, "order of PUBCOMP")


@test(spec="MQTT-3.3.1-3")
def dup_is_not_passed_on(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    for qos in (1, 2):
        t.helper().publish(t.topic(), b"again", qos, dup=True)
        equal(c.message().dup, 0, f"DUP with QoS {qos}")


@test(spec="MQTT-4.3.3-9 to 4.3.3-13 (5.0), MQTT-4.3.3-2 (3.1.1)")
def twice_sent_once_delivered(t):
    c, sender = t.client(), t.client()
    c.subscribe(t.topic(), 2)
    sender.start(t.topic(), b"once", 2, pid=77)
    equal(sender.expect(PUBREC).pid, 77, "PUBREC")
    sender.start(t.topic(), b"once", 2, pid=77, dup=True)
    equal(sender.expect(PUBREC).pid, 77, "the second PUBREC")
    sender.send(wire.ack(t.v, PUBREL, 77))
    equal(sender.expect(PUBCOMP).pid, 77, "PUBCOMP")
    sender.send(wire.ack(t.v, PUBREL, 77))
    sender.expect(PUBCOMP, pid=77)
    equal([got.payload for got in c.until(t.topic())], [b"once"], "messages")
    # After PUBCOMP the identifier is free.
    sender.publish(t.topic(), b"another", 2, pid=77)
    equal(c.message().payload, b"another", "message")


@test(spec="4.3.3, 3.7.2.1")
def pubrel_of_nothing(t):
    c = t.client()
    c.send(wire.ack(t.v, PUBREL, 4321))
    equal(c.expect(PUBCOMP, pid=4321).reason in (0, 0x92), True, "PUBCOMP's reason")
    c.ping()


@test(5, spec="MQTT-4.3.3-7, 3.5.2.1")
def pubrec_with_an_error_ends_the_exchange(t):
    c = t.client(props={"receive_maximum": 1})
    c.subscribe(t.topic(), 2)
    t.helper().publish(t.topic(), b"unwanted", 2)
    t.helper().publish(t.topic(), b"wanted", 2)
    got = c.next_message()
    c.send(wire.ack(5, PUBREC, got.pid, 0x97))
    following = c.receive()
    equal((following.kind, following.payload), (PUBLISH, b"wanted"), "what follows the refusal")


@test(5, spec="3.4.2, 3.6.2")
def acknowledgements_long_and_short(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    words = {"reason_string": "fine", "user": [("a", "b")]}
    for extra in ((), (0,), (0, {}), (0, words)):
        t.helper().publish(t.topic(), b"1", 1)
        got = c.next_message()
        c.send(wire.ack(5, PUBACK, got.pid, *extra))
        t.helper().publish(t.topic(), b"2", 2)
        got = c.next_message()
        c.send(wire.ack(5, PUBREC, got.pid, *extra))
        c.expect(PUBREL, pid=got.pid)
        c.send(wire.ack(5, PUBCOMP, got.pid, *extra))
        sent = c.start(t.topic("else"), b"3", 2)
        c.expect(PUBREC, pid=sent)
        c.send(wire.ack(5, PUBREL, sent, *extra))
        c.expect(PUBCOMP, pid=sent)
    c.ping()


@test(spec="MQTT-3.3.1-2, MQTT-3.3.1-4, MQTT-2.2.1-3, MQTT-3.3.2-2")
def malformed(t):
    v, a = t.v, t.topic()
    end = b"" if v == 4 else b"\x00"
    each_closes(t, {
        "QoS 3": wire.publish(v, a, b"x", pid=1, first=0x36),
        "DUP with QoS 0": wire.publish(v, a, b"x", first=0x38),
        "packet identifier 0": wire.publish(v, a, b"x", 1, 0),
        "topic longer than the packet": wire.packet(0x30, b"\x00\x09abc"),
        "no packet identifier": wire.packet(0x32, wire.text("a")),
        "nothing": b"\x30\x00",
        "only half a length": wire.packet(0x30, b"\x00"),
        "topic with #": wire.publish(v, t.topic("#")),
        "topic with +": wire.publish(v, t.topic("+/a")),
        "topic not UTF-8": wire.publish(v, b"a\xff"),
        "topic with a surrogate": wire.publish(v, b"a\xed\xbf\xbf"),
        "topic with an overlong slash": wire.publish(v, b"a\xc0\xaf"),
        "topic cut inside a character": wire.publish(v, b"a\xe2\x82"),
        "topic with U+0000": wire.publish(v, "a\0b"),
        "topic above U+10FFFF": wire.publish(v, b"a\xf4\x90\x80\x80"),
        "a length of five bytes": b"\x30\x80\x80\x80\x80\x01",
        "no topic": wire.packet(0x30, b"\x00\x00" + end + b"x"),
    }, MALFORMED + (0x90,))


@test(spec="3.4 to 3.7, MQTT-3.6.1-1")
def malformed_acknowledgements(t):
    v = t.v
    cases = {}
    for name, first in (("PUBACK", 0x40), ("PUBREC", 0x50), ("PUBREL", 0x62), ("PUBCOMP", 0x70)):
        cases[f"{name} with other flags"] = wire.packet(first ^ 2, b"\x00\x01")
        cases[f"{name} without identifier"] = wire.packet(first, b"")
        cases[f"{name} with half an identifier"] = wire.packet(first, b"\x01")
        if v == 5:
            cases[f"{name} with a reason of others"] = wire.packet(first, b"\x00\x01\x8d")
            cases[f"{name} with another packet's property"] = wire.packet(first, b"\x00\x01\x00\x03\x23\x00\x01")
        else:
            cases[f"{name} with more"] = wire.packet(first, b"\x00\x01\x00")
    each_closes(t, cases, MALFORMED)


@test(spec="1.5.4")
def text_of_every_kind(t):
    c = t.client()
    for topic in ("ä", "日本語/温度", "𠜎", "a b", "\ufeff/bom", "\ufefflast\ufeff", "\u2028", "e\u0301", "\u00e9"):
        name = t.topic(topic)
        c.subscribe(name, 1)
        t.helper().publish(name, topic, 1)
        got = c.message()
        equal((got.topic, got.payload.decode()), (name, topic), "topic and payload")


@test(spec="4.7.3")
def long_and_deep_topics(t):
    c = t.client()
    for rest in ("x" * 1000, "/".join("abcdefgh" * 12), "a//b///c", "a/"):
        name = t.topic(rest)
        c.subscribe(name, 1)
        t.helper().publish(name, b"here", 1)
        equal(c.message().topic, name, "topic")


@test(spec="MQTT-4.7.3-4")
def case_matters_and_nothing_is_normalised(t):
    c = t.client()
    c.subscribe(t.topic("Case"), 1)
    c.subscribe(t.topic("\u00e9"), 1)
    t.helper().publish(t.topic("case"), b"no", 1)
    t.helper().publish(t.topic("e\u0301"), b"no", 1)
    t.helper().publish(t.topic("Case"), b"yes", 1)
    equal([got.payload for got in c.until(t.topic("\u00e9"))], [b"yes"], "messages")


@test(5, spec="MQTT-3.3.2-15 to 3.3.2-20, MQTT-3.3.2-17, 3.3.2.3")
def properties_arrive_as_they_were_sent(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    props = {
        "payload_format": 1, "content_type": "text/plain; Ä", "response_topic": t.topic("answer"),
        "correlation_data": bytes(range(256)), "user": [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
    }
    for qos in range(3):
        t.helper().publish(t.topic(), "ä", qos, props=props)
        equal(c.message().props, props, f"properties with QoS {qos}")


@test(5, spec="4.10")
def request_and_response(t):
    requester, responder = t.client(), t.client()
    responder.subscribe(t.topic("ask"), 1)
    requester.subscribe(t.topic("answer"), 1)
    props = {"response_topic": t.topic("answer"), "correlation_data": b"\x00\xff7"}
    requester.publish(t.topic("ask"), b"6*7", 1, props=props)
    got = responder.message()
    responder.publish(got.props["response_topic"], b"42", 1, props={"correlation_data": got.props["correlation_data"]})
    got = requester.message()
    equal((got.payload, got.props), (b"42", {"correlation_data": b"\x00\xff7"}), "response")


@test(5, spec="3.3.2.3, MQTT-3.3.4-6, MQTT-3.3.2-14")
def wrong_properties(t):
    p, a = wire.one_property, t.topic()
    each_closes(t, {
        "payload format 2": wire.publish(5, a, props=p("payload_format", 2)),
        "payload format twice": wire.publish(5, a, props=p("payload_format", 1) * 2),
        "expiry twice": wire.publish(5, a, props=p("message_expiry", 1) * 2),
        "content type twice": wire.publish(5, a, props=p("content_type", "x") * 2),
        "correlation data twice": wire.publish(5, a, props=p("correlation_data", b"x") * 2),
        "response topic with a wildcard": wire.publish(5, a, props=p("response_topic", "a/+")),
        "a subscription identifier": wire.publish(5, a, props=p("subscription_id", 1)),
        "another packet's property": wire.publish(5, a, props=p("receive_maximum", 1)),
        "an unknown property": wire.publish(5, a, props=b"\x7f\x01"),
        "a property cut short": wire.publish(5, a, props=p("message_expiry", 1)[:-1]),
        "a length beyond the packet": wire.packet(0x30, wire.text(a) + b"\x20"),
    }, MALFORMED + (0x90, 0x99))


@test(5, spec="3.3.2.3.4, 3.3.2.3.3")
def message_expiry_counts_down(t):
    t.session("old" + t.name).subscribe(t.topic(), 1)
    t.client(clean=False, client_id="old" + t.name, props={"session_expiry": 300}).disconnect()
    for expiry, payload in ((1, b"gone"), (60, b"kept"), (None, b"for ever")):
        t.helper().publish(t.topic(), payload, 1, props=expiry and {"message_expiry": expiry})
    wait(2.2)
    c = t.session("old" + t.name, present=True)
    got = c.until(t.topic())
    equal([each.payload for each in got], [b"kept", b"for ever"], "messages")
    true(55 <= got[0].props["message_expiry"] <= 58, f"expiry {got[0].props['message_expiry']} after 2 s of 60")
    true("message_expiry" not in got[1].props, "an expiry that nobody gave")


@test(5, spec="MQTT-3.3.2-12, 3.3.2.3.4")
def topic_aliases_of_a_client(t):
    c, sender = t.client(), t.client()
    c.subscribe(t.topic("#"), 2)
    most = sender.connack.props.get("topic_alias_maximum", 0)
    true(most > 0, "the broker takes no topic alias")
    for qos in range(3):
        a, b = t.topic(f"a{qos}"), t.topic(f"b{qos}")
        for topic, alias, wanted in ((a, 1, a), ("", 1, a), (b, 1, b), ("", 1, b), (a, most, a), ("", most, a), ("", 1, b)):
            sender.publish(topic, b"x", qos, props={"topic_alias": alias})
            got = c.message()
            equal(got.topic, wanted, f"topic under alias {alias} with QoS {qos}")
    other = t.client()
    other.start("", b"x", 0, props={"topic_alias": 1})
    other.gone(MALFORMED + (0x94,))


@test(5, spec="MQTT-3.3.2-8, MQTT-3.3.2-9, MQTT-3.3.2-10")
def topic_aliases_out_of_bounds(t):
    most = t.helper().connack.props.get("topic_alias_maximum", 0)
    cases = {
        "alias 0": wire.publish(5, t.topic(), props={"topic_alias": 0}),
        "an alias that was never given a topic": wire.publish(5, "", props={"topic_alias": max(most, 1)}),
        "two aliases": wire.publish(5, t.topic(), props=wire.one_property("topic_alias", 1) * 2),
    }
    if most < 65535:
        cases["an alias above the maximum"] = wire.publish(5, t.topic(), props={"topic_alias": most + 1})
    each_closes(t, cases, MALFORMED + (0x94,))


@test(5, spec="MQTT-3.3.2-7")
def topic_aliases_end_with_the_connection(t):
    c = t.session("al" + t.name)
    c.publish(t.topic(), b"x", 1, props={"topic_alias": 1})
    c.drop()
    c = t.session("al" + t.name)
    c.start("", b"x", 1, props={"topic_alias": 1})
    c.gone(MALFORMED + (0x94,))


@test(5, spec="MQTT-3.1.2-26, MQTT-3.1.2-27")
def topic_aliases_of_the_broker_stay_within_what_the_client_takes(t):
    for most in (0, 1, 3):
        c = t.client(props={"topic_alias_maximum": most} if most else None)
        c.subscribe(t.topic("+"), 1)
        wanted = [t.topic(str(i % 5)) for i in range(30)]
        for topic in wanted:
            t.helper().publish(topic, b"x", 1)
        got = c.messages(30)
        equal([each.topic for each in got], wanted, f"topics with at most {most} aliases")
        used = {each.props.get("topic_alias", 0) for each in got}
        true(max(used) <= most, f"alias {max(used)}, at most {most} wanted")


@test(5, spec="MQTT-3.3.4-9, MQTT-4.9.0-1, MQTT-4.9.0-2")
def receive_maximum_of_a_client(t):
    for qos in (1, 2):
        c = t.client(props={"receive_maximum": 2})
        c.subscribe(t.topic(str(qos)), qos)
        for number in range(5):
            t.helper().publish(t.topic(str(qos)), str(number), qos)
        first, second = c.next_message(), c.next_message()
        c.quiet()
        if qos == 2:
            c.send(wire.ack(5, PUBREC, first.pid))
            c.expect(PUBREL, pid=first.pid)
            c.quiet()
            c.send(wire.ack(5, PUBCOMP, first.pid))
        else:
            c.acknowledge(first)
        third = c.next_message()
        c.quiet()
        c.acknowledge(second), c.acknowledge(third)
        equal([got.payload for got in c.messages(2)], [b"3", b"4"], "the rest")


@test(5, spec="MQTT-4.9.0-3, 4.9")
def a_full_window_does_not_stop_other_packets(t):
    c = t.client(props={"receive_maximum": 1})
    c.subscribe(t.topic("one"), 1)
    c.subscribe(t.topic("zero"), 0)
    t.helper().publish(t.topic("one"), b"1", 1)
    c.next_message()
    t.helper().publish(t.topic("one"), b"2", 1)
    t.helper().publish(t.topic("zero"), b"0", 0)
    equal(c.next_message().payload, b"0", "QoS 0 beside a full window")
    c.ping()
    c.publish(t.topic("mine"), b"x", 2)
    c.subscribe(t.topic("more"), 1)


@test(5, spec="3.3.4, MQTT-3.3.4-7, MQTT-3.3.4-8")
def receive_maximum_of_the_broker(t):
    c = t.client()
    most = c.connack.props.get("receive_maximum", 65535)
    if most > 5000:
        return
    for _ in range(most):
        c.start(t.topic(), b"x", 2)
    for _ in range(most):
        c.expect(PUBREC)
    # None of the quota is released: one more message exceeds it.
    c.start(t.topic(), b"x", 2)
    c.gone([0x93])


@test(5, spec="3.3.4, MQTT-4.9.0-1")
def released_exchanges_make_room(t):
    c = t.client()
    most = min(c.connack.props.get("receive_maximum", 65535), 200)
    for _ in range(2 * most + 3):
        c.publish(t.topic(), b"x", 2)


@test(5, spec="MQTT-3.1.2-24, MQTT-3.1.2-25")
def maximum_packet_size_of_a_client(t):
    c = t.client(props={"maximum_packet_size": 200})
    c.subscribe(t.topic(), 2)
    for qos in range(3):
        t.helper().publish(t.topic(), b"l" * 300, qos)
        t.helper().publish(t.topic(), b"s", qos)
        equal(c.message().payload, b"s", "the message after one that is too large")


@test(5, spec="MQTT-3.2.2-15, 3.2.2.3.6")
def maximum_packet_size_of_the_broker(t):
    c = t.client()
    most = c.connack.props.get("maximum_packet_size", 1 << 28)
    if most > 40 << 20:
        return
    # The length alone is invalid.
    c.send(b"\x30" + wire.varint(most + 10) + wire.text(t.topic()) + b"\x00" + b"x" * 1000)
    c.gone([0x95])


@test(spec="4.3.1")
def nobody_listens(t):
    for qos in (1, 2):
        true(t.helper().publish(t.topic("nobody"), b"x", qos).reason in (0, 0x10), "reason")


@test(spec="MQTT-3.3.5-1, 4.1")
def one_to_many(t):
    clients = [t.client() for _ in range(10)]
    for c in clients:
        c.subscribe(t.topic("#"), 2)
    for number in range(20):
        t.helper().publish(t.topic(str(number)), str(number), number % 3)
    for c in clients:
        got = c.messages(20)
        for qos in range(3):
            numbers = [int(each.payload) for each in got if int(each.payload) % 3 == qos]
            equal(numbers, list(range(qos, 20, 3)), f"what each hears with QoS {qos}")


@test(spec="4.3.2, MQTT-2.2.1-2")
def packet_identifiers_of_both_directions_are_independent(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    t.helper().publish(t.topic(), b"to the client", 2)
    got = c.next_message()
    answer = c.publish(t.topic("else"), b"from the client", 2, pid=got.pid)
    equal(answer.pid, got.pid, "PUBREC")
    c.acknowledge(got)
    got2 = None
    t.helper().publish(t.topic(), b"again", 1)
    got2 = c.next_message()
    c.send(wire.ack(t.v, PUBACK, got2.pid))
    c.ping()


@test(spec="MQTT-2.2.1-4")
def the_broker_uses_no_identifier_twice_at_once(t):
    c = t.client()
    c.subscribe(t.topic(), 1)
    for number in range(15):
        t.helper().publish(t.topic(), str(number), 1)
    held = []
    try:
        while len(held) < 15:
            held.append(c.next_message(0.5))
    except Silent:
        pass
    true(len(held) > 1, "one message at a time")
    equal(len({got.pid for got in held}), len(held), "different packet identifiers")
    for got in held:
        c.acknowledge(got)
    c.messages(15 - len(held))


@test(spec="4.3")
def a_publisher_hears_itself(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    for qos in range(3):
        c.publish(t.topic(), f"{qos}", qos)
        equal(c.message().payload, f"{qos}".encode(), "its own message")
