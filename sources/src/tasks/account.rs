//! A job's sums over its processes, those that have ended too: no I/O, no clock.
//!
//! A process is looked at from time to time, and tells what it has used since it began. When it has ended, what is known of it
//! moves into the job's past: what it told last, and what the kernel said when its threads ended, whichever is more. A
//! process that lived only between two looks is known from the latter, through its parent.
//!
//! I/O is different: the kernel adds a child's to its parent's when the parent waits for it, and so on upwards. So the I/O of an
//! ended process is in the past only if there is no ancestor among the job's processes that has it now.

use std::collections::{HashMap, VecDeque};

use super::usage::{COUNTERS, IO, Now, Usage};

/// The most ended processes that are kept until a job asks for them; the oldest go first.
pub const EXITS_MAX: usize = 16_384;

/// The most generations that ended between two looks which are followed upwards.
const GENERATIONS_MAX: usize = 64;

/// The parent of a process where it is not known.
const NOBODY: u32 = 0;

/// One process of a job.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// When it began, in ticks since boot: tells it from a later one of the same number.
    start: u64,
    parent: u32,
    usage: Usage,
    now: Now,
    /// The look at which it was last seen.
    seen: u64,
}

/// What was seen of one process.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    pub start: u64,
    pub parent: u32,
    pub usage: Usage,
    /// `None` for one that has ended and that nobody has waited for yet.
    pub now: Option<Now>,
}

/// A job's sums.
#[derive(Debug, Default)]
pub struct Account {
    members: HashMap<u32, Member>,
    /// What ended processes have used.
    past: Usage,
    ended: u64,
    look: u64,
    /// The greatest sums there were: a counter does not fall while a child's I/O is on its way to its parent.
    shown: Usage,
    /// Who has ended since the look before, with the parent; kept for its room.
    gone: HashMap<u32, u32>,
}

/// The sums at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    pub processes: u64,
    pub ended: u64,
    pub now: Now,
    pub usage: Usage,
}

impl Account {
    /// A look begins.
    pub fn begin(&mut self) {
        self.look += 1;
    }

    /// Takes what was seen of a process.
    pub fn see(&mut self, pid: u32, seen: Observed) {
        if self.members.get(&pid).is_some_and(|member| member.start != seen.start) {
            self.end(pid, &HashMap::new());
        }
        let fresh = Member { start: seen.start, parent: 0, usage: Usage::default(), now: Now::default(), seen: 0 };
        let member = self.members.entry(pid).or_insert(fresh);
        member.usage.raise(&seen.usage);
        member.parent = seen.parent;
        member.now = seen.now.unwrap_or_default();
        member.seen = self.look;
    }

    /// A process is in the list and could not be looked at: it stays as it was.
    pub fn see_unread(&mut self, pid: u32) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.seen = self.look;
        }
    }

    /// Puts those that were not seen in this look into `out`, each with when it began: perhaps nobody has waited for them.
    pub fn missing(&self, out: &mut Vec<(u32, u64)>) {
        let missing = self.members.iter().filter(|(_, member)| member.seen != self.look);
        out.clear();
        out.extend(missing.map(|(pid, member)| (*pid, member.start)));
    }

    /// The look ends: what is missing has ended. Of `exits`, those up to the number `mark` were told before the list of
    /// processes was made, so that who is not in the list has really ended.
    pub fn finish(&mut self, exits: &mut Exits, mark: u64) -> Sums {
        self.gone.clear();
        for (pid, member) in self.members.iter_mut().filter(|(_, member)| member.seen != self.look) {
            if let Some(exit) = exits.take(*pid) {
                member.usage.raise(&exit.usage);
                if exit.parent != NOBODY {
                    member.parent = exit.parent;
                }
            }
            self.gone.insert(*pid, member.parent);
        }
        let gone = std::mem::take(&mut self.gone);
        gone.keys().for_each(|pid| self.end(*pid, &gone));
        self.gone = gone;
        self.claim(exits, mark);
        self.sums()
    }

    /// Takes ended processes that were never in the list, through their parents, and those's children, and so on.
    fn claim(&mut self, exits: &mut Exits, mark: u64) {
        loop {
            let before = self.gone.len();
            let Self { members, gone, past, ended, look, .. } = self;
            exits.claim(|exit| {
                let is_ours = exit.sequence <= mark
                    && !members.contains_key(&exit.process)
                    && (members.contains_key(&exit.parent) || gone.contains_key(&exit.parent));
                if is_ours {
                    past.add(&exit.usage, 0, own_counters(members, gone, *look, exit.parent));
                    *ended += 1;
                    gone.insert(exit.process, exit.parent);
                }
                is_ours
            });
            if self.gone.len() == before {
                return;
            }
        }
    }

    fn end(&mut self, pid: u32, gone: &HashMap<u32, u32>) {
        if let Some(member) = self.members.remove(&pid) {
            self.past.add(&member.usage, 0, own_counters(&self.members, gone, self.look, member.parent));
            self.ended += 1;
        }
    }

    fn sums(&mut self) -> Sums {
        let mut sums = Sums { ended: self.ended, usage: self.past, ..Sums::default() };
        for member in self.members.values() {
            sums.usage.add(&member.usage, 0, COUNTERS);
            sums.processes += u64::from(member.now.threads > 0);
            sums.now.threads += member.now.threads;
            sums.now.rss_bytes += member.now.rss_bytes;
            sums.now.peak_rss_bytes += member.now.peak_rss_bytes;
        }
        self.shown.raise(&sums.usage);
        sums.usage = self.shown;
        sums
    }
}

