//! Topic aliases of one connection (3.3.2.3.4): numbers that the client gave topics, and those that we give.

use std::collections::HashMap;

use wholegrain_transport::mqtt::{ReasonCode, Text};

use super::pipeline::Close;

/// The most bytes of topics that one client may have given numbers.
const BYTES_MAX: usize = 256 << 10;

/// What the client calls its topics. Nothing is allocated before the first alias.
#[derive(Debug, Default)]
pub struct Inbound {
    topics: Vec<Option<Text>>,
    bytes: usize,
    max: u16,
}

impl Inbound {
    /// Up to so many.
    pub fn new(max: u16) -> Self {
        Self { max, ..Self::default() }
    }

    /// The topic of a PUBLISH with this topic, maybe empty, and this alias.
    pub fn resolve(&mut self, topic: Text, alias: Option<u16>) -> Result<Text, Close> {
        let Some(alias) = alias else { return Ok(topic) };
        if alias == 0 || alias > self.max {
            let why = format!("used topic alias {alias}; 1 to {} are taken", self.max);
            return Err(Close::new(ReasonCode::TOPIC_ALIAS_INVALID, why));
        }
        let at = usize::from(alias) - 1;
        if topic.is_empty() {
            let known = self.topics.get(at).cloned().flatten();
            return known.ok_or_else(|| {
                let why = format!("used topic alias {alias}, which it has given no topic");
                // The packet has neither a topic nor what could stand for one.
                Close::new(ReasonCode::TOPIC_ALIAS_INVALID, why)
            });
        }
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        self.bytes += topic.len();
        self.bytes -= self.topics[at].as_ref().map_or(0, |old| old.len());
        if self.bytes > BYTES_MAX {
            let why = format!("has given numbers to over {BYTES_MAX} bytes of topics");
            return Err(Close::new(ReasonCode::QUOTA_EXCEEDED, why));
        }
        // A copy: the received one keeps its whole buffer alive.
        self.topics[at] = Some(Text::from(topic.as_str()));
        Ok(topic)
    }
}

/// What we call topics for a client that takes aliases: the first topics get numbers, as many as it takes.
#[derive(Debug, Default)]
pub struct Outbound {
    numbers: HashMap<Text, u16>,
    max: u16,
}

/// How a PUBLISH names its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By the topic alone.
    Plain,
    /// By the topic, which gets this number.
    Given(u16),
    /// By this number alone.
    Known(u16),
}

impl Outbound {
    /// Up to so many.
    pub fn new(max: u16) -> Self {
        Self { max, ..Self::default() }
    }

    /// How to name a topic.
    pub fn name(&self, topic: &Text) -> Naming {
        if self.max == 0 {
            return Naming::Plain;
        }
        match self.numbers.get(topic) {
            Some(&number) => Naming::Known(number),
            None if self.numbers.len() < usize::from(self.max) => Naming::Given(self.numbers.len() as u16 + 1),
            None => Naming::Plain,
        }
    }

    /// A PUBLISH that gives a topic this number was sent.
    pub fn given(&mut self, topic: &Text, number: u16) {
        self.numbers.insert(topic.clone(), number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_aliases_are_bounded_and_can_be_given_anew() {
        let mut aliases = Inbound::new(2);
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
        let mut aliases = Inbound::new(10);
        let mut last = Ok(Text::default());
        for alias in 1..=5 {
            last = aliases.resolve(Text::from(&*large), Some(alias));
        }
        assert_eq!(last.map_err(|close| close.reason), Err(ReasonCode::QUOTA_EXCEEDED));
    }

    #[test]
    fn as_many_topics_get_numbers_as_the_client_takes() {
        let [a, b] = ["a", "b"].map(Text::from);
        let mut aliases = Outbound::new(1);
        assert_eq!(aliases.name(&a), Naming::Given(1));
        // Not sent, for it was too large: the number is still free.
        assert_eq!(aliases.name(&b), Naming::Given(1));
        aliases.given(&b, 1);
        assert_eq!((aliases.name(&b), aliases.name(&a)), (Naming::Known(1), Naming::Plain));
        assert_eq!(Outbound::new(0).name(&a), Naming::Plain);
    }
}
