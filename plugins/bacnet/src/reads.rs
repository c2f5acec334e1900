//! Many properties by few requests: ReadPropertyMultiple in parts as long as the device allows, else ReadProperty one by one.

use std::ops::Range;

use crate::message::{
    PropertyError, PropertyRef, PropertyResult, REJECT_UNRECOGNIZED_SERVICE, is_reject_too_long, is_too_long,
    read_multiple, read_property,
};

/// What one property takes in a request at most, with its object, in bytes.
const REQUEST_BYTES: usize = 14;
/// Headers of a message.
const HEADER_BYTES: usize = 16;
/// The error of a property that the device refuses without saying why.
const REFUSED: PropertyError = PropertyError { class: 0, code: 0 };

/// What a device can do, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// The longest message that the device takes.
    pub apdu_bytes_max: usize,
    /// Whether it has ReadPropertyMultiple.
    pub has_multiple: bool,
    /// The most properties of one request: less after an answer that would have been too long.
    pub batch_max: usize,
}

impl RequestLimits {
    /// What is assumed of a device with this longest message.
    pub fn new(apdu_bytes_max: usize) -> Self {
        Self { apdu_bytes_max, has_multiple: true, batch_max: usize::MAX }
    }

    /// How many properties one request has, if an answer has this many bytes for each.
    fn batch(&self, answer_bytes: usize) -> usize {
        if !self.has_multiple {
            return 1;
        }
        let each = answer_bytes.max(REQUEST_BYTES);
        (self.apdu_bytes_max.saturating_sub(HEADER_BYTES) / each).clamp(1, self.batch_max.max(1))
    }
}

/// What a device did instead of an answer with values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    Error(PropertyError),
    Reject(u8),
    Abort(u8),
}

/// Properties to read, and those that have been.
#[derive(Debug, Default)]
pub struct PropertyReads {
    wanted: Vec<PropertyRef>,
    results: Vec<Option<PropertyResult>>,
    /// How many bytes an answer is expected to have for each property.
    answer_bytes: usize,
    /// The most properties of one request of these reads: less after a refusal that one of them may have caused.
    batch_max: usize,
    /// The properties of the request that waits for its answer.
    sent: Range<usize>,
}

impl PropertyReads {
    /// Begins to read these properties.
    pub fn new(wanted: Vec<PropertyRef>, answer_bytes: usize) -> Self {
        Self { results: vec![None; wanted.len()], wanted, answer_bytes, batch_max: usize::MAX, sent: 0..0 }
    }

    /// Writes the next request; `false` if all have results.
    pub fn request(&mut self, limits: &RequestLimits, invoke: u8, out: &mut Vec<u8>) -> bool {
        let Some(first) = self.results.iter().position(Option::is_none) else { return false };
        let open = self.results[first..].iter().take_while(|result| result.is_none()).count();
        self.sent = first..first + open.min(limits.batch(self.answer_bytes)).min(self.batch_max);
        let wanted = &self.wanted[self.sent.clone()];
        match wanted {
            [one] if !limits.has_multiple => read_property(out, invoke, *one),
            _ => read_multiple(out, invoke, wanted),
        }
        true
    }

    /// Takes the values of an answer; `false` if it has none that the request asked for.
    pub fn take(&mut self, values: Vec<(PropertyRef, PropertyResult)>) -> bool {
        let mut has_any = false;
        for (property, result) in values {
            let Some(at) = self.sent.clone().find(|at| self.wanted[*at] == property) else { continue };
            has_any = true;
            self.results[at] = Some(result);
        }
        if has_any {
            // A property that the answer leaves out is not asked for again.
            for at in self.sent.clone() {
                self.results[at].get_or_insert(Err(REFUSED));
            }
        }
        has_any
    }

    /// Learns from a refusal of the request: a shorter one, or another service. A single property that is refused has no value.
    pub fn deny(&mut self, denial: Denial, limits: &mut RequestLimits) {
        let was_multiple = limits.has_multiple;
        if denial == Denial::Reject(REJECT_UNRECOGNIZED_SERVICE) && was_multiple {
            limits.has_multiple = false;
            return;
        }
        if self.sent.len() > 1 {
            // Also for other reasons: one property can be the cause, and the others are read without it.
            let is_length = match denial {
                Denial::Abort(reason) => is_too_long(reason),
                Denial::Reject(reason) => is_reject_too_long(reason),
                Denial::Error(_) => false,
            };
            let half = (self.sent.len() / 2).max(1);
            if is_length {
                limits.batch_max = limits.batch_max.min(half);
            } else {
                self.batch_max = half;
            }
            return;
        }
        let error = if let Denial::Error(error) = denial { error } else { REFUSED };
        self.sent.clone().for_each(|at| self.results[at] = Some(Err(error)));
    }

