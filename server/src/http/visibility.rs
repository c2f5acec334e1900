//! What users may see of texts that administrators wrote about sensors: patterns of settings, definitions of virtual sensors.
//!
//! Of sensors themselves the store says who sees them. A pattern or an expression is text: it can name a job whose sensors its
//! reader may not see, or one whose sensors are gone.

use std::collections::HashMap;

use wholegrain_model::Pattern;

use super::Api;

/// The level that has jobs below it.
const JOB: &str = "job";
/// Sensors of a pattern that are looked at in one go.
const AT_ONCE: usize = 1024;

/// One user's view. It remembers what it found, for lists that name the same patterns again and again.
pub(super) struct UserVisibility<'a> {
    api: &'a Api,
    user: &'a str,
    patterns: HashMap<String, bool>,
    is_gone: &'a dyn Fn() -> bool,
}

/// Whether a level of a pattern stands for any.
fn is_wild(level: &str) -> bool {
    matches!(level, "*" | "**")
}

/// The levels in `text` that follow a level `job` and say which job is meant. `text` may be an expression.
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

/// Whether a pattern may choose sensors of certain jobs: it says which job, or has a name somewhere below a wildcard or at its own
/// beginning, which may be a job's.
fn may_name_job(pattern: &str) -> bool {
    let levels: Vec<&str> = pattern.trim_start_matches('/').split('/').collect();
    let inner = &levels[..levels.len().saturating_sub(1)];
    let (mut earlier, mut before) = ("", if pattern.starts_with('/') { "" } else { "**" });
    for level in inner {
        // What follows `job/*` is below a job, any one.
        let may_be_id = before == JOB || before == "**" || (before == "*" && earlier != JOB);
        if may_be_id && !is_wild(level) && *level != JOB {
            return true;
        }
        (earlier, before) = (before, level);
    }
    false
}

impl<'a> UserVisibility<'a> {
    /// Of one user. Once nobody waits for what is found, nothing is seen.
    pub fn new(api: &'a Api, user: &'a str, is_gone: &'a dyn Fn() -> bool) -> Self {
        Self { api, user, patterns: HashMap::new(), is_gone }
    }

    /// Whether all jobs that a text names are the user's.
    pub fn sees_jobs_of(&self, text: &str) -> bool {
        jobs_named(text).into_iter().all(|level| self.api.store.find_job(level, Some(self.user), None).is_some())
    }

    /// Whether the user may know that something was set for this pattern. One that says of which job: when all that it chooses is the
    /// user's, and there is something. One that may: when it chooses something that the user sees. Any other: yes.
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
