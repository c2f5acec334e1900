//! The model: the readings of all sensors of the centre at a time.
//!
//! - In: a [`CentrePlan`], times that go forward.
//! - Out: [`GroupReadings`], the readings of one group of one agent; job records.
//! - Never: unbounded memory, as long as the caller takes the readings every few hundred steps.

use std::collections::{BTreeMap, HashMap};

use wholegrain_model::{Interval, JobRecord, Schema, SensorDef, SensorPath, StepRecord};

use crate::boosts::Boosts;
use crate::plan::{CPUS, CentrePlan, PlannedJob, PlannedNode, Story};
use crate::water::{Circuit, SET_POINTS};
use crate::{ROOT, hash, noise};

/// The interval of the readings after the history.
pub const LIVE: Interval = Interval::from_s(5);
/// How often the record of a running job is sent again with new totals.
const RECORD_EVERY_S: i64 = 60;
/// Power of an idle node, and what full load of its CPUs adds, W.
const NODE_W: (f64, f64) = (110.0, 290.0);
/// Power of an idle GPU, and what full load adds, W.
const GPU_W: (f64, f64) = (55.0, 395.0);
/// Power of the switches, W, and the losses of the power supplies as a fraction.
const RACK_W: (f64, f64) = (150.0, 0.05);
/// Memory of a node, bytes.
const MEMORY: f64 = 256e9;
/// Clock frequency of the nodes, and of the slow node, Hz.
const FREQUENCY: (f64, f64) = (2.9e9, 2.1e9);
/// How long job 4711 was sampled at 1 ms, and when after its start, s.
const BOOSTED_S: (i64, i64) = (10, 3600);
/// Prefix of the metrics from hardware counters.
const PERF: &str = "perf/";
/// Length of the bursts in which jobs compute, ns.
const BURST_NS: i64 = 40_000_000;
const NS: i64 = 1_000_000_000;

/// Metrics of a job: name, unit, whether it is a counter, scale, description.
const JOB_METRICS: [(&str, &str, bool, f64, &str); 7] = [
    ("cpu/usage", "s", true, 1e-6, "CPU time."),
    ("cpu/throttled_time", "s", true, 1e-6, "Time that the job was stopped for its CPU bandwidth, summed over CPUs."),
    ("memory/usage", "By", false, 1.0, "Memory charged to the job, page cache and kernel memory included."),
    ("memory/events/oom_kill", "1", true, 1.0, "Processes killed for lack of memory."),
    ("io/write_bytes", "By", true, 1.0, "Written to block devices, all of them together."),
    ("perf/instructions", "1", true, 1.0, "Instructions retired."),
    ("perf/cycles", "1", true, 1.0, "Cycles of the cores."),
];

/// Names and units of a job's metrics.
pub fn job_metrics() -> Vec<(&'static str, &'static str)> {
    JOB_METRICS.iter().map(|metric| (metric.0, metric.1)).collect()
}

/// The readings of one group of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupReadings {
    /// The index of the node; for the facility the number of nodes.
    pub agent: usize,
    pub group: String,
    /// The prefix of the sensors' paths.
    pub prefix: String,
    pub sensors: Vec<SensorDef>,
    pub interval: Interval,
    /// ns since the Unix epoch.
    pub times: Vec<i64>,
    /// The raw values of each sensor, one for each time.
    pub columns: Vec<Vec<i64>>,
}

impl GroupReadings {
    /// The schema of these sensors.
    pub fn schema(&self) -> Result<Schema, String> {
        let prefix = SensorPath::new(self.prefix.as_str()).map_err(|error| error.to_string())?;
        Schema::new(prefix, self.group.as_str(), self.sensors.clone()).map_err(|error| error.to_string())
    }
}

/// The index of a node, and the record of a job on that node.
pub type NodeRecord = (usize, JobRecord);

