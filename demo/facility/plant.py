"""The physical model of a warm-water cooled system: racks, two cooling loops, pumps, a cooling tower, the building.

- Input: a seed and a time. The state is a function of these two alone: peers in several processes agree without talking to each other, and a peer that was
  restarted goes on where it would have been.
- Output: `Plant.at(time_s)`, in SI units (W, m3/s is given as L/s, temperatures in Cel).
- Never: noise, memory of earlier calls, the current time.

`python3 plant.py --from -10min` prints the true state as JSON lines, to compare measurements with.
"""

import argparse
import functools
import json
import math
import random
import time
from dataclasses import dataclass

# Water at 40 degrees Celsius (IAPWS-95): density in kg/L, specific heat in J/(kg.K).
DENSITY = 0.99222
CAPACITY = 4179.6

RACKS_PER_LOOP = 2
LOOPS = 2
RACKS = RACKS_PER_LOOP * LOOPS
# Power of an idle rack, and what full load adds, W.
RACK_W = (9_000.0, 26_000.0)
# A rack's load changes at most every SLOT_S, within RAMP_S.
SLOT_S = 180.0
RAMP_S = 60.0
# Share of the power that reaches the water, and the heat that a loop loses to the room for each kelvin above it, W/K.
SHARE = 0.915
LOSS_W_PER_K = 40.0
ROOM_CEL = 25.0
# Heat reaches the water, and flow follows it, with these time constants, s.
LAG_S = (20.0, 40.0)
# The flow is controlled to this rise, K, and never below this flow, L/s.
RISE_K = 8.0
FLOW_MIN_L_S = 0.3
FLOW_MAX_L_S = 2.2
# The supply temperature swings around its set point, Cel, by this much, K, in this time, s.
SUPPLY = (40.0, 4.0, 1800.0)
# Loss of the uninterruptible power supply as a share of its load, lighting of the building, W, and heat removed per energy of the room's cooling.
UPS_LOSS = 0.03
LIGHTING_W = 1_200.0
ROOM_COOLING = 3.5


@dataclass(frozen=True)
class LoopState:
    """A cooling loop: L/s, Cel, W; the pump's speed as a share of its largest."""

    flow_l_s: float
    supply_cel: float
    return_cel: float
    pressure_bar: float
    heat_w: float
    pump_w: float
    pump_speed: float


@dataclass(frozen=True)
class PlantState:
    """The whole plant at one time."""

    time_s: float
    racks_w: tuple[float, ...]
    loops: tuple[LoopState, ...]
    outdoor_cel: float
    humidity: float
    tower_cel: float
    fan_w: float
    fan_speed: float
    ups_loss_w: float
    room_cooling_w: float
    lighting_w: float = LIGHTING_W

    @property
    def power_w(self) -> float:
        return sum(self.racks_w)

    @property
    def heat_w(self) -> float:
        return sum(loop.heat_w for loop in self.loops)

    @property
    def facility_w(self) -> float:
        """Power of all that is not a computer."""
        pumps = sum(loop.pump_w for loop in self.loops)
        return pumps + self.fan_w + self.ups_loss_w + self.room_cooling_w + self.lighting_w

    def truth(self) -> dict:
        """What a perfect measurement would give."""
        return {
            "time": self.time_s,
            "racks_w": self.racks_w,
            "power_w": self.power_w,
            "loops": [{"flow_l_s": loop.flow_l_s, "supply_cel": loop.supply_cel, "return_cel": loop.return_cel, "heat_w": loop.heat_w} for loop in self.loops],
            "heat_w": self.heat_w,
            "efficiency": self.heat_w / self.power_w,
            "facility_w": self.facility_w,
            "pue": 1.0 + self.facility_w / self.power_w,
        }


