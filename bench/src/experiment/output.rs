//! The files that a report is made from, made anew from the finished runs whenever asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow_schema::{Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use super::file::{Experiment, Known};
use super::plan::LeftOut;
use super::records::{Folder, Identity, Part, Record};
use super::summary::{self, Row};

/// What a folder holds.
pub struct Found {
    /// Its rows, setting by setting.
    pub rows: Vec<Row>,
    /// `experiment.json`.
    pub about: Value,
    /// What is not measured, and why.
    pub left_out: Vec<LeftOut>,
}

/// Writes all files from what is in the folder; gives what they say.
pub fn write(folder: &Folder) -> anyhow::Result<Found> {
    let path = folder.path("state.json");
    let begun = folder.begun()?;
    let (text, identity) =
        begun.with_context(|| format!("no experiment was begun here: {} is missing", path.display()))?;
    let records = folder.records()?;
    let left_out = left_out(&identity, &records);
    let about = about(&text, &identity, &records);
    let monitors = json!({ "monitors": monitors(&records), "left_out": left_out });
    let (conditions, records) = summary::divide(&identity.conditions, &records, &identity.parts);
    let rows = summary::rows(&conditions, &records);
    folder.write("results.parquet", &results(about["name"].as_str().unwrap_or_default(), &records)?)?;
    folder.write("histogram.parquet", &histogram(&records)?)?;
    folder.write("summary.parquet", &summaries(&rows)?)?;
    folder.write("monitors.json", &serde_json::to_vec_pretty(&monitors)?)?;
    folder.write("experiment.json", &serde_json::to_vec_pretty(&about)?)?;
    Ok(Found { rows, about, left_out })
}

/// The experiment itself. Its text was checked when it was begun; another program may know other monitors, which is no matter here.
fn about(text: &str, identity: &Identity, records: &[Record]) -> Value {
    let experiment = Experiment::parse(std::path::Path::new("experiment.toml"), text, &Known::here()).ok();
    let name =
        text.lines().find_map(|line| line.trim().strip_prefix("name")?.trim().strip_prefix('=')?.split('"').nth(1));
    let made: std::collections::BTreeSet<usize> = records.iter().map(|record| record.run).collect();
    let warn = experiment.as_ref().map(|experiment| experiment.quiet.warn);
    json!({
        "name": name,
        "seed": identity.seed,
        "repetitions": experiment.as_ref().map(|experiment| experiment.repetitions),
        "warm_up": experiment.as_ref().map(|experiment| experiment.warm_up),
        "none_per_round": experiment.as_ref().map(|experiment| experiment.none_per_round),
        "hosts": identity.hosts,
        "runs_planned": identity.runs,
        "runs_made": made.len(),
        "runs_failed": records.iter().filter(|record| record.seconds().is_none()).count(),
        "runs_not_quiet": warn.map(|warn| records.iter().filter(|record| record.others_percent > warn).count()),
        "not_quiet_percent": warn,
    })
}

