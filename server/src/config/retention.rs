//! `[store] tiers` and `[[store.retention]]`: which readings and tiers are kept, and for how long.

use std::collections::BTreeMap;

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, Pattern};
use wholegrain_store::{RETENTION_RULES_MAX, RetentionRule, StoreConfig, check_tiers};

/// The value for data that is never dropped.
const FOREVER: &str = "forever";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRetention {
    pattern: String,
    raw: Option<String>,
    #[serde(default)]
    tiers: BTreeMap<String, String>,
}

/// Reads the rules. A length of time in their place is an error that names the right key.
pub(crate) fn rules<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<RawRetention>, D::Error> {
    struct Rules;
    impl<'de> serde::de::Visitor<'de> for Rules {
        type Value = Vec<RawRetention>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(
                "a [[store.retention]] table for each rule; the age of all readings is bounded by `retention_age`",
            )
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut rules = Vec::new();
            while let Some(rule) = sequence.next_element()? {
                rules.push(rule);
            }
            Ok(rules)
        }
    }
    deserializer.deserialize_seq(Rules)
}

/// Checks the settings and applies them to the store's configuration.
pub(crate) fn apply(
    config: &mut StoreConfig,
    tiers: Option<Vec<Interval>>,
    retention: Vec<RawRetention>,
    section: &Section,
) -> Result<(), ConfigError> {
    if let Some(tiers) = tiers {
        check_tiers(&tiers).map_err(|reason| section.error("tiers", &reason))?;
        config.tiers = tiers;
    }
    if retention.len() > RETENTION_RULES_MAX {
        let message = format!("has {} rules, at most {RETENTION_RULES_MAX} are allowed", retention.len());
        return Err(section.error("retention", &message));
    }
    for rule in retention {
        let rule = read(rule, &config.tiers).map_err(|reason| section.error("retention", &reason))?;
        config.retention.push(rule);
    }
    Ok(())
}

fn read(raw: RawRetention, tiers: &[Interval]) -> Result<RetentionRule, String> {
    let pattern = Pattern::new(raw.pattern.as_str()).map_err(|error| format!("pattern: {error}"))?;
    let age = |text: &str| match text {
        FOREVER => Ok(None),
        text => match Interval::parse(text) {
            Ok(age) if age.ns() == 0 => {
                Err(format!("{text:?} is not a retention; write a length of time, or \"{FOREVER}\""))
            }
            Ok(age) => Ok(Some(age)),
            Err(error) => Err(format!("{error}, or \"{FOREVER}\"")),
        },
    };
    let mut kept = Vec::new();
    for (tier, text) in &raw.tiers {
        let tier = Interval::parse(tier).map_err(|error| format!("tiers: {error}"))?;
        if !tiers.contains(&tier) {
            let known: Vec<String> = tiers.iter().map(Interval::to_string).collect();
            return Err(format!("for {}: there is no tier {tier}; the tiers are [{}]", raw.pattern, known.join(", ")));
        }
        kept.push((tier, age(text)?));
    }
    Ok(RetentionRule { pattern, raw: raw.raw.as_deref().map_or(Ok(None), age)?, tiers: kept })
}
