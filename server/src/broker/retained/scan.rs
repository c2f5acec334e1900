//! A skip scan over sorted topics for those that match a filter.

use std::collections::BTreeMap;
use std::ops::Bound;

use wholegrain_transport::mqtt::Text;

use super::RetainedMessage;

/// Bytes of a topic that count as one more unit of work.
const WORK_BYTES: usize = 256;

/// One part of the results.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Matches in the order of the topics.
    pub found: Vec<RetainedMessage>,
    /// The topic after which there may be more; `None` at the end.
    pub more_after: Option<Text>,
    /// The cost: one for each topic visited, and more for long ones.
    pub work: usize,
}

/// The scan's next step after one topic.
#[derive(Debug, PartialEq, Eq)]
enum ScanStep {
    Matches,
    /// It does not match; the next one may.
    Next,
    /// It does not match, nor does any before the topic in the buffer.
    Seek,
    /// Neither it nor any later topic matches.
    Over,
}

pub fn scan<'a>(
    topics: &'a BTreeMap<Text, RetainedMessage>,
    filter: &str,
    after: Option<&'a Text>,
    work_max: usize,
) -> ScanResult {
    let filter = filter.as_bytes();
    let mut scanned = ScanResult::default();
    let mut last = after;
    let mut target = Vec::new();
    let mut is_seeking = false;
    'seek: loop {
        let from = match last {
            _ if is_seeking => Bound::Included(&target[..]),
            Some(last) => Bound::Excluded(last.as_bytes()),
            None => Bound::Unbounded,
        };
        let mut buffer = Vec::new();
        for (topic, kept) in topics.range::<[u8], _>((from, Bound::Unbounded)) {
            if scanned.work >= work_max {
                // A scan always makes progress: the first topic is visited whatever the limit is.
                scanned.more_after = last.cloned();
                return scanned;
            }
            scanned.work += 1 + topic.len() / WORK_BYTES;
            last = Some(topic);
            // The next topic is often far enough already.
            if !buffer.is_empty() && topic.as_bytes() < &buffer[..] {
                (target, is_seeking) = (buffer, true);
                continue 'seek;
            }
            buffer.clear();
            match step(filter, topic.as_bytes(), &mut buffer) {
                ScanStep::Matches => scanned.found.push(kept.clone()),
                ScanStep::Next | ScanStep::Seek => {}
                ScanStep::Over => return scanned,
            }
        }
        return scanned;
    }
}

/// Examines one topic. All topics below `P` begin with `P/` and are adjacent, before `P0`, because `0` is the byte after `/`.
fn step(filter: &[u8], topic: &[u8], target: &mut Vec<u8>) -> ScanStep {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        // A wildcard at the beginning matches no topic that begins with `$` (4.7.2).
        target.push(b'$' + 1);
        return ScanStep::Seek;
    }
    let mut wanted = filter.split(|byte| *byte == b'/').peekable();
    // Start of the topic's level, after its slash; `None` if it has no more levels.
    let mut begin = Some(0);
    while let Some(level) = wanted.next() {
        if level == b"#" {
            return ScanStep::Matches;
        }
        // Other topics may sort between a topic and those below it, as `a!` between `a` and `a/b`.
        let Some(at) = begin else { return ScanStep::Next };
        let end = topic[at..].iter().position(|byte| *byte == b'/').map_or(topic.len(), |length| at + length);
        if level != b"+" && level != &topic[at..end] {
            return jump(&topic[..at], &topic[at..], level, wanted.peek().is_some(), target);
        }
        begin = (end < topic.len()).then_some(end + 1);
    }
    match begin {
        None => ScanStep::Matches,
        Some(at) => past(&topic[..at], target),
    }
}

/// Jumps to `level` below `above`, which ends with a slash or is empty, or past everything below it.
fn jump(above: &[u8], rest: &[u8], level: &[u8], has_more: bool, target: &mut Vec<u8>) -> ScanStep {
    if level > rest || (has_more && is_less(rest, level)) {
        target.extend_from_slice(above);
        target.extend_from_slice(level);
        if level <= rest {
            target.push(b'/');
        }
        return ScanStep::Seek;
    }
    past(above, target)
}

/// Whether `rest` sorts before the topics below `level`.
fn is_less(rest: &[u8], level: &[u8]) -> bool {
    rest.iter().lt(level.iter().chain(b"/"))
}

/// Jumps past all topics that begin with `above`, which ends with a slash or is empty.
fn past(above: &[u8], target: &mut Vec<u8>) -> ScanStep {
    let Some((_, parent)) = above.split_last() else { return ScanStep::Over };
    target.extend_from_slice(parent);
    target.push(b'/' + 1);
    ScanStep::Seek
}
