//! The index of allocations in memory: enough to list, filter and find jobs, and to decide who may see them.
//!
//! About 300 bytes an allocation and 100 for each new text (a job's id, a job's name); the example `million_jobs` measures it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use wholegrain_model::JobRecord;

/// Stands for no text.
pub(super) const NONE: u32 = u32::MAX;
/// `to` of a running allocation.
pub(super) const RUNNING: i64 = i64::MAX;
/// The allocations of a job belong to one run if none begins more than this after all earlier ones ended: 10 s. Nodes begin and end a job at
/// slightly different times, and their clocks differ.
const RUN_GAP_NS: i64 = 10_000_000_000;
/// The metric whose sum the list shows.
const CPU: &str = "cpu/usage";
/// The metric whose maximum the list shows.
const MEMORY: &str = "memory/peak";

/// Identifies an allocation; ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AllocationKey {
    pub from: i64,
    pub job: u32,
    pub node: u32,
    pub manager: u32,
    /// The owner that the path of its cgroup names; often empty.
    pub owner: u32,
}

impl AllocationKey {
    /// The lowest key of allocations that begin at this time.
    pub fn first(from: i64) -> Self {
        Self { from, job: 0, node: 0, manager: 0, owner: 0 }
    }

    /// The highest key of these.
    pub fn last(from: i64) -> Self {
        Self { from, job: NONE, node: NONE, manager: NONE, owner: NONE }
    }
}

/// The indexed fields of an allocation. Texts are numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AllocationEntry {
    pub to: i64,
    pub revision: u64,
    pub level: u32,
    pub prefix: u32,
    pub also: u32,
    pub user: u32,
    pub uid: u32,
    pub account: u32,
    pub partition: u32,
    pub name: u32,
    /// CPU seconds; NaN if unknown.
    pub cpu_s: f64,
    /// Peak of memory, in bytes; NaN if unknown.
    pub memory: f64,
}

/// Texts with numbers, each once.
#[derive(Debug, Default)]
pub(super) struct TextInterner {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl TextInterner {
    /// The number of a text, if it has one.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    /// The number of a text, assigned at its first use.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.find(text) {
            return number;
        }
        let (text, number): (Arc<str>, u32) = (text.into(), self.texts.len() as u32);
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    fn optional(&mut self, text: Option<&str>) -> u32 {
        text.map_or(NONE, |text| self.number(text))
    }

    /// The text of a number.
    pub fn get(&self, number: u32) -> Option<&Arc<str>> {
        self.texts.get(number as usize)
    }

    /// The same for a number that is not [`NONE`].
    pub fn text(&self, number: u32) -> &str {
        self.get(number).map_or("", |text| text)
    }
}

/// A run of a job.
struct AllocationRun {
    keys: Vec<AllocationKey>,
    nodes: HashSet<u32>,
    end: i64,
    user: u32,
    uid: u32,
}

impl AllocationRun {
    fn new(key: &AllocationKey) -> Self {
        Self { keys: vec![*key], nodes: HashSet::from([key.node]), end: i64::MIN, user: NONE, uid: NONE }
    }

    /// Whether an allocation may have the same user: by name, else by uid, if both are known.
    fn may_be_of(&self, entry: &AllocationEntry) -> bool {
        match (self.user, entry.user, self.uid, entry.uid) {
            (NONE, _, NONE, _) | (_, NONE, _, NONE) => true,
            (a, b, ..) if a != NONE && b != NONE => a == b,
            (.., a, b) => a == NONE || b == NONE || a == b,
        }
    }

    /// Adds an allocation that begins soon enough and on another node.
    fn takes(&mut self, key: &AllocationKey) -> bool {
        let fits = key.from <= self.end.saturating_add(RUN_GAP_NS) && self.nodes.insert(key.node);
        if fits {
            self.keys.push(*key);
        }
        fits
    }
}

/// The allocations of all jobs.
#[derive(Debug, Default)]
pub(super) struct AllocationIndex {
    pub texts: TextInterner,
    pub order: BTreeMap<AllocationKey, AllocationEntry>,
    /// (job, manager, from, node, owner) of each.
    by_job: BTreeSet<(u32, u32, i64, u32, u32)>,
    /// (level or other id, job), if it differs from the job's id.
    aliases: BTreeSet<(u32, u32)>,
    /// (level, prefix, user) -> number of allocations: who may see the sensors below a job's level.
    owners: BTreeMap<(u32, u32, u32), u32>,
    removed: usize,
}

