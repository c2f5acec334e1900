//! What is told over HTTP and in Prometheus' text format.

use std::time::Duration;

use anyhow::Context;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The body that a plain HTTP GET is answered with.
pub fn get(url: &str) -> anyhow::Result<String> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).proxy(None).build().new_agent();
    let mut answer = agent.get(url).call().with_context(|| format!("asking {url}"))?;
    answer.body_mut().read_to_string().with_context(|| format!("the answer of {url}"))
}

/// How many samples an exposition in the text format has.
pub fn samples(text: &str) -> u64 {
    text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count() as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn comments_are_no_samples() {
        assert_eq!(super::samples("# HELP a b\n# TYPE a gauge\na 1\n\na{b=\"#\"} 2\n"), 2);
    }
}
