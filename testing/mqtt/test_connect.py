"""CONNECT, CONNACK, keep-alive, takeover, DISCONNECT (3.1, 3.2, 3.12, 3.14)."""

import time

import wire
from broker import each_closes, equal, test, true, wait
from wire import CONNACK, PINGRESP, PUBACK, Closed, Will, Wrong

MALFORMED = (0x81, 0x82)


def refused(c, codes):
    """Expects CONNACK with one of these codes and a closed connection, or only a closed connection."""
    try:
        answer = c.receive(3)
    except Closed as closed:
        said = closed.disconnect
        true(said is None or said.reason in codes, f"the broker said {said}")
        return
    true(answer.kind == CONNACK, f"wanted CONNACK or the end, got {answer}")
    true(answer.reason in codes, f"CONNACK 0x{answer.reason:02x}, wanted one of {[hex(code) for code in codes]}")
    equal(answer.session_present, 0, "session present in a refusal")
    c.gone()


def each_is_refused(t, cases, codes):
    """Checks each of these CONNECT packets."""
    wrong = []
    for what, data in cases.items():
        c = t.open()
        c.send(data)
        try:
            refused(c, codes)
        except Wrong as error:
            wrong.append(f"{what}: {error}")
    true(not wrong, "; ".join(wrong))


@test(spec="MQTT-3.2.0-1, MQTT-3.2.2-2")
def accepted(t):
    c = t.try_client()
    equal((c.connack.reason, c.connack.session_present), (0, 0), "CONNACK")
    c.ping()


@test(5, spec="3.2.2.3")
def announcements_make_sense(t):
    props = t.client().connack.props
    true(props.get("receive_maximum", 1) > 0, "receive maximum 0")
    true(props.get("maximum_packet_size", 1) > 0, "maximum packet size 0")
    true(props.get("maximum_qos", 0) in (0, 1), "maximum QoS is 0 or 1 or absent")
    for name in ("retain_available", "wildcard_available", "subscription_ids_available", "shared_available"):
        true(props.get(name, 1) in (0, 1), name)
    true("assigned_client_id" not in props, "an assigned identifier for a client that has one")


@test(spec="MQTT-3.1.3-6, MQTT-3.2.2-16")
def no_client_id(t):
    a, b = t.client(""), t.client("")
    if t.v == 5:
        names = [c.connack.props.get("assigned_client_id") for c in (a, b)]
        true(all(names) and names[0] != names[1], f"assigned client identifiers: {names}")
    a.ping(), b.ping()


@test(5, spec="MQTT-3.1.3-6")
def an_assigned_client_id_is_as_good_as_ones_own(t):
    a = t.client("", clean=False, props={"session_expiry": 60})
    name = a.connack.props["assigned_client_id"]
    a.subscribe(t.topic(), 1)
    a.disconnect()
    t.client(name, clean=True, present=None).disconnect()


@test(4, spec="MQTT-3.1.3-8")
def no_client_id_and_a_kept_session(t):
    c = t.try_client("", clean=False)
    equal(c.connack.reason, 2, "return code: identifier rejected")
    c.gone()


@test(spec="MQTT-3.1.3-5")
def client_ids_of_23_letters_and_digits(t):
    t.client((t.name + "0123456789abcdefghijKLMNOPQ")[:23]).ping()


@test(spec="MQTT-3.1.0-1")
def something_else_first(t):
    for data in (b"\xc0\x00", wire.publish(t.v, t.topic(), b"x"), wire.subscribe(t.v, 1, [("a", 0)]), b"\x20\x02\x00\x00"):
        c = t.open()
        c.send(data)
        c.gone()


@test(spec="MQTT-3.1.0-2")
def connect_twice(t):
    c = t.client()
    c.send(wire.connect(t.v, c.id))
    c.gone([0x82])


@test(spec="MQTT-3.1.2-1, MQTT-3.1.2-2")
def unknown_protocols(t):
    for name, level in (("MQTX", t.v), ("MQTT", 6), ("mqtt", t.v), ("MQTT", 0), ("", t.v)):
        c = t.open(4)
        c.send(wire.connect(t.v, "x" + t.name, name=name, level=level))
        try:
            answer = c.link.receive()
            true(answer.kind == CONNACK and answer.reason in (1, 0x84), f"{name} {level}: {answer}")
            c.gone()
        except (Closed, Wrong) as error:
            # A CONNACK of 5.0 or a DISCONNECT cannot be parsed as 3.1.1.
            true(isinstance(error, Closed) or "malformed" in str(error) or "does not send" in str(error), f"{name} {level}: {error}")


