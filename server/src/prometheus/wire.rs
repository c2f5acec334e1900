//! The messages of remote read (Prometheus: `prompb/remote.proto`, `prompb/types.proto`) in protobuf encoding, limited to the fields used here.

use crate::protobuf::{WireError, WireFields, WireValue, varint};

pub const QUERIES_MAX: usize = 16;
pub const MATCHERS_MAX: usize = 64;
/// The longest name or value of a matcher, in bytes.
pub const MATCHER_BYTES_MAX: usize = 64 << 10;

/// The encoding of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEncoding {
    /// One message with all samples, compressed with snappy.
    Samples,
    /// Messages of a few chunks, each framed by its length and its CRC-32C.
    XorChunks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatcherKind {
    /// Written `=` in a query.
    Equal,
    /// Written `!=` in a query.
    NotEqual,
    /// Written `=~` in a query.
    Regex,
    /// Written `!~` in a query.
    NotRegex,
}

/// A condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelMatcher {
    pub comparison: MatcherKind,
    pub name: String,
    pub value: String,
}

/// How the client will use the samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadHints {
    /// The time between evaluations, ms; 0 if unknown.
    pub step_ms: i64,
    /// The function or aggregation around the selector; empty if none.
    pub func: String,
    /// The beginning of the range over which the selector is evaluated, ms.
    pub start_ms: i64,
    /// The end of that range.
    pub end_ms: i64,
    /// The range of `x[5m]`, ms; 0 for an instant selector.
    pub range_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadQuery {
    /// The first time, inclusive, ms since the Unix epoch.
    pub start_ms: i64,
    /// The last time, inclusive.
    pub end_ms: i64,
    /// The conditions on the series' labels.
    pub matchers: Vec<LabelMatcher>,
    pub hints: Option<ReadHints>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadRequest {
    pub queries: Vec<ReadQuery>,
    /// The accepted encodings among those supported, in the client's order of preference.
    pub accepted: Vec<ReadEncoding>,
}

impl ReadRequest {
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut request = Self::default();
        for field in WireFields(bytes) {
            match field? {
                (1, WireValue::Bytes(_)) if request.queries.len() == QUERIES_MAX => {
                    return Err("it has over 16 queries");
                }
                (1, WireValue::Bytes(bytes)) => request.queries.push(query(bytes)?),
                (2, WireValue::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        request.accept(varint(&mut packed)?);
                    }
                }
                (2, WireValue::Int(kind)) => request.accept(kind),
                _ => {}
            }
        }
        Ok(request)
    }

    fn accept(&mut self, kind: u64) {
        let encoding = match kind {
            0 => ReadEncoding::Samples,
            1 => ReadEncoding::XorChunks,
            _ => return,
        };
        if !self.accepted.contains(&encoding) {
            self.accepted.push(encoding);
        }
    }
}

fn query(bytes: &[u8]) -> Result<ReadQuery, WireError> {
    let mut query = ReadQuery::default();
    for field in WireFields(bytes) {
        match field? {
            (1, WireValue::Int(start)) => query.start_ms = start.cast_signed(),
            (2, WireValue::Int(end)) => query.end_ms = end.cast_signed(),
            (3, WireValue::Bytes(_)) if query.matchers.len() == MATCHERS_MAX => {
                return Err("a query has over 64 matchers");
            }
            (3, WireValue::Bytes(bytes)) => query.matchers.push(matcher(bytes)?),
            (4, WireValue::Bytes(bytes)) => query.hints = Some(hints(bytes)?),
            _ => {}
        }
    }
    Ok(query)
}

fn matcher(bytes: &[u8]) -> Result<LabelMatcher, WireError> {
    let mut matcher = LabelMatcher { comparison: MatcherKind::Equal, name: String::new(), value: String::new() };
    for field in WireFields(bytes) {
        match field? {
            (1, WireValue::Int(kind)) => {
                matcher.comparison = match kind {
                    0 => MatcherKind::Equal,
                    1 => MatcherKind::NotEqual,
                    2 => MatcherKind::Regex,
                    3 => MatcherKind::NotRegex,
                    _ => return Err("a matcher has an unknown type"),
                }
            }
            (2, WireValue::Bytes(name)) => matcher.name = text(name)?,
            (3, WireValue::Bytes(value)) => matcher.value = text(value)?,
            _ => {}
        }
    }
    Ok(matcher)
}

