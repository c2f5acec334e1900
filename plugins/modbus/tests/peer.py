"""A Modbus server of pymodbus for the tests.

Arguments: `tcp`, `rtu` (frames of a serial line over TCP) or `serial`; the port or the path of a terminal; values as JSON, a list of
[unit, table, address, type, value, order of words]. It prints `ready`. Units from 3 on take requests and never answer.
"""

import asyncio
import json
import sys

from pymodbus import FramerType
from pymodbus.client.mixin import ModbusClientMixin
from pymodbus.server import ModbusSerialServer, ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

TABLES = ["coil", "discrete", "holding", "input"]


def block(table, address, kind, value, words):
    if table in ("coil", "discrete"):
        return SimData(address, values=bool(value), datatype=DataType.BITS)
    kinds = ModbusClientMixin.DATATYPE
    registers = ModbusClientMixin.convert_to_registers(value, kinds[kind], word_order=words)
    return SimData(address, values=registers, datatype=DataType.REGISTERS)


def devices(values):
    for unit in sorted({value[0] for value in values}):
        blocks = {table: [] for table in TABLES}
        for _, table, *rest in (value for value in values if value[0] == unit):
            blocks[table].append(block(table, *rest))
        for table, blocks_of in blocks.items():
            # A table cannot be empty; nobody reads this address.
            bits = table in ("coil", "discrete")
            spare = SimData(60000, values=False, datatype=DataType.BITS) if bits else None
            blocks_of.append(spare or SimData(60000, values=0, datatype=DataType.REGISTERS))
            blocks_of.sort(key=lambda block: block.address)
        yield SimDevice(unit, simdata=tuple(blocks[table] for table in TABLES))


def without_answers(unit_at):
    """A hook that drops what the server sends for units from 3 on."""
    return lambda is_sent, frame: b"" if is_sent and frame[unit_at] >= 3 else frame


async def main(mode, place, values):
    context = list(devices(json.loads(values)))
    if mode == "serial":
        server = ModbusSerialServer(context, framer=FramerType.RTU, port=place, baudrate=9600, trace_packet=without_answers(0))
    else:
        framer = FramerType.SOCKET if mode == "tcp" else FramerType.RTU
        address = ("127.0.0.1", int(place))
        hook = without_answers(6 if mode == "tcp" else 0)
        server = ModbusTcpServer(context, framer=framer, address=address, trace_packet=hook)
    await server.serve_forever(background=True)
    print("ready", flush=True)
    # Ends with the test.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
