"""Which runs are made, and in which order. The order depends on the experiment's file, its seed, and the monitors that are installed: on nothing else, so
that a run's number means the same after a restart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from harness import BenchError, Json, interval_name

from .file import NO_MONITOR, Experiment

RUNS_MAX = 1_000_000
SETTING = ("monitor", "configuration", "interval_ns")
LOAD = ("workload", "size", "ranks", "hosts")


@dataclass(frozen=True)
class Offer:
    """What this machine offers of a monitor: its version, or why it cannot run, and its shortest period."""

    version: str | None
    reason: str | None
    shortest_ns: int


@dataclass(frozen=True)
class Planned:
    run: int
    # From 0, those of the warm-up first.
    round: int
    warm_up: bool
    # Index into the plan's conditions.
    condition: int


@dataclass
class Plan:
    conditions: list[Json]
    left_out: list[Json]
    runs: list[Planned]


def setting(condition: Json) -> tuple[object, ...]:
    """The monitor's part of a condition."""
    return tuple(condition[name] for name in SETTING)


def load(condition: Json) -> tuple[object, ...]:
    """The workload's part of a condition."""
    return tuple(condition[name] for name in LOAD)


def describe(condition: Json) -> str:
    hosts = f" on {condition['hosts']}" if condition["hosts"] > 1 else ""
    monitor = NO_MONITOR
    if condition["interval_ns"] is not None:
        monitor = f"{condition['monitor']} {condition['configuration']} {interval_name(condition['interval_ns'])}"
    return f"{condition['workload']} {condition['size']} x{condition['ranks']}{hosts}, {monitor}"


def make(experiment: Experiment, seed: int, offers: Mapping[str, Offer], hosts: int) -> Plan:
    """Each round makes every condition, in an order of its own: a slow drift affects all alike."""
    conditions: list[Json] = []
    left_out: list[Json] = []
    for workload in experiment.workloads:
        used = workload.hosts or hosts
        if used > hosts:
            raise BenchError(f"{workload.name} is to run on {used} hosts; the launcher has {hosts}")
        own: Json = {"workload": workload.name, "size": workload.size, "ranks": workload.ranks, "hosts": used}
        conditions.append(own | {"monitor": NO_MONITOR, "configuration": "", "interval_ns": None})
        for monitor in experiment.monitors:
            if monitor.workloads and workload.name not in monitor.workloads:
                continue
            for configuration in monitor.configurations:
                for interval in monitor.intervals_ns:
                    of = {"monitor": monitor.name, "configuration": configuration, "interval_ns": interval}
                    reason = _reason(offers.get(monitor.name), interval)
                    if reason is None:
                        conditions.append(own | of)
                    elif of | {"reason": reason} not in left_out:
                        left_out.append(of | {"reason": reason})
    for at, condition in enumerate(conditions):
        if condition in conditions[:at]:
            raise BenchError(f"{describe(condition)} is named twice: on {hosts} hosts `hosts = {hosts}` and no `hosts` are the same")
    # All ratios depend on the runs without a monitor.
    each_round = list(range(len(conditions)))
    each_round += [at for at, c in enumerate(conditions) if c["interval_ns"] is None for _ in range(experiment.none_per_round - 1)]
    rounds = experiment.warm_up + experiment.repetitions
    if (count := len(each_round) * rounds) > RUNS_MAX:
        raise BenchError(f"{count} runs are more than {RUNS_MAX}: reduce repetitions or settings")
    generator, runs = random.Random(seed), list[Planned]()
    for number in range(rounds):
        for condition_at in generator.sample(each_round, len(each_round)):
            runs.append(Planned(len(runs), number, number < experiment.warm_up, condition_at))
    return Plan(conditions, left_out, runs)


def _reason(offer: Offer | None, interval_ns: int) -> str | None:
    """Why a setting cannot be measured here."""
    if offer is None:
        return None
    if offer.reason is not None:
        return offer.reason
    return f"{interval_name(offer.shortest_ns)} is its shortest period" if interval_ns < offer.shortest_ns else None