/// How many of the counters of an ended process nobody else has: all, or those before I/O where an ancestor lives.
fn own_counters(members: &HashMap<u32, Member>, gone: &HashMap<u32, u32>, look: u64, parent: u32) -> usize {
    let ancestors = std::iter::successors(Some(parent), |pid| gone.get(pid).copied()).take(GENERATIONS_MAX);
    let lives = |pid: &u32| members.get(pid).is_some_and(|member| member.seen == look);
    if ancestors.into_iter().any(|pid| lives(&pid)) { IO } else { COUNTERS }
}

/// A process of which threads have ended.
#[derive(Debug, Clone, Copy)]
pub struct Exit {
    pub process: u32,
    pub parent: u32,
    /// Of its ended threads together.
    pub usage: Usage,
    /// When the last one was told.
    pub sequence: u64,
}

/// What the kernel said of ended threads, until the jobs that they were of ask for it. Most are of no job, and go as others
/// come.
#[derive(Debug, Default)]
pub struct Exits {
    by_process: HashMap<u32, Exit>,
    /// In the order in which they came; may name one that was taken.
    order: VecDeque<u32>,
    sequence: u64,
    /// The number of the latest one that went because others came.
    pushed_out: u64,
}

impl Exits {
    /// Whether one that was told after this number went before any job had asked for it.
    pub fn lacks_some_after(&self, mark: u64) -> bool {
        self.pushed_out > mark
    }

