//! Refusals of the server, and the pauses after them.
//!
//! A message is given up only for a reason that cannot change for its payload. Other reasons may pass: a quota is raised, a permission is corrected,
//! a fault of the server ends. Such batches stay in memory or in the spool, within their bounds, and are sent again.

use std::time::{Duration, Instant};

use wholegrain_transport::mqtt::ReasonCode;

/// The pause after the first refusal: 500 ms; it doubles with each refusal without an acknowledgement in between.
pub const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause: 30 s.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Whether the same message would always be refused: its topic, its format or its size is wrong. "Not authorized" is not final, because an
/// administrator can change it, nor are the unspecified reasons.
pub fn is_final(reason: ReasonCode) -> bool {
    matches!(reason, ReasonCode::TOPIC_NAME_INVALID | ReasonCode::PAYLOAD_FORMAT_INVALID | ReasonCode::PACKET_TOO_LARGE)
}

/// Pauses after refusals that may pass. No batch is sent during a pause, so that a server in trouble is spared. One acknowledgement resets the next
/// pause to the shortest, so that a batch that is always refused delays the others little.
#[derive(Debug, Default)]
pub struct RefusalPauses {
    in_a_row: u32,
    until: Option<Instant>,
}

impl RefusalPauses {
    /// A message was refused. Messages that were sent together count once.
    pub fn refused(&mut self, now: Instant) {
        if self.left(now).is_zero() {
            let pause = PAUSE_MIN.saturating_mul(1 << self.in_a_row.min(10)).min(PAUSE_MAX);
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.until = Some(now + pause);
        }
    }

    /// A batch was acknowledged.
    pub fn accepted(&mut self) {
        self.in_a_row = 0;
    }

    /// The rest of the pause; zero without one.
    pub fn left(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_change_is_final() {
        let codes: Vec<u8> = (0x80..=0xff).filter(|code| is_final(ReasonCode(*code))).collect();
        assert_eq!(codes, [0x90, 0x95, 0x99]);
    }

    #[test]
    fn pauses_grow_until_something_is_taken() {
        let (mut pauses, mut now) = (RefusalPauses::default(), Instant::now());
        assert_eq!(pauses.left(now), Duration::ZERO);
        let mut seen = Vec::new();
        for _ in 0..9 {
            pauses.refused(now);
            pauses.refused(now + Duration::from_millis(1));
            seen.push(pauses.left(now).as_millis());
            now += pauses.left(now);
        }
        assert_eq!(seen, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        pauses.accepted();
        pauses.refused(now);
        assert_eq!(pauses.left(now), PAUSE_MIN);
    }
}
