# %% [markdown]
# # Which ratios distinguish applications?
#
# The ratio of two counters of a job at each sample, and its distribution over the job's time, characterize an application. DCDB's second
# case study (SC 2019, section 7.2) uses instructions per watt, from hardware counters and a power meter. Machines without them, such as
# virtual machines, have counters of the kernel: page faults and context switches per second of CPU time, and the fraction of CPU time in
# the kernel. Use `--ratio perf/instructions:perf/cycles` on machines with hardware counters.
#
# For jobs of a resource manager: `python application_ratio.py --job lammps=4711 --job amg=4712`.
#
# `--run` runs the five small programs of `applications.py` on this machine, each as a job: a directory in each cgroup hierarchy, named
# like one of Slurm, which the agent on this machine finds. It requires root and an agent that searches for jobs.

# %%
import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pyarrow.compute as pc
import wholegrain

arguments = argparse.ArgumentParser(description="Distribution of a ratio of two counters, per application")
arguments.add_argument("--job", action="append", default=[], metavar="NAME=ID", help="a job that ran, and what to call it")
arguments.add_argument("--run", action="store_true", help="run the programs of applications.py as jobs, now")
arguments.add_argument("--seconds", type=float, default=30.0, help="with --run: how long each")
arguments.add_argument("--hierarchies", type=Path, default=Path("/sys/fs/cgroup"), help="with --run: folder of the cgroup hierarchies")
arguments.add_argument("--ratio", action="append", help="two counters of a job, numerator:denominator; may be given several times")
arguments.add_argument("--out", type=Path, default=Path("plots"), help="folder for the plots")
options, _ = arguments.parse_known_args()
given = options.ratio or ["perf/page-faults:cpu/usage", "perf/context-switches:cpu/usage", "cpu/system:cpu/usage"]
wanted = [(numerator, denominator) for numerator, _, denominator in (text.partition(":") for text in given)]
options.out.mkdir(parents=True, exist_ok=True)
client = wholegrain.connect()

# %% [markdown]
# ## Jobs


# %%
def groups_of(job: int) -> list[Path]:
    """The directories of a job with one step and one task, with Slurm's names, in every hierarchy of this machine."""
    found = []
    for hierarchy in sorted(options.hierarchies.iterdir()):
        if (hierarchy / "cgroup.controllers").exists():
            found.append(hierarchy / f"system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0")
        elif hierarchy.name in ("cpuacct", "memory", "pids") and (hierarchy / "cgroup.procs").exists():
            found.append(hierarchy / f"slurm/uid_{os.getuid()}/job_{job}/step_0/task_0")
    if (options.hierarchies / "cgroup.controllers").exists():
        found.append(options.hierarchies / f"system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0")
    return found


def run(name: str, job: int) -> None:
    """Runs a program in the job's cgroups from its first instruction on, and then removes them."""
    groups = groups_of(job)
    for group in groups:
        group.mkdir(parents=True)

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text("0")

    program = [sys.executable, str(Path(__file__).with_name("applications.py")), name, str(options.seconds)]
    try:
        subprocess.run(program, check=True, preexec_fn=enter)
        # The agent takes the last samples while the job exists.
        time.sleep(1)
    finally:
        for group in groups:
            while not (group / "cgroup.procs").parent.name.startswith("job_"):
                group.rmdir()
                group = group.parent
            group.rmdir()


jobs = {name: job for name, _, job in (text.partition("=") for text in options.job)}
if options.run:
    if os.geteuid() != 0:
        sys.exit("application_ratio.py --run: making cgroups needs root; run it with sudo, or name jobs that ran with --job NAME=ID")
    if not groups_of(0):
        sys.exit(f"application_ratio.py --run: no cgroup hierarchy in {options.hierarchies}")
    first = int(time.time()) % 10_000_000 * 10
    for number, name in enumerate(("multiply", "compress", "allocate", "converse", "files"), first):
        print(f"running {name} as job {number} for {options.seconds:g} s")
        run(name, number)
        jobs[name] = str(number)
if not jobs:
    sys.exit("application_ratio.py: no jobs; give --job NAME=ID, or --run")