@test(spec="MQTT-3.1.2-3, MQTT-3.1.2-11 to 3.1.2-15, MQTT-3.1.2-22")
def flags_that_contradict(t):
    wrong = {
        "reserved": 0x03, "will QoS without a will": 0x0A, "will retain without a will": 0x22, "will QoS 3": 0x1E,
    }
    if t.v == 4:
        wrong["password without user"] = 0x42
    each_is_refused(t, {what: wire.connect(t.v, t.name, flags=flags) for what, flags in wrong.items()}, MALFORMED)


@test(spec="2.1.4, 1.5.4")
def malformed(t):
    good = wire.connect(t.v, t.name)
    body = good[2:]
    cases = {
        "bytes after the end": wire.packet(0x10, body + b"x"),
        "cut short": wire.packet(0x10, body[:-1]),
        "flags of the fixed header": wire.packet(0x11, body),
        "only the fixed header": b"\x10\x00",
        "a length of five bytes": b"\x10\xff\xff\xff\xff\x01" + body,
        "identifier with U+0000": wire.connect(t.v, "a\0b"),
        "identifier that is not UTF-8": wire.connect(t.v, b"a\xff"),
        "identifier with a surrogate": wire.connect(t.v, b"a\xed\xa0\x80"),
        "will topic with a wildcard": wire.connect(t.v, t.name, will=Will("a/#")),
        "will without a message": wire.packet(0x10, wire.connect(t.v, t.name, flags=6)[2:] + wire.text("a")),
    }
    each_is_refused(t, cases, MALFORMED + (0x85, 0x90, 2))


@test(5, spec="3.1.2.11, MQTT-3.1.2-24 to 3.1.2-30")
def wrong_properties(t):
    p = wire.one_property
    cases = {
        "receive maximum 0": p("receive_maximum", 0),
        "receive maximum twice": p("receive_maximum", 9) * 2,
        "maximum packet size 0": p("maximum_packet_size", 0),
        "session expiry twice": p("session_expiry", 9) * 2,
        "request problem information 2": p("request_problem_info", 2),
        "request response information 2": p("request_response_info", 2),
        "topic alias": p("topic_alias", 1),
        "unknown": b"\x7f\x00",
        "cut short": p("session_expiry", 9)[:-1],
        "method data without a method": p("auth_data", b"x"),
        "user property that is not UTF-8": p("user", (b"\xff", b"x")),
    }
    packets = {what: wire.connect(5, t.name, props=raw) for what, raw in cases.items()}
    head = wire.text("MQTT") + b"\x05\x02\x00\x3c"
    packets["length not in its shortest form"] = wire.packet(0x10, head + b"\x80\x00" + wire.text(t.name))
    each_is_refused(t, packets, MALFORMED)


@test(5, spec="3.1.3.2")
def wrong_will_properties(t):
    cases = {
        "a topic alias": wire.one_property("topic_alias", 1),
        "the delay twice": wire.one_property("will_delay", 1) * 2,
        "a payload format of 2": wire.one_property("payload_format", 2),
        "a response topic with a wildcard": wire.one_property("response_topic", "a/#"),
    }
    packets = {what: wire.connect(5, t.name, will=Will(t.topic(), props=raw)) for what, raw in cases.items()}
    each_is_refused(t, packets, MALFORMED + (0x90, 0x99))


@test(5, spec="MQTT-4.12.0-1")
def an_unknown_authentication_method(t):
    c = t.open()
    c.send(wire.connect(5, t.name, props={"auth_method": "no such method"}))
    refused(c, (0x8C, 0x87))


@test(5, spec="MQTT-4.12.0-6, MQTT-4.12.0-7")
def auth_without_a_method(t):
    c = t.client()
    c.send(b"\xf0\x00")
    c.gone([0x82, 0x8C])


@test(4, spec="2.2.1")
def auth_is_no_packet_of_311(t):
    c = t.client()
    c.send(b"\xf0\x00")
    c.gone()


@test(spec="MQTT-3.1.4-5")
def packets_right_behind_connect(t):
    c = t.open()
    c.send(wire.connect(t.v, t.name) + wire.subscribe(t.v, 7, [(t.topic(), 1)]) + b"\xc0\x00")
    equal([c.receive().kind for _ in range(3)], [CONNACK, wire.SUBACK, PINGRESP], "answers")


@test(spec="4.2")
def bytes_one_by_one(t):
    c = t.open()
    for byte in wire.connect(t.v, t.name) + wire.publish(t.v, t.topic(), b"slow", 1, 9) + b"\xc0\x00":
        c.send(bytes([byte]))
        time.sleep(0.001)
    equal([c.receive().kind for _ in range(3)], [CONNACK, PUBACK, PINGRESP], "answers")


