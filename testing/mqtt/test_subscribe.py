"""SUBSCRIBE, UNSUBSCRIBE, matching, options, identifiers, shared subscriptions (3.8 to 3.11, 4.7, 4.8)."""

import wire
from broker import each_closes, equal, test, true
from wire import SUBACK, Closed, Silent

MALFORMED = (0x81, 0x82)
NO_LOCAL, AS_PUBLISHED, IF_NEW, NOT_SENT = 4, 8, 0x10, 0x20


@test(spec="MQTT-3.8.4-1, MQTT-3.8.4-2, MQTT-3.8.4-6, MQTT-3.9.3-1")
def several_filters_in_one_packet(t):
    c = t.client()
    pairs = [(t.topic(name), qos) for name, qos in (("a", 2), ("b", 0), ("c/#", 1), ("+", 1))]
    equal(c.subscribe(pairs), [2, 0, 1, 1], "granted")


@test(spec="MQTT-3.8.4-3 (5.0), MQTT-3.8.4-3 (3.1.1)")
def the_same_filter_again_replaces_the_subscription(t):
    c = t.client()
    c.subscribe(t.topic(), 0)
    t.helper().publish(t.topic(), b"1", 2)
    equal(c.message().qos, 0, "QoS")
    c.subscribe(t.topic(), 2)
    t.helper().publish(t.topic(), b"2", 2)
    equal([(got.payload, got.qos) for got in c.until(t.topic())], [(b"2", 2)], "messages and QoS")


@test(spec="MQTT-3.3.5-1 (3.1.1), 3.3.4 (5.0)")
def overlapping_subscriptions(t):
    c = t.client()
    c.subscribe([(t.topic("#"), 2), (t.topic("+"), 1)])
    t.helper().publish(t.topic(), b"overlap", 2)
    c.subscribe(t.topic("mark/it"), 1)
    got = sorted(each.qos for each in c.until(t.topic("mark/it")) if each.payload == b"overlap")
    true(got in ([2], [1, 2]), f"delivered with QoS {got}")


@test(spec="MQTT-3.10.4-1 to 3.10.4-6, MQTT-3.11.3-1")
def unsubscribe(t):
    c = t.client()
    c.subscribe([(t.topic("a"), 1), (t.topic("b"), 1), (t.topic("+"), 1)])
    equal(c.unsubscribe(t.topic("+"), t.topic("a"), t.topic("never")), [] if t.v == 4 else [0, 0, 0x11], "reasons")
    t.helper().publish(t.topic("a"), b"no", 1)
    t.helper().publish(t.topic("b"), b"yes", 1)
    equal([got.payload for got in c.until(t.topic("b"))], [b"yes"], "messages")


@test(spec="MQTT-3.10.4-2")
def a_filter_is_compared_letter_by_letter(t):
    c = t.client()
    c.subscribe(t.topic("a/#"), 1)
    c.unsubscribe(t.topic("a"), t.topic("a/+"), t.topic("#"))
    t.helper().publish(t.topic("a"), b"still", 1)
    equal(c.message().payload, b"still", "message")


@test(spec="MQTT-3.10.4-3 (3.1.1)")
def what_was_delivered_before_unsubscribe_is_completed(t):
    c = t.client()
    c.subscribe(t.topic(), 2)
    t.helper().publish(t.topic(), b"x", 2)
    got = c.next_message()
    c.unsubscribe(t.topic())
    c.acknowledge(got)


