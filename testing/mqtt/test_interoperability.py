"""Cases of Eclipse Paho's interoperability suite that the other tests lack. No text of the suite is used."""

import wire
from broker import equal, test, true
from wire import PUBACK, SUBACK, Silent

NO_LOCAL = 4
# How often a subscription may take effect after a message that another client sent later. The specifications promise no order between
# connections; a broker that handles packets in order of arrival has no late subscription.
TRIES, LATE_MAX = 40, 4


@test(spec="3.8.4, 4.6; no promise between connections")
def a_subscription_sent_before_anothers_message_is_made_before_it(t):
    sender, late = t.client(), 0
    for number in range(TRIES):
        listener, topic = t.client(), t.topic(str(number))
        # The two clients do not wait for each other.
        listener.send(wire.subscribe(t.v, 1, [(topic, 1)], None))
        pid = sender.start(topic, b"x", 1)
        sender.expect(PUBACK, pid=pid)
        listener.expect(SUBACK, pid=1)
        try:
            equal(listener.message(0.5).topic, topic, "topic")
        except Silent:
            late += 1
        listener.disconnect()
    true(late <= LATE_MAX, f"{late} of {TRIES} subscriptions came too late")


@test(5, spec="4.10, MQTT-3.8.3-3")
def request_and_response_on_one_topic_without_an_echo(t):
    requester, responder = t.client(), t.client()
    for client in (requester, responder):
        client.subscribe(t.topic(), 2 | NO_LOCAL)
    props = {"response_topic": t.topic(), "correlation_data": b"334"}
    requester.publish(t.topic(), b"request", 1, props=props)
    got = responder.message()
    equal((got.payload, got.props), (b"request", props), "request")
    responder.publish(got.props["response_topic"], b"response", 1, props=got.props)
    got = requester.message()
    equal((got.payload, got.props["correlation_data"]), (b"response", b"334"), "response")
    requester.quiet()
    responder.quiet()


@test(5, spec="MQTT-3.3.4-3 to 3.3.4-5, 4.7.1.2")
def identifiers_of_a_topic_and_of_what_is_below_it(t):
    one, two = t.client(), t.client()
    one.subscribe(t.topic(), 2, props={"subscription_id": 456_789})
    two.subscribe(t.topic(), 2, props={"subscription_id": 2})
    two.subscribe(t.topic() + "/#", 2, props={"subscription_id": 3})
    two.publish(t.topic(), b"x", 1)
    equal(one.message().props["subscription_id"], [456_789], "identifier")
    numbers = two.message().props["subscription_id"]
    if len(numbers) == 1:
        numbers += two.message().props["subscription_id"]
    equal(sorted(numbers), [2, 3], "identifiers, in one message or two")


@test(spec="4.1, MQTT-3.1.2-5 (3.1.1)")
def each_quality_for_an_absent_client_by_one_wildcard(t):
    t.session("away" + t.name).subscribe(t.topic("+"), 2)
    t.session("away" + t.name, present=True).disconnect()
    for qos in range(3):
        t.helper().publish(t.topic(str(qos)), b"x", qos)
    back = t.session("away" + t.name, present=True)
    back.subscribe(t.name + "mark", 1)
    qualities = sorted(got.qos for got in back.until(t.name + "mark"))
    true(qualities in ([0, 1, 2], [1, 2]), f"messages of QoS {qualities}; only those of QoS 0 may be missing")


@test(spec="MQTT-4.4.0-1, MQTT-3.3.1-1")
def unacknowledged_messages_come_again_by_a_wildcard(t):
    first = t.session("again" + t.name)
    first.subscribe(t.topic("#"), 2)
    for qos in (1, 2):
        t.helper().publish(t.topic(f"a/{qos}"), b"x", qos)
    seen = [first.next_message() for _ in range(2)]
    first.drop()
    again = t.session("again" + t.name, present=True).messages(2)
    equal([(got.topic, got.qos, got.dup) for got in again], [(got.topic, got.qos, 1) for got in seen], "messages")
    equal([got.pid for got in again], [got.pid for got in seen], "identifiers")


@test(spec="3.3.1.3, 4.6")
def a_thousand_retained_messages_and_what_comes_behind_them(t):
    names = [t.topic(f"{number:04}") for number in range(1000)]
    for topic in names[:-1]:
        t.retained.add(topic)
        t.helper().start(topic, b"kept", 0, retain=True)
    t.retain(names[-1], b"kept", 1)
    for qos in (0, 1):
        c = t.client()
        c.subscribe([(t.topic("#"), qos), (t.name + "mark", 1)])
        found = c.until(t.name + "mark")
        equal(sorted(got.topic for got in found), names, "topics")
        true(all(got.retain for got in found), "flags")
