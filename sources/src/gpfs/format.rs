//! The answers of `mmpmon -p` (IBM Storage Scale documentation, "Monitoring GPFS I/O performance with the mmpmon command").

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};

/// The keys of `_io_s_` and `_fs_io_s_`: name, unit, whether it is a counter, description.
const COUNTERS: [(&[u8], &str, &str, bool, &str); 9] = [
    (b"_d_", "disks", "1", false, "Disks of the file system."),
    (b"_br_", "bytes_read", "By", true, "Bytes read."),
    (b"_bw_", "bytes_written", "By", true, "Bytes written."),
    (b"_oc_", "opens", "1", true, "Opened files."),
    (b"_cc_", "closes", "1", true, "Closed files."),
    (b"_rdc_", "reads", "1", true, "Reads by programs."),
    (b"_wc_", "writes", "1", true, "Writes by programs."),
    (b"_dir_", "readdirs", "1", true, "Reads of directories."),
    (b"_iu_", "inode_updates", "1", true, "Updates of inodes."),
];

/// Columns of histograms: the direction, and whether the value is that of a range of latencies.
const WRITES: usize = 1;
const LATENCY: usize = 2;

/// All answers to one request of the agent.
pub struct MmpmonAnswers;

impl KeyedFormat for MmpmonAnswers {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let (mut direction, mut range): (Option<usize>, &[u8]) = (None, b"");
        each_line(text, |line| {
            let mut words = words(line);
            match words.next() {
                Some(b"_io_s_") => take_counters(b"", line, take),
                Some(b"_fs_io_s_") => {
                    let name = value_of(line, b"_fs_")?;
                    // Without a mounted file system there is one line with an error.
                    if name == b"-" { Some(()) } else { take_counters(name, line, take) }
                }
                Some(b"_rhist_") => {
                    direction = match value_of(line, b"_k_") {
                        Some(b"r") => Some(0),
                        Some(b"w") => Some(WRITES),
                        // The answer to `rhist on`, or an error.
                        _ => None,
                    };
                    Some(())
                }
                Some(b"_R_") => {
                    range = between(line, b"_R_ ", b" _NR_")?;
                    let (Some(column), count) = (direction, value_of(line, b"_NR_")?) else { return Some(()) };
                    take(ValueKey { object: range, name: b"", column }, whole_int(count)?);
                    Some(())
                }
                Some(b"_L_") => {
                    let name = between(line, b"_L_ ", b" _NL_")?;
                    let (Some(column), count) = (direction, value_of(line, b"_NL_")?) else { return Some(()) };
                    take(ValueKey { object: range, name, column: column + LATENCY }, whole_int(count)?);
                    Some(())
                }
                // Answers to other requests, and messages.
                _ => Some(()),
            }
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        if let Some((_, name, unit, is_counter, text)) = COUNTERS.iter().find(|(word, ..)| *word == key.name) {
            let folder = sanitize_level(&String::from_utf8_lossy(key.object));
            let name = if key.object.is_empty() { format!("gpfs/{name}") } else { format!("gpfs/{folder}/{name}") };
            let sensor =
                if *is_counter { SensorDef::counter(name, unit, text) } else { SensorDef::gauge(name, unit, text) };
            return Some(sensor);
        }
        let [range, latency] = [key.object, key.name].map(|text| String::from_utf8_lossy(text).replace(' ', "-"));
        let direction = if key.column % LATENCY == WRITES { "write" } else { "read" };
        let folder = format!("gpfs/histograms/{direction}/{}", sanitize_level(&range));
        Some(if key.column < LATENCY {
            SensorDef::counter(format!("{folder}/requests"), "1", &format!("Requests ({direction}) of {range} bytes."))
        } else {
            let text = format!("Requests ({direction}) of {range} bytes that took {latency} ms.");
            SensorDef::counter(format!("{folder}/latency/{}", sanitize_level(&latency)), "1", &text)
        })
    }
}

/// Hands the counters of a line to `take`, unless the line is an error.
fn take_counters(object: &[u8], line: &[u8], take: TakeValue<'_>) -> Option<()> {
    if value_of(line, b"_rc_")? != b"0" {
        return Some(());
    }
    let mut words = words(line);
    while let Some(word) = words.next() {
        if COUNTERS.iter().any(|(known, ..)| *known == word) {
            take(ValueKey { object, name: word, column: 0 }, whole_int(words.next()?)?);
        }
    }
    Some(())
}

/// The word after `key`.
fn value_of<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    words(line).skip_while(|word| *word != key).nth(1)
}

/// The text between two others.
fn between<'a>(line: &'a [u8], before: &[u8], after: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(before)?;
    let end = rest.windows(after.len()).position(|window| window == after)?;
    Some(&rest[..end])
}
