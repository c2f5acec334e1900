"""MQTT 3.1.1 and 5.0 as bytes without rules: it can write packets that ordinary clients cannot send.

In: values for packets, bytes from a socket. Out: bytes, and packets as plain objects.
Never: a check of what is sent. What the broker sends is read strictly, so that its mistakes are seen.
"""

import collections
import socket
import struct
import time

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
NAMES = [
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK",
    "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
]

# The longest use of one connection, s: a broker that repeats packets must not block a test.
CONNECTION_TIME_MAX = 40
# Property identifier: name, form, packets that may carry it (0 stands for properties of the will).
PROPERTIES = {
    0x01: ("payload_format", "u8", {PUBLISH, 0}),
    0x02: ("message_expiry", "u32", {PUBLISH, 0}),
    0x03: ("content_type", "text", {PUBLISH, 0}),
    0x08: ("response_topic", "text", {PUBLISH, 0}),
    0x09: ("correlation_data", "binary", {PUBLISH, 0}),
    0x0B: ("subscription_id", "varint", {PUBLISH, SUBSCRIBE}),
    0x11: ("session_expiry", "u32", {CONNECT, CONNACK, DISCONNECT}),
    0x12: ("assigned_client_id", "text", {CONNACK}),
    0x13: ("server_keep_alive", "u16", {CONNACK}),
    0x15: ("auth_method", "text", {CONNECT, CONNACK, AUTH}),
    0x16: ("auth_data", "binary", {CONNECT, CONNACK, AUTH}),
    0x17: ("request_problem_info", "u8", {CONNECT}),
    0x18: ("will_delay", "u32", {0}),
    0x19: ("request_response_info", "u8", {CONNECT}),
    0x1A: ("response_info", "text", {CONNACK}),
    0x1C: ("server_reference", "text", {CONNACK, DISCONNECT}),
    0x1F: ("reason_string", "text",
           {CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH}),
    0x21: ("receive_maximum", "u16", {CONNECT, CONNACK}),
    0x22: ("topic_alias_maximum", "u16", {CONNECT, CONNACK}),
    0x23: ("topic_alias", "u16", {PUBLISH}),
    0x24: ("maximum_qos", "u8", {CONNACK}),
    0x25: ("retain_available", "u8", {CONNACK}),
    0x26: ("user", "pair",
           {CONNECT, CONNACK, PUBLISH, 0, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK,
            DISCONNECT, AUTH}),
    0x27: ("maximum_packet_size", "u32", {CONNECT, CONNACK}),
    0x28: ("wildcard_available", "u8", {CONNACK}),
    0x29: ("subscription_ids_available", "u8", {CONNACK}),
    0x2A: ("shared_available", "u8", {CONNACK}),
}
BY_NAME = {name: (number, form) for number, (name, form, _) in PROPERTIES.items()}
REPEATED = ("user", "subscription_id")


Will = collections.namedtuple("Will", "topic payload qos retain props", defaults=(b"", 0, False, None))


class Wrong(AssertionError):
    """The broker violated the specification."""


class Closed(Wrong):
    """The broker has closed the connection; `disconnect` is its DISCONNECT, if it sent one."""

    def __init__(self, disconnect=None):
        reason = "" if disconnect is None else f" after DISCONNECT 0x{disconnect.reason:02x}"
        super().__init__(f"the broker closed the connection{reason}")
        self.disconnect = disconnect


class Silent(Wrong):
    """No packet within the timeout."""


def varint(number):
    out = bytearray()
    while True:
        number, byte = number >> 7, number & 0x7F
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">H", len(raw)) + raw


def one_property(name, value):
    number, form = BY_NAME[name]
    if form == "pair":
        body = text(value[0]) + text(value[1])
    elif form in ("text", "binary"):
        body = text(value)
    elif form == "varint":
        body = varint(value)
    else:
        body = struct.pack({"u8": ">B", "u16": ">H", "u32": ">I"}[form], value)
    return bytes([number]) + body


def properties(given):
    """From a dict (a list as value repeats the property), a list of pairs, or raw bytes."""
    if isinstance(given, bytes):
        return varint(len(given)) + given
    pairs = given.items() if isinstance(given, dict) else given or ()
    body = b""
    for name, value in pairs:
        for each in value if isinstance(value, list) else [value]:
            body += one_property(name, each)
    return varint(len(body)) + body


