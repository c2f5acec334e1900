//! Which jobs are counted when there are more than slots: a share for each user. No I/O.
//!
//! Names, number and begin of a unit can be chosen by the user who makes it, so that they decide between jobs of one user only.

use std::collections::{BTreeMap, BTreeSet};

use crate::records::RunningJobs;

/// A job in the order in which its user's jobs get slots: the oldest first.
type JobOrder<'a> = (i64, &'a str);

/// The jobs of one user; those of unknown users together are one user's.
#[derive(Default)]
struct UserShare<'a> {
    counted: BTreeSet<JobOrder<'a>>,
    waiting: BTreeSet<JobOrder<'a>>,
}

/// The levels of the jobs that are counted, at most `jobs_max`. All if they are no more.
///
/// Jobs that have a slot keep it. A free one goes to the user with the fewest, which is in turns if all begin with none. Without a free one, a user who
/// has none takes one of the user with the most, if that one has more than an equal share: its newest job ends.
pub fn chosen_jobs(running: &RunningJobs, is_counted: impl Fn(&str) -> bool, jobs_max: usize) -> BTreeSet<&str> {
    if running.jobs.len() <= jobs_max {
        return running.jobs.keys().map(String::as_str).collect();
    }
    let mut shares: BTreeMap<Option<u32>, UserShare<'_>> = BTreeMap::new();
    let mut free = jobs_max;
    for (level, job) in &running.jobs {
        let share = shares.entry(job.uid).or_default();
        let jobs = if is_counted(level) && free > 0 {
            free -= 1;
            &mut share.counted
        } else {
            &mut share.waiting
        };
        jobs.insert((job.from, level));
    }
    let equal_share = (jobs_max / shares.len()).max(1);
    while let Some((count, _, user)) = next_user(&shares) {
        if free > 0 {
            free -= 1;
        } else if count > 0 || !take_from_largest(&mut shares, equal_share) {
            break;
        }
        let Some(share) = shares.get_mut(&user) else { break };
        share.counted.extend(share.waiting.pop_first());
    }
    shares.into_values().flat_map(|share| share.counted).map(|(_, level)| level).collect()
}

/// The user who gets the next slot: of those with waiting jobs the one with the fewest slots, then with the oldest job.
fn next_user<'a>(shares: &BTreeMap<Option<u32>, UserShare<'a>>) -> Option<(usize, JobOrder<'a>, Option<u32>)> {
    let all = shares.iter().filter_map(|(user, share)| Some((share.counted.len(), *share.waiting.first()?, *user)));
    all.min()
}

/// Ends the newest job of the user with the most slots. Whether that one has more than an equal share.
fn take_from_largest(shares: &mut BTreeMap<Option<u32>, UserShare<'_>>, equal_share: usize) -> bool {
    let largest = shares.values_mut().max_by_key(|share| (share.counted.len(), share.counted.last().copied()));
    largest.filter(|share| share.counted.len() > equal_share).is_some_and(|share| share.counted.pop_last().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::RunningJob;

    /// The chosen of jobs with their users and begins.
    fn check(jobs: &[(&str, Option<u32>, i64)], counted: &[&str], jobs_max: usize, expected: &[&str]) {
        let jobs = jobs.iter().map(|(level, uid, from)| {
            ((*level).to_owned(), RunningJob { uid: *uid, from: *from, cgroups: Vec::new() })
        });
        let running = RunningJobs { jobs: jobs.collect(), ..RunningJobs::default() };
        let chosen = chosen_jobs(&running, |level| counted.contains(&level), jobs_max);
        assert_eq!(chosen.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn slots_are_given_in_turns_of_users() {
        let (a, b, c) = (Some(1), Some(2), None);
        check(&[("00", a, 1), ("7", b, 9)], &[], 2, &["00", "7"]);
        let jobs = [("00", a, 1), ("01", a, 2), ("02", a, 3), ("7", b, 9), ("8", b, 8), ("9", c, 7)];
        check(&jobs, &[], 1, &["00"]);
        check(&jobs, &[], 3, &["00", "8", "9"]);
        check(&jobs, &[], 4, &["00", "01", "8", "9"]);
        check(&jobs, &[], 5, &["00", "01", "7", "8", "9"]);
    }

    #[test]
    fn counted_jobs_keep_their_slots_but_not_all_slots() {
        let (a, b, c) = (Some(1), Some(2), Some(3));
        let jobs = [("00", a, 1), ("01", a, 2), ("02", a, 3), ("03", a, 4), ("7", b, 9), ("8", b, 8)];
        // One user has all: the newest job makes room for one of the other user.
        check(&jobs, &["00", "01", "02"], 3, &["00", "01", "8"]);
        check(&jobs, &["03", "02", "01"], 3, &["01", "02", "8"]);
        // The other has one: nobody loses a slot. A free one goes to who has fewer, then to the oldest job.
        check(&jobs, &["00", "01", "8"], 3, &["00", "01", "8"]);
        check(&jobs, &["00", "02", "8"], 4, &["00", "02", "7", "8"]);
        check(&jobs, &["00", "8"], 3, &["00", "01", "8"]);
        // Nobody has more than an equal share, also where there are more users than slots.
        check(&[("00", a, 1), ("7", b, 9), ("9", c, 0)], &["00", "7"], 2, &["00", "7"]);
        check(&[("00", a, 1), ("01", a, 2), ("7", b, 9), ("9", c, 0)], &["00", "01"], 2, &["00", "9"]);
    }

    #[test]
    fn a_thousand_jobs_of_a_user_do_not_leave_out_another() {
        let mut jobs: BTreeMap<String, RunningJob> = (0..1024)
            .map(|index| (format!("00{index:04}"), RunningJob { uid: Some(1000), ..RunningJob::default() }))
            .collect();
        jobs.insert("4711".to_owned(), RunningJob { uid: Some(7), from: i64::MAX, cgroups: vec![1] });
        let running = RunningJobs { jobs, ..RunningJobs::default() };
        for counted in ["", "000"] {
            let chosen = chosen_jobs(&running, |level| !counted.is_empty() && level.starts_with(counted), 64);
            assert!(chosen.contains("4711") && chosen.len() == 64, "{chosen:?}");
        }
    }
}
