//! Finds the sensors of a block that have exactly the times of the sensor before them, as in a group. Their times are then decoded once.

use wholegrain_model::schema::put_varint;

use super::index::{IndexEntry, from_text, to_text};
use crate::ranges::get_varint;

/// The metadata key of the runs of sensors with the same times. A block without runs has none.
pub(crate) const TIMES_KEY: &str = "wholegrain.times";
/// The most times of one sensor that are compared; a sensor with more shares them with none.
const TIMES_MAX: usize = if cfg!(test) { 1_000 } else { 1 << 20 };

/// Finds the runs while a block is written, sensor by sensor.
#[derive(Debug, Default)]
pub(crate) struct SameTimes {
    /// Number of sensors of each run.
    runs: Vec<u64>,
    /// All times of the last run; empty if they are too many.
    of_run: Vec<i64>,
    /// How many of these the current sensor has had, as long as it had no others.
    same: usize,
    /// The times of the current sensor, once they differ from the run's; with the same bound.
    own: Option<Vec<i64>>,
    /// Whether a sensor is being written.
    begun: bool,
}

impl SameTimes {
    /// Adds times of the current sensor.
    pub fn push(&mut self, times: &[i64]) {
        self.begun = true;
        let own = match &mut self.own {
            Some(own) => own,
            None if self.of_run.get(self.same..self.same + times.len()) == Some(times) => {
                self.same += times.len();
                return;
            }
            own => own.insert(self.of_run[..self.same].to_vec()),
        };
        own.extend_from_slice(&times[..times.len().min(TIMES_MAX + 1 - own.len())]);
    }

    /// Ends the current sensor.
    pub fn end_sensor(&mut self) {
        if !std::mem::take(&mut self.begun) {
            return;
        }
        let same = std::mem::take(&mut self.same);
        let own = self.own.take();
        match self.runs.last_mut() {
            Some(run) if own.is_none() && same == self.of_run.len() => *run += 1,
            _ => {
                self.runs.push(1);
                match own {
                    Some(own) => self.of_run = own,
                    None => self.of_run.truncate(same),
                }
                if self.of_run.len() > TIMES_MAX {
                    self.of_run.clear();
                }
            }
        }
    }

    /// The text for the footer; `None` if each sensor has its own times.
    pub fn text(mut self) -> std::io::Result<Option<String>> {
        self.end_sensor();
        if self.runs.iter().all(|run| *run == 1) {
            return Ok(None);
        }
        let mut body = Vec::new();
        self.runs.iter().for_each(|run| put_varint(*run, &mut body));
        to_text(body).map(Some)
    }
}

/// Decodes what [`SameTimes::text`] wrote: for each sensor the first one of its run.
pub(crate) fn decode(text: &str, entries: &[IndexEntry]) -> Result<Vec<u32>, &'static str> {
    let body = from_text(text)?;
    let (mut firsts, mut at) = (Vec::with_capacity(entries.len()), 0);
    while at < body.len() {
        let run = get_varint(&body, &mut at).and_then(|run| usize::try_from(run).ok());
        let first = firsts.len();
        let of_run = run.and_then(|run| entries.get(first..first.checked_add(run)?));
        let Some([leader, others @ ..]) = of_run else { return Err("its times are of more sensors than it has") };
        let alike = |entry: &IndexEntry| {
            (entry.rows, entry.first_time, entry.last_time) == (leader.rows, leader.first_time, leader.last_time)
        };
        if !others.iter().all(alike) {
            return Err("sensors that should have the same times have others");
        }
        let number = u32::try_from(first).map_err(|_| "more sensors than can be numbered")?;
        firsts.resize(first + 1 + others.len(), number);
    }
    if firsts.len() < entries.len() { Err("its times are of fewer sensors than it has") } else { Ok(firsts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of sensors that come in pieces of so many times.
    fn runs(sensors: &[&[i64]], piece: usize) -> Vec<u64> {
        let mut found = SameTimes::default();
        for sensor in sensors {
            found.end_sensor();
            sensor.chunks(piece).for_each(|times| found.push(times));
        }
        found.end_sensor();
        found.runs
    }

    #[test]
    fn sensors_of_a_run_have_the_same_times_exactly() {
        let (a, b, longer, shorter) = (&[1, 2, 3, 5][..], &[1, 2, 4, 5][..], &[1, 2, 3, 5, 6][..], &[1, 2, 3][..]);
        for piece in [1, 2, 3, 100] {
            assert_eq!(runs(&[a, a, a], piece), [3]);
            assert_eq!(runs(&[a, b, b, a, a], piece), [1, 2, 2]);
            assert_eq!(runs(&[a, longer, longer, a, shorter, shorter, a], piece), [1, 2, 1, 2, 1]);
            assert_eq!(runs(&[shorter, a, a], piece), [1, 2]);
            assert_eq!(runs(&[], piece), [0; 0]);
        }
    }

    #[test]
    fn what_is_too_long_to_be_compared_is_of_no_run() {
        let most: Vec<i64> = (0..TIMES_MAX as i64).collect();
        let more: Vec<i64> = (0..=TIMES_MAX as i64).collect();
        let much_more: Vec<i64> = (0..3 * TIMES_MAX as i64).collect();
        for piece in [1, 7, 512, 10_000] {
            assert_eq!(runs(&[&most, &most, &more, &more, &most, &most], piece), [2, 1, 1, 2]);
            assert_eq!(runs(&[&much_more, &much_more, &more, &much_more], piece), [1, 1, 1, 1]);
        }
    }

    fn entry(rows: u64, last_time: i64) -> IndexEntry {
        IndexEntry { path: String::new(), rows, first_time: 1, last_time }
    }

    #[test]
    fn what_the_footer_says_is_taken_back_or_refused() {
        let same = SameTimes { runs: vec![1, 3, 200, 1], ..SameTimes::default() };
        let text = same.text().unwrap().unwrap();
        let mut entries = vec![entry(7, 9); 205];
        entries[0] = entry(8, 9);
        entries[204] = entry(8, 10);
        let firsts = decode(&text, &entries).unwrap();
        assert_eq!((firsts.len(), &firsts[..5], firsts[203], firsts[204]), (205, &[0, 1, 1, 1, 4][..], 4, 204));
        assert!(decode(&text, &entries[..204]).is_err() && decode(&text, &[&entries[..], &entries].concat()).is_err());
        entries[2].rows += 1;
        assert!(decode(&text, &entries).is_err());
        assert_eq!(SameTimes { runs: vec![1, 1], ..SameTimes::default() }.text().unwrap(), None);
        for huge in [0, 206, u64::MAX] {
            let text = SameTimes { runs: vec![huge, 2], ..SameTimes::default() }.text().unwrap().unwrap();
            assert!(decode(&text, &entries).is_err(), "{huge}");
        }
    }
}
