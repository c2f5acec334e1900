//! The findings of the checks.

use std::io::Write;

use serde::Serialize;

use crate::output::style::Style;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// All findings, as `--json` prints them.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    findings: Vec<Finding>,
}

impl Findings {
    pub fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Ok, text: text.into(), advice: None });
    }

    pub fn warn(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Warn, text: text.into(), advice: Some(advice.into()) });
    }

    pub fn fail(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.findings.push(Finding { check, level: Level::Fail, text: text.into(), advice: Some(advice.into()) });
    }

    #[cfg(test)]
    pub fn levels(&self) -> impl Iterator<Item = Level> {
        self.findings.iter().map(|finding| finding.level)
    }

    /// The number of checks that failed.
    pub fn count_failed(&self) -> usize {
        self.findings.iter().filter(|finding| finding.level == Level::Fail).count()
    }

    pub fn write(&self, style: Style, out: &mut impl Write) -> std::io::Result<()> {
        let widest = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let word = match finding.level {
                Level::Ok => style.good("ok  "),
                Level::Warn => style.head("warn"),
                Level::Fail => style.error("FAIL"),
            };
            writeln!(out, "{word}  {:<widest$}  {}", finding.check, finding.text)?;
            if let Some(advice) = &finding.advice {
                writeln!(out, "      {:<widest$}  -> {advice}", "")?;
            }
        }
        Ok(())
    }
}
