"""Typical uses of paho-mqtt."""

import threading

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker import equal, test, true

# The timeout of each operation, s.
DEADLINE = 15


def properties(kind, **values):
    found = Properties(kind)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class Paho:
    """A client in its own thread, and its received messages."""

    def __init__(self, t, client_id=None, clean=True, expiry=0, will=None):
        version = paho.MQTTv311 if t.v == 4 else paho.MQTTv5
        kept = {"clean_session": clean} if t.v == 4 else {}
        client_id = client_id or f"{t.name}p{id(self)}"
        self.v, self.client = t.v, paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=version, **kept)
        self.heard, self.granted, self.changed = [], None, threading.Condition()
        self.flags = self.reason = None
        self.client.on_connect, self.client.on_message = self.connected, self.message
        self.client.on_subscribe = self.subscribed
        user, password = t.credentials
        if user is not None:
            self.client.username_pw_set(user, password)
        if will:
            self.client.will_set(*will)
        start = {}
        if t.v == 5:
            start = {"clean_start": clean, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry)}
        self.client.connect(t.host, t.port, 30, **start)
        self.client.loop_start()
        self.wait("CONNACK", lambda: self.reason is not None)
        equal(self.reason.value, 0, "CONNACK")

    def note(self, **values):
        with self.changed:
            self.__dict__.update(values)
            self.changed.notify_all()

    def connected(self, _client, _data, flags, reason, _properties):
        self.note(flags=flags, reason=reason)

    def message(self, _client, _data, message):
        with self.changed:
            self.heard.append(message)
            self.changed.notify_all()

    def subscribed(self, _client, _data, _pid, reasons, _properties):
        self.note(granted=[reason.value for reason in reasons])

    def wait(self, what, condition):
        with self.changed:
            true(self.changed.wait_for(condition, DEADLINE), f"waited in vain for {what}")

    def subscribe(self, *arguments, **rest):
        self.granted = None
        self.client.subscribe(*arguments, **rest)
        self.wait("SUBACK", lambda: self.granted is not None)
        return self.granted

    def publish(self, topic, payload, qos=0, **rest):
        info = self.client.publish(topic, payload, qos, **rest)
        info.wait_for_publish(DEADLINE)
        true(info.is_published(), f"publish with QoS {qos} was not acknowledged")

    def messages(self, count):
        self.wait(f"{count} messages; {len(self.heard)} came", lambda: len(self.heard) >= count)
        return self.heard[:count]

    def stop(self):
        self.client.disconnect()
        self.client.loop_stop()


@test(spec="4.3")
def publish_and_subscribe(t):
    a, b = Paho(t), Paho(t)
    equal(b.subscribe([(t.topic("+"), 2), (t.topic("deep/#"), 1)]), [2, 1], "granted")
    for qos in range(3):
        a.publish(t.topic(str(qos)), f"message {qos}", qos)
    got = sorted((message.topic, message.payload, message.qos) for message in b.messages(3))
    equal(got, [(t.topic(str(qos)), f"message {qos}".encode(), qos) for qos in range(3)], "messages")
    a.stop(), b.stop()


@test(spec="4.6, 4.9")
def a_thousand_messages_in_order(t):
    a, b = Paho(t), Paho(t)
    b.subscribe(t.topic("#"), 2)
    for qos in (1, 2):
        before = len(b.heard)
        infos = [a.client.publish(t.topic(str(qos)), str(number), qos) for number in range(500)]
        infos[-1].wait_for_publish(DEADLINE)
        true(all(info.is_published() for info in infos), "acknowledgements are missing")
        got = [int(message.payload) for message in b.messages(before + 500)[before:]]
        equal(got, list(range(500)), f"numbers with QoS {qos}")
    a.stop(), b.stop()


@test(spec="3.3.1.3")
def retained(t):
    t.retained.add(t.topic())
    a, b = Paho(t), Paho(t)
    a.publish(t.topic(), "kept", 1, retain=True)
    b.subscribe(t.topic(), 1)
    got = b.messages(1)[0]
    equal((got.payload, got.retain), (b"kept", True), "payload and flag")
    a.stop(), b.stop()


@test(spec="4.1")
def a_session_waits(t):
    kept = {"client_id": "k" + t.name, "clean": False, "expiry": 60}
    a, b = Paho(t), Paho(t, **kept)
    b.subscribe(t.topic(), 2)
    b.stop()
    for qos in (1, 2):
        a.publish(t.topic(), f"while away {qos}", qos)
    b = Paho(t, **kept)
    true(b.flags.session_present, "session present")
    equal([message.payload for message in b.messages(2)], [b"while away 1", b"while away 2"], "messages")
    a.stop(), b.stop()


@test(spec="3.1.2.5")
def wills(t):
    watcher = Paho(t)
    watcher.subscribe(t.topic("will"), 1)
    dying = Paho(t, will=(t.topic("will"), "died", 1))
    dying.client.loop_stop()
    dying.client.socket().close()
    equal(watcher.messages(1)[0].payload, b"died", "will")
    watcher.stop()


@test(5, spec="3.3.2.3, 3.8.3.1")
def properties_and_options(t):
    a = Paho(t)
    b = Paho(t)
    options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True)
    identified = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=99)
    equal(b.subscribe(t.topic(), options=options, properties=identified), [1], "granted")
    sent = properties(PacketTypes.PUBLISH, UserProperty=[("a", "1"), ("a", "2")], ContentType="text", CorrelationData=b"7",
                      ResponseTopic="r", PayloadFormatIndicator=1, MessageExpiryInterval=60)
    b.publish(t.topic(), "own", 1)
    a.publish(t.topic(), "theirs", 1, properties=sent)
    got = b.messages(1)[0]
    found = got.properties
    equal(got.payload, b"theirs", "payload")
    equal(found.UserProperty, [("a", "1"), ("a", "2")], "user properties")
    equal((found.ContentType, found.CorrelationData, found.ResponseTopic), ("text", b"7", "r"), "properties")
    equal((found.PayloadFormatIndicator, found.SubscriptionIdentifier), (1, [99]), "properties")
    a.stop(), b.stop()


@test(spec="3.3.3")
def large_messages(t):
    a, b = Paho(t), Paho(t)
    b.subscribe(t.topic(), 2)
    payload = bytes(range(256)) * 3000
    for qos in range(3):
        a.publish(t.topic(), payload, qos)
    true(all(message.payload == payload for message in b.messages(3)), "payloads")
    a.stop(), b.stop()