/// The counters of a node.
#[derive(Debug, Clone, Default)]
struct NodeCounters {
    cpu_s: [f64; CPUS],
    received: f64,
    heat: f64,
}

impl NodeCounters {
    fn restart(&mut self) {
        *self = Self { heat: self.heat, ..Self::default() };
    }
}

/// The counters of a job on one node: the values of [`JOB_METRICS`] without their scale.
#[derive(Debug, Clone, Default)]
struct JobCounters {
    values: [f64; JOB_METRICS.len()],
    memory_peak: f64,
}

/// The load of a node at a time.
#[derive(Debug, Clone, Copy, Default)]
struct NodeLoad {
    /// Fraction of the CPUs in use.
    cpu: f64,
    /// Memory in use, bytes.
    memory: f64,
    /// Fraction of the GPUs in use.
    gpu: f64,
    /// Fraction of the time in which the limit of CPU time stops the job.
    throttled: f64,
    ipc: f64,
    /// Traffic received, bytes per second.
    network: f64,
    /// Data written to disk, bytes per second.
    written: f64,
}

/// A time in which metrics of a job were sampled at a shorter interval.
struct FineSampling {
    from_s: i64,
    until_s: i64,
    every: Interval,
    metrics: Vec<usize>,
}

/// The state of the centre at one time.
#[derive(Debug)]
pub struct Centre {
    plan: CentrePlan,
    time_s: i64,
    nodes: Vec<NodeCounters>,
    water: Circuit,
    /// The first job that has not begun.
    next: usize,
    /// The counters of running jobs, by job and node.
    running: BTreeMap<(usize, usize), JobCounters>,
    /// The running job of each node.
    job_of_node: Vec<Option<usize>>,
    open: HashMap<(usize, String), GroupReadings>,
    done: Vec<GroupReadings>,
    records: Vec<NodeRecord>,
    recorded_s: i64,
    /// Earlier readings have been published by a previous run.
    from_s: i64,
}

impl Centre {
    /// The state shortly before `from_s`: the beginning of the history, or the end of the previous run. Readings are made from `from_s` on.
    pub fn new(plan: CentrePlan, from_s: i64) -> Self {
        // Counters of running jobs begin at the job's start, and the water circuit needs an hour to reach a steady state.
        let runs = plan.jobs.iter().filter(|job| job.from_s < from_s && job.to_s > from_s).map(|job| job.from_s).min();
        let time_s = runs.unwrap_or(from_s).min(from_s - 3600);
        let next = plan.jobs.partition_point(|job| job.from_s < time_s);
        let count = plan.nodes.len() as f64;
        let water = Circuit::new(count * (NODE_W.0 + 0.5 * NODE_W.1), count * (NODE_W.0 + NODE_W.1));
        Self {
            time_s,
            nodes: vec![NodeCounters::default(); plan.nodes.len()],
            water,
            next,
            running: BTreeMap::new(),
            job_of_node: vec![None; plan.nodes.len()],
            open: HashMap::new(),
            done: Vec::new(),
            records: Vec::new(),
            recorded_s: from_s,
            from_s,
            plan,
        }
    }

    /// The plan that the model follows.
    pub fn plan(&self) -> &CentrePlan {
        &self.plan
    }

    /// The time of the last step, s since the Unix epoch.
    pub fn time_s(&self) -> i64 {
        self.time_s
    }

    /// Advances to `time_s`. `interval` is the interval of the readings that the step makes.
    pub fn step(&mut self, time_s: i64, interval: Interval, boosts: &Boosts) {
        let before = std::mem::replace(&mut self.time_s, time_s);
        self.begin_jobs(time_s);
        if before < self.from_s && time_s >= self.from_s {
            // Nodes count from 0, as after a reboot: a later run does not know the last counts of the earlier one.
            self.nodes.iter_mut().for_each(NodeCounters::restart);
        }
        let dt = (time_s - before) as f64;
        let mut power = RACK_W.0;
        for node in 0..self.nodes.len() {
            power += self.step_node(node, time_s, dt, interval, boosts);
        }
        self.end_jobs(time_s);
        self.step_facility(time_s, dt, power * (1.0 + RACK_W.1), interval);
        if time_s - self.recorded_s >= RECORD_EVERY_S && interval == LIVE {
            self.recorded_s = time_s;
            self.report_running();
        }
    }

