//! Histograms of the I/O of a target, with columns for reads and writes (lustre/obdclass/lprocfs_status_server.c).

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};

/// The format of `brw_stats`.
pub struct BrwStats {
    /// The levels before the names.
    pub folder: String,
}

impl KeyedFormat for BrwStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let mut title: &[u8] = b"";
        each_line(text, |line| {
            let mut words = words(line);
            let Some(first) = words.next() else { return Some(()) };
            let Some(bar) = line.iter().position(|byte| *byte == b'|') else {
                // The time of the snapshot, and of the beginning.
                return (first.ends_with(b"_time:") || first.ends_with(b"_time")).then_some(());
            };
            let Some(label) = first.strip_suffix(b":") else {
                if let Some(new) = header(&line[..bar]) {
                    title = new;
                }
                return Some(());
            };
            let read = whole_int(words.next()?)?;
            let write = whole_int(self::words(&line[bar + 1..]).next()?)?;
            for (column, value) in [read, write].into_iter().enumerate() {
                take(ValueKey { object: title, name: label, column }, value);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let title = String::from_utf8_lossy(key.object).to_lowercase();
        let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let level = words.collect::<Vec<_>>().join("_");
        let direction = if key.column == 0 { "read" } else { "write" };
        let label = sanitize_level(&String::from_utf8_lossy(key.name));
        let text = format!("Operations ({direction}) with this value of: {title}.");
        Some(SensorDef::counter(format!("{}/{}/{label}/{direction}", self.folder, sanitize_level(&level)), "1", &text))
    }
}

/// The title of a histogram in the line before its rows: `pages per bulk r/w     rpcs  % cum % |`.
fn header(left: &[u8]) -> Option<&[u8]> {
    let end = [b" rpcs ".as_slice(), b" ios "]
        .into_iter()
        .filter_map(|word| left.windows(word.len()).position(|at| at == word));
    Some(left[..end.min()?].trim_ascii()).filter(|title| !title.is_empty())
}
