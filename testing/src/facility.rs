//! A small model of a liquid-cooled system: nodes that use power, a circuit of warm water that removes the heat, and sensors with noise and gaps. It
//! is replayed into a real server as days of readings.
//!
//! - Input: a seed, the number of nodes, a time range, an interval.
//! - Output: ClusterCockpit lines with units, which the server stores as `/site/…`.
//! - Never: a reading that the model did not measure; a reading of a silent sensor.
//!
//! The cooling circuit is the one of `wholegrain up --demo` ([`wholegrain_demo::water`]).

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use wholegrain_demo::water::{Circuit, SET_POINTS};

use crate::Random;

/// The power of an idle node, and the additional power at full load, W.
const NODE_W: (f64, f64) = (110.0, 290.0);
/// Power of other parts in the racks: switches, and the losses of power supplies as a fraction.
const RACK_W: (f64, f64) = (150.0, 0.05);
/// Sensors become silent once in this number of readings, for at most this number of readings.
const SILENT: (u64, u64) = (2_000, 30);
/// The most lines of one request.
const LINES_MAX: usize = 50_000;

/// The parameters of a replay.
#[derive(Debug, Clone, Copy)]
pub struct Replay {
    /// The seed of the model and its noise.
    pub seed: u64,
    pub nodes: usize,
    /// The first time, s since the Unix epoch.
    pub from_s: i64,
    /// The end, exclusive, s since the Unix epoch.
    pub to_s: i64,
    /// The interval of all sensors, s.
    pub every_s: u32,
}

/// The state of the system at one time.
pub struct Facility {
    random: Random,
    every_s: f64,
    nodes: Vec<Node>,
    water: Circuit,
    /// For each sensor, how many more readings it is silent.
    silent: Vec<u64>,
}

/// A node's load and the remaining time of it.
struct Node {
    load: f64,
    left_s: f64,
}

/// One measured value with the sensor's tags and unit.
struct Measured {
    tags: String,
    unit: &'static str,
    value: f64,
}

impl Facility {
    /// The state at the first time.
    pub fn new(replay: &Replay) -> Self {
        let mut random = Random::new(replay.seed);
        let nodes: Vec<Node> =
            (0..replay.nodes).map(|_| Node { load: 0.0, left_s: uniform(&mut random) * 3600.0 }).collect();
        let power = power(&nodes).1;
        let heat_max = nodes.len() as f64 * (NODE_W.0 + NODE_W.1);
        Self {
            random,
            every_s: f64::from(replay.every_s),
            silent: vec![0; nodes.len() + 5],
            nodes,
            water: Circuit::new(power, heat_max),
        }
    }

    /// Advances by one interval.
    fn step(&mut self, time_s: i64) {
        let dt = self.every_s;
        for node in &mut self.nodes {
            node.left_s -= dt;
            if node.left_s <= 0.0 {
                // Jobs with pauses: a third of the time idle, else between half and full load.
                let busy = uniform(&mut self.random) > 0.33;
                node.load = if busy { 0.5 + 0.5 * uniform(&mut self.random) } else { 0.02 };
                node.left_s = 900.0 + 7200.0 * uniform(&mut self.random);
            }
        }
        let (power, random) = (power(&self.nodes).1, &mut self.random);
        self.water.step(dt, time_s, power, || random.within(SET_POINTS.start, SET_POINTS.end) as f64);
    }

    /// Measures the sensors that are not silent.
    fn measure(&mut self) -> Vec<Measured> {
        let (nodes, power) = power(&self.nodes);
        let water = &self.water;
        let of = |tags: &str, unit, value| Measured { tags: tags.to_owned(), unit, value };
        let mut all: Vec<Measured> = nodes
            .iter()
            .enumerate()
            .map(|(index, power)| {
                of(&format!("power,cluster=site,hostname=node{:02},type=node", index + 1), "W", *power)
            })
            .collect();
        let circuit = |name: &str| format!("{name},cluster=site,hostname=facility,type=cooling,type-id=1");
        all.push(of("power,cluster=site,hostname=facility,type=node", "W", power));
        all.push(of(&circuit("pump"), "W", water.pump()));
        all.push(of(&circuit("flow"), "L/min", water.flow()));
        all.push(of(&circuit("inlet"), "Cel", water.inlet()));
        all.push(of(&circuit("outlet"), "Cel", water.outlet()));
        let mut said = Vec::with_capacity(all.len());
        for (index, mut one) in all.into_iter().enumerate() {
            // Thermometers have an error of 0.02 K, other sensors of 0.5 %.
            let noise = gauss(&mut self.random);
            one.value += if one.unit == "Cel" { 0.02 * noise } else { 0.005 * noise * one.value };
            if self.silent[index] > 0 {
                self.silent[index] -= 1;
                continue;
            }
            if self.random.within(0, SILENT.0) == 0 {
                self.silent[index] = self.random.within(1, SILENT.1);
            }
            said.push(one);
        }
        said
    }
}