    /// Takes the readings and the records since the last call.
    pub fn take(&mut self) -> (Vec<GroupReadings>, Vec<NodeRecord>) {
        let mut series = std::mem::take(&mut self.done);
        series.extend(self.open.drain().map(|(_, series)| series));
        // The order does not depend on the hash map.
        series
            .sort_by(|one, other| (one.agent, &one.group, &one.times).cmp(&(other.agent, &other.group, &other.times)));
        (series, std::mem::take(&mut self.records))
    }

    /// Makes records of all running jobs.
    pub fn report_running(&mut self) {
        for (&(job, node), counters) in &self.running {
            self.records.push((node, record(&self.plan, job, node, counters, self.time_s, None)));
        }
    }

    fn begin_jobs(&mut self, time_s: i64) {
        while let Some(job) = self.plan.jobs.get(self.next).filter(|job| job.from_s <= time_s) {
            for node in &job.nodes {
                self.job_of_node[*node] = Some(self.next);
                self.running.insert((self.next, *node), JobCounters::default());
            }
            self.next += 1;
        }
    }

    fn end_jobs(&mut self, time_s: i64) {
        let ended = |key: &(usize, usize)| self.plan.jobs[key.0].to_s <= time_s;
        let keys: Vec<(usize, usize)> = self.running.keys().copied().filter(ended).collect();
        for key in keys {
            let Some(counters) = self.running.remove(&key) else { continue };
            let (job, node) = key;
            if self.job_of_node[node] == Some(job) {
                self.job_of_node[node] = None;
            }
            if time_s > self.from_s {
                let to = self.plan.jobs[job].to_s;
                self.records.push((node, record(&self.plan, job, node, &counters, time_s, Some(to))));
            }
        }
    }

    /// Advances one node. Returns its power, W.
    fn step_node(&mut self, node: usize, time_s: i64, dt: f64, interval: Interval, boosts: &Boosts) -> f64 {
        let seed = self.plan.options.seed;
        let key = node as u64 * 64;
        let job = self.job_of_node[node];
        let load = job.map_or(NodeLoad::default(), |job| load_of(&self.plan, job, node, time_s));
        let frequency = if node == self.plan.slow.0 && time_s >= self.plan.slow.1 { FREQUENCY.1 } else { FREQUENCY.0 };
        let frequency = frequency * (1.0 + 0.01 * noise(seed, key, time_s));
        let counters = &mut self.nodes[node];
        for (cpu, counted) in counters.cpu_s.iter_mut().enumerate() {
            let own = 0.002 + load.cpu * (1.0 + 0.05 * noise(seed, key + 1 + cpu as u64, time_s));
            *counted += own.clamp(0.0, 1.0) * dt;
        }
        counters.received += (2e3 + load.network * (1.0 + 0.1 * noise(seed, key + 8, time_s))) * dt;
        let clock = frequency / FREQUENCY.0;
        let gpus = self.plan.nodes[node].gpus;
        let gpu_power = GPU_W.0 + (GPU_W.1 - GPU_W.0) * load.gpu;
        let power = (NODE_W.0 + NODE_W.1 * load.cpu * clock + gpus as f64 * gpu_power)
            * (1.0 + 0.01 * noise(seed, key + 9, time_s));
        // The temperature of the board follows the power within minutes.
        let goal = self.water.inlet() + 0.07 * power;
        counters.heat = if counters.heat == 0.0 { goal } else { goal + (counters.heat - goal) * (-dt / 120.0).exp() };
        let mut values = vec![
            (power * 10.0) as i64,
            ((counters.heat + 0.2 * noise(seed, key + 10, time_s)) * 10.0) as i64,
            (frequency / 1e6) as i64,
            (6e9 + load.memory + 1e8 * noise(seed, key + 11, time_s)) as i64,
            counters.received as i64,
        ];
        values.extend(counters.cpu_s.iter().map(|seconds| (seconds * 100.0) as i64));
        for gpu in 0..gpus {
            values.push((gpu_power * (1.0 + 0.02 * noise(seed, key + 12 + gpu as u64, time_s)) * 10.0) as i64);
            values.push((load.gpu * 100.0) as i64);
        }
        if let Some(job) = job {
            self.step_job(job, node, time_s, dt, (load, frequency), interval, boosts);
        }
        let plan = &self.plan;
        if time_s >= self.from_s {
            let make = || (plan.nodes[node].prefix.clone(), node_sensors(&plan.nodes[node]));
            put(&mut self.open, &mut self.done, (node, "node"), interval, time_s * NS, &values, make);
        }
        power
    }