    /// The result of each property, once all have one.
    pub fn results(&self) -> impl Iterator<Item = (PropertyRef, &PropertyResult)> {
        let results = self.wanted.iter().zip(&self.results);
        results.filter_map(|(wanted, result)| Some((*wanted, result.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{DeviceMessage, property};
    use crate::tag::{ObjectId, TaggedValue};

    fn wanted(count: u32) -> Vec<PropertyRef> {
        let object = |instance| ObjectId { kind: 0, instance };
        (0..count).map(|n| PropertyRef { object: object(n), property: property::PRESENT_VALUE, index: None }).collect()
    }

    /// Reads all from a device that refuses requests by `deny`; the sizes of the requests.
    fn run(
        count: u32,
        limits: &mut RequestLimits,
        deny: impl Fn(&[PropertyRef], bool) -> Option<Denial>,
    ) -> (PropertyReads, Vec<usize>) {
        let (mut reads, mut sizes, mut out) = (PropertyReads::new(wanted(count), 20), Vec::new(), Vec::new());
        while reads.request(limits, 1, &mut out) {
            assert!(out.len() <= limits.apdu_bytes_max + 6, "{} bytes", out.len());
            out.clear();
            let sent = reads.wanted[reads.sent.clone()].to_vec();
            sizes.push(sent.len());
            assert!(sizes.len() < 1000, "the requests never end");
            match deny(&sent, limits.has_multiple) {
                Some(denial) => reads.deny(denial, limits),
                None => assert!(reads.take(sent.iter().map(|p| (*p, Ok(vec![TaggedValue::Null]))).collect())),
            }
        }
        (reads, sizes)
    }

    #[test]
    fn requests_are_as_long_as_the_device_allows() {
        let mut limits = RequestLimits::new(480);
        assert_eq!(run(50, &mut limits, |_, _| None).1, [23, 23, 4]);
        assert_eq!(run(3, &mut RequestLimits::new(50), |_, _| None).1, [1, 1, 1]);
    }

    #[test]
    fn an_answer_that_would_be_too_long_makes_requests_shorter_for_good() {
        let mut limits = RequestLimits::new(1476);
        let too_long = |sent: &[PropertyRef], _| (sent.len() > 10).then_some(Denial::Abort(4));
        assert_eq!(run(40, &mut limits, too_long).1, [40, 20, 10, 10, 10, 10]);
        assert_eq!(run(20, &mut limits, too_long).1, [10, 10]);
    }

    #[test]
    fn a_device_without_the_service_is_read_one_by_one() {
        let mut limits = RequestLimits::new(1476);
        let none =
            |_: &[PropertyRef], is_multiple: bool| is_multiple.then_some(Denial::Reject(REJECT_UNRECOGNIZED_SERVICE));
        assert_eq!(run(3, &mut limits, none).1, [3, 1, 1, 1]);
        assert!(!limits.has_multiple);
    }

    #[test]
    fn a_property_that_breaks_a_request_is_found() {
        let mut limits = RequestLimits::new(1476);
        let error = PropertyError { class: 1, code: 31 };
        let broken =
            |sent: &[PropertyRef], _| sent.iter().any(|p| p.object.instance == 5).then_some(Denial::Error(error));
        let (reads, _) = run(16, &mut limits, broken);
        let errors: Vec<u32> = reads.results().filter(|(_, r)| r.is_err()).map(|(p, _)| p.object.instance).collect();
        assert_eq!((errors, reads.results().count()), (vec![5], 16));
    }

    #[test]
    fn answers_to_other_requests_are_no_results() {
        let (mut reads, mut out) = (PropertyReads::new(wanted(2), 20), Vec::new());
        let limits = RequestLimits { has_multiple: false, ..RequestLimits::new(480) };
        assert!(reads.request(&limits, 1, &mut out));
        let other = wanted(2)[1];
        assert!(!reads.take(vec![(other, Ok(vec![TaggedValue::Null]))]));
        assert_eq!(reads.results().count(), 0);
        assert!(crate::message::parse(&out).is_ok_and(|message| message == DeviceMessage::Other));
    }
}