/// Power of the nodes, and total power of the racks, W.
fn power(nodes: &[Node]) -> (Vec<f64>, f64) {
    let nodes: Vec<f64> = nodes.iter().map(|node| NODE_W.0 + NODE_W.1 * node.load).collect();
    let sum: f64 = nodes.iter().sum();
    (nodes, (sum + RACK_W.0) * (1.0 + RACK_W.1))
}

fn uniform(random: &mut Random) -> f64 {
    (random.draw() >> 11) as f64 / (1u64 << 53) as f64
}

/// An approximate normal distribution with deviation 1: the sum of twelve uniform numbers.
fn gauss(random: &mut Random) -> f64 {
    (0..12).map(|_| uniform(random)).sum::<f64>() - 6.0
}

/// Generates all readings in bodies of at most [`LINES_MAX`] lines; returns their number.
pub fn bodies(replay: &Replay, mut send: impl FnMut(&str)) -> u64 {
    let mut facility = Facility::new(replay);
    let (mut body, mut lines, mut count) = (String::new(), 0, 0);
    let mut time_s = replay.from_s;
    while time_s < replay.to_s {
        facility.step(time_s);
        for Measured { tags, unit, value } in facility.measure() {
            // Writing to a string cannot fail.
            let _ = writeln!(body, "{tags},unit={unit} value={value:.4} {time_s}");
            lines += 1;
            count += 1;
        }
        if lines >= LINES_MAX {
            send(&body);
            body.clear();
            lines = 0;
        }
        time_s += i64::from(replay.every_s);
    }
    if lines > 0 {
        send(&body);
    }
    count
}

/// Replays into the server at `url` (`https://host:port`); returns the number of durable readings. Panics if the server refuses them.
#[track_caller]
pub fn replay(url: &str, ca: &Path, token: &str, replay: &Replay) -> u64 {
    bodies(replay, |body| post(url, ca, token, body))
}

/// Posts ClusterCockpit lines with curl.
#[track_caller]
pub fn post(url: &str, ca: &Path, token: &str, body: &str) {
    let mut child = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--fail-with-body",
            "--retry",
            "10",
            "--retry-delay",
            "1",
            "--max-time",
            "120",
            "--cacert",
        ])
        .arg(ca)
        .args(["--header", &format!("Authorization: Bearer {token}"), "--data-binary", "@-"])
        .arg(format!("{url}/api/v1/write/clustercockpit?precision=s"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl");
    let written = child.stdin.take().expect("a pipe").write_all(body.as_bytes());
    let output = child.wait_with_output().expect("curl");
    assert!(output.status.success(), "{url} refuses: {}", String::from_utf8_lossy(&output.stdout));
    written.expect("an accepted body");
}

#[cfg(test)]
mod tests {
    use wholegrain_demo::water::WATER;

    use super::*;

    const DAY: Replay = Replay { seed: 7, nodes: 4, from_s: 1_770_000_000, to_s: 1_770_086_400, every_s: 30 };

    fn values(replay: &Replay, tags: &str) -> Vec<(i64, f64)> {
        let mut found = Vec::new();
        bodies(replay, |body| {
            for line in body.lines().filter(|line| line.starts_with(tags)) {
                let mut parts = line.split(' ');
                let value = parts.nth(1).and_then(|text| text.strip_prefix("value=")).unwrap().parse().unwrap();
                found.push((parts.next().unwrap().parse().unwrap(), value));
            }
        });
        found
    }

    #[test]
    fn a_seed_is_one_history() {
        let of = |seed| {
            let mut text = String::new();
            let count = bodies(&Replay { seed, ..DAY }, |body| text.push_str(body));
            assert_eq!(count as usize, text.lines().count());
            text
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn the_heat_in_the_water_is_about_nine_tenths_of_the_power() {
        let power = values(&DAY, "power,cluster=site,hostname=facility");
        let sensor = |name: &str| values(&DAY, &format!("{name},cluster=site,hostname=facility"));
        let (flow, inlet, outlet) = (sensor("flow"), sensor("inlet"), sensor("outlet"));
        // Sensors are silent at times, so that the means are over nearly the same times.
        let mean = |values: &[(i64, f64)]| values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
        let heat = mean(&flow) / 60.0 * WATER.0 * WATER.1 * (mean(&outlet) - mean(&inlet));
        let ratio = heat / mean(&power);
        assert!((0.87..0.94).contains(&ratio), "{ratio}");
        let (all, wanted) = (values(&DAY, "").len(), 2880 * (DAY.nodes + 5));
        assert!(all < wanted && all > wanted * 97 / 100, "gaps are occasional: {all} of {wanted}");
        let span = |values: &[(i64, f64)]| {
            let all = values.iter().map(|(_, value)| *value);
            all.clone().fold(f64::MIN, f64::max) - all.fold(f64::MAX, f64::min)
        };
        assert!(span(&inlet) > 5.0, "the inlet moves over {} K", span(&inlet));
    }
}