@test(spec="MQTT-3.8.1-1, MQTT-3.8.3-2, MQTT-3.8.3-5, MQTT-3.10.1-1, MQTT-3.10.3-2")
def malformed(t):
    v = t.v
    cases = {
        "no filter": wire.subscribe(v, 1, []),
        "flags 0": wire.subscribe(v, 1, [("a", 0)], first=0x80),
        "flags 3": wire.subscribe(v, 1, [("a", 0)], first=0x83),
        "packet identifier 0": wire.subscribe(v, 0, [("a", 0)]),
        "QoS 3": wire.subscribe(v, 1, [("a", 3)]),
        "reserved bits": wire.subscribe(v, 1, [("a", 0x40)]),
        "the highest reserved bit": wire.subscribe(v, 1, [("a", 0x80)]),
        "a filter not UTF-8": wire.subscribe(v, 1, [(b"a\xff", 0)]),
        "a filter with U+0000": wire.subscribe(v, 1, [("a\0", 0)]),
        "nothing": b"\x82\x00",
        "UNSUBSCRIBE without filters": wire.unsubscribe(v, 1, []),
        "UNSUBSCRIBE with flags 0": wire.unsubscribe(v, 1, ["a"], first=0xA0),
        "UNSUBSCRIBE with identifier 0": wire.unsubscribe(v, 0, ["a"]),
        "UNSUBSCRIBE cut short": wire.packet(0xA2, wire.unsubscribe(v, 1, ["abc"])[2:-1]),
        "UNSUBSCRIBE not UTF-8": wire.unsubscribe(v, 1, [b"\xff"]),
    }
    cases["no options"] = wire.packet(0x82, wire.subscribe(v, 1, [("a", 0)])[2:-1])
    if v == 4:
        cases["options of 5.0"] = wire.subscribe(4, 1, [("a", 4)])
    else:
        cases |= {
            "retain handling 3": wire.subscribe(5, 1, [("a", 0x30)]),
            "no-local on a shared subscription": wire.subscribe(5, 1, [("$share/g/a", NO_LOCAL)]),
            "identifier 0": wire.subscribe(5, 1, [("a", 0)], {"subscription_id": 0}),
            "two identifiers": wire.subscribe(5, 1, [("a", 0)], {"subscription_id": [1, 2]}),
            "another packet's property": wire.subscribe(5, 1, [("a", 0)], {"topic_alias": 1}),
            "UNSUBSCRIBE with an identifier": wire.unsubscribe(5, 1, ["a"], {"subscription_id": 1}),
        }
    each_closes(t, cases, MALFORMED + (0x8F,))


@test(spec="MQTT-4.7.1-1 (5.0), MQTT-4.7.1-2, MQTT-4.7.1-3, MQTT-4.7.3-1")
def filters_that_are_none(t):
    filters = ["", "a#", "#/a", "a/#/b", "a+", "+a", "a/b+/c", "##", "++", "a/##"]
    if t.v == 5:
        filters += ["$share//a", "$share/g", "$share/+/a", "$share/#/a", "$share/g/", "$share/g/a#"]
    wrong = []
    for each in filters:
        c = t.client()
        c.send(wire.subscribe(t.v, 9, [(each, 0)]))
        try:
            answer = c.receive(3)
            if answer.kind != SUBACK or answer.reasons[0] < 0x80:
                wrong.append(f"{each!r}: {answer}")
        except Closed as closed:
            said = closed.disconnect
            if said is not None and said.reason not in MALFORMED + (0x8F, 0x9E):
                wrong.append(f"{each!r}: {said}")
    true(not wrong, "; ".join(wrong))


MATCHES = [
    # filter, topics that match, topics that do not
    ("a", ["a"], ["b", "a/", "/a", "a/b", "A", "aa"]),
    ("a/b", ["a/b"], ["a", "a/", "a/b/", "a/b/c", "a/B"]),
    ("+", ["a", "x y"], ["a/b", "/", "a/"]),
    ("+/+", ["a/b", "a/", "/a", "/"], ["a", "a/b/c"]),
    ("a/+", ["a/b", "a/"], ["a", "a/b/c", "b/a"]),
    ("+/b", ["a/b", "/b"], ["a/b/c", "b"]),
    ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c", "a/b/d"]),
    ("+/+/+", ["a/b/c", "//"], ["a/b", "a/b/c/d"]),
    ("#", ["a", "a/b", "/", "a/b/c/d/e"], []),
    ("a/#", ["a", "a/", "a/b", "a/b/c"], ["ab", "b/a", "b"]),
    ("a/b/#", ["a/b", "a/b/c"], ["a", "a/c", "a/bc"]),
    ("+/#", ["a", "a/b", "/"], []),
    ("a/+/#", ["a/b", "a/b/c", "a/"], ["a", "b/a"]),
    ("+/b/#", ["a/b", "a/b/c", "/b"], ["a", "a/c"]),
    ("/", ["/"], ["a", "//", "a/"]),
    ("/+", ["/a", "/"], ["a", "/a/b"]),
    ("/#", ["/a", "/", "/a/b"], ["a"]),
    ("//", ["//"], ["/", "///"]),
    ("a//b", ["a//b"], ["a/b", "a///b"]),
    ("a/$b", ["a/$b"], ["a/b"]),
]