impl AllocationIndex {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The allocation of a record, if it is indexed.
    pub fn key(&self, record: &JobRecord) -> Option<AllocationKey> {
        Some(AllocationKey {
            from: record.from,
            job: self.texts.find(&record.job)?,
            node: self.texts.find(&record.node)?,
            manager: self.texts.find(&record.manager)?,
            owner: self.texts.find(&record.owner)?,
        })
    }

    /// Revision of a record, and whether it has ended, if it is indexed.
    pub fn revision(&self, record: &JobRecord) -> Option<(u64, bool)> {
        let entry = self.order.get(&self.key(record)?)?;
        Some((entry.revision, entry.to != RUNNING))
    }

    /// Adds a record or replaces the earlier one of its allocation. Returns whether the answer of [`AllocationIndex::sees`] may have changed.
    pub fn put(&mut self, record: &JobRecord) -> bool {
        let texts = &mut self.texts;
        let total = |name: &str| record.totals.get(name).copied().unwrap_or(f64::NAN);
        let key = AllocationKey {
            from: record.from,
            job: texts.number(&record.job),
            node: texts.number(&record.node),
            manager: texts.number(&record.manager),
            owner: texts.number(&record.owner),
        };
        let entry = AllocationEntry {
            to: record.to.unwrap_or(RUNNING),
            revision: record.revision,
            level: texts.number(&record.level),
            prefix: texts.number(&record.prefix),
            also: texts.optional(record.also.as_deref()),
            user: texts.optional(record.user.as_deref()),
            uid: record.uid.unwrap_or(NONE),
            account: texts.optional(record.account.as_deref()),
            partition: texts.optional(record.partition.as_deref()),
            name: texts.optional(record.name.as_deref()),
            cpu_s: total(CPU),
            memory: total(MEMORY),
        };
        self.insert(key, entry)
    }

    fn insert(&mut self, key: AllocationKey, entry: AllocationEntry) -> bool {
        let before = self.order.insert(key, entry);
        if let Some(before) = &before {
            self.disown(before);
        }
        *self.owners.entry((entry.level, entry.prefix, entry.user)).or_default() += 1;
        self.by_job.insert((key.job, key.manager, key.from, key.node, key.owner));
        for alias in [entry.level, entry.also] {
            if alias != NONE && alias != key.job {
                self.aliases.insert((alias, key.job));
            }
        }
        before
            .is_none_or(|before| (before.user, before.level, before.prefix) != (entry.user, entry.level, entry.prefix))
    }

    pub(crate) fn remove(&mut self, key: &AllocationKey) {
        if let Some(entry) = self.order.remove(key) {
            self.disown(&entry);
            self.by_job.remove(&(key.job, key.manager, key.from, key.node, key.owner));
            self.removed += 1;
        }
    }

    /// Removes unused texts and other ids, if there are many. Earlier keys are invalid afterwards.
    pub fn tidy(&mut self) {
        if self.removed > self.order.len() {
            self.rebuild();
        }
    }

