//! Which jobs run on which nodes, and when.
//!
//! - In: [`CentreOptions`].
//! - Out: [`CentrePlan`]: racks, nodes, and all jobs from the first day of the history to [`AHEAD_DAYS`] after its end.
//! - Never: two jobs on one node at the same time.
//!
//! The first rack has staged jobs ([`Story`]). Ordinary jobs run on the other racks.

use crate::{ROOT, hash, uniform};

/// The seed of `wholegrain up --demo` by default.
pub const SEED: u64 = 4711;
/// The default number of nodes.
pub const NODES: usize = 256;
/// The smallest and the largest number of nodes.
pub const NODES_MIN_MAX: (usize, usize) = (16, 4096);
/// The default number of days of history. The server quarantines readings that are older than 30 days.
pub const DAYS: u32 = 7;
/// The largest number of days of history.
pub const DAYS_MAX: u32 = 28;
/// Days after the history for which jobs are planned. After them only the running job continues.
pub const AHEAD_DAYS: i64 = 60;
/// Number of CPUs of a node.
pub const CPUS: usize = 4;
/// The largest number of nodes of a rack.
const RACK_NODES_MAX: usize = 32;

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

/// The parameters of the centre.
#[derive(Debug, Clone, PartialEq)]
pub struct CentreOptions {
    pub seed: u64,
    pub nodes: usize,
    /// Days of history before `began_s`.
    pub days: u32,
    /// The end of the history and the beginning of live readings, s since the Unix epoch.
    pub began_s: i64,
}

impl CentreOptions {
    /// The beginning of the history, s since the Unix epoch.
    pub fn first_s(&self) -> i64 {
        self.began_s - i64::from(self.days) * DAY
    }
}

/// The behaviour that a job demonstrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Story {
    Ordinary,
    /// The job does not use its GPUs.
    IdleGpus,
    /// One node has more work, and the others wait for it. Ten seconds of it were sampled at 1 ms.
    Unbalanced,
    /// Memory use grows while the job runs.
    Leak,
    /// A limit of CPU time throttles the job.
    Throttled,
    /// One node has a low clock frequency.
    SlowNode,
    /// Memory use reaches the limit, the kernel kills a process, and the job ends.
    OutOfMemory,
    /// Full load on many nodes at once.
    Peak,
    /// The job is running; its metrics can be boosted.
    Running,
}

/// A job with its nodes and times.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedJob {
    pub id: u32,
    pub story: Story,
    pub name: &'static str,
    /// The user's name and uid.
    pub user: (&'static str, u32),
    pub account: &'static str,
    /// Indexes of the nodes.
    pub nodes: Vec<usize>,
    /// Start, s since the Unix epoch.
    pub from_s: i64,
    /// End, s since the Unix epoch.
    pub to_s: i64,
    /// Fraction of the CPUs in use while the job computes.
    pub load: f64,
    /// Fraction of a node's memory in use.
    pub memory: f64,
    /// Length of a cycle of computing and writing results, s.
    pub period_s: i64,
}

/// A node of the centre.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedNode {
    /// The name of the node and of its agent.
    pub name: String,
    /// The prefix of its sensors.
    pub prefix: String,
    pub gpus: usize,
}

/// All that is decided before the run.
#[derive(Debug, Clone, PartialEq)]
pub struct CentrePlan {
    pub options: CentreOptions,
    /// In the order of the racks.
    pub nodes: Vec<PlannedNode>,
    /// In the order of their start.
    pub jobs: Vec<PlannedJob>,
    /// The index of the slow node, and the time from which it is slow, s since the Unix epoch.
    pub slow: (usize, i64),
}

/// Name, user and account of ordinary jobs.
const ORDINARY: [(&str, (&str, u32), &str); 8] = [
    ("cfd-wing", ("lena", 2004), "aero"),
    ("md-water", ("tarek", 2005), "chem"),
    ("qcd-48", ("ines", 2006), "qcd"),
    ("train-a", ("jo", 2002), "ml"),
    ("post", ("ana", 2003), "p12"),
    ("climate", ("olu", 2007), "earth"),
    ("blast", ("mei", 2008), "bio"),
    ("test", ("mira", 2001), "p12"),
];
/// Numbers of nodes of ordinary jobs, each with the same probability.
const SIZES: [usize; 16] = [1, 1, 1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 16, 16, 32, 64];

