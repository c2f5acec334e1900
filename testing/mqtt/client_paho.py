"""paho-mqtt for `tests/mqtt_clients.rs`: `client_paho.py publish|subscribe HOST PORT OPTIONS`, with OPTIONS as JSON:
version (4 or 5), topic, qos, and payload and retain to publish; count, id, kept and will to subscribe.
A subscriber prints a line for each message: its quality, its retain flag, its topic and its payload.
"""

import json
import sys
import threading

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

# The timeout of each operation, s.
DEADLINE = 60


def main():
    action, host, port, text = sys.argv[1:]
    options = json.loads(text)
    v5, kept = options["version"] == 5, options.get("kept", False)
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, options.get("id", ""), protocol=paho.MQTTv5 if v5 else paho.MQTTv311,
        **({} if v5 else {"clean_session": not kept}))
    done, subscribed, granted, heard = threading.Event(), threading.Event(), [], []

    def message(_client, _data, got):
        print(got.qos, int(got.retain), got.topic, got.payload.decode(), flush=True)
        heard.append(got)
        if len(heard) == options["count"]:
            done.set()

    def connected(_client, _data, _flags, reason, _properties):
        if reason.value != 0:
            sys.exit(f"refused: {reason}")
        if action == "subscribe":
            client.subscribe(options["topic"], options["qos"])

    client.on_message, client.on_connect = message, connected

    def on_subscribe(_client, _data, _pid, reasons, _properties):
        granted.extend(reason.value for reason in reasons)
        subscribed.set()

    client.on_subscribe = on_subscribe
    if "ca" in options:
        client.tls_set(options["ca"])
    if "will" in options:
        client.will_set(options["will"], "died", 1)
    start = {}
    if v5:
        expiry = Properties(PacketTypes.CONNECT)
        expiry.SessionExpiryInterval = 60 if kept else 0
        start = {"clean_start": not kept, "properties": expiry}
    client.connect(host, int(port), 30, **start)
    client.loop_start()
    if action == "publish":
        info = client.publish(options["topic"], options["payload"], options["qos"], options["retain"])
        info.wait_for_publish(DEADLINE)
        ok = info.is_published()
    else:
        # Messages may arrive before SUBACK.
        ok = subscribed.wait(DEADLINE) and done.wait(DEADLINE) and granted == [options["qos"]]
    client.disconnect()
    client.loop_stop()
    sys.exit(0 if ok else f"{len(heard)} messages, granted {granted}")


main()
