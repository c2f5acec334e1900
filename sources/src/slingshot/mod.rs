//! Slingshot: the counters of HPE Cassini adapters.
//!
//! - In: `[sources.slingshot]`, /sys/class/cxi/*/device/telemetry/*, and the files of the retry handler in /run/cxi.
//! - Out: the groups `slingshot` and `slingshot/retry`, with the sensors `slingshot/<device>/<counter>` and `slingshot/<device>/retry/<counter>`.
//! - Never: the file `ALL-in-binary`, and files that reset counters.

use std::path::PathBuf;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;
use wholegrain_model::pattern::{Filter, Pattern};

use crate::glob::{self, PathMatch};
use crate::keyed::{KeyedFormat, KeyedGroup, TakeValue, ValueKey};
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::scan::Cursor;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "slingshot",
    summary: "Slingshot: counters of HPE Cassini adapters (cxi)",
    configure,
    jobs: None,
};

/// The counters without settings: traffic, congestion, errors of the link, retries, timeouts. An adapter has more than 1500.
const COUNTERS: [&str; 20] = [
    "hni_sts_*_ok_octets",
    "hni_sts_*_ok_bcast",
    "hni_sts_*_ok_mcast",
    "hni_pkts_sent_by_tc_*",
    "hni_pkts_recv_by_tc_*",
    "hni_rx_paused_*",
    "hni_tx_paused_*",
    "hni_discard_cntr_*",
    "hni_multicast_pkts_*",
    "hni_pcs_corrected_cw",
    "hni_pcs_uncorrected_cw",
    "hni_pcs_good_cw",
    "hni_llr_*_replay_event",
    "parbs_tarb_pi_*_blocked_cnt",
    "pct_no_*_nacks",
    "pct_*_timeouts",
    "pct_trs_rsp_nack_drops",
    "pct_retry_srb_requests",
    "lpe_net_match_overflow_*",
    "lpe_*_drop*",
];

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SlingshotKeys {
    counters: Filter,
    retry_dir: PathBuf,
}

impl Default for SlingshotKeys {
    fn default() -> Self {
        let include = COUNTERS.iter().filter_map(|text| Pattern::new(*text).ok()).collect();
        Self { counters: Filter { include, exclude: Vec::new() }, retry_dir: "/run/cxi".into() }
    }
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, SlingshotKeys) = options::read(section)?;
    let retry = context.resolve(&keys.retry_dir);
    let (sys, counters) = (context.roots.sys.clone(), keys.counters);
    Ok(Box::new(SlingshotSource { options, sys, counters, retry, unseen: Vec::new() }))
}

struct SlingshotSource {
    options: GroupOptions,
    sys: PathBuf,
    counters: Filter,
    retry: PathBuf,
    unseen: Vec<&'static str>,
}

impl Source for SlingshotSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let timing = self.options.timing(&NO_OPTIONS);
        let adapters: Vec<String> = glob::names(&self.sys.join("class/cxi"));
        let mut files = KeyedGroup::new("slingshot", SensorPlan::new(&self.options, &NO_OPTIONS, report));
        for PathMatch { path, captures } in glob::find(&self.sys, "class/cxi/*/device/telemetry/*") {
            let [device, counter] = &captures[..] else { continue };
            // The files of a folder for each reset, and the one with all values, are no numbers.
            if self.counters.keeps(counter) && path.is_file() && counter != "ALL-in-binary" {
                let name = format!("slingshot/{}/{}", sanitize_level(device), sanitize_level(counter));
                files.add("telemetry", &path, Box::new(CassiniCounter { name, has_time: true }));
            }
        }
        let telemetry = files.into_plan(timing, true, &mut self.unseen);
        let mut files = KeyedGroup::new("slingshot/retry", SensorPlan::new(&self.options, &NO_OPTIONS, report));
        for PathMatch { path, captures } in glob::find(&self.retry, "*/*") {
            let [device, counter] = &captures[..] else { continue };
            if adapters.contains(device) && path.is_file() && !counter.starts_with("reset") && counter != "config" {
                let name = format!("slingshot/{}/retry/{}", sanitize_level(device), sanitize_level(counter));
                files.add("retry handler", &path, Box::new(CassiniCounter { name, has_time: false }));
            }
        }
        telemetry.into_iter().chain(files.into_plan(timing, true, &mut self.unseen)).collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// A file with a counter: `1234@1692345678.123456789`, or `1234` of the retry handler.
struct CassiniCounter {
    name: String,
    /// Whether the time at which the driver read the counter follows it.
    has_time: bool,
}

impl KeyedFormat for CassiniCounter {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        match self.value(text) {
            Some(value) => {
                take(ValueKey { object: b"", name: b"", column: 0 }, value);
                None
            }
            None => Some(1),
        }
    }

    fn sensor(&self, _key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let unit = if self.name.contains("octets") { "By" } else { "1" };
        Some(SensorDef::counter(self.name.clone(), unit, ""))
    }
}

impl CassiniCounter {
    fn value(&self, text: &[u8]) -> Option<i64> {
        let mut cursor = Cursor::new(text);
        let value = cursor.number()? as i64;
        if self.has_time {
            // All nine digits: a text that is cut off has fewer.
            cursor.literal(b"@")?;
            cursor.number()?;
            cursor.literal(b".")?;
            let start = cursor.position();
            cursor.number()?;
            (cursor.position() - start == 9).then_some(())?;
        }
        // The retry handler's files have less than 21 bytes, which one read gives; whether they end in a newline is not documented.
        cursor.rest().trim_ascii().is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::checks::check_any_input;

    fn value(text: &str, has_time: bool) -> Option<i64> {
        CassiniCounter { name: String::new(), has_time }.value(text.as_bytes())
    }

    #[test]
    fn values_with_times() {
        for (text, expected) in [
            ("1234@1692345678.123456789\n", Some(1234)),
            ("18446744073709551615@1692345678.123456789", Some(-1)),
            ("1234@1692345678.12345678\n", None),
            ("1234@1692345678\n", None),
            ("1234\n", None),
            ("-1@1.123456789\n", None),
            ("x@1.123456789\n", None),
            ("1@1.123456789 2\n", None),
        ] {
            assert_eq!(value(text, true), expected, "{text:?}");
        }
        assert_eq!((value("7\n", false), value("7", false), value("7 x\n", false)), (Some(7), Some(7), None));
    }

    #[test]
    fn any_input() {
        for (text, has_time) in [("1234@1692345678.123456789\n", true), ("9\n", false)] {
            check_any_input(text.as_bytes(), || Box::new(CassiniCounter { name: "f/x".to_owned(), has_time }));
        }
    }
}
