//! Which texts of administrators a user may see: patterns of settings, definitions of virtual sensors.
//!
//! The store decides who sees a sensor. A pattern or an expression is text: it can name a job whose sensors the reader may not see, or that has none
//! any more.

use std::collections::HashMap;

use wholegrain_model::Pattern;

use super::Api;
use crate::access::Role;
use crate::access::tokens::Bearer;

/// The level above job ids.
const JOB: &str = "job";
/// Sensors of a pattern that are examined at a time.
const AT_ONCE: usize = 1024;

/// The user whose jobs the bearer may see; `None` for all.
pub(super) fn only_user(bearer: &Bearer) -> Option<&str> {
    (bearer.role == Role::User).then_some(bearer.name.as_str())
}

/// What one user may see. Caches results, because lists repeat patterns.
pub(super) struct UserVisibility<'a> {
    api: &'a Api,
    user: &'a str,
    patterns: HashMap<String, bool>,
    is_gone: &'a dyn Fn() -> bool,
}

/// Whether a level of a pattern is a wildcard.
fn is_wild(level: &str) -> bool {
    matches!(level, "*" | "**")
}

/// The levels in `text` that follow a level `job` and name a job. `text` may be an expression.
fn jobs_named(text: &str) -> Vec<&str> {
    let is_end = |c: char| c.is_whitespace() || "/<>()\"',".contains(c);
    let mut found = Vec::new();
    for (at, _) in text.match_indices("job/") {
        let begins = text[..at].chars().next_back().is_none_or(is_end);
        let rest = &text[at + JOB.len() + 1..];
        let level = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        if begins && !level.is_empty() && !is_wild(level) {
            found.push(level);
        }
    }
    found
}

/// Whether a pattern may match sensors of particular jobs: it names a job, or has a name below a wildcard or at its relative beginning, which may be
/// a job's.
fn may_name_job(pattern: &str) -> bool {
    let levels: Vec<&str> = pattern.trim_start_matches('/').split('/').collect();
    let inner = &levels[..levels.len().saturating_sub(1)];
    let (mut earlier, mut before) = ("", if pattern.starts_with('/') { "" } else { "**" });
    for level in inner {
        // Levels after `job/*` are below any job.
        let may_be_id = before == JOB || before == "**" || (before == "*" && earlier != JOB);
        if may_be_id && !is_wild(level) && *level != JOB {
            return true;
        }
        (earlier, before) = (before, level);
    }
    false
}

impl<'a> UserVisibility<'a> {
    /// Once `is_gone` returns true, nothing is visible.
    pub fn new(api: &'a Api, user: &'a str, is_gone: &'a dyn Fn() -> bool) -> Self {
        Self { api, user, patterns: HashMap::new(), is_gone }
    }

    /// Whether all jobs that a text names are the user's.
    pub fn sees_jobs_of(&self, text: &str) -> bool {
        jobs_named(text).into_iter().all(|level| self.api.store.find_job(level, Some(self.user), None).is_some())
    }

    /// Whether the user may know of a setting for this pattern. A pattern that names a job is visible if it matches sensors and all of them are the
    /// user's. One that may name a job is visible if it matches a sensor that the user sees. Others are visible.
    pub fn sees_pattern(&mut self, pattern: &str) -> bool {
        if !may_name_job(pattern) && jobs_named(pattern).is_empty() {
            return true;
        }
        if let Some(known) = self.patterns.get(pattern) {
            return *known;
        }
        let sees =
            Pattern::new(pattern).is_ok_and(|parsed| self.sees_matching(&parsed, jobs_named(pattern).is_empty()));
        self.patterns.insert(pattern.to_owned(), sees);
        sees
    }

    fn sees_matching(&self, pattern: &Pattern, one_is_enough: bool) -> bool {
        let patterns = std::slice::from_ref(pattern);
        let (mut after, mut sees) = (None, false);
        loop {
            if (self.is_gone)() {
                return false;
            }
            let mut page = self.api.space.sensors_after_until(patterns, after.as_deref(), AT_ONCE, self.is_gone);
            let (count, last) = (page.len(), page.last().map(|last| last.path.clone()));
            self.api.space.retain_seen(self.user, &mut page);
            sees |= !page.is_empty();
            if (one_is_enough && sees) || (!one_is_enough && page.len() < count) {
                return one_is_enough;
            }
            if count < AT_ONCE {
                return sees;
            }
            after = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_name_jobs() {
        for (text, jobs, may) in [
            ("/site/**", vec![], false),
            ("/site/n1/mem/MemFree", vec![], false),
            ("MemFree", vec![], false),
            ("/site/*/job/*/memory/usage", vec![], false),
            ("/site/*/job/12/memory/usage", vec!["12"], true),
            ("job/1*/cpu", vec!["1*"], true),
            ("12/**", vec![], true),
            ("/site/**/12/cpu", vec![], true),
            ("/site/n1/job/12", vec!["12"], false),
            ("<../job/12/power> + sum(</a/b/job/13.0/x>) * <job/*/y>", vec!["12", "13.0"], true),
            ("<myjob/12/power>", vec![], true),
        ] {
            assert_eq!(jobs_named(text), jobs, "{text}");
            assert_eq!(may_name_job(text) || !jobs.is_empty(), may || !jobs.is_empty(), "{text}");
        }
        assert!(!may_name_job("/site/n1/job/*/cpu") && may_name_job("cpu/*/power"));
    }
}