    #[expect(clippy::too_many_arguments, reason = "values that the step has computed for the node")]
    fn step_job(
        &mut self,
        index: usize,
        node: usize,
        time_s: i64,
        dt: f64,
        (load, frequency): (NodeLoad, f64),
        interval: Interval,
        boosts: &Boosts,
    ) {
        let job = &self.plan.jobs[index];
        let Some(counters) = self.running.get_mut(&(index, node)) else { return };
        let (from_s, until_s) = ((time_s - dt as i64).max(job.from_s), time_s.min(job.to_s));
        let dt = (until_s - from_s).max(0) as f64;
        let busy = load.cpu * CPUS as f64 * dt;
        let before = counters.values;
        let killed = job.story == Story::OutOfMemory && time_s >= job.to_s - 60;
        counters.values[0] += busy;
        counters.values[1] += load.throttled * CPUS as f64 * dt;
        counters.values[2] = load.memory;
        counters.values[3] = f64::from(u8::from(killed));
        counters.values[4] += load.written * dt;
        counters.values[5] += busy * frequency * load.ipc;
        counters.values[6] += busy * frequency;
        counters.memory_peak = counters.memory_peak.max(load.memory);
        if until_s < self.from_s {
            return;
        }
        let after = counters.values;
        let below = format!("{}/job/{}", self.plan.nodes[node].prefix, job.id);
        let all: Vec<i64> = JOB_METRICS.iter().zip(after).map(|(metric, value)| (value / metric.3) as i64).collect();
        let group = format!("job/{}", job.id);
        let make = || (below.clone(), JOB_METRICS.iter().map(job_sensor).collect());
        put(&mut self.open, &mut self.done, (node, &group), interval, until_s * NS, &all, make);
        // Boosted metrics have samples in between: those boosted now, and ten seconds of job 4711.
        let boosted = (job.from_s + BOOSTED_S.1, job.from_s + BOOSTED_S.1 + BOOSTED_S.0);
        let mut fine: Vec<FineSampling> = Vec::new();
        if job.story == Story::Unbalanced && job.nodes[0] == node && from_s < boosted.1 && until_s > boosted.0 {
            let metrics = (0..JOB_METRICS.len()).filter(|metric| JOB_METRICS[*metric].0.starts_with(PERF)).collect();
            fine.push(FineSampling {
                from_s: boosted.0.max(from_s),
                until_s: boosted.1.min(until_s),
                every: Interval::from_ms(1),
                metrics,
            });
        }
        fine.extend(boosts.of(node, index).map(|boost| {
            let metrics = (0..JOB_METRICS.len()).filter(|metric| boost.covers(JOB_METRICS[*metric].0)).collect();
            FineSampling { from_s, until_s, every: boost.every, metrics }
        }));
        let group = format!("boost/{}", job.id);
        for FineSampling { from_s: first_s, until_s: last_s, every, metrics } in fine {
            let every_ns = i64::try_from(every.ns()).unwrap_or(i64::MAX);
            let make = || (below.clone(), metrics.iter().map(|metric| job_sensor(&JOB_METRICS[*metric])).collect());
            let mut time = (first_s * NS / every_ns + 1).saturating_mul(every_ns);
            while time < last_s * NS {
                let part = between(time - from_s * NS, dt);
                let value = |metric: usize| before[metric] + (after[metric] - before[metric]) * part;
                let values: Vec<i64> =
                    metrics.iter().map(|&metric| (value(metric) / JOB_METRICS[metric].3) as i64).collect();
                put(&mut self.open, &mut self.done, (node, &group), every, time, &values, make);
                time = time.saturating_add(every_ns);
            }
        }
    }