fn text(bytes: &[u8]) -> Result<String, WireError> {
    if bytes.len() > MATCHER_BYTES_MAX {
        return Err("a matcher is longer than 64 KiB");
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8")
}

fn hints(bytes: &[u8]) -> Result<ReadHints, WireError> {
    let mut hints = ReadHints::default();
    for field in WireFields(bytes) {
        match field? {
            (1, WireValue::Int(step)) => hints.step_ms = step.cast_signed(),
            (2, WireValue::Bytes(func)) => hints.func = text(func)?,
            (3, WireValue::Int(start)) => hints.start_ms = start.cast_signed(),
            (4, WireValue::Int(end)) => hints.end_ms = end.cast_signed(),
            (7, WireValue::Int(range)) => hints.range_ms = range.cast_signed(),
            _ => {}
        }
    }
    Ok(hints)
}

pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field of bytes or a nested message.
pub fn put_bytes(field: u64, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(field << 3 | 2, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Appends an integer field.
pub fn put_int(field: u64, value: i64, out: &mut Vec<u8>) {
    put_varint(field << 3, out);
    put_varint(value.cast_unsigned(), out);
}

/// Appends the labels of a series.
pub fn put_labels(labels: &[(String, String)], out: &mut Vec<u8>) {
    let mut one = Vec::new();
    for (name, value) in labels {
        one.clear();
        put_bytes(1, name.as_bytes(), &mut one);
        put_bytes(2, value.as_bytes(), &mut one);
        put_bytes(1, &one, out);
    }
}

/// Appends a sample of a series.
pub fn put_sample(time_ms: i64, value: f64, out: &mut Vec<u8>) {
    /// Key and bytes of the value, key of the time.
    const FIXED: usize = 1 + 8 + 1;
    let time = time_ms.cast_unsigned();
    let length = FIXED + (64 - (time | 1).leading_zeros() as usize).div_ceil(7);
    put_varint(2 << 3 | 2, out);
    put_varint(length as u64, out);
    out.push(1 << 3 | 1);
    out.extend_from_slice(&value.to_bits().to_le_bytes());
    out.push(2 << 3);
    put_varint(time, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Vec<u8> {
        let mut matcher = Vec::new();
        put_int(1, 2, &mut matcher);
        put_bytes(2, b"node", &mut matcher);
        put_bytes(3, b"n.*", &mut matcher);
        let mut hints = Vec::new();
        put_int(1, 15_000, &mut hints);
        put_bytes(2, b"rate", &mut hints);
        put_int(7, 60_000, &mut hints);
        put_bytes(5, b"a grouping, which is skipped", &mut hints);
        let mut query = Vec::new();
        put_int(1, -5, &mut query);
        put_int(2, 1_700_000_000_000, &mut query);
        put_bytes(3, &matcher, &mut query);
        put_bytes(4, &hints, &mut query);
        let mut request = Vec::new();
        put_bytes(1, &query, &mut request);
        put_bytes(2, &[1, 0, 9], &mut request);
        request
    }

    #[test]
    fn a_request_is_read() {
        let read = ReadRequest::parse(&request()).unwrap();
        assert_eq!(read.accepted, [ReadEncoding::XorChunks, ReadEncoding::Samples]);
        let query = &read.queries[0];
        assert_eq!((query.start_ms, query.end_ms), (-5, 1_700_000_000_000));
        let matcher = LabelMatcher { comparison: MatcherKind::Regex, name: "node".into(), value: "n.*".into() };
        assert_eq!(query.matchers, [matcher]);
        let hints = query.hints.as_ref().unwrap();
        assert_eq!((hints.step_ms, hints.func.as_str(), hints.range_ms), (15_000, "rate", 60_000));
    }

    #[test]
    fn what_is_cut_or_wrong_is_refused_and_never_more() {
        let whole = request();
        for end in 1..whole.len() {
            // A request truncated at the end of its first field is valid.
            let _ = ReadRequest::parse(&whole[..end]);
        }
        assert!(ReadRequest::parse(&whole[..whole.len() - 1]).is_err());
        for wrong in [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[0x0f], &[0xff; 11]] {
            assert!(ReadRequest::parse(wrong).is_err(), "{wrong:?}");
        }
        let many: Vec<u8> = [0x0a, 0x00].repeat(QUERIES_MAX + 1);
        assert!(ReadRequest::parse(&many).is_err() && ReadRequest::parse(&many[2..]).is_ok());
    }

    #[test]
    fn a_sample_is_written_with_its_length() {
        for time in [0, 1, 127, 128, 1_700_000_000_000, -1, i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            put_sample(time, 1.5, &mut out);
            assert_eq!(usize::from(out[1]), out.len() - 2, "{time}");
        }
        let mut out = Vec::new();
        put_sample(300, 1.0, &mut out);
        assert_eq!(out, [0x12, 12, 0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02]);
    }
}
