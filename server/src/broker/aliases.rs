//! Topic aliases of one connection (MQTT 5, 3.3.2.3.4), in both directions.

use std::collections::HashMap;

use wholegrain_transport::mqtt::{ReasonCode, Text};

use crate::ingest::CloseReason;

/// The most bytes of topics for which one client may define aliases.
const BYTES_MAX: usize = 256 << 10;

/// The aliases that the client defined. Allocates nothing before the first one.
#[derive(Debug, Default)]
pub struct InboundAliases {
    topics: Vec<Option<Text>>,
    bytes: usize,
    max: u16,
}

impl InboundAliases {
    pub fn new(max: u16) -> Self {
        Self { max, ..Self::default() }
    }

    /// The topic of a PUBLISH with this topic, which may be empty, and alias.
    pub fn resolve(&mut self, topic: Text, alias: Option<u16>) -> Result<Text, CloseReason> {
        let Some(alias) = alias else { return Ok(topic) };
        if alias == 0 || alias > self.max {
            let why = format!("used topic alias {alias}; 1 to {} are allowed", self.max);
            return Err(CloseReason::new(ReasonCode::TOPIC_ALIAS_INVALID, why));
        }
        let at = usize::from(alias) - 1;
        if topic.is_empty() {
            let known = self.topics.get(at).cloned().flatten();
            return known.ok_or_else(|| {
                let why = format!("used topic alias {alias}, which it has not defined");
                // The packet has neither a topic nor a known alias.
                CloseReason::new(ReasonCode::TOPIC_ALIAS_INVALID, why)
            });
        }
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        self.bytes += topic.len();
        self.bytes -= self.topics[at].as_ref().map_or(0, |old| old.len());
        if self.bytes > BYTES_MAX {
            let why = format!("defined aliases for over {BYTES_MAX} bytes of topics");
            return Err(CloseReason::new(ReasonCode::QUOTA_EXCEEDED, why));
        }
        // Copied, because the received text keeps its whole buffer alive.
        self.topics[at] = Some(Text::from(topic.as_str()));
        Ok(topic)
    }
}

/// The aliases that the server defined: the first topics get them, as many as the client accepts.
#[derive(Debug, Default)]
pub struct OutboundAliases {
    numbers: HashMap<Text, u16>,
    max: u16,
}

/// How a PUBLISH names its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicNaming {
    /// By the topic alone.
    Plain,
    /// By the topic, which gets this alias.
    Given(u16),
    /// By this alias alone.
    Known(u16),
}

impl OutboundAliases {
    pub fn new(max: u16) -> Self {
        Self { max, ..Self::default() }
    }

    /// How to name a topic.
    pub fn name(&self, topic: &Text) -> TopicNaming {
        if self.max == 0 {
            return TopicNaming::Plain;
        }
        match self.numbers.get(topic) {
            Some(&number) => TopicNaming::Known(number),
            None if self.numbers.len() < usize::from(self.max) => TopicNaming::Given(self.numbers.len() as u16 + 1),
            None => TopicNaming::Plain,
        }
    }

    /// Records that a PUBLISH defined an alias.
    pub fn given(&mut self, topic: &Text, number: u16) {
        self.numbers.insert(topic.clone(), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_aliases_are_bounded_and_can_be_redefined() {
        let mut aliases = InboundAliases::new(2);
        let mut resolve = |topic: &str, alias| {
            aliases.resolve(Text::from(topic), alias).map(|t| t.to_string()).map_err(|close| close.reason)
        };
        assert_eq!(resolve("a", None), Ok("a".to_owned()));
        assert_eq!(resolve("", Some(1)), Err(ReasonCode::TOPIC_ALIAS_INVALID));
        assert_eq!(resolve("a", Some(2)), Ok("a".to_owned()));
        assert_eq!(resolve("", Some(2)), Ok("a".to_owned()));
        assert_eq!(resolve("b", Some(2)), Ok("b".to_owned()));
        assert_eq!(resolve("", Some(2)), Ok("b".to_owned()));
        for alias in [0, 3, u16::MAX] {
            assert_eq!(resolve("a", Some(alias)), Err(ReasonCode::TOPIC_ALIAS_INVALID));
        }
        let large = "x".repeat(60_000);
        let mut aliases = InboundAliases::new(10);
        let mut last = Ok(Text::default());
        for alias in 1..=5 {
            last = aliases.resolve(Text::from(&*large), Some(alias));
        }
        assert_eq!(last.map_err(|close| close.reason), Err(ReasonCode::QUOTA_EXCEEDED));
    }

    #[test]
    fn as_many_topics_get_numbers_as_the_client_takes() {
        let [a, b] = ["a", "b"].map(Text::from);
        let mut aliases = OutboundAliases::new(1);
        assert_eq!(aliases.name(&a), TopicNaming::Given(1));
        // Not sent, for it was too large: the number is still free.
        assert_eq!(aliases.name(&b), TopicNaming::Given(1));
        aliases.given(&b, 1);
        assert_eq!((aliases.name(&b), aliases.name(&a)), (TopicNaming::Known(1), TopicNaming::Plain));
        assert_eq!(OutboundAliases::new(0).name(&a), TopicNaming::Plain);
    }
}