@test(spec="4.7.1, MQTT-4.7.1-1, MQTT-4.7.3-4")
def matching(t):
    c = t.client()
    for each, yes, no in MATCHES:
        c.subscribe(t.topic(each), 1)
        c.subscribe(t.name + "mark", 1)
        for topic in yes + no:
            t.helper().publish(t.topic(topic), topic, 1)
        got = [message.payload.decode() for message in c.until(t.name + "mark")]
        equal(got, yes, f"topics that {each!r} hears")
        c.unsubscribe(t.topic(each))


@test(spec="4.7.1")
def matching_from_the_first_level(t):
    c = t.client()
    name = t.name
    for each, yes, no in [
        (f"+/{name}", [f"a/{name}", f"/{name}"], [name, f"a/b/{name}"]),
        (f"/{name}", [f"/{name}"], [name, f"{name}/"]),
        (f"/{name}/#", [f"/{name}", f"/{name}/b"], [name]),
        (f"+/+/{name}", [f"a/b/{name}", f"//{name}"], [f"a/{name}"]),
        (f"{name}", [name], [f"/{name}", f"{name}/"]),
    ]:
        c.subscribe(each, 1)
        c.subscribe(name + "mark", 1)
        for topic in yes + no:
            t.helper().publish(topic, topic, 1)
        equal([message.payload.decode() for message in c.until(name + "mark")], yes, f"topics that {each!r} hears")
        c.unsubscribe(each)


@test(spec="MQTT-4.7.2-1")
def wildcards_do_not_match_dollar_topics(t):
    c, sender = t.client(), t.client()
    c.subscribe([(f"+/{t.name}", 1), (f"+/{t.name}/#", 1), (t.name + "mark", 1)])
    # The broker may refuse this topic, or close the connection.
    sender.start(f"$x/{t.name}", b"no", 0)
    try:
        sender.ping()
    except Closed:
        pass
    equal(c.until(t.name + "mark"), [], "messages")


@test(5, spec="MQTT-3.8.3-3, 3.8.3.1")
def no_local(t):
    c = t.client()
    c.subscribe(t.topic("a"), 1 | NO_LOCAL)
    c.subscribe(t.topic("b"), 1)
    c.publish(t.topic("a"), b"mine", 1)
    c.publish(t.topic("b"), b"mine too", 1)
    t.helper().publish(t.topic("a"), b"theirs", 1)
    equal([got.payload for got in c.until(t.topic("b"))], [b"mine too", b"theirs"], "messages")


@test(5, spec="MQTT-3.3.1-12, MQTT-3.3.1-13")
def retain_as_published(t):
    a, b = t.client(), t.client()
    a.subscribe(t.topic(), 1 | AS_PUBLISHED)
    b.subscribe(t.topic(), 1)
    t.retain(t.topic(), b"kept")
    t.helper().publish(t.topic(), b"plain", 1)
    equal([got.retain for got in a.messages(2)], [1, 0], "retain as published")
    equal([got.retain for got in b.messages(2)], [0, 0], "retain not as published")


@test(5, spec="MQTT-3.3.1-9 to 3.3.1-11")
def retain_handling(t):
    t.retain(t.topic(), b"kept")
    c = t.client()
    c.subscribe(t.name + "mark", 1)
    for options, wanted in ((NOT_SENT, 0), (IF_NEW, 0), (0, 1), (0, 1), (IF_NEW, 0), (NOT_SENT, 0)):
        c.subscribe(t.topic(), 1 | options)
        equal(len(c.until(t.name + "mark")), wanted, f"retained messages with options {options:#x}")
    c.unsubscribe(t.topic())
    c.subscribe(t.topic(), 1 | IF_NEW)
    equal([got.retain for got in c.until(t.name + "mark")], [1], "retained messages of a new subscription")


