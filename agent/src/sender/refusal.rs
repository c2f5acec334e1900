//! What a refusal of the server means for what was sent, and how often it is tried again.
//!
//! A batch is given up only for a reason that cannot change for this payload. Everything else may pass: a quota is raised, a
//! rule about who may publish what is put right, a server's trouble ends. Such batches stay in memory or in the spool, within
//! their bounds, and is sent again.

use std::time::{Duration, Instant};

use wholegrain_transport::mqtt::ReasonCode;

/// The pause after the first refusal: 500 ms; each further one without a success between is twice as long.
pub const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause: 30 s.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Whether the same message would be refused for ever: its topic, its format or its size is wrong. Not so "not authorized",
/// which somebody at the server can change, and not the unspecified reasons, behind which may be anything.
pub fn is_final(reason: ReasonCode) -> bool {
    matches!(reason, ReasonCode::TOPIC_NAME_INVALID | ReasonCode::PAYLOAD_FORMAT_INVALID | ReasonCode::PACKET_TOO_LARGE)
}

/// The pauses after refusals that may pass. While one lasts no batch is sent, so that a server in trouble is not asked the
/// same thing over and over; one success makes the next pause the shortest again, so that one batch that is refused every
/// time holds up the others for little.
#[derive(Debug, Default)]
pub struct RefusalPauses {
    in_a_row: u32,
    until: Option<Instant>,
}

impl RefusalPauses {
    /// A message was refused. Those that were sent together with it and are refused too count once.
    pub fn refused(&mut self, now: Instant) {
        if self.left(now).is_zero() {
            let pause = PAUSE_MIN.saturating_mul(1 << self.in_a_row.min(10)).min(PAUSE_MAX);
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.until = Some(now + pause);
        }
    }

    /// A batch was taken.
    pub fn accepted(&mut self) {
        self.in_a_row = 0;
    }

    /// How long the pause still lasts; zero when there is none.
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
