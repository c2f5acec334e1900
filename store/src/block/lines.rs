//! What the lines of each sensor's windows depend on, in the footer of a tier. The lines are right only if this agrees with what is known of the
//! sensor at the query.

use wholegrain_model::schema::put_varint;

use crate::block::index::{from_text, to_text};
use crate::block::windows::LineSpacings;
use crate::ranges::get_varint;

/// Key of the footer's metadata.
pub(crate) const LINES_KEY: &str = "wholegrain.lines";

/// Writes it, in the order of the index.
#[derive(Debug, Default)]
pub(crate) struct WindowLinesWriter {
    body: Vec<u8>,
}

impl WindowLinesWriter {
    pub(crate) fn push(&mut self, drawn: LineSpacings) {
        let LineSpacings { longest, hole, beyond } = drawn;
        [longest.unsigned_abs(), hole.unsigned_abs(), u64::from(beyond)]
            .iter()
            .for_each(|value| put_varint(*value, &mut self.body));
    }

    pub(crate) fn text(self) -> std::io::Result<String> {
        to_text(self.body)
    }
}

/// Decodes what [`WindowLinesWriter::text`] wrote for this number of sensors.
pub(crate) fn decode(text: &str, sensors: usize) -> Result<Vec<LineSpacings>, &'static str> {
    let body = from_text(text)?;
    let (mut all, mut at) = (Vec::with_capacity(sensors), 0);
    while at < body.len() && all.len() < sensors {
        let mut next = || get_varint(&body, &mut at);
        let (Some(longest), Some(hole), Some(beyond @ 0..=1)) = (next(), next(), next()) else { break };
        let (Ok(longest), Ok(hole)) = (i64::try_from(longest), i64::try_from(hole)) else { break };
        all.push(LineSpacings { longest, hole, beyond: beyond == 1 });
    }
    if all.len() == sensors && at == body.len() { Ok(all) } else { Err("its footer has lines of other sensors") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_footer_says_is_taken_back_or_refused() {
        let all = [
            LineSpacings::default(),
            LineSpacings { longest: 10_000_000_000, hole: 1, beyond: true },
            LineSpacings { longest: 0, hole: i64::MAX, beyond: true },
        ];
        let mut writer = WindowLinesWriter::default();
        all.iter().for_each(|drawn| writer.push(*drawn));
        let text = writer.text().unwrap();
        assert_eq!(decode(&text, 3).unwrap(), all);
        assert!(decode(&text, 2).is_err() && decode(&text, 4).is_err() && decode("x", 3).is_err());
    }
}