    fn step_facility(&mut self, time_s: i64, dt: f64, power: f64, interval: Interval) {
        let seed = self.plan.options.seed;
        let set_point = || (SET_POINTS.start + hash(seed, 1, time_s) % (SET_POINTS.end - SET_POINTS.start)) as f64;
        self.water.step(dt, time_s, power, set_point);
        if time_s < self.from_s {
            return;
        }
        let water = &self.water;
        let measured = |key: u64, value: f64, err: f64| (value + err * noise(seed, key, time_s)) * 100.0;
        let total = power + water.pump();
        let values = [
            measured(2, total, 0.005 * total) as i64,
            measured(3, water.pump(), 0.2) as i64,
            measured(4, water.flow(), 0.005 * water.flow()) as i64,
            measured(5, water.inlet(), 0.02) as i64,
            measured(6, water.outlet(), 0.02) as i64,
        ];
        let make = || (format!("{ROOT}/facility"), facility_sensors());
        let agent = self.plan.nodes.len();
        put(&mut self.open, &mut self.done, (agent, "facility"), interval, time_s * NS, &values, make);
    }
}

/// Adds one sample to a group. Readings at another interval begin another series.
fn put(
    open: &mut HashMap<(usize, String), GroupReadings>,
    done: &mut Vec<GroupReadings>,
    (agent, group): (usize, &str),
    interval: Interval,
    time: i64,
    values: &[i64],
    make: impl Fn() -> (String, Vec<SensorDef>),
) {
    let key = (agent, group.to_owned());
    let other = |series: &GroupReadings| series.interval != interval || series.columns.len() != values.len();
    if open.get(&key).is_some_and(other) {
        done.extend(open.remove(&key));
    }
    let series = open.entry(key).or_insert_with(|| {
        let (prefix, sensors) = make();
        let columns = vec![Vec::new(); sensors.len()];
        GroupReadings { agent, group: group.to_owned(), prefix, sensors, interval, times: Vec::new(), columns }
    });
    // The last reading of a job is at its end, which can be the time of the previous step.
    if series.times.last().is_some_and(|last| *last >= time) {
        return;
    }
    series.times.push(time);
    series.columns.iter_mut().zip(values).for_each(|(column, value)| column.push(*value));
}

/// The completed fraction of a step of `dt_s`, `after_ns` after its start. The rate varies in waves of [`BURST_NS`].
fn between(after_ns: i64, dt_s: f64) -> f64 {
    let wave = (after_ns.rem_euclid(BURST_NS) as f64 / BURST_NS as f64 * std::f64::consts::TAU).sin();
    let burst_ns = 0.5 * BURST_NS as f64 / std::f64::consts::TAU;
    ((after_ns as f64 + burst_ns * wave) / (dt_s * 1e9)).clamp(0.0, 1.0)
}