@test(5, spec="MQTT-3.3.4-3 to 3.3.4-5, 3.8.2.1.2")
def subscription_identifiers(t):
    c = t.client()
    for name, number in (("a", 1), ("b", 127), ("c", 128), ("d", 16384), ("e", 268_435_455)):
        c.subscribe(t.topic(name), 1, props={"subscription_id": number})
        for qos in range(2):
            t.helper().publish(t.topic(name), b"x", qos)
            equal(c.message().props.get("subscription_id"), [number], "identifier")
    c.subscribe(t.topic("none"), 1)
    t.helper().publish(t.topic("none"), b"x", 1)
    equal(c.message().props.get("subscription_id"), None, "identifier of a subscription without one")


@test(5, spec="MQTT-3.3.4-4, MQTT-3.3.4-5")
def identifiers_of_overlapping_subscriptions(t):
    c = t.client()
    for each, number in (("a", 1), ("+", 2), ("#", 3)):
        c.subscribe(t.topic(each), 1, props={"subscription_id": number})
    c.subscribe(t.topic("a/#"), 1)
    t.helper().publish(t.topic("a"), b"x", 1)
    got = c.until(t.topic("b"))[:]
    numbers = sorted(number for each in got if each.payload == b"x" for number in each.props.get("subscription_id", []))
    equal(numbers, [1, 2, 3], "identifiers, in one message or several")


@test(5, spec="MQTT-3.8.4-3, 3.8.2.1.2")
def an_identifier_is_replaced_and_taken_away(t):
    c = t.client()
    for number in (5, 6, None):
        c.subscribe(t.topic(), 1, props=number and {"subscription_id": number})
        t.helper().publish(t.topic(), b"x", 1)
        equal(c.message().props.get("subscription_id"), number and [number], "identifier")


@test(5, spec="MQTT-3.3.4-3")
def retained_messages_carry_the_identifier(t):
    t.retain(t.topic(), b"kept")
    c = t.client()
    c.subscribe(t.topic(), 1, props={"subscription_id": 7})
    got = c.message()
    equal((got.retain, got.props.get("subscription_id")), (1, [7]), "retain flag and identifier")


def collect(t, clients, topic):
    """The messages of each client until a mark on a topic that all subscribe to."""
    return [[got.payload for got in c.until(topic)] for c in clients]


@test(5, spec="4.8.2, MQTT-4.8.2-3 to 4.8.2-6")
def shared_subscriptions_give_each_message_to_one(t):
    members = [t.client() for _ in range(3)]
    outsider = t.client()
    for c in members:
        c.subscribe(f"$share/g/{t.topic()}", 1)
        c.subscribe(t.name + "mark", 1)
    outsider.subscribe([(t.topic(), 1), (t.name + "mark", 1)])
    wanted = [str(number).encode() for number in range(30)]
    for payload in wanted:
        t.helper().publish(t.topic(), payload, 1)
    *heard, all_of_it = collect(t, members + [outsider], t.name + "mark")
    equal(sorted(sum(heard, [])), sorted(wanted), "what the members hear together")
    equal(all_of_it, wanted, "what a plain subscriber hears")
    true(all(heard), f"members that heard nothing: {[len(each) for each in heard]}")


@test(5, spec="4.8.2")
def groups_of_shared_subscriptions_are_independent(t):
    clients = [t.client() for _ in range(4)]
    for at, c in enumerate(clients):
        c.subscribe(f"$share/g{at % 2}/{t.topic('#')}", 1)
        c.subscribe(t.name + "mark", 1)
    wanted = [str(number).encode() for number in range(12)]
    for payload in wanted:
        t.helper().publish(t.topic("x/y"), payload, 1)
    heard = collect(t, clients, t.name + "mark")
    for group in range(2):
        equal(sorted(heard[group] + heard[group + 2]), sorted(wanted), f"what group {group} hears")


@test(5, spec="4.8.2")
def a_client_may_be_in_a_group_and_outside(t):
    c = t.client()
    c.subscribe([(f"$share/g/{t.topic()}", 1), (t.topic(), 1), (t.name + "mark", 1)])
    t.helper().publish(t.topic(), b"x", 1)
    equal(len(c.until(t.name + "mark")), 2, "messages")


