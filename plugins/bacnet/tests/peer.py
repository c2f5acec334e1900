"""A BACnet/IP device of bacpypes3 for the tests.

Arguments: the port, and JSON with `instance`, `objects` (a list of [type, instance, name, value, units or "", status flags]), and optionally
`without`: names of services that the device does not have, such as `ReadPropertyMultiple` or `WhoIs`, and `max_apdu`. It prints `ready`, and then
takes lines `type,instance value` that change a present value.
"""

import asyncio
import json
import socket
import sys

from bacpypes3.app import Application
from bacpypes3.argparse import SimpleArgumentParser
from bacpypes3.basetypes import Scale, StatusFlags
from bacpypes3.local.analog import AnalogInputObject, AnalogOutputObject, AnalogValueObject
from bacpypes3.local.binary import BinaryInputObject, BinaryValueObject
from bacpypes3.local.multistate import MultiStateInputObject, MultiStateValueObject
from bacpypes3.local.object import Object
from bacpypes3.object import AccumulatorObject


class CountObject(Object, AccumulatorObject):
    """An accumulator, which the library has without a local class."""


KINDS = {
    "accumulator": CountObject,
    "analog-input": AnalogInputObject,
    "analog-output": AnalogOutputObject,
    "analog-value": AnalogValueObject,
    "binary-input": BinaryInputObject,
    "binary-value": BinaryValueObject,
    "multi-state-input": MultiStateInputObject,
    "multi-state-value": MultiStateValueObject,
}


def device_object(kind, instance, name, value, units, flags):
    keys = {"objectIdentifier": (kind, instance), "objectName": name, "presentValue": value}
    in_alarm, fault, _, out_of_service = flags
    keys |= {"eventState": "offnormal" if in_alarm else "normal", "outOfService": bool(out_of_service)}
    keys |= {"reliability": "unreliableOther" if fault else "noFaultDetected"}
    if kind.startswith("analog"):
        keys |= {"units": units, "covIncrement": 0.1}
    elif kind == "accumulator":
        # A thousand of its unit for each count, from 0 to 99999.
        keys |= {"units": units, "scale": Scale(integerScale=3), "maxPresValue": 99_999, "statusFlags": StatusFlags(flags)}
    elif kind.startswith("multi"):
        keys |= {"numberOfStates": 10}
    elif kind == "binary-input":
        keys |= {"polarity": "normal"}
    return KINDS[kind](**keys)


def is_answered(port):
    """Whether the device answers ReadProperty of the identifier of any device, also by an error."""
    request = bytes.fromhex("810a001101040005010c0c023fffff194b")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.settimeout(0.2)
        own.connect(("127.0.0.1", int(port)))
        try:
            own.send(request)
            return own.recv(1500)[6] in (0x30, 0x50)
        except OSError:
            return False


async def main(port, text):
    settings = json.loads(text)
    without = settings.get("without", [])
    parser = SimpleArgumentParser()
    arguments = ["--address", f"127.0.0.1:{port}", "--instance", str(settings["instance"]), "--name", "peer"]
    kind = type("Peer", (Application,), {f"do_{service}Request": None for service in without})
    app = kind.from_args(parser.parse_args(arguments))
    if "max_apdu" in settings:
        app.device_object.maxApduLengthAccepted = settings["max_apdu"]
    objects = {}
    for keys in settings["objects"]:
        one = device_object(*keys)
        objects[f"{keys[0]},{keys[1]}"] = one
        app.add_object(one)
    loop = asyncio.get_running_loop()
    while not await loop.run_in_executor(None, is_answered, port):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, value = line.split()
        objects[name].presentValue = float(value) if name.startswith("analog") else value
        print("done", flush=True)


asyncio.run(main(*sys.argv[1:]))
