//! Which topics a filter matches, found by jumps in their sorted order.

use std::collections::BTreeMap;
use std::ops::Bound;

use wholegrain_transport::mqtt::Text;

use super::Kept;

/// So many bytes of a topic are one more unit of work.
const WORK_BYTES: usize = 256;

/// One part of an answer.
#[derive(Debug, Default)]
pub struct Scanned {
    /// What was found, in the order of the topics.
    pub found: Vec<Kept>,
    /// The topic behind which there may be more; `None` at the end.
    pub more_after: Option<Text>,
    /// What it cost: one for each topic that was looked at, and more for long ones.
    pub work: usize,
}

/// What follows from one topic.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The filter matches it.
    Matches,
    /// It does not; the next one may.
    Next,
    /// It does not, and none does that is less than what is in the buffer.
    Seek,
    /// Neither it nor any behind it.
    Over,
}

/// See [`super::Retained::matching`].
pub fn scan<'a>(topics: &'a BTreeMap<Text, Kept>, filter: &str, after: Option<&'a Text>, work_max: usize) -> Scanned {
    let filter = filter.as_bytes();
    let mut scanned = Scanned::default();
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
                // A scan always gets on: the first topic is looked at whatever the bound is.
                scanned.more_after = last.cloned();
                return scanned;
            }
            scanned.work += 1 + topic.len() / WORK_BYTES;
            last = Some(topic);
            // The neighbour is often far enough already.
            if !buffer.is_empty() && topic.as_bytes() < &buffer[..] {
                (target, is_seeking) = (buffer, true);
                continue 'seek;
            }
            buffer.clear();
            match step(filter, topic.as_bytes(), &mut buffer) {
                Step::Matches => scanned.found.push(kept.clone()),
                Step::Next | Step::Seek => {}
                Step::Over => return scanned,
            }
        }
        return scanned;
    }
}

/// Looks at one topic. All topics below `P` begin with `P/` and stand together, before `P0`, for `0` is the byte after `/`.
fn step(filter: &[u8], topic: &[u8], target: &mut Vec<u8>) -> Step {
    if topic.first() == Some(&b'$') && matches!(filter.first(), Some(b'+' | b'#')) {
        // A wildcard at the beginning matches no topic that begins with `$` (4.7.2).
        target.push(b'$' + 1);
        return Step::Seek;
    }
    let mut wanted = filter.split(|byte| *byte == b'/').peekable();
    // Where the topic's level begins, behind its slash; `None` when it has no more levels.
    let mut begin = Some(0);
    while let Some(level) = wanted.next() {
        if level == b"#" {
            return Step::Matches;
        }
        // Between a topic and those below it there may be others, as `a!` between `a` and `a/b`.
        let Some(at) = begin else { return Step::Next };
        let end = topic[at..].iter().position(|byte| *byte == b'/').map_or(topic.len(), |length| at + length);
        if level != b"+" && level != &topic[at..end] {
            return jump(&topic[..at], &topic[at..], level, wanted.peek().is_some(), target);
        }
        begin = (end < topic.len()).then_some(end + 1);
    }
    match begin {
        None => Step::Matches,
        Some(at) => past(&topic[..at], target),
    }
}

/// To the level that is wanted below `above`, which ends with a slash or is empty, or past all that is below it.
fn jump(above: &[u8], rest: &[u8], level: &[u8], has_more: bool, target: &mut Vec<u8>) -> Step {
    if level > rest || (has_more && is_less(rest, level)) {
        target.extend_from_slice(above);
        target.extend_from_slice(level);
        if level <= rest {
            target.push(b'/');
        }
        return Step::Seek;
    }
    past(above, target)
}

/// Whether `rest` stands before what is below `level`.
fn is_less(rest: &[u8], level: &[u8]) -> bool {
    rest.iter().lt(level.iter().chain(b"/"))
}

/// Past all topics that begin with `above`, which ends with a slash or is empty.
fn past(above: &[u8], target: &mut Vec<u8>) -> Step {
    let Some((_, parent)) = above.split_last() else { return Step::Over };
    target.extend_from_slice(parent);
    target.push(b'/' + 1);
    Step::Seek
}