impl CentrePlan {
    /// Makes the plan of these parameters.
    pub fn new(options: CentreOptions) -> Self {
        let rack_nodes = (options.nodes / 2).clamp(1, RACK_NODES_MAX);
        let staged = rack_nodes;
        let nodes = (0..options.nodes).map(|index| PlannedNode {
            name: format!("n{:03}", index + 1),
            prefix: format!("{ROOT}/rack{:02}/n{:03}", index / rack_nodes + 1, index + 1),
            // The last two of the first rack.
            gpus: if (staged.saturating_sub(2)..staged).contains(&index) { 2 } else { 0 },
        });
        let nodes: Vec<PlannedNode> = nodes.collect();
        let mut jobs = ordinary(&options, staged..options.nodes);
        let staged_jobs = stories(options.began_s, staged);
        let taken: Vec<u32> = staged_jobs.iter().map(|job| job.id).collect();
        assign_ids(&mut jobs, staged_jobs[0].from_s, &taken);
        jobs.extend(staged_jobs.into_iter().filter(|job| job.from_s >= options.first_s()));
        jobs.sort_by_key(|job| (job.from_s, job.id));
        let slow = (2, options.began_s - 30 * HOUR);
        Self { options, nodes, jobs, slow }
    }

    /// The index of the job with this id.
    pub fn job(&self, id: &str) -> Option<usize> {
        let id: u32 = id.parse().ok()?;
        self.jobs.iter().position(|job| job.id == id)
    }
}

/// The staged jobs, on nodes below `staged`. The first one is job 4711.
fn stories(began_s: i64, staged: usize) -> Vec<PlannedJob> {
    let (half, quarter) = ((staged / 2).max(1), (staged / 4).max(1));
    let node = |index: usize| vec![index.min(staged - 1)];
    let mira = ("wave512", ("mira", 2001), "p12");
    let train = ("train-b", ("jo", 2002), "ml");
    let job = |id, story, what: (&'static str, (&'static str, u32), &'static str), nodes, from: i64, minutes: i64| {
        PlannedJob {
            id,
            story,
            name: what.0,
            user: what.1,
            account: what.2,
            nodes,
            from_s: began_s - from * MINUTE,
            to_s: began_s - (from - minutes) * MINUTE,
            load: 0.92,
            memory: 0.41,
            period_s: 10 * MINUTE,
        }
    };
    let half_rack = (0..half).collect::<Vec<_>>();
    let gpus = (staged.saturating_sub(2)..staged).filter(|node| *node >= half).collect::<Vec<_>>();
    vec![
        job(4711, Story::Unbalanced, mira, half_rack.clone(), 300, 130),
        job(4650, Story::Ordinary, mira, half_rack.clone(), 26 * 60, 115),
        job(4662, Story::SlowNode, ("md-water", ("tarek", 2005), "chem"), half_rack.clone(), 22 * 60, 180),
        job(4690, Story::IdleGpus, train, gpus, 9 * 60, 240),
        job(4702, Story::Leak, ("grow", ("ana", 2003), "p12"), node(half), 7 * 60, 300),
        job(4705, Story::Throttled, ("blast", ("mei", 2008), "bio"), node(half + 1), 6 * 60, 200),
        job(4707, Story::OutOfMemory, train, node(half), 90, 47),
        job(4709, Story::Peak, ("hpl", ("olu", 2007), "earth"), half_rack, 150, 20),
        job(4712, Story::Running, mira, (0..quarter).collect(), 40, 40 + AHEAD_DAYS * 24 * 60),
    ]
}

