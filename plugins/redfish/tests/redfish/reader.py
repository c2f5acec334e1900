"""Reads a Redfish service independently of the plug-in and prints `{"sensor": value}` as JSON.

Usage: reader.py URL. Only the standard library. The service is the mockup beside this file, or sushy-emulator.
"""

import json
import re
import sys
import urllib.request

BASE = sys.argv[1]
out = {}


def get(path):
    with urllib.request.urlopen(BASE + path, timeout=30) as answer:
        return json.load(answer)


def linked(resource, key):
    return get(resource[key]["@odata.id"]) if key in resource else None


def members(collection):
    result = []
    while collection:
        result += [(m["@odata.id"].split("/")[-1], get(m["@odata.id"])) for m in collection["Members"]]
        following = collection.get("Members@odata.nextLink")
        collection = get(following) if following else None
    return result


def level(name):
    return re.sub(r"[\s(/]", "_", name).replace(")", "")


def put(name, part, value):
    absent = part.get("Status", {}).get("State") == "Absent"
    if not absent:
        assert name not in out, name
        out[name] = value


def named(parts):
    names = [p.get("Name") for p in parts]
    for p in parts:
        double = names.count(p["Name"]) > 1
        yield level(f"{p['Name']}_{p['MemberId']}" if double else p["Name"]), p


def state(path, r):
    health = {"OK": 0, "Warning": 1, "Critical": 2}
    status = r.get("Status", {})
    for key, name in (("Health", "health"), ("HealthRollup", "health_rollup"), ("HealthRollUp", "health_rollup")):
        if key in status:
            out[f"{path}/{name}"] = health.get(status[key])
    for key, name in (("ProcessorSummary", "processors_health"), ("MemorySummary", "memory_health")):
        if "Health" in r.get(key, {}).get("Status", {}):
            out[f"{path}/{name}"] = health.get(r[key]["Status"]["Health"])
    if "State" in status:
        out[f"{path}/enabled"] = int(status["State"] == "Enabled")
    if "PowerState" in r:
        out[f"{path}/power_state"] = {"Off": 0, "On": 1}.get(r["PowerState"])


def thermal(path, t):
    for name, p in named(t["Temperatures"]):
        put(f"{path}/temperature/{name}", p, p["ReadingCelsius"])
    for name, p in named(t["Fans"]):
        unit = {"RPM": "speed", "Percent": "percent"}[p["ReadingUnits"]]
        put(f"{path}/fan/{name}/{unit}", p, p["Reading"])


def power(path, w):
    for name, p in named(w["PowerControl"]):
        base = f"{path}/power/{name}"
        put(f"{base}/consumed", p, p["PowerConsumedWatts"])
        put(f"{base}/capacity", p, p["PowerCapacityWatts"])
        put(f"{base}/limit", p, p["PowerLimit"]["LimitInWatts"])
        for key, of in (("average", "Average"), ("minimum", "Min"), ("maximum", "Max")):
            put(f"{base}/{key}", p, p["PowerMetrics"][f"{of}ConsumedWatts"])
    for name, p in named(w["Voltages"]):
        put(f"{path}/voltage/{name}", p, p["ReadingVolts"])
    for name, p in named(w["PowerSupplies"]):
        for key, quantity in (
            ("PowerInputWatts", "input_power"),
            ("PowerOutputWatts", "output_power"),
            ("LineInputVoltage", "input_voltage"),
            ("PowerCapacityWatts", "capacity"),
            ("EfficiencyPercent", "efficiency"),
        ):
            if key in p:
                put(f"{path}/supply/{name}/{quantity}", p, p[key])


EXCERPTS = {
    "TemperatureCelsius": "temperature",
    "HumidityPercent": "humidity",
    "PowerWatts": "power",
    "EnergykWh": "energy",
    "PowerLimitWatts": "power_limit",
    "FanSpeedsPercent": "fan_speeds",
    "DewPointCelsius": "dew_point",
    "InputVoltage": "input_voltage",
    "InputCurrentAmps": "input_current",
    "InputPowerWatts": "input_power",
    "FrequencyHz": "frequency",
    "OutputPowerWatts": "output_power",
    "FanSpeedPercent": "fan_speed",
    "RailVoltage": "rail_voltage",
}
BESIDE = {"ApparentVA": "apparent_power", "PowerFactor": "power_factor", "SpeedRPM": "speed"}


def excerpts(path, r):
    for key, quantity in EXCERPTS.items():
        parts = r.get(key)
        if parts is None:
            continue
        for p in parts if isinstance(parts, list) else [parts]:
            name = f"{path}/{quantity}"
            if isinstance(parts, list):
                name += "/" + level(p.get("DeviceName") or p["DataSourceUri"].split("/")[-1])
            out[name] = p["Reading"]
            for beside, suffix in BESIDE.items():
                if beside in p:
                    out[f"{name}_{suffix}"] = p[beside]


def chassis(name, c):
    path = f"chassis/{name}"
    state(path, c)
    if "Thermal" in c:
        thermal(path, linked(c, "Thermal"))
    elif "ThermalSubsystem" in c:
        subsystem = linked(c, "ThermalSubsystem")
        metrics = linked(subsystem, "ThermalMetrics")
        parts = metrics["TemperatureReadingsCelsius"]
        names = [p.get("DeviceName") for p in parts]
        for p in parts:
            source = p.get("DataSourceUri", "").split("/")[-1]
            device = p.get("DeviceName")
            label = f"{device}_{source}" if device and names.count(device) > 1 else device or source
            out[f"{path}/temperature/{level(label)}"] = p["Reading"]
        for place, p in metrics["TemperatureSummaryCelsius"].items():
            out[f"{path}/temperature_summary/{place.lower()}"] = p["Reading"]
        for fan, f in members(linked(subsystem, "Fans")):
            out[f"{path}/fan/{fan}/percent"] = f["SpeedPercent"]["Reading"]
            out[f"{path}/fan/{fan}/speed"] = f["SpeedPercent"]["SpeedRPM"]
            out[f"{path}/fan/{fan}/power"] = f["PowerWatts"]["Reading"]
    if "Power" in c:
        power(path, linked(c, "Power"))
    elif "PowerSubsystem" in c:
        for supply, s in members(linked(linked(c, "PowerSubsystem"), "PowerSupplies")):
            excerpts(f"{path}/supply/{supply}", linked(s, "Metrics"))
    if "EnvironmentMetrics" in c:
        excerpts(f"{path}/environment", linked(c, "EnvironmentMetrics"))
    if "Sensors" in c:
        for sensor, s in members(linked(c, "Sensors")):
            put(f"{path}/sensor/{sensor}", s, s["Reading"])


root = get("/redfish/v1/")
for name, c in members(linked(root, "Chassis")):
    chassis(name, c)
for name, s in members(linked(root, "Systems")):
    state(f"system/{name}", s)
for name, m in members(linked(root, "Managers")):
    state(f"manager/{name}", m)
print(json.dumps(out))
