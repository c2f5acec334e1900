//! Lists of jobs from memory: filters, a row for each run of a job, pages.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use wholegrain_model::pattern::glob;

use super::index::{AllocationEntry, AllocationIndex, AllocationKey, NONE, RUNNING};

/// The most names of nodes in a row.
const NODES_SHOWN_MAX: usize = 8;

/// A page ends when the texts of its rows have this many bytes, 4 MiB, however many rows are requested.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Whether a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// On at least one node.
    Running,
    Ended,
}

/// Selects jobs with an allocation that meets all conditions. In patterns, `*` matches any text.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Only allocations of this user count.
    pub only_user: Option<String>,
    /// A user's name, or a uid.
    pub user: Option<String>,
    /// Pattern of nodes' names.
    pub node: Option<String>,
    pub account: Option<String>,
    pub partition: Option<String>,
    pub manager: Option<String>,
    /// Pattern of jobs' names.
    pub name: Option<String>,
    /// The state of the job as a whole.
    pub state: Option<JobState>,
    /// It ran at this time or later, ns since the Unix epoch.
    pub from: Option<i64>,
    /// It ran before this time.
    pub to: Option<i64>,
    /// The most rows; there are fewer if their texts are long.
    pub limit: usize,
    /// [`JobList::next`] of the page before.
    pub after: Option<(i64, usize)>,
}

/// A page of jobs, the newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobList {
    pub rows: Vec<JobRow>,
    /// The cursor of the next page, if there is one: a time, and how many jobs with exactly this time are on this page and those before.
    pub next: Option<(i64, usize)>,
}

/// One run of a job, over all its nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobRow {
    pub job: String,
    /// The other id, if the manager has two.
    pub also: Option<String>,
    pub manager: String,
    pub user: Option<String>,
    pub uid: Option<u32>,
    /// From a prolog hook.
    pub name: Option<String>,
    /// From a prolog hook.
    pub account: Option<String>,
    /// From a prolog hook.
    pub partition: Option<String>,
    /// Whether it runs on any node.
    pub state: JobState,
    pub nodes: usize,
    /// The first of the nodes.
    pub node_names: Vec<String>,
    /// When it began on the first node, ns since the Unix epoch.
    pub from: i64,
    /// When it ended on the last node; `None` while it runs.
    pub to: Option<i64>,
    /// CPU seconds of all nodes, as far as they are known.
    pub cpu_s: Option<f64>,
    /// The highest peak of memory of any node, in bytes.
    pub memory_peak: Option<f64>,
}

impl JobRow {
    /// Bytes of all its texts.
    fn bytes(&self) -> usize {
        let known = [&self.also, &self.user, &self.name, &self.account, &self.partition].into_iter().flatten();
        known.chain([&self.job, &self.manager]).chain(&self.node_names).map(String::len).sum()
    }
}

/// A filter with numbers in place of texts; `None` if nothing can match.
struct ResolvedJobFilter {
    only_user: Option<u32>,
    user: Option<(u32, u32)>,
    account: Option<u32>,
    partition: Option<u32>,
    manager: Option<u32>,
    node: Option<MatchingTexts>,
    name: Option<MatchingTexts>,
    state: Option<JobState>,
    from: i64,
    to: i64,
}

/// Remembers which texts match a pattern.
struct MatchingTexts {
    pattern: String,
    known: HashMap<u32, bool>,
}

impl MatchingTexts {
    fn new(pattern: &Option<String>) -> Option<Self> {
        pattern.clone().map(|pattern| Self { pattern, known: HashMap::new() })
    }

    fn has(&mut self, number: u32, index: &AllocationIndex) -> bool {
        *self
            .known
            .entry(number)
            .or_insert_with(|| index.texts.get(number).is_some_and(|text| glob(&self.pattern, text)))
    }
}

impl ResolvedJobFilter {
    fn new(filter: &JobFilter, index: &AllocationIndex) -> Option<Self> {
        let find = |text: &Option<String>| match text {
            Some(text) => index.texts.find(text).map(Some),
            None => Some(None),
        };
        let user = match &filter.user {
            None => None,
            Some(user) => {
                // The number of no text and the uid of nobody are equal, and belong to no user.
                let (name, uid) = (index.texts.find(user).unwrap_or(NONE), user.parse().unwrap_or(NONE));
                if (name, uid) == (NONE, NONE) {
                    return None;
                }
                Some((name, uid))
            }
        };
        Some(Self {
            only_user: find(&filter.only_user)?,
            user,
            account: find(&filter.account)?,
            partition: find(&filter.partition)?,
            manager: find(&filter.manager)?,
            node: MatchingTexts::new(&filter.node),
            name: MatchingTexts::new(&filter.name),
            state: filter.state,
            from: filter.from.unwrap_or(i64::MIN),
            to: filter.to.unwrap_or(i64::MAX),
        })
    }

    fn has(&mut self, key: &AllocationKey, entry: &AllocationEntry, index: &AllocationIndex) -> bool {
        let is = |expected: Option<u32>, number: u32| expected.is_none_or(|expected| expected == number);
        entry.to >= self.from
            && key.from < self.to
            && (self.state != Some(JobState::Running) || entry.to == RUNNING)
            && (self.state != Some(JobState::Ended) || entry.to != RUNNING)
            && is(self.only_user, entry.user)
            && is(self.account, entry.account)
            && is(self.partition, entry.partition)
            && is(self.manager, key.manager)
            && self
                .user
                .is_none_or(|(name, uid)| (name != NONE && name == entry.user) || (uid != NONE && uid == entry.uid))
            && self.node.as_mut().is_none_or(|nodes| nodes.has(key.node, index))
            && self.name.as_mut().is_none_or(|names| names.has(entry.name, index))
    }
}

