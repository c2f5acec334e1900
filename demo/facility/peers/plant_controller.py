"""The controller of the cooling plant: a BACnet/IP device of bacpypes3 with pumps, valves, and the cooling tower.

plant_controller.py SETTINGS. It listens on 127.0.0.1 only.
"""

import asyncio
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bacpypes3.app import Application  # noqa: E402
from bacpypes3.argparse import SimpleArgumentParser  # noqa: E402
from bacpypes3.local.analog import AnalogInputObject, AnalogOutputObject  # noqa: E402
from bacpypes3.local.binary import BinaryInputObject  # noqa: E402

import plant  # noqa: E402

INSTANCE = 1201
# How often the controller measures, s.
EVERY_S = 0.2

# Type, instance, name, engineering unit, value of a state.
ANALOGS = [
    (AnalogInputObject, 1, "Pump 1 power", "kilowatts", lambda state: state.loops[0].pump_w / 1000),
    (AnalogInputObject, 2, "Pump 2 power", "kilowatts", lambda state: state.loops[1].pump_w / 1000),
    (AnalogInputObject, 3, "Pump 1 speed", "percent", lambda state: state.loops[0].pump_speed * 100),
    (AnalogInputObject, 4, "Pump 2 speed", "percent", lambda state: state.loops[1].pump_speed * 100),
    (AnalogInputObject, 5, "Outdoor temperature", "degreesCelsius", lambda state: state.outdoor_cel),
    (AnalogInputObject, 6, "Cooling tower fan power", "kilowatts", lambda state: state.fan_w / 1000),
    (AnalogInputObject, 7, "Cooling tower leaving water", "degreesCelsius", lambda state: state.tower_cel),
    (AnalogOutputObject, 1, "Cooling tower fan speed", "percent", lambda state: state.fan_speed * 100),
    (AnalogOutputObject, 2, "Mixing valve", "percent", lambda state: 30 + 60 * state.fan_speed),
]


async def main(path: str) -> None:
    settings = json.loads(pathlib.Path(path).read_text())
    model = plant.Plant(settings["seed"])
    address = f"127.0.0.1:{settings['bacnet_port']}"
    names = ["--address", address, "--instance", str(INSTANCE), "--name", "Plant controller"]
    app = Application.from_args(SimpleArgumentParser().parse_args(names))
    state = model.at(time.time())
    analogs = []
    for kind, instance, name, unit, value in ANALOGS:
        identifier = ("analog-input" if kind is AnalogInputObject else "analog-output", instance)
        one = kind(objectIdentifier=identifier, objectName=name, presentValue=value(state), units=unit, covIncrement=0.01)
        app.add_object(one)
        analogs.append((one, value))
    running = BinaryInputObject(objectIdentifier=("binary-input", 1), objectName="Cooling tower fan running", presentValue="active", polarity="normal")
    app.add_object(running)
    is_first = True
    while True:
        state = model.at(time.time())
        for one, value in analogs:
            one.presentValue = value(state)
        running.presentValue = "active" if state.fan_speed > 0.12 else "inactive"
        await asyncio.sleep(EVERY_S)
        if is_first:
            print("ready", flush=True)
            is_first = False


asyncio.run(main(sys.argv[1]))
