//! Files with one word for a state, such as `up`: the value is the word's place in a list.

use wholegrain_model::SensorDef;

use crate::parse::{ParseOutcome, TextParser, ValueSink};
use crate::plan::{SensorPlan, Slot};

/// The words of a file and the slot of its value.
#[derive(Debug)]
pub struct StateText {
    words: &'static [&'static str],
    slot: Slot,
}

/// The sensor with the words in its description: `State of the link: 0 down, 1 up.`
pub fn described(sensor: SensorDef, words: &[&str]) -> SensorDef {
    let list: Vec<String> = words.iter().enumerate().map(|(value, word)| format!("{value} {word}")).collect();
    let description = format!("{}: {}.", sensor.description.trim_end_matches('.'), list.join(", "));
    SensorDef { description, ..sensor }
}

/// The value of a text with one of the words; `None` for another text, and for one without a newline, which may be cut.
pub fn state(bytes: &[u8], words: &[&str]) -> Option<i64> {
    let text = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n'))?.trim();
    words.iter().position(|word| *word == text).map(|index| index as i64)
}

impl StateText {
    /// Adds the sensor, described with its values.
    pub fn plan(words: &'static [&'static str], sensor: SensorDef, plan: &mut SensorPlan<'_>) -> Self {
        Self { words, slot: plan.add(described(sensor, words)) }
    }
}

impl TextParser for StateText {
    fn parse(&self, bytes: &[u8], sink: &mut impl ValueSink) -> ParseOutcome {
        match state(bytes, self.words) {
            Some(value) => sink.calculated(self.slot, value),
            None => return ParseOutcome { layout_changed: false, garbage: Some(1) },
        }
        ParseOutcome::default()
    }

    fn slots(&self) -> Vec<u32> {
        self.slot.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_places() {
        let words = ["down", "up"];
        for (text, expected) in [
            ("up\n", Some(1)),
            ("down\n", Some(0)),
            (" up \n", Some(1)),
            ("up", None),
            ("u\n", None),
            ("", None),
            ("upp\n", None),
        ] {
            assert_eq!(state(text.as_bytes(), &words), expected, "{text:?}");
        }
        let sensor = described(SensorDef::gauge("a", "1", "State of the link."), &words);
        assert_eq!(sensor.description, "State of the link: 0 down, 1 up.");
    }
}
