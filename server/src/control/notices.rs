//! Unsolicited notices of agents, for the server's log.

use serde::Deserialize;
use wholegrain_model::{Interval, Timestamp};

/// A notice; unknown fields of later versions are ignored.
#[derive(Debug, Deserialize)]
struct AgentNotice {
    clock_step: Option<ClockStep>,
}

#[derive(Debug, Deserialize)]
struct ClockStep {
    /// In ns; negative if the clock was stepped back.
    by_ns: i64,
    /// The time of that clock until which nothing is sampled, ns since the Unix epoch.
    held_until: Option<i64>,
    /// Earlier steps that were not reported.
    #[serde(default)]
    unreported: u64,
}

/// A notice as text; `None` if it has no known content.
pub(super) fn text(agent: &str, notice: serde_json::Value) -> Option<String> {
    let ClockStep { by_ns, held_until, unreported } = serde_json::from_value::<AgentNotice>(notice).ok()?.clock_step?;
    let direction = if by_ns < 0 { "back" } else { "forward" };
    let length = Interval::from_ns(by_ns.unsigned_abs() / 1_000_000 * 1_000_000);
    let mut said = format!("agent {agent}: its node's clock was stepped {direction} by {length}");
    if let Some(until) = held_until {
        let until = Timestamp(until);
        said.push_str(&format!("; it samples nothing until that clock has passed {until}"));
    }
    if unreported > 0 {
        said.push_str(&format!(" ({unreported} steps before this one were not reported)"));
    }
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_notices_become_text_and_others_are_ignored() {
        for (notice, expected) in [
            (
                r#"{"clock_step":{"by_ns":-5000000000,"held_until":100000000000,"unreported":3}}"#,
                Some(
                    "agent n1: its node's clock was stepped back by 5s; it samples nothing until that clock has passed \
                     1970-01-01T00:01:40Z (3 steps before this one were not reported)",
                ),
            ),
            (
                r#"{"clock_step":{"by_ns":20000000,"later":1}}"#,
                Some("agent n1: its node's clock was stepped forward by 20ms"),
            ),
            (r#"{"clock_step":{"by_ns":"x"}}"#, None),
            (r#"{"later":{}}"#, None),
            ("7", None),
        ] {
            assert_eq!(text("n1", serde_json::from_str(notice).unwrap()).as_deref(), expected, "{notice}");
        }
    }
}