/// The load that a job puts on a node.
fn load_of(plan: &CentrePlan, index: usize, node: usize, time_s: i64) -> NodeLoad {
    let job = &plan.jobs[index];
    let seed = plan.options.seed;
    let age = time_s - job.from_s;
    let part = age as f64 / (job.to_s - job.from_s) as f64;
    // A job computes for most of a period, then it writes results.
    let computes = age % job.period_s < job.period_s * 85 / 100;
    let rank = job.nodes.iter().position(|one| *one == node).unwrap_or(0);
    let ramp = (age as f64 / 120.0).min(1.0);
    let mut load = NodeLoad {
        cpu: if computes { job.load } else { 0.15 },
        memory: MEMORY * job.memory * ramp,
        ipc: if computes { 1.8 } else { 0.6 } + 0.1 * noise(seed, u64::from(job.id), time_s),
        network: if job.nodes.len() > 1 && computes { 2e8 } else { 1e4 },
        written: if computes { 1e5 } else { 3e8 },
        ..NodeLoad::default()
    };
    let waits = |load: &mut NodeLoad, part: f64| (load.cpu, load.ipc) = (load.cpu * part, load.ipc * part);
    match job.story {
        Story::Unbalanced if computes && rank != 1 => waits(&mut load, 0.78),
        // The other nodes wait for the slow one.
        Story::SlowNode if computes && node != plan.slow.0 => waits(&mut load, FREQUENCY.1 / FREQUENCY.0),
        Story::IdleGpus => load.cpu = 0.6,
        Story::Leak => load.memory = MEMORY * (0.05 + 0.85 * part.clamp(0.0, 1.0)),
        Story::OutOfMemory => load.memory = MEMORY * (0.1 + 0.9 * part.clamp(0.0, 1.0)),
        Story::Throttled => (load.cpu, load.throttled) = (0.5, 0.35),
        Story::Peak => (load.cpu, load.memory, load.ipc) = (1.0, MEMORY * 0.9 * ramp, 3.1),
        _ => {}
    }
    if plan.nodes[node].gpus > 0 && job.story != Story::IdleGpus {
        load.gpu = if computes { 0.9 } else { 0.1 };
    }
    load
}

fn node_sensors(node: &PlannedNode) -> Vec<SensorDef> {
    let mut all = vec![
        SensorDef::gauge("power", "W", "Power of the node.").scaled(0.1),
        SensorDef::gauge("temperature", "Cel", "Temperature of the board.").scaled(0.1),
        SensorDef::gauge("cpu/frequency", "Hz", "Clock frequency, mean of all CPUs.").scaled(1e6),
        SensorDef::gauge("memory/used", "By", "Memory in use."),
        SensorDef::counter("net/dev/ib0/rx_bytes", "By", "Bytes received."),
    ];
    let cpu = |cpu| SensorDef::counter(format!("cpu/{cpu}/user"), "s", "Time in user mode.").scaled(0.01);
    all.extend((0..CPUS).map(cpu));
    for gpu in 0..node.gpus {
        all.push(SensorDef::gauge(format!("gpu/{gpu}/power"), "W", "Power of the GPU.").scaled(0.1));
        all.push(SensorDef::gauge(
            format!("gpu/{gpu}/utilisation"),
            "%",
            "Fraction of the time in which the GPU computes.",
        ));
    }
    all
}

fn facility_sensors() -> Vec<SensorDef> {
    let of = |name: &str, unit: &str, what: &str| SensorDef::gauge(name, unit, what).scaled(0.01);
    vec![
        of("power", "W", "Total power: nodes, switches, losses, pump."),
        of("cooling/pump", "W", "Power of the pump."),
        of("cooling/flow", "L/min", "Flow of the water through the racks."),
        of("cooling/inlet", "Cel", "Temperature of the water at the inlet."),
        of("cooling/outlet", "Cel", "Temperature of the water at the outlet."),
    ]
}

fn job_sensor((name, unit, counts, scale, what): &(&str, &str, bool, f64, &str)) -> SensorDef {
    let made = if *counts { SensorDef::counter(*name, unit, what) } else { SensorDef::gauge(*name, unit, what) };
    made.scaled(*scale)
}