/// What could not be measured, and what was given up.
fn left_out(identity: &Identity, records: &[Record]) -> Vec<LeftOut> {
    let mut all = identity.left_out.clone();
    for condition in identity.conditions.iter().filter(|condition| !condition.is_without()) {
        let of = |record: &&Record| record.condition.setting() == condition.setting();
        let mut own = records.iter().filter(of).peekable();
        let last = records.iter().rfind(of).and_then(|record| record.failure.as_ref());
        let failure = last.filter(|failure| failure.part == Part::Monitor);
        let Some(failure) = failure.filter(|_| own.peek().is_some() && own.all(|r| r.seconds().is_none())) else {
            continue;
        };
        let entry = LeftOut {
            monitor: condition.monitor.clone(),
            configuration: condition.configuration.clone(),
            interval_ns: condition.interval_ns.unwrap_or_default(),
            reason: format!("no run of it was good, last: {}", failure.reason),
        };
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    all
}

/// Each monitor's setting as it was first seen.
fn monitors(records: &[Record]) -> Vec<Value> {
    let mut found = BTreeMap::new();
    for (record, seen) in records.iter().filter_map(|record| Some((record, record.seen.as_ref()?))) {
        let condition = &record.condition;
        found.entry(condition.setting()).or_insert_with(|| {
            json!({ "monitor": condition.monitor, "configuration": condition.configuration, "version": seen.version,
                "interval_ns": condition.interval_ns, "metrics": seen.metrics, "configured": seen.configured })
        });
    }
    found.into_values().collect()
}

fn whole(value: impl TryInto<i64>) -> Option<i64> {
    value.try_into().ok()
}

fn integers<T>(of: &[T], value: impl Fn(&T) -> Option<i64>) -> ArrayRef {
    Arc::new(of.iter().map(value).collect::<Int64Array>())
}

fn numbers<T>(of: &[T], value: impl Fn(&T) -> Option<f64>) -> ArrayRef {
    Arc::new(of.iter().map(value).collect::<Float64Array>())
}

fn flags<T>(of: &[T], value: impl Fn(&T) -> Option<bool>) -> ArrayRef {
    Arc::new(of.iter().map(value).collect::<BooleanArray>())
}

fn texts<T>(of: &[T], value: impl Fn(&T) -> Option<String>) -> ArrayRef {
    Arc::new(of.iter().map(value).collect::<StringArray>())
}

fn results(name: &str, records: &[Record]) -> anyhow::Result<Vec<u8>> {
    let r = records;
    let used = |of: fn(&super::records::Usage) -> u64| integers(r, move |r| whole(of(r.usage.as_ref()?)));
    let started = r.iter().map(|r| Some(r.started_ns)).collect::<TimestampNanosecondArray>().with_timezone("UTC");
    let figures = |r: &Record| serde_json::to_string(&r.outcome.as_ref()?.figures).ok();
    // The workload's own time even of a run that does not count would be taken for one that does.
    file(vec![
        ("experiment", texts(r, |_| Some(name.to_owned()))),
        ("run", integers(r, |r| whole(r.run))),
        ("round", integers(r, |r| whole(r.round))),
        ("warm_up", flags(r, |r| Some(r.warm_up))),
        ("workload", texts(r, |r| Some(r.condition.workload.clone()))),
        ("size", texts(r, |r| Some(r.condition.size.clone()))),
        ("ranks", integers(r, |r| whole(r.condition.ranks))),
        ("hosts", integers(r, |r| whole(r.condition.hosts))),
        ("monitor", texts(r, |r| Some(r.condition.monitor.clone()))),
        ("configuration", texts(r, |r| Some(r.condition.configuration.clone()))),
        ("interval_ns", integers(r, |r| whole(r.condition.interval_ns?))),
        ("started", Arc::new(started)),
        ("seconds", numbers(r, Record::seconds)),
        ("verified", flags(r, |r| Some(r.outcome.as_ref().is_some_and(|outcome| outcome.verified)))),
        ("failure", texts(r, |r| r.failure.as_ref().map(|failure| failure.reason.clone()))),
        ("metrics", integers(r, |r| whole(r.seen.as_ref()?.metrics))),
        ("node_cpu_ns", used(|u| u.node_cpu_ns)),
        ("server_cpu_ns", used(|u| u.server_cpu_ns)),
        ("window_ns", used(|u| u.window_ns)),
        ("rss_kb", used(|u| u.rss_kb)),
        ("pss_kb", used(|u| u.pss_kb)),
        ("samples", integers(r, |r| whole(r.usage?.samples?))),
        ("missed", integers(r, |r| whole(r.usage?.missed?))),
        ("figures", texts(r, figures)),
    ])
}

fn histogram(records: &[Record]) -> anyhow::Result<Vec<u8>> {
    let good = records.iter().filter(|record| record.seconds().is_some() && !record.warm_up);
    let bins = good.flat_map(|r| r.outcome.iter().flat_map(move |o| o.histogram.iter().map(move |bin| (r, *bin))));
    let b: Vec<(&Record, (u64, u64))> = bins.collect();
    file(vec![
        ("run", integers(&b, |(r, _)| whole(r.run))),
        ("workload", texts(&b, |(r, _)| Some(r.condition.workload.clone()))),
        ("monitor", texts(&b, |(r, _)| Some(r.condition.monitor.clone()))),
        ("configuration", texts(&b, |(r, _)| Some(r.condition.configuration.clone()))),
        ("interval_ns", integers(&b, |(r, _)| whole(r.condition.interval_ns?))),
        ("bin_ns", integers(&b, |(_, (bin, _))| whole(*bin))),
        ("count", integers(&b, |(_, (_, count))| whole(*count))),
    ])
}

fn summaries(rows: &[Row]) -> anyhow::Result<Vec<u8>> {
    file(vec![
        ("workload", texts(rows, |r| Some(r.condition.workload.clone()))),
        ("size", texts(rows, |r| Some(r.condition.size.clone()))),
        ("ranks", integers(rows, |r| whole(r.condition.ranks))),
        ("hosts", integers(rows, |r| whole(r.condition.hosts))),
        ("monitor", texts(rows, |r| Some(r.condition.monitor.clone()))),
        ("configuration", texts(rows, |r| Some(r.condition.configuration.clone()))),
        ("interval_ns", integers(rows, |r| whole(r.condition.interval_ns?))),
        ("runs", integers(rows, |r| whole(r.runs))),
        ("failed", integers(rows, |r| whole(r.failed))),
        ("mean_s", numbers(rows, |r| r.mean_s)),
        ("ci_low_s", numbers(rows, |r| r.ci_low_s)),
        ("ci_high_s", numbers(rows, |r| r.ci_high_s)),
        ("median_s", numbers(rows, |r| r.median_s)),
        ("ratio", numbers(rows, |r| r.ratio)),
        ("ratio_low", numbers(rows, |r| r.ratio_low)),
        ("ratio_high", numbers(rows, |r| r.ratio_high)),
        ("median_ratio", numbers(rows, |r| r.median_ratio)),
        ("significant", flags(rows, |r| r.significant)),
        ("p_adjusted", numbers(rows, |r| r.p_adjusted)),
        ("node_cpu_share", numbers(rows, |r| r.node_cpu_share)),
        ("us_per_metric", numbers(rows, |r| r.us_per_metric)),
        ("rss_kb", numbers(rows, |r| r.rss_kb)),
    ])
}

/// A Parquet file of these columns.
fn file(columns: Vec<(&str, ArrayRef)>) -> anyhow::Result<Vec<u8>> {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).context("columns of one length")?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let properties = properties.set_created_by(concat!("wholegrain-bench ", env!("CARGO_PKG_VERSION")).to_owned());
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build()))?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}
