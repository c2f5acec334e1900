"""The figures, as SVG. Each takes rows as they were read and gives the text of one picture."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import NullFormatter  # noqa: E402

Row = dict[str, Any]

# Text stays text, and the same data gives the same file.
matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "wholegrain", "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e6ea", "axes.axisbelow": True, "legend.frameon": False,
})  # fmt: skip

# Colours by monitor (Okabe and Ito, which people who see colours otherwise can distinguish); configurations of one differ in their marker.
COLOURS = {
    "none": "#000000", "bare": "#7f7f7f", "wholegrain": "#009e73", "collectd": "#d55e00", "node_exporter": "#0072b2", "pcp": "#cc79a7",
    "netdata": "#56b4e9", "ganglia": "#e69f00", "likwid": "#882255", "rezolus": "#999933",
}  # fmt: skip
MARKERS = "osD^vP"
LINES = ("-", "--", ":", "-.")
OTHER = "#444444"
# Bars stand beside each other on one scale up to here, the largest over the smallest; beyond it only points on a logarithmic one can be read.
LINEAR_MAX = 20.0
# From bin to bin of the noise figure: wide enough that single loops of the tail fall together.
BIN_FACTOR = 1.01


def interval_name(interval_ns: int | None) -> str:
    """1 ms, 10 ms, 1 s; nothing for no monitor."""
    if interval_ns is None:
        return "–"
    for unit, ns in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if interval_ns >= ns and interval_ns % ns == 0:
            return f"{int(interval_ns) // ns} {unit}"
    return f"{interval_ns} ns"


def monitor_name(row: Row) -> str:
    """Monitor and configuration as one name."""
    configuration = row["configuration"]
    plain = configuration in ("", None, "default") and row["monitor"] != "wholegrain"
    return str(row["monitor"]) if plain else f"{row['monitor']} {configuration}"


def run_times(summary: Sequence[Row]) -> str:
    """Normalised run time by period, one panel a workload, as in figure 3 of Colmet's paper."""
    measured = [row for row in summary if row["monitor"] != "none" and row["ratio"] is not None]
    workloads = list(dict.fromkeys(_workload(row) for row in measured))
    intervals = sorted({row["interval_ns"] for row in measured}, reverse=True)
    names = list(dict.fromkeys(monitor_name(row) for row in measured))
    colour = {monitor_name(row): COLOURS.get(row["monitor"], OTHER) for row in measured}
    marker = _markers(measured)
    columns = min(2, max(1, len(workloads)))
    figure, panels = _panels(len(workloads), columns, (5.4 * columns, 3.1 * math.ceil(len(workloads) / columns) + 0.9))
    for panel, workload in zip(panels, workloads):
        for index, name in enumerate(names):
            rows = [r for r in measured if _workload(r) == workload and monitor_name(r) == name]
            shift = (index - (len(names) - 1) / 2) * 0.75 / max(1, len(names))
            at = [intervals.index(r["interval_ns"]) + shift for r in rows]
            ratio = [r["ratio"] for r in rows]
            low = [max(0.0, r["ratio"] - (r["ratio_low"] or r["ratio"])) for r in rows]
            high = [max(0.0, (r["ratio_high"] or r["ratio"]) - r["ratio"]) for r in rows]
            panel.errorbar(at, ratio, yerr=[low, high], fmt=marker[name], ms=4, lw=1, capsize=2, color=colour[name], label=name)
        panel.axhline(1.0, color="black", lw=0.8)
        panel.set_title(workload)
        panel.set_xticks(range(len(intervals)), [interval_name(i) for i in intervals])
        panel.set_xlim(-0.5, len(intervals) - 0.5)
        panel.set_ylabel("run time / without monitor")
        panel.grid(axis="x", visible=False)
    _legend(figure, panels)
    return _svg(figure)