def packet(first, body=b""):
    return bytes([first]) + varint(len(body)) + body


def connect(v, client_id, clean=True, keep_alive=60, will=None, user=None, password=None, props=None, flags=None,
            name="MQTT", level=None):
    """`flags` overrides the connect flags that follow from the rest."""
    bits = (2 if clean else 0) | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    payload = text(client_id)
    if will is not None:
        bits |= 4 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += (properties(will.props) if v == 5 else b"") + text(will.topic) + text(will.payload)
    for credential in (user, password):
        if credential is not None:
            payload += text(credential)
    head = text(name) + bytes([level if level is not None else v, bits if flags is None else flags])
    head += struct.pack(">H", keep_alive)
    return packet(0x10, head + (properties(props) if v == 5 else b"") + payload)


def publish(v, topic, payload=b"", qos=0, pid=None, retain=False, dup=False, props=None, first=None):
    first = 0x30 | dup << 3 | qos << 1 | retain if first is None else first
    body = text(topic) + (struct.pack(">H", pid) if pid is not None else b"")
    raw = payload if isinstance(payload, bytes) else payload.encode()
    return packet(first, body + (properties(props) if v == 5 else b"") + raw)


def ack(v, kind, pid, reason=None, props=None):
    body = struct.pack(">H", pid)
    if v == 5 and (reason is not None or props is not None):
        body += bytes([reason or 0]) + (properties(props) if props is not None else b"")
    return packet(kind << 4 | (2 if kind == PUBREL else 0), body)


def subscribe(v, pid, filters, props=None, first=0x82):
    """`filters`: pairs of filter and options byte."""
    body = struct.pack(">H", pid) + (properties(props) if v == 5 else b"")
    return packet(first, body + b"".join(text(each) + bytes([options]) for each, options in filters))


def unsubscribe(v, pid, filters, props=None, first=0xA2):
    body = struct.pack(">H", pid) + (properties(props) if v == 5 else b"")
    return packet(first, body + b"".join(text(each) for each in filters))


def disconnect(v, reason=None, props=None):
    body = b""
    if v == 5 and (reason is not None or props is not None):
        body = bytes([reason or 0]) + (properties(props) if props is not None else b"")
    return packet(0xE0, body)


class Packet:
    """A received packet: its type, its flags and the fields of its type."""

    def __init__(self, kind, flags, **fields):
        self.kind, self.flags = kind, flags
        self.__dict__.update(fields)

    def __repr__(self):
        shown = {key: value for key, value in self.__dict__.items() if key != "kind"}
        return f"{NAMES[self.kind]} {shown}"


class Reader:
    """Parses the fields of a packet's body and reports errors."""

    def __init__(self, kind, body):
        self.kind, self.body, self.at = kind, body, 0

    def wrong(self, what):
        raise Wrong(f"malformed {NAMES[self.kind]} from the broker: {what}: {self.body[:64].hex()}")

    def take(self, count):
        if self.at + count > len(self.body):
            self.wrong("cut short")
        self.at += count
        return self.body[self.at - count:self.at]

    def number(self, count):
        return int.from_bytes(self.take(count), "big")

    def binary(self):
        return self.take(self.number(2))

    def string(self):
        raw = self.binary()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return self.wrong("text that is not UTF-8")

    def varint(self):
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    self.wrong("a number in more bytes than it needs")
                return value
        return self.wrong("a number over four bytes")

    def left(self):
        return len(self.body) - self.at

    def properties(self):
        end = self.varint() + self.at
        if end > len(self.body):
            self.wrong("properties cut short")
        found = {}
        while self.at < end:
            number = self.number(1)
            if number not in PROPERTIES:
                self.wrong(f"unknown property 0x{number:02x}")
            name, form, kinds = PROPERTIES[number]
            if self.kind not in kinds:
                self.wrong(f"property {name} in {NAMES[self.kind]}")
            if form == "pair":
                value = (self.string(), self.string())
            elif form == "text":
                value = self.string()
            elif form == "binary":
                value = self.binary()
            elif form == "varint":
                value = self.varint()
            else:
                value = self.number({"u8": 1, "u16": 2, "u32": 4}[form])
            if name in REPEATED:
                found.setdefault(name, []).append(value)
            elif name in found:
                self.wrong(f"property {name} twice")
            else:
                found[name] = value
        if self.at != end:
            self.wrong("properties longer than they say")
        return found


