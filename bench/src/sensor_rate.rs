//! CPU and memory of the agent against its sensor rate, with the linear fit of DCDB (SC'19, section 6.3).
//!
//! The paper varies sensors and interval of its tester plugin and fits a line through CPU load over readings a second, so that the load of
//! any configuration follows from two that were measured. Ours does not follow from readings alone, as a tick costs something
//! however many sensors it reads; so beside the paper's line there is one fit with ticks, whose figures are the price of each.

use serde_json::json;
use wholegrain_testing::Site;

use crate::agent_cost::{configure, start, status};
use crate::report::{Aim, aim, keep, line, measure_for};

/// What the paper reports of its best machine: at most so much of a core up to 1,000 readings a second …
const PAPER_SHARE_1_000: f64 = 0.01;
/// … and at most so much at 100,000.
const PAPER_SHARE_100_000: f64 = 0.03;
/// What the paper's pusher takes at 100,000 readings a second, MB, with the cache of its default.
const PAPER_MB_100_000: f64 = 350.0;
/// And with at most 1,000 sensors.
const PAPER_MB_1_000_SENSORS: f64 = 50.0;

#[derive(clap::Args)]
pub struct Options {
    /// Numbers of sensors, each measured at each interval.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 10_000])]
    sensors: Vec<u64>,
    /// Sampling intervals, milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 100, 10])]
    interval_ms: Vec<u64>,
    /// Length of each measuring window, seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How much the agent's cache holds, seconds; it is full before anything is measured.
    #[arg(long, default_value_t = 3)]
    cache_s: u64,
    /// Shape of the values: counter, noise, sine, ramp or constant.
    #[arg(long, default_value = "noise")]
    shape: String,
}

/// One configuration, measured.
#[derive(Debug, Clone, Copy)]
struct Point {
    sensors: f64,
    interval_ms: f64,
    cpu_share: f64,
    rss_kb: f64,
    missed: f64,
    dropped: f64,
}

impl Point {
    fn rate(&self) -> f64 {
        self.sensors * 1e3 / self.interval_ms
    }

