//! A batch that is encoded once and sent often: its number and its times are written over in place.

/// The first number that takes three bytes in a batch's header.
pub const SEQ_FIRST: u64 = 1 << 14;
pub const SEQ_LAST: u64 = (1 << 21) - 1;

/// An encoded batch with the places of the fields that change with each sending.
pub struct Template {
    payload: Vec<u8>,
    seq_at: usize,
    time_at: usize,
    /// Sum of its integers.
    pub int_sum: i128,
    /// Sum of its floats, in steps.
    pub float_steps: i128,
}

/// The place after the varint at `at`.
fn after_varint(bytes: &[u8], at: usize) -> usize {
    at + 1 + bytes[at..].iter().position(|byte| byte & 0x80 == 0).unwrap_or(0)
}

impl Template {
    /// Of a batch whose number is between [`SEQ_FIRST`] and [`SEQ_LAST`] and whose times have equal differences.
    pub fn new(payload: Vec<u8>, int_sum: i128, float_steps: i128) -> Self {
        // transport/FORMAT.md: magic, version, flags; agent; boot; sequence; schema; interval; samples; sensors; first time.
        let name_at = after_varint(&payload, 4);
        let seq_at = name_at + usize::from(payload[4]) + 8;
        let interval_at = after_varint(&payload, seq_at) + 16;
        assert_eq!(after_varint(&payload, seq_at), seq_at + 3, "a number of three bytes");
        assert_eq!(payload[3], 1, "times with equal differences");
        let time_at = (0..3).fold(interval_at, |at, _| after_varint(&payload, at));
        Self { payload, seq_at, time_at, int_sum, float_steps }
    }

    /// Gives the batch another number and another first time.
    pub fn stamp(&mut self, seq: u64, first_time: i64) {
        assert!((SEQ_FIRST..=SEQ_LAST).contains(&seq), "batch {seq} does not fit three bytes");
        for (at, byte) in self.payload[self.seq_at..self.seq_at + 3].iter_mut().enumerate() {
            *byte = (seq >> (7 * at)) as u8 & 0x7f | if at < 2 { 0x80 } else { 0 };
        }
        self.payload[self.time_at..self.time_at + 8].copy_from_slice(&first_time.to_le_bytes());
    }

    /// The batch with its last stamp.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_transport::payload::decode_batch;

    use super::super::agent::Agent;
    use super::*;

    #[test]
    fn a_stamped_batch_differs_in_number_and_times_only() {
        let mut agent = Agent::new("n7".to_owned(), 30, 10, 1_000_000).unwrap();
        agent.prebuild(1);
        let schema = agent.schema().clone();
        agent.make();
        let first = decode_batch(agent.message().1, &schema).unwrap();
        for (seq, time) in [(SEQ_FIRST, 0), (123_456, 1_700_000_000_123_456_789), (SEQ_LAST, i64::MAX / 2)] {
            let template = &mut agent.templates[0];
            template.stamp(seq, time);
            let batch = decode_batch(template.payload(), &schema).unwrap();
            assert_eq!((batch.header.seq, batch.times[0]), (seq, time));
            assert_eq!(batch.times[9] - batch.times[0], 9_000_000);
            assert_eq!(batch.columns, first.columns);
            assert_eq!((&batch.header.agent, batch.header.boot), (&first.header.agent, first.header.boot));
        }
    }
}
