"""The tools of the tests: a client on top of `wire`, the context of one test, and the list of all tests."""

import itertools
import os
import threading
import time

import wire
from wire import (CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, Closed,
                  Silent, Wrong)

TESTS = []
COUNTER = itertools.count()


def test(*versions, spec=""):
    """Adds a test for these versions (4 for 3.1.1, 5); `spec` names the statements that it checks."""

    def add(function):
        module = function.__module__.removeprefix("test_")
        for v in versions or (4, 5):
            TESTS.append((f"{module}.{function.__name__}[{'3.1.1' if v == 4 else '5'}]", function, v, spec))
        return function

    return add


def equal(got, wanted, what=""):
    if got != wanted:
        raise Wrong(f"{what or 'value'}: got {got!r}, wanted {wanted!r}")


def true(condition, what):
    if not condition:
        raise Wrong(what)


class Client:
    """A client that sends exactly what the test says, including acknowledgements."""

    def __init__(self, context, link, v, client_id):
        self.context, self.link, self.v, self.id = context, link, v, client_id
        self.connack, self.pids, self.waiting = None, itertools.cycle(range(1, 65536)), []
        self.aliases = {}

    # Sending

    def send(self, data):
        self.link.send(data)
        return self

    def publish(self, topic, payload=b"x", qos=0, retain=False, props=None, dup=False, pid=None):
        """Sends PUBLISH and, for QoS 1 and 2, waits for the whole exchange; returns the broker's first answer."""
        pid = self.start(topic, payload, qos, retain, props, dup, pid)
        if qos == 0:
            return None
        answer = self.expect(PUBACK if qos == 1 else PUBREC, pid=pid)
        if qos == 2 and answer.reason < 0x80:
            self.send(wire.ack(self.v, PUBREL, pid))
            self.expect(PUBCOMP, pid=pid)
        return answer

    def start(self, topic, payload=b"x", qos=0, retain=False, props=None, dup=False, pid=None):
        """Sends PUBLISH without waiting; returns its packet identifier."""
        if qos and pid is None:
            pid = next(self.pids)
        self.send(wire.publish(self.v, topic, payload, qos, pid, retain, dup, props))
        return pid

    def subscribe(self, filters, qos=0, options=0, props=None, check=True):
        """Subscribes to one filter or several; returns the reasons of SUBACK."""
        filters = [filters] if isinstance(filters, str) else filters
        pairs = [each if isinstance(each, tuple) else (each, qos | options) for each in filters]
        pid = next(self.pids)
        self.send(wire.subscribe(self.v, pid, pairs, props))
        reasons = self.expect(SUBACK, pid=pid).reasons
        equal(len(reasons), len(pairs), "reasons in SUBACK")
        if check:
            equal(reasons, [bits & 3 for _, bits in pairs], "granted QoS")
        return reasons

    def unsubscribe(self, *filters):
        pid = next(self.pids)
        self.send(wire.unsubscribe(self.v, pid, filters))
        return self.expect(UNSUBACK, pid=pid).reasons

    def disconnect(self, reason=None, props=None):
        self.send(wire.disconnect(self.v, reason, props))
        self.gone()

    def drop(self):
        """Simulates a network failure."""
        self.link.drop()

    # Receiving

    def receive(self, timeout=None):
        """Receives the next packet, ignoring those put aside."""
        got = self.link.receive(timeout)
        if got.kind == DISCONNECT:
            try:
                self.link.receive(5)
            except Closed:
                raise Closed(got) from None
            except Silent:
                raise Wrong("the broker sent DISCONNECT and did not close") from None
            raise Wrong("the broker sent something after DISCONNECT")
        if got.kind == PUBLISH:
            self.resolve(got)
        return got

    def resolve(self, message):
        alias = message.props.get("topic_alias")
        if alias is not None:
            true(message.topic or alias in self.aliases, f"topic alias {alias} that was never given a topic")
            if message.topic:
                self.aliases[alias] = message.topic
            message.topic = self.aliases[alias]
        true(message.topic, "a message without a topic")

    def expect(self, kind, timeout=None, **fields):
        """The next packet of this kind with these fields; puts messages before it aside."""
        for at, got in enumerate(self.waiting):
            if got.kind == kind and all(getattr(got, key) == value for key, value in fields.items()):
                return self.waiting.pop(at)
        while True:
            got = self.receive(timeout)
            if got.kind == kind and all(getattr(got, key) == value for key, value in fields.items()):
                return got
            if got.kind in (PUBLISH, PUBREL) and kind != got.kind:
                self.waiting.append(got)
                continue
            raise Wrong(f"wanted {wire.NAMES[kind]} {fields or ''}, got {got}")

    def next_message(self, timeout=None):
        """Receives the next PUBLISH without acknowledging it."""
        return self.expect(PUBLISH, timeout)

    def acknowledge(self, message):
        """Completes the receiver's part of QoS 1 or 2."""
        if message.qos == 1:
            self.send(wire.ack(self.v, PUBACK, message.pid))
        elif message.qos == 2:
            self.send(wire.ack(self.v, PUBREC, message.pid))
            self.expect(PUBREL, pid=message.pid)
            self.send(wire.ack(self.v, PUBCOMP, message.pid))
        return message

    def message(self, timeout=None):
        """Receives and acknowledges the next message."""
        return self.acknowledge(self.next_message(timeout))

    def messages(self, count):
        return [self.message() for _ in range(count)]

    def ping(self):
        """Sends PINGREQ and waits for PINGRESP; puts packets before it aside."""
        self.send(b"\xc0\x00")
        self.expect(PINGRESP)

    def until(self, sentinel_topic, publisher=None):
        """Receives and acknowledges all messages before one that is published now on a topic that this client subscribes to."""
        mark = f"until {next(COUNTER)}".encode()
        (publisher or self.context.helper()).publish(sentinel_topic, mark, 1)
        found = []
        while True:
            got = self.message()
            if got.payload == mark:
                return found
            # Several clients may wait for marks on one topic.
            if not got.payload.startswith(b"until "):
                found.append(got)

    def quiet(self, seconds=0.3):
        """Expects no message within this time."""
        try:
            got = self.expect(PUBLISH, seconds)
        except Silent:
            return
        raise Wrong(f"unwanted {got}")

    def gone(self, reasons=None, timeout=None):
        """Expects the broker to close the connection; in MQTT 5 with one of these reasons, if it sends one. Ignores packets before it."""
        while True:
            try:
                self.receive(timeout)
            except Closed as closed:
                said = closed.disconnect
                if said is not None:
                    true(self.v == 5, "the broker sent DISCONNECT in 3.1.1")
                    if reasons:
                        true(said.reason in reasons, f"DISCONNECT 0x{said.reason:02x}, wanted {[hex(r) for r in reasons]}")
                return said
            except Silent:
                raise Wrong("the broker did not close the connection") from None


