//! Records of ended jobs that wait for the hook of an epilog.

use std::collections::BTreeMap;

use wholegrain_model::JobRecord;

use super::super::hooks::HOOKS_MAX;
use super::super::shares::UserShares;

/// The most records; beyond it, the user with the most loses the oldest.
const ENDED_MAX: usize = HOOKS_MAX;
/// How long they wait.
pub const EPILOG_NS: u64 = 60_000_000_000;

/// The records, ordered by end.
#[derive(Default)]
pub struct EndedJobs {
    records: BTreeMap<u64, (u64, JobRecord)>,
    shares: UserShares,
    next: u64,
}

impl EndedJobs {
    /// Adds a job that ended at `mono`.
    pub fn push(&mut self, mono: u64, record: JobRecord) {
        self.shares.add(record.uid, self.next, 0);
        self.records.insert(self.next, (mono, record));
        self.next += 1;
        if self.records.len() > ENDED_MAX {
            let oldest = self.shares.of_most().next();
            oldest.into_iter().for_each(|order| self.remove(order));
        }
    }

    /// The last record for which `wanted` is true.
    pub fn find(&mut self, wanted: impl Fn(&JobRecord) -> bool) -> Option<&mut JobRecord> {
        self.records.values_mut().rev().map(|(_, record)| record).find(|record| wanted(record))
    }

    /// Removes records that have waited long enough.
    pub fn expire(&mut self, mono: u64) {
        while let Some((order, (at, _))) = self.records.first_key_value()
            && at + EPILOG_NS < mono
        {
            self.remove(*order);
        }
    }

    fn remove(&mut self, order: u64) {
        if let Some((_, record)) = self.records.remove(&order) {
            self.shares.remove(record.uid, order, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_many_jobs_pushes_no_others_out() {
        let record = |uid: u32, job: usize| JobRecord { uid: Some(uid), job: job.to_string(), ..JobRecord::default() };
        let mut ended = EndedJobs::default();
        ended.push(0, record(1, 0));
        (0..ENDED_MAX * 2).for_each(|job| ended.push(1, record(2, job)));
        assert_eq!(ended.records.len(), ENDED_MAX);
        assert!(ended.find(|record| record.uid == Some(1)).is_some());
        let oldest = ended.records.values().find(|(_, record)| record.uid == Some(2)).unwrap();
        assert_eq!(oldest.1.job, (ENDED_MAX + 1).to_string(), "of the other the oldest went");
        ended.expire(EPILOG_NS + 1);
        assert!(ended.find(|record| record.uid == Some(1)).is_none() && ended.records.len() == ENDED_MAX - 1);
        ended.expire(EPILOG_NS + 2);
        assert!(ended.records.is_empty() && ended.shares.of_most().next().is_none());
    }
}