/// The page that a filter requests.
pub(super) fn list(index: &AllocationIndex, filter: &JobFilter) -> JobList {
    let mut list = JobList::default();
    let Some(mut chosen) = ResolvedJobFilter::new(filter, index) else { return list };
    let (newest, skip) = filter.after.unwrap_or((i64::MAX, 0));
    let newest = newest.min(chosen.to);
    let mut seen: HashSet<u32> = HashSet::new();
    let mut firsts: HashMap<AllocationKey, Vec<AllocationKey>> = HashMap::new();
    let (mut at, mut count, mut bytes) = (newest, 0, 0);
    let all = AllocationKey::first(i64::MIN)..=AllocationKey::last(newest);
    for (key, entry) in index.order.range(all).rev() {
        if !chosen.has(key, entry, index) {
            continue;
        }
        if seen.insert(key.job) {
            place_runs(index, key.job, &mut chosen, &mut firsts);
        }
        // A run has its row at its newest matching allocation, on whatever page that is.
        let Some(run) = firsts.remove(key) else { continue };
        if key.from != at {
            (at, count) = (key.from, 0);
        }
        count += 1;
        if key.from == newest && count <= skip && filter.after.is_some() {
            continue;
        }
        if list.rows.len() == filter.limit || bytes >= PAGE_BYTES_MAX {
            list.next = Some((at, count - 1));
            break;
        }
        let row = row(index, &run);
        bytes += row.bytes();
        list.rows.push(row);
    }
    list
}

/// The selected runs of a job, each by its newest allocation that matches the filter.
fn place_runs(
    index: &AllocationIndex,
    job: u32,
    chosen: &mut ResolvedJobFilter,
    firsts: &mut HashMap<AllocationKey, Vec<AllocationKey>>,
) {
    let only_user = chosen.only_user;
    for run in index.runs(job, |entry| only_user.is_none_or(|user| user == entry.user)) {
        let running = run.iter().any(|key| index.order.get(key).is_some_and(|entry| entry.to == RUNNING));
        if running && chosen.state == Some(JobState::Ended) {
            continue;
        }
        let asked = run.iter().filter(|key| index.order.get(key).is_some_and(|entry| chosen.has(key, entry, index)));
        if let Some(first) = asked.max().copied() {
            firsts.insert(first, run);
        }
    }
}

/// The row of a run.
pub(super) fn row(index: &AllocationIndex, run: &[AllocationKey]) -> JobRow {
    let entries: Vec<(&AllocationKey, &AllocationEntry)> =
        run.iter().filter_map(|key| Some((key, index.order.get(key)?))).collect();
    let text = |number: u32| index.texts.get(number).map(|text| text.to_string());
    let first =
        |of: fn(&AllocationEntry) -> u32| entries.iter().map(|(_, entry)| of(entry)).find(|number| *number != NONE);
    let known = |of: fn(&AllocationEntry) -> f64| {
        entries.iter().map(move |(_, entry)| of(entry)).filter(|value| !value.is_nan())
    };
    let to = entries.iter().map(|(_, entry)| entry.to).max().unwrap_or(RUNNING);
    let mut nodes: Vec<&str> = run.iter().map(|key| index.texts.text(key.node)).collect();
    let shown = nodes.len().min(NODES_SHOWN_MAX);
    if shown < nodes.len() {
        nodes.select_nth_unstable(shown);
    }
    nodes[..shown].sort_unstable();
    JobRow {
        job: run.first().and_then(|key| text(key.job)).unwrap_or_default(),
        also: first(|entry| entry.also).and_then(text),
        manager: run.first().and_then(|key| text(key.manager)).unwrap_or_default(),
        user: first(|entry| entry.user).and_then(text),
        uid: first(|entry| entry.uid),
        name: first(|entry| entry.name).and_then(text),
        account: first(|entry| entry.account).and_then(text),
        partition: first(|entry| entry.partition).and_then(text),
        state: if to == RUNNING { JobState::Running } else { JobState::Ended },
        nodes: nodes.len(),
        node_names: nodes[..shown].iter().map(|node| (*node).to_owned()).collect(),
        from: run.iter().map(|key| key.from).min().unwrap_or_default(),
        to: Some(to).filter(|to| *to != RUNNING),
        cpu_s: known(|entry| entry.cpu_s).reduce(|a, b| a + b),
        memory_peak: known(|entry| entry.memory).max_by(f64::total_cmp),
    }
}

/// The runs of all jobs with an id, the newest first.
pub(super) fn runs_of(index: &AllocationIndex, id: &str, only_user: Option<&str>) -> Vec<Vec<AllocationKey>> {
    let mut runs: Vec<Vec<AllocationKey>> = Vec::new();
    for job in index.find(id) {
        let may = |entry: &AllocationEntry| {
            only_user.is_none_or(|user| index.texts.get(entry.user).is_some_and(|name| **name == *user))
        };
        runs.extend(index.runs(job, may));
    }
    runs.sort_by_key(|run| Reverse(run.iter().map(|key| key.from).max()));
    runs
}
