//! The options `--from` and `--to`.

use wholegrain_model::Timestamp;

use crate::failure::Failure;

/// Parses both ends and checks their order. An end such as `+10m` is relative to the start.
pub fn range(
    from: Option<&str>,
    to: Option<&str>,
    now: Timestamp,
) -> Result<(Option<Timestamp>, Option<Timestamp>), Failure> {
    let wrong = |name: &str, error| Failure::Usage(format!("--{name}: {error}"));
    let from = from.map(|text| Timestamp::parse(text, now).map_err(|error| wrong("from", error))).transpose()?;
    let to = to.map(|text| Timestamp::parse_end(text, from.unwrap_or(now), now).map_err(|error| wrong("to", error)));
    let to = to.transpose()?;
    match (from, to) {
        (Some(from), Some(to)) if from > to => {
            Err(Failure::Usage(format!("--from ({from}) is after --to ({to}); exchange them")))
        }
        (Some(from), None) if from > now => {
            Err(Failure::Usage(format!("--from ({from}) is in the future; write a time in the past, such as -10m")))
        }
        both => Ok(both),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_and_checked() {
        let now = Timestamp(1_769_860_800_000_000_000);
        let at = |seconds: i64| Some(Timestamp(now.0 + seconds * 1_000_000_000));
        for (from, to, expected) in [
            (None, None, (None, None)),
            (Some("-1h"), None, (at(-3_600), None)),
            (Some("-1h"), Some("+10m"), (at(-3_600), at(-3_000))),
            (Some("-1h"), Some("-10m"), (at(-3_600), at(-600))),
            (Some("11:00"), Some("+1m"), (at(-3_600), at(-3_540))),
            (None, Some("+10m"), (None, at(600))),
        ] {
            assert_eq!(range(from, to, now).unwrap(), expected, "{from:?} {to:?}");
        }
        for (from, to, part) in [
            (Some("2030-01-01"), None, "is in the future"),
            (Some("2030-01-01"), Some("now"), "exchange them"),
            (Some("never"), None, "--from: \"never\" is not a time"),
            (None, Some("never"), "--to: \"never\" is not a time"),
        ] {
            let Err(Failure::Usage(text)) = range(from, to, now) else { panic!("{from:?} {to:?}") };
            assert!(text.contains(part), "{text}");
        }
    }
}
