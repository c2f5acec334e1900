"""A variation module of snmpsim: objects of a rack's power distribution unit, computed from the model when they are asked for.

A record's value is `seed,rack,what`. Units are those of PowerNet-MIB: 10 W, 0.1 A, 1 V.
"""

import functools
import time

import plant

STARTED = time.monotonic()
# The share of each phase of a rack's power, and its voltage, V.
PHASES = {"1": (0.34, 231.0), "2": (0.33, 229.0), "3": (0.33, 230.0)}

model = functools.lru_cache(maxsize=16)(plant.Plant)


def init(**context):
    pass


def shutdown(**context):
    pass


def number(seed, rack, what):
    if what == "uptime":
        return int((time.monotonic() - STARTED) * 100)
    power = model(int(seed)).rack_w(int(rack), time.time())
    if what == "power":
        return round(power / 10)
    share, voltage = PHASES[what[-1]]
    return round({"power": power * share / 10, "voltage": voltage, "current": power * share / voltage * 10}[what[:-1]])


def variate(oid, tag, value, **context):
    is_asked = context["nextFlag"] or context["exactMatch"]
    if context["setFlag"] or not is_asked:
        return context["origOid"], tag, context["errorStatus"]
    return oid, tag, str(number(*value.split(",")))
