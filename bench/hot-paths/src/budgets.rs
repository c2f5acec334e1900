//! The budgets' file, and the comparison of a count with its budget.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;

/// The environment on which the counts depend.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tools {
    pub rustc: String,
    /// The C compiler, of zstd.
    pub cc: String,
    /// The C library, whose memcpy and allocator are counted too.
    pub libc: String,
    /// Which processor it shows depends on it.
    pub valgrind: String,
    /// Processor features by which libraries select their code.
    pub processor: String,
}

impl Tools {
    /// The differences, for people.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let pairs = [
            ("rustc", &self.rustc, &before.rustc),
            ("cc", &self.cc, &before.cc),
            ("libc", &self.libc, &before.libc),
            ("valgrind", &self.valgrind, &before.valgrind),
            ("processor", &self.processor, &before.processor),
        ];
        let differ = pairs.into_iter().filter(|(_, now, then)| now != then);
        differ.map(|(what, now, then)| format!("{what} {now} in place of {then}")).collect()
    }
}

/// By how much a count may be over its budget, as a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// With the tools that the budgets were taken with.
    pub same_tools: f64,
    /// With others, whose code for the same sources is not the same.
    pub other_tools: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    pub taken_with: Tools,
    /// The tolerance above them.
    pub tolerance: Tolerance,
    /// Instructions a unit, by path.
    pub instructions: BTreeMap<String, f64>,
}

/// How a count stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Within its budget and the tolerance.
    Within,
    /// Over it, by this part.
    Over(f64),
    /// Far enough below that the budget guards nothing any more, by this part.
    Below(f64),
    /// There is no budget.
    Unknown,
}

impl Budgets {
    /// Reads the file's text.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// How `each` instructions a unit of `path` stand, when a part of `allowed` is allowed above and below.
    pub fn verdict(&self, path: &str, each: f64, allowed: f64) -> Verdict {
        let Some(budget) = self.instructions.get(path) else { return Verdict::Unknown };
        let over = each / budget.max(f64::MIN_POSITIVE) - 1.0;
        match over {
            _ if over > allowed => Verdict::Over(over),
            _ if over < -allowed => Verdict::Below(-over),
            _ => Verdict::Within,
        }
    }

    /// The file's text; `units` names the unit of each path.
    pub fn text(&self, units: &[(&str, &str)]) -> String {
        let Tools { rustc, cc, libc, valgrind, processor } = &self.taken_with;
        let mut text = format!(
            "# Instructions that the hot paths may take, counted by callgrind in the profile `hot-paths`. Written by\n\
             #   cargo run --profile hot-paths -p wholegrain-hot-paths -- check --update\n\
             # `make test` holds the counts against them; bench/hot-paths/README.md says how.\n\n\
             [taken_with]\nrustc = {rustc:?}\ncc = {cc:?}\nlibc = {libc:?}\nvalgrind = {valgrind:?}\nprocessor = {processor:?}\n\n\
             # The part of a budget that a count may be over it, with these tools and with others.\n\
             [tolerance]\nsame_tools = {:?}\nother_tools = {:?}\n\n[instructions]\n",
            self.tolerance.same_tools, self.tolerance.other_tools
        );
        for (path, unit) in units {
            if let Some(each) = self.instructions.get(*path) {
                // Writing into a string does not fail.
                let _ = writeln!(text, "{:<40} # a {unit}", format!("{path} = {each:.1}"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets() -> Budgets {
        let tools = |text: &str| text.to_owned();
        Budgets {
            taken_with: Tools {
                rustc: tools("1.90.0"),
                cc: tools("12.2.0"),
                libc: tools("2.36"),
                valgrind: tools("3.19.0"),
                processor: tools("avx2+bmi2"),
            },
            tolerance: Tolerance { same_tools: 0.03, other_tools: 0.25 },
            instructions: BTreeMap::from([("encode".to_owned(), 1000.0), ("scan".to_owned(), 12.5)]),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = budgets().text(&[("scan", "reading"), ("encode", "batch")]);
        assert!(text.contains("encode = 1000.0") && text.contains("# a batch"), "{text}");
        assert_eq!(Budgets::parse(&text).unwrap(), budgets());
        assert!(Budgets::parse(&text.replace("[tolerance]", "[tolerances]")).is_err());
    }

    #[test]
    fn counts_stand_over_within_or_below() {
        let check = |each: f64, allowed: f64, expected: Verdict| {
            assert_eq!(budgets().verdict("encode", each, allowed), expected, "{each}");
        };
        check(1029.0, 0.03, Verdict::Within);
        check(971.0, 0.03, Verdict::Within);
        check(1250.0, 0.125, Verdict::Over(0.25));
        check(1250.0, 0.25, Verdict::Within);
        check(500.0, 0.03, Verdict::Below(0.5));
        assert_eq!(budgets().verdict("decode", 1.0, 0.03), Verdict::Unknown);
    }

    #[test]
    fn other_tools_are_named() {
        let now = Tools { rustc: "1.91.0".to_owned(), ..budgets().taken_with };
        assert_eq!(now.differences(&budgets().taken_with), ["rustc 1.91.0 in place of 1.90.0"]);
        assert_eq!(now.differences(&now), [""; 0]);
    }
}