    /// The number of the last one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A thread has ended; `parent` is 0 where it is not sure that `process` is its process, so that only a job that knows it
    /// takes it.
    pub fn add(&mut self, process: u32, parent: u32, usage: &Usage) {
        self.sequence += 1;
        let sequence = self.sequence;
        let order = &mut self.order;
        let exit = self.by_process.entry(process).or_insert_with(|| {
            order.push_back(process);
            Exit { process, parent, usage: Usage::default(), sequence }
        });
        exit.usage.add(usage, 0, COUNTERS);
        (exit.parent, exit.sequence) = (parent, sequence);
        if self.order.len() > EXITS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            let exit = self.by_process.remove(&oldest);
            self.pushed_out = self.pushed_out.max(exit.map_or(0, |exit| exit.sequence));
        }
    }

    fn take(&mut self, process: u32) -> Option<Exit> {
        self.by_process.remove(&process)
    }

    fn claim(&mut self, mut is_taken: impl FnMut(&Exit) -> bool) {
        self.by_process.retain(|_, exit| !is_taken(exit));
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::{FAULTS, RUN};
    use super::*;

    fn usage(run: u64, chars: u64) -> Usage {
        let mut usage = Usage::default();
        (usage.0[RUN], usage.0[FAULTS], usage.0[IO]) = (run, run, chars);
        usage
    }

    fn seen(parent: u32, run: u64, chars: u64) -> Observed {
        let now = Now { threads: 2, rss_bytes: 10, peak_rss_bytes: 20 };
        Observed { start: 1, parent, usage: usage(run, chars), now: Some(now) }
    }

    /// Looks at these processes: number, parent, run time, characters.
    fn look(account: &mut Account, exits: &mut Exits, processes: &[(u32, u32, u64, u64)]) -> (u64, u64, u64, u64) {
        account.begin();
        for &(pid, parent, run, chars) in processes {
            account.see(pid, seen(parent, run, chars));
        }
        let mark = exits.sequence();
        let sums = account.finish(exits, mark);
        (sums.processes, sums.ended, sums.usage.0[RUN], sums.usage.0[IO])
    }

    #[test]
    fn an_ended_process_stays_in_the_sums() {
        let (mut account, mut exits) = (Account::default(), Exits::default());
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 5, 100), (11, 1, 7, 50)]), (2, 0, 12, 150));
        exits.add(11, 1, &usage(9, 60));
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 6, 100)]), (1, 1, 15, 160), "what it said at its end");
        assert_eq!(
            look(&mut account, &mut exits, &[]),
            (0, 2, 15, 160),
            "what it told last, without a word at its end"
        );
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 1, 0)]), (1, 2, 16, 160), "another of the same number");
    }

    #[test]
    fn the_io_of_a_child_is_its_parents_when_that_has_waited() {
        let (mut account, mut exits) = (Account::default(), Exits::default());
        look(&mut account, &mut exits, &[(10, 1, 5, 100), (11, 10, 7, 50)]);
        exits.add(11, 10, &usage(8, 0));
        assert_eq!(
            look(&mut account, &mut exits, &[(10, 1, 5, 100)]),
            (1, 1, 13, 150),
            "not waited for yet: none falls"
        );
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 5, 160)]), (1, 1, 13, 160), "and 10 more");
        exits.add(12, 10, &usage(1, 1024));
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 5, 1300)]), (1, 2, 14, 1300), "one that was never seen");
    }

    #[test]
    fn short_lives_are_found_through_their_parents() {
        let (mut account, mut exits) = (Account::default(), Exits::default());
        look(&mut account, &mut exits, &[(10, 1, 5, 0)]);
        // A grandchild ends before its parent, which was never seen either; then one that is no process of the job.
        exits.add(21, 20, &usage(1, 2048));
        exits.add(20, 10, &usage(2, 1024));
        exits.add(30, 31, &usage(100, 100));
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 5, 3072)]), (1, 2, 8, 3072));
        assert_eq!(exits.by_process.len(), 1, "the one that is none of the job's stays for others");
    }

    #[test]
    fn a_thread_that_ends_is_no_end_of_its_process() {
        let (mut account, mut exits) = (Account::default(), Exits::default());
        look(&mut account, &mut exits, &[(10, 1, 5, 0)]);
        exits.add(10, 1, &usage(3, 0));
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 6, 0)]), (1, 0, 6, 0));
        // The other thread: together they are more than what was seen.
        exits.add(10, 1, &usage(4, 0));
        assert_eq!(look(&mut account, &mut exits, &[]), (0, 1, 7, 0));
    }

    #[test]
    fn one_told_after_the_list_was_made_waits_for_the_next_list() {
        let (mut account, mut exits) = (Account::default(), Exits::default());
        account.begin();
        account.see(10, seen(1, 5, 0));
        let mark = exits.sequence();
        exits.add(20, 10, &usage(2, 0));
        assert_eq!(account.finish(&mut exits, mark).ended, 0);
        assert_eq!(look(&mut account, &mut exits, &[(10, 1, 5, 0)]), (1, 1, 7, 0));
    }

    #[test]
    fn what_no_job_asks_for_goes() {
        let mut exits = Exits::default();
        for process in 0..EXITS_MAX as u32 + 100 {
            exits.add(process, 1, &usage(1, 1));
        }
        assert_eq!((exits.by_process.len(), exits.order.len()), (EXITS_MAX, EXITS_MAX));
        assert!(exits.take(99).is_none() && exits.take(100).is_some());
    }

    #[test]
    fn no_counter_ever_falls() {
        let mut random = crate::testing::Random::new();
        for _ in 0..200 {
            let (mut account, mut exits) = (Account::default(), Exits::default());
            let mut alive: Vec<(u32, u32, u64, u64)> = Vec::new();
            let mut before = Usage::default();
            for step in 0..60u32 {
                for _ in 0..random.below(4) {
                    let parent = alive.get(random.below(alive.len())).map_or(1, |process| process.0);
                    alive.push((100 + step * 10 + random.below(10) as u32, parent, 0, 0));
                }
                alive.sort_unstable();
                alive.dedup_by_key(|process| process.0);
                for process in &mut alive {
                    process.2 += random.below(100) as u64;
                    process.3 += random.below(100) as u64;
                }
                if !alive.is_empty() && random.below(2) == 0 {
                    let ended = alive.swap_remove(random.below(alive.len()));
                    exits.add(ended.0, ended.1, &usage(ended.2, ended.3));
                }
                look(&mut account, &mut exits, &alive);
                let now = account.sums().usage;
                assert!(now.0.iter().zip(before.0).all(|(now, before)| *now >= before));
                before = now;
            }
        }
    }
}