@test(spec="MQTT-3.12.4-1")
def pings(t):
    c = t.client(keep_alive=1)
    for _ in range(4):
        wait(0.6)
        c.ping()


@test(spec="MQTT-3.1.2-22 (5.0), MQTT-3.1.2-24 (3.1.1)")
def keep_alive(t):
    watcher = t.client()
    watcher.subscribe(t.topic("will"), 1)
    c = t.client(keep_alive=1, will=Will(t.topic("will"), b"timed out", 1))
    start = time.monotonic()
    c.gone([0x8D])
    true(0.9 <= time.monotonic() - start <= 8, f"closed after {time.monotonic() - start:.1f} s, wanted about 1.5")
    equal(watcher.message().payload, b"timed out", "will")


@test(spec="3.1.2.10")
def any_packet_keeps_alive(t):
    c = t.client(keep_alive=1)
    for _ in range(4):
        wait(0.7)
        c.publish(t.topic(), b"x", 1)


@test(spec="3.1.2.10")
def keep_alive_0(t):
    c = t.client(keep_alive=0)
    wait(2)
    c.ping()


@test(5, spec="MQTT-3.1.2-21, 3.2.2.3.14")
def server_keep_alive(t):
    c = t.client(keep_alive=65535)
    seconds = c.connack.props.get("server_keep_alive", 65535)
    true(seconds > 0, "a server keep-alive of 0 s")
    c.ping()


@test(spec="MQTT-3.1.4-3 (5.0), MQTT-3.1.4-2 (3.1.1)")
def takeover(t):
    a = t.client("over" + t.name)
    b = t.client("over" + t.name)
    a.gone([0x8E])
    b.ping()


@test(spec="MQTT-3.1.4-3")
def many_takeovers_leave_one(t):
    clients = [t.client("many" + t.name) for _ in range(8)]
    for c in clients[:-1]:
        c.gone([0x8E])
    clients[-1].ping()


@test(spec="3.14.4, MQTT-3.14.4-1, MQTT-3.14.4-2")
def disconnect_closes(t):
    c = t.client()
    c.send(wire.disconnect(t.v) + wire.publish(t.v, t.topic(), b"after", 1, 1))
    true(c.gone() is None, "the broker answered DISCONNECT")


@test(spec="MQTT-3.14.1-1, 3.14.2")
def malformed_disconnects(t):
    cases = [b"\xe1\x00"]
    if t.v == 4:
        cases.append(b"\xe0\x01\x00")
    else:
        cases += [b"\xe0\x01\x05", b"\xe0\x02\x00\x05", wire.disconnect(5, 0, wire.one_property("topic_alias", 1))]
    watcher = t.client()
    watcher.subscribe(t.topic("will"), 1)
    for data in cases:
        c = t.client(will=Will(t.topic("will"), data, 1))
        c.send(data)
        c.gone(MALFORMED)
        equal(watcher.message().payload, data, "the will of a client that did not leave properly")


@test(5, spec="MQTT-3.1.2-29")
def no_problem_information(t):
    c = t.client(props={"request_problem_info": 0})
    reasons = c.subscribe(t.topic(), 1)
    equal(reasons, [1], "granted")
    for answer in (c.publish(t.topic(), b"x", 1), c.publish(t.topic("nobody"), b"x", 2)):
        true(not {"reason_string", "user"} & set(answer.props), f"words that were not wanted: {answer}")


@test(5, spec="3.1.2.11.6")
def response_information_only_when_asked_for(t):
    true("response_info" not in t.client().connack.props, "response information that nobody asked for")
    t.client(props={"request_response_info": 1}).ping()


@test(5, spec="3.1.2.11.8")
def user_properties_of_connect(t):
    t.client(props={"user": [("a", "b"), ("a", "c"), ("", "")]}).ping()


@test(spec="3.1.3.4, 3.1.3.5")
def packets_that_a_client_must_not_send(t):
    bodies = {
        "CONNACK": b"\x20\x02\x00\x00" if t.v == 4 else b"\x20\x03\x00\x00\x00",
        "SUBACK": b"\x90\x03\x00\x01\x00" if t.v == 4 else b"\x90\x04\x00\x01\x00\x00",
        "UNSUBACK": b"\xb0\x02\x00\x01" if t.v == 4 else b"\xb0\x04\x00\x01\x00\x00",
        "PINGRESP": b"\xd0\x00",
        "type 0": b"\x00\x00",
    }
    each_closes(t, bodies, MALFORMED)


@test(spec="3.12")
def malformed_pings(t):
    each_closes(t, {"flags": b"\xc1\x00", "a body": b"\xc0\x01\x00"}, MALFORMED)
