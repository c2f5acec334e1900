//! What our own programs print: `seconds N`, `verified yes|no`, `figure NAME N`, `bin LOWER_EDGE_NS COUNT`; lines that begin otherwise
//! are for people.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};

/// The same as values.
#[derive(Debug, Default, PartialEq)]
pub struct Printed {
    /// Of the timed part.
    pub seconds: f64,
    /// Whether the result was right.
    pub verified: bool,
    /// By name.
    pub figures: BTreeMap<String, f64>,
    /// By edge.
    pub histogram: Vec<(u64, u64)>,
}

/// Understands what a program has printed.
pub fn parse(text: &str) -> anyhow::Result<Printed> {
    let (mut seconds, mut verified) = (None, None);
    let mut printed = Printed::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["seconds", value] => {
                seconds = Some(value.parse::<f64>().with_context(|| format!("in the line {line:?}"))?)
            }
            ["verified", "yes"] => verified = Some(true),
            ["verified", "no"] => verified = Some(false),
            ["figure", name, value] => {
                let value = value.parse().with_context(|| format!("in the line {line:?}"))?;
                printed.figures.insert((*name).to_owned(), value);
            }
            ["bin", edge, count] => {
                let parse = |word: &str| word.parse().with_context(|| format!("in the line {line:?}"));
                printed.histogram.push((parse(edge)?, parse(count)?));
            }
            _ => {}
        }
    }
    let (Some(seconds), Some(verified)) = (seconds, verified) else {
        bail!("the program did not print its seconds and whether its result is right; it printed:\n{text}");
    };
    ensure!(seconds.is_finite() && seconds > 0.0, "the program says that it took {seconds} s");
    ensure!(printed.histogram.is_sorted_by(|a, b| a.0 < b.0), "the histogram's bins are not in order");
    Ok(Printed { seconds, verified, ..printed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_values() {
        let printed = parse("hello\nseconds 1.5\nverified yes\nfigure a_us 2\nbin 100 3\nbin 200 1\nsum 0a\n")
            .expect("all is there");
        assert_eq!((printed.seconds, printed.verified), (1.5, true));
        assert_eq!(printed.figures["a_us"], 2.0);
        assert_eq!(printed.histogram, [(100, 3), (200, 1)]);
    }

    #[test]
    fn what_is_missing_or_wrong_is_an_error() {
        for text in [
            "",
            "seconds 1\n",
            "verified yes\n",
            "seconds nan\nverified yes\n",
            "seconds 0\nverified no\n",
            "seconds x\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse("seconds 1\nverified yes\nbin 200 1\nbin 100 1\n").is_err());
        assert!(!parse("seconds 1\nverified no\n").expect("complete").verified);
    }
}
