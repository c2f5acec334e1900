//! The number of sensors of jobs, in total and for each user, and whether one more job fits. Pure: the number of free descriptors is an argument.

use std::collections::{BTreeMap, HashMap};

use super::super::bounds::JobBounds;

/// Why a job is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// It has no processes yet.
    Empty,
    /// The node's bound on sensors.
    Sensors,
    /// The user's bound on sensors.
    UserSensors,
    /// The bound on descriptors.
    Descriptors,
}

impl WaitReason {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Empty => "it has no processes yet",
            Self::Sensors => "the jobs of this node have as many sensors as [jobs.bounds] sensors allows",
            Self::UserSensors => "the jobs of its user have as many sensors as [jobs.bounds] sensors_per_user allows",
            Self::Descriptors => "the jobs of this node hold as many files as [jobs.bounds] descriptors allows",
        }
    }
}

/// The sensors and files of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobNeed {
    pub uid: Option<u32>,
    pub sensors: usize,
    /// Files that are not open yet.
    pub files: usize,
}

#[derive(Debug, Default)]
pub struct SensorCapacity {
    /// The bounds in force.
    pub bounds: JobBounds,
    of_jobs: BTreeMap<String, JobNeed>,
    of_users: HashMap<u32, usize>,
    sensors: usize,
}

impl SensorCapacity {
    pub fn sensors(&self) -> usize {
        self.sensors
    }

    /// The bound that refuses a job, with `left` free descriptors.
    pub fn refuses(&self, need: &JobNeed, left: usize) -> Option<WaitReason> {
        let of_user = need.uid.and_then(|uid| self.of_users.get(&uid)).copied().unwrap_or(0);
        if self.sensors + need.sensors > self.bounds.sensors {
            return Some(WaitReason::Sensors);
        }
        // Jobs of root belong to the machine.
        if need.uid.is_some_and(|uid| uid != 0) && of_user + need.sensors > self.bounds.sensors_per_user {
            return Some(WaitReason::UserSensors);
        }
        (need.files > left).then_some(WaitReason::Descriptors)
    }

    /// Counts the sensors of a job.
    pub fn take(&mut self, level: &str, need: JobNeed) {
        self.leave(level);
        self.sensors += need.sensors;
        if let Some(uid) = need.uid {
            *self.of_users.entry(uid).or_default() += need.sensors;
        }
        self.of_jobs.insert(level.to_owned(), need);
    }

    /// Releases the sensors of a job, and returns their number.
    pub fn leave(&mut self, level: &str) -> usize {
        let Some(need) = self.of_jobs.remove(level) else { return 0 };
        self.sensors -= need.sensors;
        if let Some(uid) = need.uid
            && let Some(count) = self.of_users.get_mut(&uid)
        {
            *count -= need.sensors;
            if *count == 0 {
                self.of_users.remove(&uid);
            }
        }
        need.sensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(uid: u32, sensors: usize) -> JobNeed {
        JobNeed { uid: Some(uid), sensors, files: 5 }
    }

    #[test]
    fn one_user_leaves_room_for_others_and_all_have_a_bound() {
        let mut room = SensorCapacity {
            bounds: JobBounds { sensors: 100, sensors_per_user: 60, ..JobBounds::default() },
            ..SensorCapacity::default()
        };
        for level in ["1", "2", "3"] {
            assert_eq!(room.refuses(&need(7, 20), 5), None);
            room.take(level, need(7, 20));
        }
        assert_eq!(room.refuses(&need(7, 1), 5), Some(WaitReason::UserSensors));
        assert_eq!(room.refuses(&need(8, 40), 5), None);
        assert_eq!(room.refuses(&need(8, 41), 5), Some(WaitReason::Sensors));
        assert_eq!(room.refuses(&need(8, 40), 4), Some(WaitReason::Descriptors));
        assert_eq!(room.refuses(&JobNeed { uid: None, sensors: 41, files: 0 }, 0), Some(WaitReason::Sensors));
        room.take("3", need(7, 10));
        assert_eq!((room.sensors(), room.refuses(&need(7, 10), 5)), (50, None), "it has fewer now");
        assert_eq!((room.leave("1"), room.leave("1")), (20, 0));
        room.leave("2");
        room.leave("3");
        assert!(room.sensors() == 0 && room.of_users.is_empty() && room.of_jobs.is_empty());
    }
}
