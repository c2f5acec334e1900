//! Ceph clients of the kernel: operations with latencies and sizes, capabilities, requests in progress.
//!
//! - In: `[sources.ceph]` and /sys/kernel/debug/ceph/*/ (Linux 5.16 or later for the metrics).
//! - Out: the group `ceph`, with the sensors `ceph/<fsid>/<item>/<quantity>`.
//! - Never: a request to the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;

use crate::glob::{self, PathMatch};
use crate::keyed::{KeyedFormat, KeyedGroup, TakeValue, ValueKey, each_line, whole_int, words};
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "ceph",
    summary: "Ceph clients of the kernel: operations, latencies, capabilities",
    configure,
    jobs: None,
};

/// A column of a table: its position after the item, name, unit, scale, whether it is a counter, description.
type CephColumn = (usize, &'static str, &'static str, f64, bool, &'static str);

/// The header: item total avg_lat(us) min_lat(us) max_lat(us) stdev(us)
const LATENCY: &[CephColumn] = &[
    (0, "operations", "1", 1.0, true, "Operations."),
    (1, "latency_mean", "s", 1e-6, false, "Mean time of the operations since the mount."),
    (3, "latency_max", "s", 1e-6, false, "Longest time of an operation since the mount."),
];
/// The header: item total avg_sz(bytes) min_sz(bytes) max_sz(bytes) total_sz(bytes)
const SIZE: &[CephColumn] = &[(4, "bytes", "By", 1.0, true, "Bytes of the operations.")];
/// The header: item total miss hit
const CAPABILITIES: &[CephColumn] = &[
    (0, "count", "1", 1.0, false, "Number of these in the cache."),
    (1, "misses", "1", 1.0, true, "Lookups that needed a request to a server."),
    (2, "hits", "1", 1.0, true, "Lookups without a request to a server."),
];
/// The header: item total. No other columns.
const FILES: &[CephColumn] = &[(0, "count", "1", 1.0, false, "Number of these now.")];

/// The files below the folder of a client, with the columns of their tables.
const TABLES: [(&str, &[CephColumn]); 4] =
    [("metrics/latency", LATENCY), ("metrics/size", SIZE), ("metrics/caps", CAPABILITIES), ("metrics/file", FILES)];

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CephKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, CephKeys {}) = options::read(section)?;
    Ok(Box::new(CephSource { options, sys: context.roots.sys.clone(), unseen: Vec::new() }))
}

struct CephSource {
    options: GroupOptions,
    sys: PathBuf,
    unseen: Vec<&'static str>,
}

impl Source for CephSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let clients: Vec<PathMatch> = glob::find(&self.sys, "kernel/debug/ceph/*.client*");
        // The number of the client differs after each mount. Two mounts of one cluster have it in their names.
        let mut mounts: BTreeMap<&str, usize> = BTreeMap::new();
        for client in &clients {
            *mounts.entry(client.captures.first().map_or("", String::as_str)).or_default() += 1;
        }
        let mut files = KeyedGroup::new("ceph", SensorPlan::new(&self.options, &NO_OPTIONS, report));
        for PathMatch { path, captures } in &clients {
            let [cluster, number] = &captures[..] else { continue };
            let is_only = mounts.get(cluster.as_str()) == Some(&1);
            let name = if is_only { cluster.clone() } else { format!("{cluster}.client{number}") };
            let folder = format!("ceph/{}", sanitize_level(&name));
            for (file, columns) in TABLES {
                files.add(file, &path.join(file), Box::new(CephTable { folder: folder.clone(), columns }));
            }
            files.add("osdc", &path.join("osdc"), Box::new(PendingRequests { folder }));
        }
        files.into_plan(self.options.timing(&NO_OPTIONS), true, &mut self.unseen).into_iter().collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// A table with a header, a line of dashes, and a line of numbers for each item.
struct CephTable {
    folder: String,
    columns: &'static [CephColumn],
}

impl KeyedFormat for CephTable {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            if line.is_empty() || line.starts_with(b"item") || line.starts_with(b"-") {
                return Some(());
            }
            // An item can have two words.
            let start = line.windows(2).position(|pair| pair[0] == b' ' && pair[1].is_ascii_digit())?;
            let (object, numbers) = (line[..start].trim_ascii(), words(&line[start..]));
            for (column, word) in numbers.enumerate() {
                if self.columns.iter().any(|(at, ..)| *at == column) {
                    take(ValueKey { object, name: b"", column }, whole_int(word)?);
                }
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let (_, name, unit, scale, is_counter, text) = self.columns.iter().find(|(at, ..)| *at == key.column)?;
        let item = sanitize_level(&String::from_utf8_lossy(key.object));
        let name = format!("{}/{item}/{name}", self.folder);
        let sensor =
            if *is_counter { SensorDef::counter(name, unit, text) } else { SensorDef::gauge(name, unit, text) };
        Some(sensor.scaled(*scale))
    }
}

/// The requests to object storage that have no answer yet: the line `REQUESTS 2 homeless 0`.
struct PendingRequests {
    folder: String,
}

impl KeyedFormat for PendingRequests {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            let mut words = words(line);
            if words.next() == Some(b"REQUESTS") {
                take(ValueKey { object: b"", name: b"", column: 0 }, whole_int(words.next()?)?);
            }
            Some(())
        })
    }

    fn sensor(&self, _key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let text = "Requests to object storage without an answer.";
        Some(SensorDef::gauge(format!("{}/requests_pending", self.folder), "1", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::checks::check_any_input;

    /// A file of the fixtures.
    macro_rules! fixture {
        ($path:literal) => {
            include_bytes!(concat!(
                "../../fixtures/handmade/sys/kernel/debug/ceph/",
                "2f1c8f0e-5c9f-4f8e-9a51-0d6a3c1b7e42.client4305/",
                $path
            ))
            .as_slice()
        };
    }

    #[test]
    fn any_input() {
        let texts =
            [fixture!("metrics/latency"), fixture!("metrics/size"), fixture!("metrics/caps"), fixture!("metrics/file")];
        for ((_, columns), text) in TABLES.iter().zip(texts) {
            check_any_input(text, || Box::new(CephTable { folder: "f".to_owned(), columns }));
        }
        check_any_input(fixture!("osdc"), || Box::new(PendingRequests { folder: "f".to_owned() }));
    }
}