def decode(v, first, body):
    kind, flags = first >> 4, first & 15
    read = Reader(kind, body)
    if kind != PUBLISH and flags != (2 if kind == PUBREL else 0):
        read.wrong(f"flags {flags}")
    fields = {}
    if kind == CONNACK:
        fields["session_present"], fields["reason"] = read.number(1), read.number(1)
        if fields["session_present"] > 1:
            read.wrong("reserved flags")
        fields["props"] = read.properties() if v == 5 and read.left() else {}
    elif kind == PUBLISH:
        fields.update(dup=flags >> 3 & 1, qos=flags >> 1 & 3, retain=flags & 1, topic=read.string())
        if fields["qos"] == 3 or (fields["dup"] and not fields["qos"]):
            read.wrong(f"flags {flags}")
        fields["pid"] = read.number(2) if fields["qos"] else None
        if fields["pid"] == 0:
            read.wrong("packet identifier 0")
        fields["props"] = read.properties() if v == 5 else {}
        fields["payload"] = read.take(read.left())
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        fields["pid"] = read.number(2)
        fields["reason"] = read.number(1) if v == 5 and read.left() else 0
        fields["props"] = read.properties() if v == 5 and read.left() else {}
    elif kind in (SUBACK, UNSUBACK):
        fields["pid"] = read.number(2)
        fields["props"] = read.properties() if v == 5 else {}
        fields["reasons"] = list(read.take(read.left()))
    elif kind in (DISCONNECT, AUTH) and v == 5:
        fields["reason"] = read.number(1) if read.left() else 0
        fields["props"] = read.properties() if read.left() else {}
    elif kind != PINGRESP:
        read.wrong("a packet that a server does not send")
    if read.left():
        read.wrong("bytes after the end")
    return Packet(kind, flags, **fields)


class Link:
    """A socket of packets. `v` is the version for parsing the broker's packets."""

    def __init__(self, host, port, v, deadline=10.0):
        self.v, self.deadline, self.buffer = v, deadline, bytearray()
        self.last = time.monotonic() + CONNECTION_TIME_MAX
        self.socket = socket.create_connection((host, port), timeout=deadline)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.eof = False

    def send(self, data):
        try:
            self.socket.settimeout(self.deadline)
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # What the broker said before it closed is still to be read.

    def parse(self):
        """One packet from the buffer, or None."""
        length, shift = 0, 0
        for at in range(1, 5):
            if at >= len(self.buffer):
                return None
            length |= (self.buffer[at] & 0x7F) << shift
            shift += 7
            if self.buffer[at] < 0x80:
                break
        else:
            raise Wrong("a length over four bytes from the broker")
        end = at + 1 + length
        if len(self.buffer) < end:
            return None
        first, body = self.buffer[0], bytes(self.buffer[at + 1:end])
        del self.buffer[:end]
        return decode(self.v, first, body)

    def receive(self, timeout=None):
        """The next packet; raises `Closed` at the end of the connection and `Silent` after the timeout."""
        until = min(time.monotonic() + (self.deadline if timeout is None else timeout), self.last)
        while True:
            got = self.parse()
            if time.monotonic() > self.last:
                raise Silent(f"not done after {CONNECTION_TIME_MAX} s; last heard: {got}")
            if got is not None:
                return got
            if self.eof:
                raise Closed()
            left = until - time.monotonic()
            if left <= 0:
                raise Silent("nothing from the broker in time")
            self.socket.settimeout(left)
            try:
                chunk = self.socket.recv(65536)
            except (TimeoutError, socket.timeout):
                continue
            except ConnectionResetError:
                chunk = b""
            self.eof = not chunk
            self.buffer += chunk

    def drop(self):
        """Closes without DISCONNECT, with a reset if the system allows it."""
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.socket.close()

    def close(self):
        self.socket.close()