    fn ticks(&self) -> f64 {
        1e3 / self.interval_ms
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let count = options.sensors.len() * options.interval_ms.len();
    println!(
        "agent: CPU and memory by sensor rate, tester sensors ({}), {count} x {} s",
        options.shape, options.seconds
    );
    let site = Site::new();
    let server = site.start_server();
    let mut points = Vec::new();
    println!(
        "  {:>8} {:>9} {:>12} {:>8} {:>9} {:>8}",
        "sensors", "interval", "readings/s", "CPU %", "RSS MB", "missed"
    );
    for &interval_ms in &options.interval_ms {
        for &sensors in &options.sensors {
            let point = measure(options, &site, sensors, interval_ms)?;
            println!(
                "  {sensors:>8} {:>6} ms {:>12.0} {:>8.3} {:>9.1} {:>8}",
                interval_ms,
                point.rate(),
                point.cpu_share * 100.0,
                point.rss_kb / 1e3,
                point.missed
            );
            points.push(point);
        }
    }
    drop(server);
    let figures = told(&points, options);
    keep("sensor-rate", figures)
}

fn measure(options: &Options, site: &Site, sensors: u64, interval_ms: u64) -> anyhow::Result<Point> {
    let sources = format!(
        "[cache]\nduration = \"{}s\"\nbytes_max = \"256MiB\"\n[sources.tester]\nsensors = {sensors}\nshape = \"{}\"\ninterval = \
         \"{interval_ms}ms\"\n",
        options.cache_s, options.shape
    );
    configure(site, &sources)?;
    let mut agent = start(site);
    measure_for(options.cache_s as f64 + 0.5);
    let count = |state: &serde_json::Value, field: &str| state[field].as_f64().unwrap_or(0.0);
    let (before, used) = (status(site), agent.cpu_ns());
    measure_for(options.seconds);
    let used = agent.cpu_ns() - used;
    let after = status(site);
    let rss_kb = agent.status_kb("VmRSS") as f64;
    agent.stop();
    let over = |field| count(&after, field) - count(&before, field);
    Ok(Point {
        sensors: sensors as f64,
        interval_ms: interval_ms as f64,
        cpu_share: used as f64 / 1e9 / options.seconds,
        rss_kb,
        missed: over("missed_ticks"),
        dropped: over("dropped_batches"),
    })
}

/// Prints the fits and the paper's figures beside them; everything for the file.
fn told(points: &[Point], options: &Options) -> serde_json::Value {
    let shares: Vec<f64> = points.iter().map(|point| point.cpu_share).collect();
    let by_rate = fit(points, &shares, &[Point::rate]);
    let by_both = fit(points, &shares, &[Point::ticks, Point::rate]);
    let memory: Vec<f64> = points.iter().map(|point| point.rss_kb).collect();
    let memory = fit(points, &memory, &[|point| point.sensors, Point::rate]);
    if let Some(Fit { at_zero, slopes, r2 }) = &by_rate {
        line("the paper's line: % of a core at rest", format!("{:.3}", at_zero * 100.0), "");
        line("  and for 1,000 readings a second, %", format!("{:.4}", slopes[0] * 1e5), "");
        line("  R2 (share of the variance that the line explains)", format!("{r2:.4}"), "");
    }
    if let Some(Fit { slopes, r2, .. }) = &by_both {
        line("with ticks: us of CPU a tick", format!("{:.1}", slopes[0] * 1e6), "");
        line("  and ns of CPU a reading", format!("{:.1}", slopes[1] * 1e9), "");
        line("  R2", format!("{r2:.4}"), "");
    }
    if let Some(Fit { at_zero, slopes, r2 }) = &memory {
        line("memory: kB at rest", format!("{at_zero:.0}"), "");
        line("  and kB a sensor", format!("{:.3}", slopes[0]), "");
        line(
            &format!("  and kB for a reading a second, cache of {} s", options.cache_s),
            format!("{:.4}", slopes[1]),
            "",
        );
        line("  R2", format!("{r2:.4}"), "");
    }
    // The largest of what there is at or below the paper's rates.
    let most = |of: &dyn Fn(&Point) -> bool, value: &dyn Fn(&Point) -> f64| {
        points.iter().filter(|point| of(point)).map(value).reduce(f64::max)
    };
    let aims = [
        (
            "up to 1,000 readings/s, % of a core",
            most(&|p| p.rate() <= 1e3, &|p| p.cpu_share * 100.0),
            PAPER_SHARE_1_000 * 100.0,
        ),
        (
            "up to 100,000 readings/s, % of a core",
            most(&|p| p.rate() <= 1e5, &|p| p.cpu_share * 100.0),
            PAPER_SHARE_100_000 * 100.0,
        ),
        (
            "up to 1,000 sensors and 100,000 readings/s, MB",
            most(&|p| p.sensors <= 1e3 && p.rate() <= 1e5, &|p| p.rss_kb / 1e3),
            PAPER_MB_1_000_SENSORS,
        ),
        ("up to 100,000 readings/s, MB", most(&|p| p.rate() <= 1e5, &|p| p.rss_kb / 1e3), PAPER_MB_100_000),
    ];
    for (what, value, paper) in aims {
        if let Some(value) = value {
            aim(what, value, 2, Aim::AtMost(paper, &format!("DCDB's {paper}")));
        }
    }
    let dropped: f64 = points.iter().map(|point| point.dropped).sum();
    line("batches dropped", dropped, "0");
    json!({
        "seconds": options.seconds, "cache_s": options.cache_s, "shape": options.shape,
        "points": points.iter().map(|point| json!({
            "sensors": point.sensors, "interval_ns": point.interval_ms * 1e6, "rate_per_s": point.rate(), "cpu_share": point.cpu_share,
            "rss_kb": point.rss_kb, "missed": point.missed, "dropped": point.dropped,
        })).collect::<Vec<_>>(),
        "fit": {
            "cpu_share_per_rate": by_rate.as_ref().map(|fit| fit.slopes[0]),
            "cpu_share_at_zero": by_rate.as_ref().map(|fit| fit.at_zero),
            "r2": by_rate.as_ref().map(|fit| fit.r2),
            "cpu_us_per_tick": by_both.as_ref().map(|fit| fit.slopes[0] * 1e6),
            "cpu_ns_per_reading": by_both.as_ref().map(|fit| fit.slopes[1] * 1e9),
            "r2_with_ticks": by_both.as_ref().map(|fit| fit.r2),
            "rss_kb_at_zero": memory.as_ref().map(|fit| fit.at_zero),
            "rss_kb_per_sensor": memory.as_ref().map(|fit| fit.slopes[0]),
            "rss_kb_per_rate": memory.as_ref().map(|fit| fit.slopes[1]),
            "rss_r2": memory.as_ref().map(|fit| fit.r2),
        },
        "paper": { "cpu_share_at_1000": PAPER_SHARE_1_000, "cpu_share_at_100000": PAPER_SHARE_100_000,
                   "mb_up_to_1000_sensors": PAPER_MB_1_000_SENSORS, "mb_at_100000": PAPER_MB_100_000 },
    })
}

/// A linear model that fits best by least squares.
#[derive(Debug, Clone, PartialEq)]
struct Fit {
    at_zero: f64,
    slopes: Vec<f64>,
    /// The share of the values' variance that it explains.
    r2: f64,
}

/// Fits `values` by what `of` takes of each point; `None` when the points do not determine it.
fn fit(points: &[Point], values: &[f64], of: &[fn(&Point) -> f64]) -> Option<Fit> {
    let row = |point: &Point| -> Vec<f64> { std::iter::once(1.0).chain(of.iter().map(|of| of(point))).collect() };
    let size = of.len() + 1;
    if points.len() <= size {
        return None;
    }
    // Each column is divided by its largest value, so that the equations of sums are about as large as each other.
    let mut scales = vec![0.0_f64; size];
    points.iter().for_each(|point| scales.iter_mut().zip(row(point)).for_each(|(most, x)| *most = most.max(x.abs())));
    let mut equations = vec![vec![0.0; size + 1]; size];
    for (point, value) in points.iter().zip(values) {
        let row: Vec<f64> = row(point).iter().zip(&scales).map(|(x, scale)| x / scale).collect();
        for (equation, x) in equations.iter_mut().zip(&row) {
            equation.iter_mut().zip(&row).for_each(|(sum, y)| *sum += x * y);
            equation[size] += x * value;
        }
    }
    let solution: Vec<f64> = solve(equations)?.iter().zip(&scales).map(|(x, scale)| x / scale).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let expected = |point: &Point| row(point).iter().zip(&solution).map(|(x, by)| x * by).sum::<f64>();
    let left: f64 = points.iter().zip(values).map(|(point, value)| (value - expected(point)).powi(2)).sum();
    let all: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let r2 = if all > 0.0 { 1.0 - left / all } else { 1.0 };
    Some(Fit { at_zero: solution[0], slopes: solution[1..].to_vec(), r2 })
}

/// Solves linear equations, each with its right side last; `None` when they do not have one solution.
fn solve(mut equations: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    const NOTHING: f64 = 1e-9;
    let size = equations.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|a, b| equations[*a][column].abs().total_cmp(&equations[*b][column].abs()))?;
        if equations[pivot][column].abs() < NOTHING {
            return None;
        }
        equations.swap(column, pivot);
        let by = equations[column].clone();
        for (_, equation) in equations.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = equation[column] / by[column];
            equation.iter_mut().zip(&by).for_each(|(value, by)| *value -= factor * by);
        }
    }
    Some((0..size).map(|index| equations[index][size] / equations[index][index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(share: impl Fn(f64, f64) -> f64) -> (Vec<Point>, Vec<f64>) {
        let grid = [100.0, 1000.0, 10_000.0].into_iter().flat_map(|s| [1000.0, 100.0, 10.0].map(|i| (s, i)));
        let points: Vec<Point> = grid
            .map(|(sensors, interval_ms)| Point {
                sensors,
                interval_ms,
                cpu_share: 0.0,
                rss_kb: 0.0,
                missed: 0.0,
                dropped: 0.0,
            })
            .collect();
        let shares = points.iter().map(|point| share(point.ticks(), point.rate())).collect();
        (points, shares)
    }

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() <= expected.abs() * 1e-6 + 1e-12, "{got} for {expected}");
    }

    #[test]
    fn a_line_is_found_again() {
        let (points, shares) = points(|_, rate| 0.002 + rate * 3e-7);
        let fit = fit(&points, &shares, &[Point::rate]).unwrap();
        near(fit.at_zero, 0.002);
        near(fit.slopes[0], 3e-7);
        near(fit.r2, 1.0);
    }

    #[test]
    fn ticks_and_readings_are_told_apart() {
        let (points, shares) = points(|ticks, rate| 0.001 + ticks * 2e-4 + rate * 1e-8);
        let both = fit(&points, &shares, &[Point::ticks, Point::rate]).unwrap();
        near(both.slopes[0], 2e-4);
        near(both.slopes[1], 1e-8);
        let rate_alone = fit(&points, &shares, &[Point::rate]).unwrap();
        assert!(rate_alone.r2 < 0.95 && both.r2 > 0.999_999, "{} {}", rate_alone.r2, both.r2);
    }

    #[test]
    fn what_is_not_determined_is_not_made_up() {
        let (points, shares) = points(|_, rate| rate);
        assert_eq!(fit(&points[..2], &shares[..2], &[Point::rate]), None);
        let same = vec![points[0]; 6];
        assert_eq!(fit(&same, &[1.0; 6], &[Point::ticks, Point::rate]), None);
    }
}