@test(5, spec="3.3.1.3, 4.8.2")
def shared_subscriptions_get_no_retained_messages(t):
    t.retain(t.topic(), b"kept")
    c = t.client()
    c.subscribe([(f"$share/g/{t.topic()}", 1), (t.name + "mark", 1)])
    equal(c.until(t.name + "mark"), [], "messages")


@test(5, spec="4.8.2, 3.10.4")
def members_come_and_go(t):
    a, b = t.client(), t.client()
    for c in (a, b):
        c.subscribe([(f"$share/g/{t.topic()}", 1), (t.name + "mark", 1)])
    equal(a.unsubscribe(f"$share/g/{t.topic()}"), [0], "reason")
    for number in range(4):
        t.helper().publish(t.topic(), str(number), 1)
    equal([len(each) for each in collect(t, (a, b), t.name + "mark")], [0, 4], "messages")
    a.subscribe(f"$share/g/{t.topic()}", 1)
    b.disconnect()
    for number in range(4):
        t.helper().publish(t.topic(), str(number), 1)
    equal(len(a.until(t.name + "mark")), 4, "messages")


@test(5, spec="MQTT-4.8.2-4")
def a_shared_subscription_keeps_to_its_quality(t):
    c = t.client()
    c.subscribe(f"$share/g/{t.topic()}", 1)
    for qos in range(3):
        t.helper().publish(t.topic(), f"{qos}", qos)
        equal(c.message().qos, min(qos, 1), "QoS")


@test(5, spec="4.8.2")
def a_shared_message_does_not_wait_for_an_absent_member(t):
    absent, here = t.session("ab" + t.name), t.client()
    for c in (absent, here):
        c.subscribe([(f"$share/g/{t.topic()}", 1)])
    here.subscribe(t.name + "mark", 1)
    absent.disconnect()
    for number in range(6):
        t.helper().publish(t.topic(), str(number), 1)
    equal(len(here.until(t.name + "mark")), 6, "messages of the member that is there")


@test(5, spec="4.8.2")
def what_a_member_left_unacknowledged_with_qos_1_is_not_lost(t):
    a, b = t.session("a" + t.name), t.client()
    a.subscribe(f"$share/g/{t.topic()}", 1)
    t.helper().publish(t.topic(), b"held", 1)
    a.next_message()
    b.subscribe(f"$share/g/{t.topic()}", 1)
    a.drop()
    # The broker may send it to another member, or wait for this one.
    try:
        got = b.message(1)
    except Silent:
        got = t.session("a" + t.name, present=True).message()
    equal(got.payload, b"held", "message")


@test(5, spec="MQTT-4.8.2-5")
def what_a_member_began_with_qos_2_it_completes(t):
    a, b = t.session("a" + t.name), t.client()
    a.subscribe(f"$share/g/{t.topic()}", 2)
    t.helper().publish(t.topic(), b"held", 2)
    first = a.next_message()
    b.subscribe([(f"$share/g/{t.topic()}", 2), (t.name + "mark", 1)])
    a.drop()
    equal(b.until(t.name + "mark"), [], "messages of another member")
    again = t.session("a" + t.name, present=True).message()
    equal((again.payload, again.pid, again.dup), (b"held", first.pid, 1), "payload, identifier, DUP")


@test(5, spec="MQTT-4.8.2-6")
def a_shared_message_of_qos_2_ends_with_the_session_of_its_member(t):
    a, b = t.session("a" + t.name), t.client()
    a.subscribe(f"$share/g/{t.topic()}", 2)
    t.helper().publish(t.topic(), b"held", 2)
    a.next_message()
    b.subscribe([(f"$share/g/{t.topic()}", 2), (t.name + "mark", 1)])
    a.disconnect(0, {"session_expiry": 0})
    equal(b.until(t.name + "mark"), [], "messages of another member")


@test(spec="MQTT-3.8.4-2, 3.9.3")
def a_filter_that_is_denied(t):
    if not t.options.denied:
        return
    c = t.client()
    reasons = c.subscribe([(t.topic("ok"), 1), (t.options.denied, 1)], check=False)
    equal(reasons, [1, 0x80 if t.v == 4 else 0x87], "reasons")
    c.ping()