def noise(histogram: Sequence[Row]) -> str:
    """How long a piece of fixed work took, without and with monitors, as in figures 5 and 8 of the LDMS paper."""
    by_interval: dict[int, set[str]] = defaultdict(set)
    counts: dict[tuple[str, int | None], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    runs: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    colour: dict[str, str] = {}
    style = _styles(histogram, LINES)
    for row in histogram:
        key = (monitor_name(row) if row["monitor"] != "none" else "none", row["interval_ns"])
        counts[key][row["bin_ns"]] += row["count"]
        runs[key].add(row["run"])
        colour[key[0]] = COLOURS.get(row["monitor"], OTHER)
        if row["interval_ns"] is not None:
            by_interval[row["interval_ns"]].add(key[0])
    intervals = sorted(by_interval) or [0]
    figure, panels = _panels(len(intervals), 1, (10.5, 2.9 * len(intervals) + 0.7))
    for panel, interval in zip(panels, intervals):
        for name in ["none", *sorted(by_interval[interval])]:
            key = (name, None if name == "none" else interval)
            if not counts[key]:
                continue
            # Runs may differ in number, so each counts as one; a bin in which no loop fell is 0 and not what its neighbour is.
            edges, each = _rebinned(counts[key], len(runs[key]))
            panel.plot([edge / 1e3 for edge in edges], each, drawstyle="steps-post", lw=1.1, ls=style.get(name, "-"), color=colour[name], label=name)
        panel.set_yscale("log")
        panel.set_xscale("log")
        panel.set_ylabel("loops per run")
        panel.set_title(f"sampled each {interval_name(interval)}" if by_interval else "without monitor")
        panel.xaxis.set_major_formatter("{x:g}")
        # Within less than a decade only the numbers between tell anything, over several they lie on each other.
        low, high = panel.get_xlim()
        panel.xaxis.set_minor_formatter("{x:g}" if high < 10 * low else NullFormatter())
    panels[len(intervals) - 1].set_xlabel("duration of one loop of fixed work, us")
    _legend(figure, panels)
    return _svg(figure)


def monitor_costs(rows: Sequence[Row]) -> str:
    """CPU a metric and memory of each monitor, at the longest period, which all of them take."""
    shared = max((r["interval_ns"] for r in rows), default=10**9)
    chosen = [r for r in rows if r["interval_ns"] == shared]
    chosen.sort(key=lambda r: r["us_per_metric"] if r["us_per_metric"] is not None else math.inf)
    names = [monitor_name(r) for r in chosen]
    figure, panels = _panels(2, 2, (10.8, 0.34 * len(chosen) + 1.3))
    for panel, column, scale, label in (
        (panels[0], "us_per_metric", 1.0, f"CPU a metric, us (each {interval_name(shared)})"),
        (panels[1], "rss_kb", 1e3, "resident memory, MB"),
    ):
        values = [None if r[column] is None else r[column] / scale for r in chosen]
        _compared(panel, names, values, [COLOURS.get(r["monitor"], OTHER) for r in chosen], logarithmic=True)
        panel.set_xlabel(label)
    figure.tight_layout()
    return _svg(figure)


def sensor_rate(found: Row) -> str:
    """CPU and memory against the sensor rate with the fitted line, as in figures 6 and 7 of DCDB's paper."""
    points, fit = found["points"], found.get("fit", {})
    figure, panels = _panels(2, 2, (10.8, 3.6))
    for interval in sorted({p["interval_ns"] for p in points}):
        of = sorted((p for p in points if p["interval_ns"] == interval), key=lambda p: float(p["rate_per_s"]))
        label = interval_name(interval)
        panels[0].plot([p["rate_per_s"] for p in of], [100 * p["cpu_share"] for p in of], "o", ms=4, label=label)
        panels[1].plot([p["sensors"] for p in of], [p["rss_kb"] / 1e3 for p in of], "o-", ms=4, lw=0.8, label=label)
    slope, start = fit.get("cpu_share_per_rate"), fit.get("cpu_share_at_zero")
    if slope is not None and start is not None and points:
        low, high = min(p["rate_per_s"] for p in points), max(p["rate_per_s"] for p in points)
        along = [low * (high / low) ** (i / 60) if low > 0 else high * i / 60 for i in range(61)]
        quality = f", R² {fit['r2']:.3f}" if fit.get("r2") is not None else ""
        panels[0].plot(along, [100 * (start + slope * x) for x in along], "k-", lw=0.9, label=f"line{quality}")
    # Both logarithmic: a line through three decades would hide two of them.
    panels[0].set(xscale="log", yscale="log", xlabel="readings per second", ylabel="CPU, % of a core")
    panels[1].set(xscale="log", xlabel="sensors", ylabel="resident memory, MB")
    panels[0].legend(title="sampled each")
    figure.tight_layout()
    return _svg(figure)


def beside(rows: Sequence[Row], names: dict[str, str]) -> str:
    """The server beside other stores, one panel a figure."""
    kinds = [what for what in names if any(r["what"] == what for r in rows)]
    figure, panels = _panels(len(kinds), 2, (10.8, 2.0 * math.ceil(len(kinds) / 2) + 0.4))
    for panel, what in zip(panels, kinds):
        of = [r for r in rows if r["what"] == what and r["value"] is not None]
        values = [float(r["value"]) for r in of]
        far_apart = bool(values) and min(values) > 0 and max(values) > LINEAR_MAX * min(values)
        colours = ["#009e73" if str(r["system"]).startswith("wholegrain") else "#8a93a0" for r in of]
        _compared(panel, [r["system"] for r in of], values, colours, logarithmic=far_apart)
        panel.set_xlabel(names[what] + (" (logarithmic)" if far_apart else ""))
    figure.tight_layout()
    return _svg(figure)


def colmet(rows: Sequence[Row], summary: Sequence[Row]) -> str:
    """The published overheads of other systems and ours, by period: one panel a program that both have."""
    programs = {"EP": "ep", "CG": "cg", "LU": "wavefront"}
    figure, panels = _panels(len(programs), 3, (10.8, 3.4))
    for panel, (published, ours) in zip(panels, programs.items()):
        fewest = min(r["nodes"] for r in rows if r["benchmark"] == published)
        of = [r for r in rows if r["benchmark"] == published and r["nodes"] == fewest]
        without = next(r["mean_s"] for r in of if r["period_s"] is None)
        for name in dict.fromkeys(r["monitor"] for r in of if r["period_s"] is not None):
            line = sorted((r for r in of if r["monitor"] == name and r["period_s"]), key=lambda r: float(r["period_s"]))
            panel.plot([r["period_s"] for r in line], [r["mean_s"] / without for r in line], "o--", ms=3, lw=0.8, alpha=0.75, label=f"{name} (published)")
        own = [r for r in summary if r["workload"] == ours and r["monitor"] == "wholegrain" and r["ratio"] is not None]
        marker, style = _styles(own, "sD^v"), _styles(own, LINES)
        for name in dict.fromkeys(monitor_name(r) for r in own):
            line = sorted((r for r in own if monitor_name(r) == name), key=lambda r: int(r["interval_ns"]))
            panel.plot([r["interval_ns"] / 1e9 for r in line], [r["ratio"] for r in line], marker=marker[name], ls=style[name], ms=4, lw=1.4, color="#009e73", label=f"{name} (here)")
        panel.axhline(1.0, color="black", lw=0.8)
        panel.set(xscale="log", xlabel="sampling period, s", title=published if published != "LU" else "LU; here the wavefront kernel")
    panels[0].set_ylabel("run time / without monitor")
    _legend(figure, panels)
    return _svg(figure)


def _compared(panel: Axes, names: Sequence[str], values: Sequence[float | None], colours: Sequence[str], logarithmic: bool) -> None:
    """A value a line: bars from 0, or points where the scale has none. `None` was not measured."""
    there = [(at, value) for at, value in enumerate(values) if value is not None and (value > 0 or not logarithmic)]
    if logarithmic:
        panel.set_xscale("log")
        panel.scatter([value for _, value in there], [at for at, _ in there], color=[colours[at] for at, _ in there], s=34, zorder=3)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.barh([at for at, _ in there], [value for _, value in there], color=[colours[at] for at, _ in there])
    for at, value in there:
        panel.annotate(f"{value:.3g}" if value < 1e5 else f"{value:,.0f}", (value, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    for at in set(range(len(values))) - {at for at, _ in there}:
        panel.annotate("–", (0, at), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.margins(x=0.2)
    panel.grid(axis="y", visible=logarithmic)


def _rebinned(counts: dict[int, int], runs: int) -> tuple[list[float], list[float]]:
    """Loops a run in bins that grow with the time they stand for: lower edges, and a 0 after the last."""
    bins: dict[int, float] = defaultdict(float)
    for edge, count in counts.items():
        bins[math.floor(math.log(max(edge, 1)) / math.log(BIN_FACTOR))] += count / runs
    # Bins as they were counted are wider than these where loops are short: between two of them there is no 0.
    places = sorted(bins)
    edges: list[float] = []
    each: list[float] = []
    for place, following in zip(places, [*places[1:], places[-1] + 100]):
        edges.append(BIN_FACTOR**place)
        each.append(bins[place])
        if following > place + 3:
            edges.append(BIN_FACTOR ** (place + 1))
            each.append(0.0)
    return edges, each


def _workload(row: Row) -> str:
    size = f" {row['size']}" if row["size"] else ""
    hosts = f", {row['hosts']} nodes" if row["hosts"] > 1 else ""
    return f"{row['workload']}{size}, {row['ranks']} ranks{hosts}"


def _markers(rows: Sequence[Row]) -> dict[str, str]:
    """A marker for each configuration, counted within its monitor."""
    return _styles(rows, MARKERS)


def _styles(rows: Sequence[Row], styles: Sequence[str]) -> dict[str, str]:
    """One of these for each configuration, counted within its monitor."""
    of: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        name = monitor_name(row)
        if name not in of[row["monitor"]]:
            of[row["monitor"]].append(name)
    return {name: styles[at % len(styles)] for names in of.values() for at, name in enumerate(names)}


def _panels(count: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    lines = max(1, math.ceil(count / columns))
    figure, grid = plt.subplots(lines, columns, figsize=size, squeeze=False)
    panels: list[Axes] = list(grid.flat)
    for unused in panels[max(1, count) :]:
        unused.set_visible(False)
    return figure, panels


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, below them."""
    shown: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            shown.setdefault(label, handle)
    lines = math.ceil(len(shown) / 4)
    height = figure.get_size_inches()[1]
    figure.tight_layout(rect=(0, (0.25 + 0.19 * lines) / height, 1, 1))
    figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=4, fontsize=8)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]
