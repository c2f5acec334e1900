//! The jobs on a target: for each job its operations with samples and sum (lustre/obdclass/lprocfs_jobstats.c).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::objects::{BoundedObjects, ObjectState};
use super::stats::SampleUnit;
use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int};
use crate::scan;

/// The longest id of a job, in bytes. Lustre has at most 32.
const ID_BYTES_MAX: usize = 64;

/// The format of `job_stats`.
pub struct JobStats {
    /// The levels before the ids.
    pub folder: String,
    pub jobs: BoundedObjects,
}

/// The ids of the jobs in a text.
pub fn ids(text: &[u8]) -> Vec<&[u8]> {
    scan::lines(text).filter_map(job_id).collect()
}

/// The id in the line that begins a job, without quotes.
fn job_id(line: &[u8]) -> Option<&[u8]> {
    let id = line.strip_prefix(b"- job_id:")?.trim_ascii();
    let id = id.strip_prefix(b"\"").and_then(|id| id.strip_suffix(b"\"")).unwrap_or(id);
    Some(&id[..id.len().min(ID_BYTES_MAX)])
}

/// The text after `key` up to the next `,` or `}`.
fn field<'a>(braces: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let at = braces.windows(key.len()).position(|window| window == key)? + key.len();
    let rest = &braces[at..];
    let end = rest.iter().position(|byte| matches!(byte, b',' | b'}'))?;
    Some(rest[..end].trim_ascii())
}

impl KeyedFormat for JobStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let (mut job, mut left_out): (Option<&[u8]>, i64) = (None, 0);
        let bad = each_line(text, |line| {
            if let Some(id) = job_id(line) {
                let state = self.jobs.state(id);
                left_out += i64::from(state == ObjectState::LeftOut);
                job = (state == ObjectState::Sampled).then_some(id);
                return Some(());
            }
            let Some(object) = job else { return Some(()) };
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Some(()) };
            let (name, rest) = (line[..colon].trim_ascii(), &line[colon + 1..]);
            let Some(brace) = rest.iter().position(|byte| *byte == b'{') else { return Some(()) };
            let braces = &rest[brace + 1..];
            let samples = whole_int(field(braces, b"samples:")?)?;
            // Each job has all operations of the target, most of which never happen. One has sensors from its first time on.
            if samples != 0 {
                let unit = SampleUnit::of(field(braces, b"unit:")?);
                take(ValueKey { object, name, column: unit.column(false) }, samples);
                if let Some(sum) = field(braces, b" sum:") {
                    take(ValueKey { object, name, column: unit.column(true) }, whole_int(sum)?);
                }
            }
            Some(())
        });
        // A text that is cut off has fewer jobs.
        if bad.is_none() {
            take(ValueKey { object: b"", name: b"jobs_left_out", column: 0 }, left_out);
        }
        bad
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let name = sanitize_level(&String::from_utf8_lossy(key.name));
        if key.object.is_empty() && name == "jobs_left_out" {
            let text = "Jobs without sensors, as jobs_max have them already.";
            return Some(SensorDef::gauge(format!("{}/{name}", self.folder), "1", text));
        }
        let job = sanitize_level(&String::from_utf8_lossy(key.object));
        Some(SampleUnit::sensor(&format!("{}/{job}/{name}", self.folder), key.column))
    }
}
