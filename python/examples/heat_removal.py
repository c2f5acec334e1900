# %% [markdown]
# # Which fraction of a system's heat does the water remove?
#
# A liquid-cooled system converts electrical power to heat. Heat that the water does not remove goes into the room and has to be removed
# there. Sensors measure neither heat nor efficiency: both are defined here as virtual sensors, from flow and temperatures, and queried
# like any others. (DCDB's first case study, SC 2019, section 7.1, asks the same question: does warmer water reduce the efficiency?)
#
# Readings: `cargo run --release -p wholegrain-testing --example facility -- var/client.toml 3` replays three days of a simulated system.
# Run it cell by cell in an editor that supports `# %%`, or as a program: `python heat_removal.py --start=-3d --out plots`.

# %%
import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import wholegrain

arguments = argparse.ArgumentParser(description="Heat-removal efficiency of a liquid-cooled system")
arguments.add_argument("--start", default="-3d")
arguments.add_argument("--end", default="now")
arguments.add_argument("--every", default="10min", help="width of the windows; heat lags behind power by minutes")
arguments.add_argument("--system", default="/site/facility", help="where its sensors are")
arguments.add_argument("--out", type=Path, default=Path("plots"), help="folder for the plots")
options, _ = arguments.parse_known_args()
options.out.mkdir(parents=True, exist_ok=True)

client = wholegrain.connect()
system = options.system
for sensor in client.sensors(f"{system}/**"):
    print(f"{sensor.path:40} {sensor.unit:8} {sensor.description}")

# %% [markdown]
# Heat is flow times density times heat capacity times the rise of the temperature. Constants have units, so that the server refuses
# an expression that adds litres to kelvins, and converts L/min, °C and W. The first definition is a template: each circuit of the system
# has its own sensor.

# %%
# The measured power of the system, and the computed heat of all circuits.
client.virtual.define(
    f"{system}/cooling/*/heat",
    "<flow> * 0.992[kg/L] * 4178[J/(kg.K)] * (<outlet> - <inlet>)",
    "W",
    description="Heat that the water takes away",
)
client.virtual.define(
    f"{system}/heat_removal",
    f"sum(<{system}/cooling/*/heat>) / <{system}/power>",
    "%",
    description="Share of the electrical power that the water takes away",
)

# %%
window = {"start": options.start, "end": options.end, "every": options.every}
power = client.query(f"{system}/power", unit="kW", **window).to_pandas(wide=True)
heat = client.query(f"{system}/cooling/*/heat", unit="kW", **window).to_pandas(wide=True).sum(axis="columns", skipna=False)
inlet = client.query(f"{system}/cooling/*/inlet", **window).to_pandas(wide=True).mean(axis="columns")
removal = client.query(f"{system}/heat_removal", **window).to_pandas(wide=True)[f"{system}/heat_removal"]

# %%
figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained", height_ratios=[2, 1])
above.plot(power.index, power[f"{system}/power"], label="electrical power", linewidth=1)
above.plot(heat.index, heat, label="heat in the water", linewidth=1)
above.set_ylabel("kW")
above.set_ylim(bottom=0)
above.legend()
above.grid(alpha=0.3)
below.plot(inlet.index, inlet, color="tab:red", linewidth=1)
below.set_ylabel("inlet, °C")
below.grid(alpha=0.3)
figure.autofmt_xdate()
figure.suptitle("Power and heat")
figure.savefig(options.out / "heat_removal_time.png", dpi=120)

# %% [markdown]
# The efficiency over the inlet temperature: each dot is a window, the line is the mean for each kelvin.

# %%
both = removal.rename("removal").to_frame().join(inlet.rename("inlet"), how="inner").dropna()
by_kelvin = both.groupby(both["inlet"].round()).agg(removal=("removal", "mean"), windows=("removal", "size"))
by_kelvin = by_kelvin[by_kelvin["windows"] >= 3]

figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
axis.scatter(both["inlet"], both["removal"], s=6, alpha=0.4, label=f"windows of {options.every}")
axis.plot(by_kelvin.index, by_kelvin["removal"], color="tab:red", marker="o", label="mean of each K")
axis.set_xlabel("inlet temperature, °C")
axis.set_ylabel("heat removed, % of the power")
axis.set_ylim(60, 110)
axis.grid(alpha=0.3)
axis.legend()
axis.set_title("Efficiency of heat removal")
figure.savefig(options.out / "heat_removal_inlet.png", dpi=120)

# %%
mean = both["removal"].mean()
slope = both["removal"].cov(both["inlet"]) / both["inlet"].var()
print(f"windows: {len(both)} of {options.every}, inlet {both['inlet'].min():.1f} to {both['inlet'].max():.1f} °C")
print(f"mean heat removal: {mean:.1f} % of the power")
print(f"per kelvin at the inlet: {slope:+.2f} percentage points")