# %% [markdown]
# The server has the record shortly after the job's end.

# %%
deadline = time.monotonic() + 60
found = {}
while len(found) < len(jobs):
    for name, id in jobs.items():
        try:
            job = client.job(id)
        except wholegrain.NotFound:
            continue
        if job.end is not None or not options.run:
            found[name] = job
    if time.monotonic() > deadline:
        sys.exit(f"application_ratio.py: the server knows nothing of job {[id for name, id in jobs.items() if name not in found]}")
    time.sleep(0.2)


# %% [markdown]
# ## The ratio at each sample
# Both counters are read at about the same times. The ratio divides the increase of one in a fifth of a second by that of the other.
# Samples with almost no CPU time are ignored.


# %%
def ratio(job: wholegrain.Job, numerator: str, denominator: str, every: str = "200ms") -> list[float]:
    """The ratio at each time over all nodes."""
    rates = {}
    for metric in {numerator, denominator}:
        with job.query(metric, op="rate", every=every) as result:
            table = result.to_arrow().group_by("time").aggregate([("value", "sum")])
            rates[metric] = table.rename_columns(["time", metric])
    both = rates[numerator].join(rates[denominator], "time", join_type="inner").drop_null()
    both = both.filter(pc.greater(both[denominator], 0.01))
    return pc.divide(both[numerator], both[denominator]).to_pylist()


# %% [markdown]
# ## Its distribution
# Ratios of applications differ by orders of magnitude, so that the density is that of the logarithm: a sum of normal distributions, one
# for each sample, with the width of Silverman's rule.


# %%
def density(values: list[float], at: list[float]) -> list[float]:
    """Kernel density estimate of `values` at these positions."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    width = max(1.06 * spread * len(values) ** -0.2, (at[-1] - at[0]) / 150)
    scale = 1 / (len(values) * width * math.sqrt(2 * math.pi))
    return [scale * sum(math.exp(-0.5 * ((x - value) / width) ** 2) for value in values) for x in at]


def panel(axis, ratios: dict[str, list[float]], name: str) -> None:
    """Plots the densities of one ratio, one curve for each application."""
    share = max(map(max, ratios.values())) < 2
    # Zero has no logarithm: it is shown as one event in ten seconds.
    shown = {app: values if share else [math.log10(value + 0.1) for value in values] for app, values in ratios.items()}
    low, high = min(map(min, shown.values())), max(map(max, shown.values()))
    margin = (high - low) / 10 + 1e-6
    places = [low - margin + (high - low + 2 * margin) * step / 400 for step in range(401)]
    for app, values in shown.items():
        across = places if share else [10**place for place in places]
        (line,) = axis.plot(across, density(values, places), label=f"{app} ({len(values)} samples)")
        axis.fill_between(across, density(values, places), alpha=0.15, color=line.get_color())
    axis.set_xscale("linear" if share else "log")
    axis.set_xlabel(name)
    axis.set_ylabel("density" if share else "density of the logarithm")
    axis.legend(fontsize="x-small")
    axis.grid(alpha=0.3)


figure, axes = plt.subplots(len(wanted), 1, squeeze=False, figsize=(9, 3.2 * len(wanted)), layout="constrained")
for axis, (numerator, denominator) in zip(axes[:, 0], wanted, strict=True):
    name = f"{numerator} per {denominator}"
    ratios = {app: ratio(job, numerator, denominator) for app, job in found.items()}
    ratios = {app: values for app, values in ratios.items() if values}
    if not ratios:
        sys.exit(f"application_ratio.py: none of the jobs has {numerator} and {denominator}; job.sensors() lists what a job has")
    panel(axis, ratios, name)
    for app, values in ratios.items():
        middle = statistics.median(values)
        print(f"{name}: {app} {len(values)} samples, median {middle:.3f}, from {min(values):.3f} to {max(values):.3f}")
figure.suptitle("Ratios of counters, per application")
figure.savefig(options.out / "application_ratio.png", dpi=120)

# %% [markdown]
# ## One job in a figure

# %%
name, job = next(iter(found.items()))
job.plot().savefig(options.out / f"job_{name}.png", dpi=120)