    fn disown(&mut self, entry: &AllocationEntry) {
        let owner = (entry.level, entry.prefix, entry.user);
        if let Some(count) = self.owners.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    fn rebuild(&mut self) {
        let old = std::mem::take(self);
        for (key, entry) in old.order {
            let mut moved = |number: u32| match old.texts.get(number) {
                Some(text) => self.texts.number(text),
                None => NONE,
            };
            let key = AllocationKey {
                from: key.from,
                job: moved(key.job),
                node: moved(key.node),
                manager: moved(key.manager),
                owner: moved(key.owner),
            };
            let entry = AllocationEntry {
                level: moved(entry.level),
                prefix: moved(entry.prefix),
                also: moved(entry.also),
                user: moved(entry.user),
                account: moved(entry.account),
                partition: moved(entry.partition),
                name: moved(entry.name),
                ..entry
            };
            self.insert(key, entry);
        }
    }

    /// The jobs with this id, level or other id: numbers of their ids.
    pub fn find(&self, id: &str) -> Vec<u32> {
        let Some(number) = self.texts.find(id) else { return Vec::new() };
        let mut jobs: Vec<u32> = self.aliases.range((number, 0)..=(number, NONE)).map(|(_, job)| *job).collect();
        jobs.push(number);
        jobs
    }

    /// The allocations of a job, by manager and then time.
    pub fn of_job(&self, job: u32) -> impl Iterator<Item = (AllocationKey, &AllocationEntry)> {
        self.by_job.range((job, 0, i64::MIN, 0, 0)..=(job, NONE, i64::MAX, NONE, NONE)).filter_map(
            move |&(job, manager, from, node, owner)| {
                let key = AllocationKey { from, job, node, manager, owner };
                Some((key, self.order.get(&key)?))
            },
        )
    }

    /// The runs of a job: an id may be used again, and a job may start again. Each run has one manager, one user, and each node once. Only
    /// allocations for which `count` returns true are considered. One without a known user belongs to the run before it.
    pub fn runs(&self, job: u32, count: impl Fn(&AllocationEntry) -> bool) -> Vec<Vec<AllocationKey>> {
        let mut runs: Vec<AllocationRun> = Vec::new();
        // The last run of each manager, and of each of its users by name and by uid.
        let (mut manager, mut last, mut last_of) = (NONE, None, HashMap::new());
        for (key, entry) in self.of_job(job).filter(|(_, entry)| count(entry)) {
            if key.manager != manager {
                (manager, last) = (key.manager, None);
                last_of.clear();
            }
            let whose = [(false, entry.user), (true, entry.uid)];
            let known =
                whose.iter().filter(|(_, number)| *number != NONE).find_map(|whose| last_of.get(whose).copied());
            let at = known.or(last).filter(|at| runs.get(*at).is_some_and(|run: &AllocationRun| run.may_be_of(entry)));
            let taken = at.filter(|at| runs.get_mut(*at).is_some_and(|run: &mut AllocationRun| run.takes(&key)));
            let at = match taken {
                Some(at) => at,
                None => {
                    runs.push(AllocationRun::new(&key));
                    runs.len() - 1
                }
            };
            if let Some(run) = runs.get_mut(at) {
                run.end = run.end.max(entry.to);
                run.user = if run.user == NONE { entry.user } else { run.user };
                run.uid = if run.uid == NONE { entry.uid } else { run.uid };
            }
            last = Some(at);
            last_of.extend(whose.into_iter().filter(|(_, number)| *number != NONE).map(|whose| (whose, at)));
        }
        runs.into_iter().map(|run| run.keys).collect()
    }

    /// Whether a user may see a sensor: those of no job, and those of a job on that node that is known to be theirs. If a level was also a job of
    /// another user, both jobs' readings have the same names, and neither user may see them.
    pub fn sees(&self, user: &str, path: &str) -> bool {
        let mut is_of_a_job = false;
        for (at, _) in path.match_indices(LEVEL) {
            let (prefix, rest) = (&path[..at], &path[at + LEVEL.len()..]);
            let Some((level, _)) = rest.split_once('/') else { continue };
            is_of_a_job = true;
            let (Some(prefix), Some(level)) = (self.texts.find(prefix), self.texts.find(level)) else { continue };
            let mut owners =
                self.owners.range((level, prefix, 0)..=(level, prefix, NONE)).map(|((.., owner), _)| *owner);
            if let Some(owner) = owners.next() {
                return owners.next().is_none() && self.texts.get(owner).is_some_and(|name| **name == *user);
            }
        }
        !is_of_a_job
    }
}

/// The part of a path between an agent's prefix and a job's level.
const LEVEL: &str = "/job/";

#[cfg(test)]
mod tests {
    use super::*;

    fn record(job: &str, node: &str, user: &str, from: i64, to: Option<i64>) -> JobRecord {
        JobRecord {
            job: job.to_owned(),
            level: job.to_owned(),
            manager: "slurm".to_owned(),
            node: node.to_owned(),
            prefix: format!("/site/{node}"),
            user: Some(user.to_owned()),
            from,
            to,
            revision: 1,
            ..JobRecord::default()
        }
    }

    const S: i64 = 1_000_000_000;

    #[test]
    fn runs_are_distinguished_by_time_and_by_a_node_that_comes_again() {
        let mut index = AllocationIndex::default();
        for (node, from, to) in [
            ("a", 0, Some(50 * S)),
            ("b", S, Some(51 * S)),
            ("a", 100 * S, Some(101 * S)),
            ("a", 102 * S, None),
            ("b", 102 * S, None),
        ] {
            index.put(&record("7", node, "anna", from, to));
        }
        let job = index.texts.find("7").unwrap();
        let runs: Vec<Vec<i64>> =
            index.runs(job, |_| true).iter().map(|run| run.iter().map(|key| key.from / S).collect()).collect();
        assert_eq!(runs, [vec![0, 1], vec![100], vec![102, 102]]);
    }