/// Ordinary jobs on `nodes`, without ids.
fn ordinary(options: &CentreOptions, nodes: std::ops::Range<usize>) -> Vec<PlannedJob> {
    let mut jobs = Vec::new();
    if nodes.is_empty() {
        return jobs;
    }
    let (first, last) = (options.first_s(), options.began_s + AHEAD_DAYS * DAY);
    let mut free: Vec<(i64, usize)> = nodes.map(|node| (first, node)).collect();
    for key in 0u64.. {
        let draw = |what: u64| uniform(options.seed, key * 16 + what, 0);
        free.sort_unstable();
        let size = SIZES[hash(options.seed, key * 16, 1) as usize % SIZES.len()].clamp(1, free.len().div_ceil(2));
        let from_s = free[size - 1].0 + (draw(1).powi(3) * 40.0 * 60.0) as i64 + 30;
        if from_s >= last {
            break;
        }
        // 20 minutes to 24 hours, uniform on a logarithmic scale.
        let to_s = from_s + (20.0 * 60.0 * 72f64.powf(draw(2))) as i64;
        let mut chosen: Vec<usize> = free[..size].iter().map(|(_, node)| *node).collect();
        chosen.sort_unstable();
        free[..size].iter_mut().for_each(|(until, _)| *until = to_s);
        let (name, user, account) = ORDINARY[hash(options.seed, key * 16, 3) as usize % ORDINARY.len()];
        jobs.push(PlannedJob {
            id: 0,
            story: Story::Ordinary,
            name,
            user,
            account,
            nodes: chosen,
            from_s,
            to_s,
            // One job in eight uses few of its CPUs.
            load: if draw(4) < 0.125 { 0.2 } else { 0.6 + 0.4 * draw(5) },
            memory: 0.05 + 0.85 * draw(6) * draw(7),
            period_s: 300 + (draw(8) * 1500.0) as i64,
        });
    }
    jobs.sort_by_key(|job| (job.from_s, job.nodes[0]));
    jobs
}

/// Gives ids in the order of the start times. Jobs before `at_s` get ids below 4711, later jobs ids above. Ids in `taken` are not given.
fn assign_ids(jobs: &mut [PlannedJob], at_s: i64, taken: &[u32]) {
    let before = jobs.partition_point(|job| job.from_s < at_s);
    let mut below = (1..4711u32).rev().filter(|id| !taken.contains(id));
    let mut above = (4712u32..).filter(|id| !taken.contains(id));
    // If there are more jobs before 4711 than ids, the oldest jobs get the id 0.
    for job in jobs[..before].iter_mut().rev() {
        job.id = below.next().unwrap_or(0);
    }
    for job in &mut jobs[before..] {
        job.id = above.next().unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan(seed: u64, nodes: usize) -> CentrePlan {
        CentrePlan::new(CentreOptions { seed, nodes, days: 7, began_s: 1_780_000_000 })
    }

    #[test]
    fn a_seed_is_one_plan() {
        assert_eq!(plan(1, 64), plan(1, 64));
        assert_ne!(plan(1, 64).jobs, plan(2, 64).jobs);
    }

    #[test]
    fn no_node_has_two_jobs_at_a_time_and_no_id_is_given_twice() {
        for nodes in [NODES_MIN_MAX.0, 17, 64, 256] {
            let plan = plan(SEED, nodes);
            let mut until = vec![i64::MIN; nodes];
            let mut ids = BTreeSet::new();
            for job in &plan.jobs {
                assert!(job.id > 0 && ids.insert(job.id), "{nodes} nodes: {job:?}");
                assert!(!job.nodes.is_empty() && job.from_s < job.to_s, "{job:?}");
                for node in &job.nodes {
                    assert!(until[*node] <= job.from_s, "{nodes} nodes: node {node} has two jobs: {job:?}");
                    until[*node] = job.to_s;
                }
            }
        }
    }

    #[test]
    fn there_are_as_many_jobs_as_a_centre_has_and_every_story() {
        let plan = plan(SEED, NODES);
        let history = plan.jobs.iter().filter(|job| job.from_s < plan.options.began_s);
        let count = history.clone().count();
        assert!((300..900).contains(&count), "{count} jobs in the history");
        for story in [
            Story::IdleGpus,
            Story::Unbalanced,
            Story::Leak,
            Story::Throttled,
            Story::SlowNode,
            Story::OutOfMemory,
            Story::Peak,
        ] {
            let job = history.clone().find(|job| job.story == story).unwrap_or_else(|| panic!("no {story:?}"));
            assert!(job.to_s < plan.options.began_s, "{job:?}");
        }
        assert_eq!(plan.jobs[plan.job("4711").unwrap()].story, Story::Unbalanced);
        let running = &plan.jobs[plan.job("4712").unwrap()];
        assert!(running.from_s < plan.options.began_s && running.to_s > plan.options.began_s + 30 * DAY);
    }
}