class Plant:
    """The plant of one seed."""

    def __init__(self, seed: int):
        self._seed = seed
        self._level = functools.lru_cache(maxsize=4096)(self._drawn_level)

    def _drawn_level(self, rack: int, slot: int) -> float:
        """The load in a slot: a third of the time idle, else between half and full."""
        draws = random.Random(f"{self._seed}/{rack}/{slot}")
        return 0.5 + 0.5 * draws.random() if draws.random() > 0.33 else 0.03

    def rack_w(self, rack: int, time_s: float) -> float:
        """Power of a rack, W."""
        # Racks change at different times.
        slot, into = divmod(time_s + rack * SLOT_S / RACKS, SLOT_S)
        before, level = self._level(rack, int(slot) - 1), self._level(rack, int(slot))
        if into < RAMP_S:
            level = before + (level - before) * (1.0 - math.cos(math.pi * into / RAMP_S)) / 2.0
        return RACK_W[0] + RACK_W[1] * level

    def _lagged_w(self, loop: int, time_s: float, lag_s: float) -> float:
        """Power of the racks of a loop as a first-order lag shows it, W."""
        steps, step_s = 30, lag_s / 5.0
        weights = [math.exp(-step * step_s / lag_s) for step in range(steps)]
        racks = range(loop * RACKS_PER_LOOP, (loop + 1) * RACKS_PER_LOOP)
        powers = (sum(self.rack_w(rack, time_s - step * step_s) for rack in racks) for step in range(steps))
        return sum(weight * power for weight, power in zip(weights, powers, strict=True)) / sum(weights)

    def _loop(self, loop: int, time_s: float) -> tuple[LoopState, float]:
        """A loop, and the heat that its racks give to the room, W."""
        middle, swing, period_s = SUPPLY
        supply = middle + swing * math.sin(2.0 * math.pi * time_s / period_s) + 0.4 * loop
        warm = self._lagged_w(loop, time_s, LAG_S[0])
        heat = SHARE * warm - LOSS_W_PER_K * (supply + RISE_K / 2.0 - ROOM_CEL)
        per_flow = DENSITY * CAPACITY
        flow = max(FLOW_MIN_L_S, SHARE * self._lagged_w(loop, time_s, LAG_S[1]) / (per_flow * RISE_K))
        speed = min(1.0, flow / FLOW_MAX_L_S)
        state = LoopState(
            flow_l_s=flow,
            supply_cel=supply,
            return_cel=supply + heat / (flow * per_flow),
            pressure_bar=1.5 + 1.2 * speed**2,
            heat_w=heat,
            pump_w=150.0 + 1_450.0 * speed**3,
            pump_speed=speed,
        )
        return state, warm - heat

    def at(self, time_s: float) -> PlantState:
        """The state at a time, s since the Unix epoch."""
        racks = tuple(self.rack_w(rack, time_s) for rack in range(RACKS))
        loops, losses = zip(*(self._loop(loop, time_s) for loop in range(LOOPS)), strict=True)
        day = math.sin(2.0 * math.pi * (time_s / 86_400.0 - 0.375))
        outdoor = 14.0 + 6.0 * day + 0.5 * math.sin(2.0 * math.pi * time_s / 700.0)
        heat_max = RACKS * sum(RACK_W) * SHARE
        fan_speed = min(1.0, max(0.1, sum(loop.heat_w for loop in loops) / heat_max * (1.0 + (outdoor - 14.0) / 40.0)))
        return PlantState(
            time_s=time_s,
            racks_w=racks,
            loops=loops,
            outdoor_cel=outdoor,
            humidity=0.65 - 0.2 * day,
            tower_cel=loops[0].supply_cel - 2.5,
            fan_w=3_000.0 * fan_speed**3,
            fan_speed=fan_speed,
            ups_loss_w=UPS_LOSS * sum(racks),
            room_cooling_w=sum(losses) / ROOM_COOLING,
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description="The true state of the simulated plant, as JSON lines")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--from", type=float, dest="start", default=-60.0, help="s since the epoch; negative: before now")
    arguments.add_argument("--to", type=float, default=None, help="s since the epoch; default: now")
    arguments.add_argument("--every", type=float, default=5.0, help="s; times are multiples of it")
    options = arguments.parse_args()
    now = time.time()
    start = now + options.start if options.start < 0 else options.start
    plant = Plant(options.seed)
    at = math.ceil(start / options.every) * options.every
    while at <= (now if options.to is None else options.to):
        print(json.dumps(plant.at(at).truth()))
        at += options.every


if __name__ == "__main__":
    main()