    #[test]
    fn one_id_of_two_users_is_two_jobs() {
        let mut index = AllocationIndex::default();
        let owned = |node: &str, user: &str, uid: u32, from: i64, to: Option<i64>| JobRecord {
            owner: format!("own:{uid}"),
            level: format!("7-u{uid}"),
            uid: Some(uid),
            ..record("7", node, user, from, to)
        };
        // At the very same time on the same node, and each on another one too.
        index.put(&owned("a", "anna", 1000, S, Some(50 * S)));
        index.put(&owned("a", "bert", 1001, S, None));
        index.put(&owned("b", "bert", 1001, 2 * S, None));
        index.put(&owned("c", "anna", 1000, 3 * S, Some(51 * S)));
        // One whose user is not known by name there, and one of nobody known.
        index.put(&JobRecord { user: None, ..owned("d", "", 1000, 4 * S, Some(51 * S)) });
        assert_eq!(index.len(), 5);
        let job = index.texts.find("7").unwrap();
        let runs: Vec<Vec<&str>> = index
            .runs(job, |_| true)
            .iter()
            .map(|run| run.iter().map(|key| index.texts.text(key.node)).collect())
            .collect();
        assert_eq!(runs, [vec!["a", "c", "d"], vec!["a", "b"]]);
        let anna = index.texts.find("anna").unwrap();
        assert_eq!(index.runs(job, |entry| entry.user == anna).concat().len(), 2);
        assert!(index.sees("anna", "/site/a/job/7-u1000/cpu") && !index.sees("anna", "/site/a/job/7-u1001/cpu"));
        assert!(index.sees("bert", "/site/a/job/7-u1001/cpu") && !index.sees("bert", "/site/a/job/7-u1000/cpu"));
        // Hers is over and forgotten: his goes on.
        let hers = index.key(&owned("a", "anna", 1000, S, None)).unwrap();
        index.remove(&hers);
        assert_eq!(index.revision(&owned("a", "bert", 1001, S, None)), Some((1, false)));
        assert!(index.sees("bert", "/site/a/job/7-u1001/cpu") && !index.sees("anna", "/site/a/job/7-u1000/cpu"));
    }

    #[test]
    fn a_user_sees_their_own_jobs_and_what_is_of_no_job() {
        let mut index = AllocationIndex::default();
        index.put(&record("1", "a", "anna", 0, None));
        index.put(&record("2", "a", "bert", 0, None));
        index.put(&JobRecord { level: "x_3".to_owned(), ..record("x:3", "a", "anna", 0, None) });
        for (path, sees) in [
            ("/site/a/mem/free", true),
            ("/site/job", true),
            ("/site/a/job/1/cpu/usage", true),
            ("/site/a/job/2/cpu/usage", false),
            ("/site/b/job/1/cpu/usage", false),
            ("/site/a/job/9/cpu/usage", false),
            ("/site/a/job/x_3/cpu/usage", true),
            ("/site/a/job/x:3/cpu/usage", false),
            ("/site/a/job/2/region/job/1/x", false),
            ("/site/a/job/1/region/job/2/x", true),
        ] {
            assert_eq!(index.sees("anna", path), sees, "{path}");
        }
        // The id comes again, and is somebody else's.
        index.put(&record("1", "a", "bert", 100 * S, None));
        assert!(!index.sees("anna", "/site/a/job/1/cpu/usage") && !index.sees("bert", "/site/a/job/1/cpu/usage"));
        assert!(!index.sees("", "/site/a/job/1/cpu/usage"));
    }

    #[test]
    fn what_is_forgotten_gives_its_texts_back() {
        let mut index = AllocationIndex::default();
        for job in 0..1000 {
            index.put(&JobRecord {
                also: Some(format!("s{job}")),
                ..record(&format!("{job}"), "a", "anna", job, Some(job))
            });
        }
        let texts = index.texts.texts.len();
        let keys: Vec<AllocationKey> = index.order.keys().copied().take(900).collect();
        keys.iter().for_each(|key| index.remove(key));
        index.tidy();
        assert_eq!(index.len(), 100);
        assert!(index.texts.texts.len() < texts / 2, "{} of {texts}", index.texts.texts.len());
        assert_eq!(index.find("950").len(), 1);
        assert_eq!(index.of_job(index.find("s950")[0]).count(), 1);
        assert!(index.find("s5").into_iter().all(|job| index.of_job(job).count() == 0));
    }
}
