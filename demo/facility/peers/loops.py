"""Heat meters of the two cooling loops behind one Modbus TCP gateway, of two makers.

loops.py SETTINGS. Unit 1 has integers in holding registers (flow in 0.001 m3/h, temperatures in 0.01 Cel), unit 2 floating-point numbers with swapped words in
input registers (flow in L/s). It listens on 127.0.0.1 only.
"""

import asyncio
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pymodbus.client.mixin import ModbusClientMixin  # noqa: E402
from pymodbus.server import ModbusTcpServer  # noqa: E402
from pymodbus.simulator import DataType, SimData, SimDevice  # noqa: E402

import plant  # noqa: E402

KINDS = ModbusClientMixin.DATATYPE
REGISTERS = 12


def words(value, kind, order="big"):
    return ModbusClientMixin.convert_to_registers(value, kind, word_order=order)


def first_meter(loop: plant.LoopState) -> list[int]:
    flow = words(round(loop.flow_l_s * 3.6 * 1000), KINDS.UINT32)
    temperatures = [words(round(cel * 100), KINDS.INT16)[0] for cel in (loop.supply_cel, loop.return_cel)]
    return [*flow, *temperatures, round(loop.pressure_bar * 1000)]


def second_meter(loop: plant.LoopState) -> list[int]:
    values = (loop.flow_l_s, loop.supply_cel, loop.return_cel, loop.pressure_bar)
    return [word for value in values for word in words(value, KINDS.FLOAT32, "little")]


def device(model: plant.Plant, unit: int, meter) -> SimDevice:
    async def measure(_function, start, _address, _count, registers, _set):
        """Called before registers are read: puts the values of now into the meter's table."""
        # Tables that the meter does not have begin elsewhere.
        if start == 0:
            now = meter(model.at(time.time()).loops[unit - 1])
            registers[: len(now)] = now

    table = [SimData(0, values=[0] * REGISTERS, datatype=DataType.REGISTERS)]
    other = [SimData(60000, values=0, datatype=DataType.REGISTERS)]
    bits = [[SimData(60000, values=False, datatype=DataType.BITS)] for _ in range(2)]
    registers = (table, other) if unit == 1 else (other, table)
    return SimDevice(unit, simdata=(*bits, *registers), action=measure)


async def main(path: str) -> None:
    settings = json.loads(pathlib.Path(path).read_text())
    model = plant.Plant(settings["seed"])
    devices = [device(model, 1, first_meter), device(model, 2, second_meter)]
    server = ModbusTcpServer(devices, address=("127.0.0.1", settings["modbus_port"]))
    await server.serve_forever(background=True)
    print("ready", flush=True)
    await server.serving


asyncio.run(main(sys.argv[1]))
