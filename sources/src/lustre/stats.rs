//! Files of lines with a name, a number of samples and their sum (lustre/obdclass/lprocfs_status.c, lprocfs_stats_seq_show), and files with one number.

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};
use crate::scan;

/// What the samples of a line measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleUnit {
    /// Events, whose sum means nothing or is a number of things.
    Count,
    Bytes,
    Microseconds,
    Seconds,
}

impl SampleUnit {
    /// The unit with its text in brackets removed, such as `usecs`.
    pub fn of(text: &[u8]) -> Self {
        match text {
            b"bytes" => Self::Bytes,
            b"usec" | b"usecs" => Self::Microseconds,
            b"sec" | b"secs" => Self::Seconds,
            _ => Self::Count,
        }
    }

    /// The column of a value: its samples, or the sum of these.
    pub fn column(self, is_sum: bool) -> usize {
        self as usize * 2 + usize::from(is_sum)
    }

    /// The sensor of a column: `<name>/samples` or `<name>/sum`.
    pub fn sensor(name: &str, column: usize) -> SensorDef {
        if column.is_multiple_of(2) {
            return SensorDef::counter(format!("{name}/samples"), "1", "Number of samples, such as requests.");
        }
        let sum = |unit, text| SensorDef::counter(format!("{name}/sum"), unit, text);
        match column / 2 {
            1 => sum("By", "Bytes of all samples."),
            2 => sum("s", "Time of all samples.").scaled(1e-6),
            3 => sum("s", "Time of all samples."),
            _ => sum("1", "Sum of all samples."),
        }
    }
}

/// The format of `stats`, `md_stats` and `read_ahead_stats`.
pub struct SampleStats {
    /// The levels before the names.
    pub folder: String,
}

impl KeyedFormat for SampleStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            let mut words = words(line);
            let Some(name) = words.next() else { return Some(()) };
            if matches!(name, b"snapshot_time" | b"start_time" | b"elapsed_time") {
                return Some(());
            }
            let samples = whole_int(words.next()?)?;
            (words.next()? == b"samples").then_some(())?;
            let unit = words.next()?.strip_prefix(b"[")?.strip_suffix(b"]")?;
            let unit = SampleUnit::of(unit);
            take(ValueKey { object: b"", name, column: unit.column(false) }, samples);
            // The smallest, the largest, and the sum of the samples.
            if let Some(sum) = words.nth(2) {
                take(ValueKey { object: b"", name, column: unit.column(true) }, whole_int(sum)?);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let name = sanitize_level(&String::from_utf8_lossy(key.name));
        Some(SampleUnit::sensor(&format!("{}/{name}", self.folder), key.column))
    }
}

/// What a file with one number holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberKind {
    Size,
    Free,
    Available,
    Files,
    FilesFree,
    Exports,
}

/// The format of a file with one number.
pub struct OneNumber {
    /// The levels before the name.
    pub folder: String,
    pub number: NumberKind,
}

impl KeyedFormat for OneNumber {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        match scan::only_int(text) {
            Some(value) => {
                take(ValueKey { object: b"", name: b"", column: 0 }, value);
                None
            }
            None => Some(1),
        }
    }

    fn sensor(&self, _key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let Self { folder, number } = self;
        let kilobytes =
            |name: &str, text: &str| SensorDef::gauge(format!("{folder}/{name}"), "By", text).scaled(1024.0);
        let count = |name: &str, text: &str| SensorDef::gauge(format!("{folder}/{name}"), "1", text);
        Some(match number {
            NumberKind::Size => kilobytes("size", "Size of the file system."),
            NumberKind::Free => kilobytes("free", "Free space."),
            NumberKind::Available => kilobytes("available", "Free space that users other than root can take."),
            NumberKind::Files => count("files", "Inodes."),
            NumberKind::FilesFree => count("files_free", "Free inodes."),
            NumberKind::Exports => count("exports", "Clients and servers that are connected."),
        })
    }
}