class Context:
    """One run of one test: a version, unique names, and the opened clients."""

    def __init__(self, host, port, v, credentials=(None, None)):
        self.host, self.port, self.v, self.credentials = host, port, v, credentials
        self.name = f"t{os.getpid()}x{next(COUNTER)}"
        self.clients, self.retained, self._helper = [], set(), None
        self.lock = threading.Lock()

    def topic(self, rest="a"):
        return f"{self.name}/{rest}"

    def open(self, v=None):
        """Opens a connection without sending a packet."""
        v = v or self.v
        client = Client(self, wire.Link(self.host, self.port, v), v, "")
        self.clients.append(client)
        return client

    def try_client(self, client_id=None, v=None, keep_alive=60, **rest):
        """Sends CONNECT; accepts any CONNACK."""
        client = self.open(v)
        client.id = self.name + "c" + str(next(COUNTER)) if client_id is None else client_id
        user, password = self.credentials
        rest = {"user": user, "password": password} | rest
        client.send(wire.connect(client.v, client.id, keep_alive=keep_alive, **rest))
        client.connack = client.expect(CONNACK)
        return client

    def client(self, client_id=None, present=None, **rest):
        """Connects a client; `present` says whether the broker must have its session."""
        client = self.try_client(client_id, **rest)
        equal(client.connack.reason, 0, "CONNACK")
        if present is not None:
            equal(bool(client.connack.session_present), present, "session present")
        return client

    def session(self, client_id, present=None, expiry=300, clean=False, props=None, **rest):
        """Connects a client with a persistent session."""
        if (rest.get("v") or self.v) == 5:
            props = {"session_expiry": expiry} | (props or {})
        return self.client(client_id, present, clean=clean, props=props, **rest)

    def helper(self):
        """A second client for auxiliary operations."""
        if self._helper is None:
            self._helper = self.client()
        return self._helper

    def retain(self, topic, payload, qos=1, props=None):
        self.retained.add(topic)
        self.helper().publish(topic, payload, qos, retain=True, props=props)

    def finish(self):
        """Closes connections and removes retained messages."""
        for client in self.clients:
            client.link.close()
        if self.retained:
            cleaner = self.client(v=5)
            for topic in self.retained:
                cleaner.publish(topic, b"", 1, retain=True)
            cleaner.disconnect()


def each_closes(t, cases, codes):
    """Expects each of these packets to close its connection."""
    wrong = []
    for what, data in cases.items():
        c = t.client()
        c.send(data)
        try:
            c.gone(codes, 3)
        except Wrong as error:
            wrong.append(f"{what}: {error}")
    true(not wrong, "; ".join(wrong))


def wait(seconds):
    """Sleeps for times that a specification counts in seconds."""
    time.sleep(seconds)