/// The record of a job on one of its nodes at `time_s`.
fn record(
    plan: &CentrePlan,
    index: usize,
    node: usize,
    counters: &JobCounters,
    time_s: i64,
    to_s: Option<i64>,
) -> JobRecord {
    let job: &PlannedJob = &plan.jobs[index];
    let at = &plan.nodes[node];
    let mut totals: BTreeMap<String, f64> = JOB_METRICS
        .iter()
        .zip(counters.values)
        .filter(|(metric, _)| metric.2)
        .map(|(metric, value)| (metric.0.to_owned(), value))
        .collect();
    totals.insert("memory/peak".to_owned(), counters.memory_peak);
    let names: Vec<&str> = job.nodes.iter().map(|node| plan.nodes[*node].name.as_str()).collect();
    let from = job.from_s * NS;
    let setup = (from + 60 * NS).min(to_s.map_or(i64::MAX, |to| to * NS));
    let step = |name: &str, from, to| StepRecord { name: name.to_owned(), from, to };
    let ended = to_s.map(|to| to * NS);
    JobRecord {
        job: job.id.to_string(),
        level: job.id.to_string(),
        manager: "slurm".to_owned(),
        node: at.name.clone(),
        prefix: at.prefix.clone(),
        uid: Some(job.user.1),
        user: Some(job.user.0.to_owned()),
        cpus: Some(format!("0-{}", CPUS - 1)),
        devices: (0..at.gpus).map(|gpu| format!("gpu/{gpu}")).collect(),
        from,
        to: ended,
        name: Some(job.name.to_owned()),
        account: Some(job.account.to_owned()),
        partition: Some(if at.gpus > 0 { "gpu" } else { "batch" }.to_owned()),
        nodes: Some(names.join(",")),
        steps: vec![step("step_batch", from, ended), step("step_0", setup, ended)],
        totals,
        totals_at: Some(to_s.unwrap_or(time_s) * NS),
        revision: if to_s.is_some() { u64::MAX } else { (time_s - job.from_s).max(0).cast_unsigned() + 1 },
        ..JobRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CentreOptions;

    const BEGAN: i64 = 1_780_000_000;

    /// A day in steps of a minute.
    fn day(seed: u64) -> (Vec<GroupReadings>, Vec<NodeRecord>) {
        let plan = CentrePlan::new(CentreOptions { seed, nodes: 16, days: 1, began_s: BEGAN });
        let first = plan.options.first_s();
        let (mut centre, boosts) = (Centre::new(plan, first), Boosts::default());
        let (start, minute) = (centre.time_s(), Interval::from_s(60));
        for time in (start / 60 + 1..=BEGAN / 60).map(|minutes| minutes * 60) {
            centre.step(time, minute, &boosts);
        }
        centre.take()
    }

    fn values<'a>(series: &'a [GroupReadings], prefix: &str, sensor: &str) -> impl Iterator<Item = (i64, f64)> + 'a {
        let found: Vec<&GroupReadings> =
            series.iter().filter(|one| one.prefix == prefix && one.interval == Interval::from_s(60)).collect();
        let at = found[0].sensors.iter().position(|def| def.name == sensor).unwrap_or_else(|| panic!("no {sensor}"));
        let scale = found[0].sensors[at].scale;
        let of = move |one: &'a GroupReadings| {
            one.times.iter().copied().zip(one.columns[at].iter().map(move |raw| *raw as f64 * scale))
        };
        found.into_iter().flat_map(of)
    }

    #[test]
    fn a_seed_is_one_history() {
        let (one, again, other) = (day(1), day(1), day(2));
        assert_eq!(one, again);
        assert_ne!(one.0, other.0);
        assert!(one.0.iter().all(|series| series.schema().is_ok()));
        assert!(one.0.iter().all(|series| series.times.is_sorted_by(|a, b| a < b)));
    }

    #[test]
    fn counters_of_nodes_and_jobs_agree() {
        let (series, records) = day(7);
        let job = |node: &str| format!("{node}/job/4711");
        let of_4711: Vec<&JobRecord> = records.iter().map(|record| &record.1).filter(|one| one.job == "4711").collect();
        assert_eq!(of_4711.len(), 4, "one for each node");
        for record in of_4711 {
            let last = values(&series, &job(&record.prefix), "cpu/usage").last().unwrap();
            assert_eq!(Some(last.0), record.to, "the last reading is at the end");
            assert!((last.1 - record.totals["cpu/usage"]).abs() < 1e-3, "{last:?} {record:?}");
            let of_node = |cpu: usize| {
                let counted: Vec<f64> = values(&series, &record.prefix, &format!("cpu/{cpu}/user"))
                    .filter(|(time, _)| (record.from..=record.to.unwrap()).contains(time))
                    .map(|(_, value)| value)
                    .collect();
                counted.last().unwrap() - counted[0]
            };
            let node: f64 = (0..CPUS).map(of_node).sum();
            assert!((node / last.1 - 1.0).abs() < 0.05, "the node counts {node}, the job {}", last.1);
        }
    }

    #[test]
    fn stories_are_visible_in_the_readings() {
        let (series, _) = day(7);
        let prefix = |node: usize, job: &str| format!("{ROOT}/rack01/n{:03}/job/{job}", node + 1);
        let last = |node, job, metric| values(&series, &prefix(node, job), metric).last().unwrap().1;
        assert!(last(1, "4711", "cpu/usage") > 1.2 * last(0, "4711", "cpu/usage"), "one node has more to do");
        let memory: Vec<f64> = values(&series, &prefix(4, "4702"), "memory/usage").map(|(_, value)| value).collect();
        assert!(memory.is_sorted() && memory.last().unwrap() > &(0.85 * MEMORY), "{:?}", memory.last());
        assert_eq!(last(4, "4707", "memory/events/oom_kill"), 1.0);
        assert!(last(5, "4705", "cpu/throttled_time") > 1000.0);
        let boost = series.iter().find(|one| one.group == "boost/4711").unwrap();
        assert_eq!((boost.times.len(), boost.columns.len()), (9_999, 2));
        assert!(boost.columns.iter().all(|column| column.is_sorted()), "counters do not fall");
    }

    #[test]
    fn a_later_run_continues_where_the_earlier_one_stopped() {
        let plan = CentrePlan::new(CentreOptions { seed: 3, nodes: 16, days: 1, began_s: BEGAN });
        let (whole, _) = day(3);
        let from = BEGAN / 60 * 60 - 600;
        let (mut centre, boosts) = (Centre::new(plan, from), Boosts::default());
        let start = centre.time_s();
        for time in (start / 60 + 1..=BEGAN / 60).map(|minutes| minutes * 60) {
            centre.step(time, Interval::from_s(60), &boosts);
        }
        let (series, _) = centre.take();
        let usage = |series: &[GroupReadings]| {
            let running = format!("{ROOT}/rack01/n001/job/4712");
            values(series, &running, "cpu/usage").filter(|(time, _)| *time >= from * NS).collect::<Vec<_>>()
        };
        let (expected, found) = (usage(&whole), usage(&series));
        assert!(found.len() >= 10 && found.len() == expected.len());
        for ((time, value), (at, same)) in found.iter().zip(&expected) {
            assert!(time == at && (value - same).abs() < 1.0, "{value} and {same} at {at}");
        }
        let (_, first) = values(&series, &format!("{ROOT}/rack01/n001"), "cpu/0/user").next().unwrap();
        assert!(first <= 60.0, "a counter that falls begins at 0, so that its rate is right: {first}");
    }
}
