//! Topic names. `<agent>` is one level; `<group>` may be several.
//!
//! | topic | payload | QoS | retained |
//! |---|---|---|---|
//! | `wholegrain/v1/batch/<agent>/<group>` | batch | 1 | no |
//! | `wholegrain/v1/schema/<agent>/<group>` | schema | 1 | yes |
//! | `wholegrain/v1/need/<agent>` | schema hashes that the server lacks, 16 bytes each | 1 | no |
//! | `wholegrain/v1/job/<agent>` | a job record, JSON | 1 | no |
//! | `wholegrain/v1/control/<agent>` | a command of the server, JSON | 0 | no |
//! | `wholegrain/v1/response/<agent>` | the response to a command, or a notice, JSON | 0 | no |

/// The prefix of every native topic.
pub const ROOT: &str = "wholegrain/v1/";

/// A parsed native topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic<'a> {
    Batch {
        agent: &'a str,
        group: &'a str,
    },
    Schema {
        agent: &'a str,
        group: &'a str,
    },
    /// Schemas that the server requests from an agent.
    Need {
        agent: &'a str,
    },
    /// Records of an agent's jobs.
    Job {
        agent: &'a str,
    },
    /// Commands of the server to an agent.
    Control {
        agent: &'a str,
    },
    /// An agent's responses and notices.
    Response {
        agent: &'a str,
    },
}

impl<'a> Topic<'a> {
    /// Parses a native topic; `None` for any other topic.
    pub fn parse(topic: &'a str) -> Option<Self> {
        let (kind, rest) = topic.strip_prefix(ROOT)?.split_once('/')?;
        match kind {
            _ if rest.is_empty() => None,
            "need" | "job" | "control" | "response" if rest.contains('/') => None,
            "need" => Some(Topic::Need { agent: rest }),
            "job" => Some(Topic::Job { agent: rest }),
            "control" => Some(Topic::Control { agent: rest }),
            "response" => Some(Topic::Response { agent: rest }),
            "batch" | "schema" => {
                let (agent, group) = rest.split_once('/')?;
                if agent.is_empty() || group.is_empty() {
                    return None;
                }
                Some(if kind == "batch" { Topic::Batch { agent, group } } else { Topic::Schema { agent, group } })
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Topic<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Topic::Batch { agent, group } => write!(f, "{ROOT}batch/{agent}/{group}"),
            Topic::Schema { agent, group } => write!(f, "{ROOT}schema/{agent}/{group}"),
            Topic::Need { agent } => write!(f, "{ROOT}need/{agent}"),
            Topic::Job { agent } => write!(f, "{ROOT}job/{agent}"),
            Topic::Control { agent } => write!(f, "{ROOT}control/{agent}"),
            Topic::Response { agent } => write!(f, "{ROOT}response/{agent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        for topic in [
            Topic::Batch { agent: "n1", group: "net/dev" },
            Topic::Schema { agent: "n1", group: "meminfo" },
            Topic::Need { agent: "n1" },
            Topic::Job { agent: "n1" },
            Topic::Control { agent: "n1" },
            Topic::Response { agent: "n1" },
        ] {
            assert_eq!(Topic::parse(&topic.to_string()), Some(topic));
        }
        for other in [
            "",
            "wholegrain/v1/batch",
            "wholegrain/v1/batch/n1",
            "wholegrain/v1/need/a/b",
            "wholegrain/v2/need/a",
            "a/b",
        ] {
            assert_eq!(Topic::parse(other), None, "{other}");
        }
    }
}
