"""The machine: its description in general terms, and whether it is quiet."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

from harness import Json, cpu_ns, processes

# The kernel's sum counts whatever runs when the clock ticks: so many ticks are in doubt.
TICKS_IN_DOUBT = 2
TICK_S = 0.01


def description(hosts: int) -> Json:
    """The machine as a report shows it: no names, no paths."""
    cpu, memory = _read("/proc/cpuinfo"), re.search(r"MemTotal:\s*(\d+)", _read("/proc/meminfo"))
    name, flags = (re.search(rf"^{key}\s*:\s*(.*)$", cpu, re.MULTILINE) for key in ("model name", "flags"))
    distribution = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    mounts = [line.split(" ")[2] for line in _read("/proc/self/mounts").splitlines() if line.count(" ") > 2]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "model": general(name[1]) if name else None,
        "architecture": platform.machine(),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "kernel": platform.release().split("-")[0],
        "distribution": distribution[1] if distribution else None,
        "mpi": _first_line("mpirun"),
        "compiler": _first_line("mpicc") or _first_line("cc"),
        "virtualised": "hypervisor" in flags[1].split() if flags else None,
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip() or None,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "cgroup_versions": [version for kind, version in (("cgroup", 1), ("cgroup2", 2)) if kind in mounts],
        "hosts": hosts,
    }


def general(name: str) -> str:
    """A processor's name without trade marks."""
    return " ".join(re.sub(r"\((R|TM|tm)\)| CPU| Processor", "", name).split())


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _first_line(program: str) -> str | None:
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    return result.stdout.splitlines()[0].strip() if result.returncode == 0 and result.stdout else None


class Load:
    """CPU time that all processes except this one have used so far."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.processes = {pid: cpu_ns(pid) for pid in processes() if pid != os.getpid()}
        fields = [int(word) for word in _read("/proc/stat").split("\n", 1)[0].split()[1:8]]
        # user nice system idle iowait irq softirq: all but idle and iowait. Other containers of this machine are in it.
        self.busy_ticks = sum(fields) - sum(fields[3:5])

    def percent_since(self, before: Load) -> float:
        """Their use since, in percent of one core: of the processes that can be seen, to the nanosecond; or by the kernel's coarser sum where that is
        beyond doubt larger."""
        window = max(self.at - before.at, 1e-9)
        visible = sum(max(ns - before.processes.get(pid, ns), 0) for pid, ns in self.processes.items()) / 1e9
        ticks = max(self.busy_ticks - before.busy_ticks - TICKS_IN_DOUBT, 0)
        return max(visible, ticks * TICK_S) / window * 100
