//! Messages made by hand: every kind of metric, and broken ones.

use wholegrain_testkit::Random;

use super::*;
use crate::prometheus::wire::{put_bytes, put_int, put_varint};

type Message = Vec<u8>;

fn message(write: impl FnOnce(&mut Message)) -> Message {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn put_fixed(field: u64, value: u64, out: &mut Message) {
    put_varint(field << 3 | 1, out);
    out.extend(value.to_le_bytes());
}

fn attribute(key: &str, value: &str) -> Message {
    let any = message(|out| put_bytes(1, value.as_bytes(), out));
    message(|out| {
        put_bytes(1, key.as_bytes(), out);
        put_bytes(2, &any, out);
    })
}

/// A request with one metric: field of its data, the data.
fn request(field: u64, data: &[u8]) -> Message {
    let metric = message(|out| {
        put_bytes(1, b"m", out);
        put_bytes(2, b"A metric.", out);
        put_bytes(3, b"W", out);
        put_bytes(field, data, out);
    });
    let scope = message(|out| put_bytes(2, &metric, out));
    let resource = message(|out| put_bytes(1, &attribute("service.name", "s"), out));
    let whole = message(|out| {
        put_bytes(1, &resource, out);
        put_bytes(2, &scope, out);
    });
    message(|out| put_bytes(1, &whole, out))
}

fn number(time: u64, value: i64) -> Message {
    message(|out| {
        put_bytes(7, &attribute("loop", "a"), out);
        put_fixed(3, time, out);
        put_fixed(6, value as u64, out);
    })
}

fn sum(temporality: i64, is_monotonic: i64) -> Message {
    message(|out| {
        put_bytes(1, &number(5, 42), out);
        put_int(2, temporality, out);
        put_int(3, is_monotonic, out);
    })
}

fn histogram(counts: &[u64], bounds: &[f64]) -> Message {
    let point = message(|out| {
        put_fixed(3, 5, out);
        put_fixed(4, 6, out);
        put_fixed(5, 1.5f64.to_bits(), out);
        put_bytes(6, &counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<_>>(), out);
        put_bytes(7, &bounds.iter().flat_map(|bound| bound.to_le_bytes()).collect::<Vec<_>>(), out);
    });
    message(|out| {
        put_bytes(1, &point, out);
        put_int(2, 2, out);
    })
}

/// The values as text, and what was refused.
fn values(bytes: &[u8]) -> (Vec<String>, OtlpRefusals) {
    let mut found = Vec::new();
    let mut take = |point: &OtlpPoint<'_>| {
        assert_eq!((point.metric, point.description, point.time_ns), ("m", "A metric.", 5));
        assert_eq!(point.resource, [(Cow::from("service.name"), Cow::from("s"))]);
        for OtlpValue { field, tag, unit, kind, value } in &point.values {
            let tag = tag.as_ref().map_or_else(String::new, |(key, text)| format!("{key}={text} "));
            found.push(format!("{field} {tag}{unit} {} {:?}", kind.name(), value));
        }
        Ok(())
    };
    let refused = read(bytes, &mut take).unwrap();
    (found, refused)
}

#[test]
fn every_kind_of_metric() {
    let gauge = message(|out| put_bytes(1, &number(5, -3), out));
    for (field, data, expected) in [
        (5, gauge, vec![" W gauge Int(-3)"]),
        (7, sum(2, 1), vec![" W counter Int(42)"]),
        (7, sum(2, 0), vec![" W gauge Int(42)"]),
        (
            9,
            histogram(&[1, 2, 3], &[0.5, 2.0]),
            vec![
                "count 1 counter Int(6)",
                "sum W counter Float(1.5)",
                "bucket le=0.5 1 counter Int(1)",
                "bucket le=2 1 counter Int(3)",
                "bucket le=+Inf 1 counter Int(6)",
            ],
        ),
        (9, histogram(&[], &[]), vec!["count 1 counter Int(6)", "sum W counter Float(1.5)"]),
    ] {
        let (found, refused) = values(&request(field, &data));
        assert_eq!((found, refused.points), (expected.into_iter().map(str::to_owned).collect(), 0), "{field}");
    }
    // An exponential histogram without its buckets, and the remark about them.
    let point = message(|out| {
        put_fixed(3, 5, out);
        put_fixed(4, 6, out);
        put_fixed(13, 2.5f64.to_bits(), out);
    });
    let exponential = message(|out| {
        put_bytes(1, &point, out);
        put_int(2, 2, out);
    });
    let (found, refused) = values(&request(10, &exponential));
    assert_eq!(found, ["count 1 counter Int(6)", "max W gauge Float(2.5)"]);
    assert!(refused.points == 0 && refused.reasons[0].contains("buckets of exponential"), "{refused:?}");
    let quantile = message(|out| {
        put_fixed(1, 0.5f64.to_bits(), out);
        put_fixed(2, 7f64.to_bits(), out);
    });
    let point = message(|out| {
        put_fixed(3, 5, out);
        put_fixed(4, 6, out);
        put_bytes(6, &quantile, out);
    });
    let (found, _) = values(&request(11, &message(|out| put_bytes(1, &point, out))));
    assert_eq!(found, ["count 1 counter Int(6)", "quantile quantile=0.5 W gauge Float(7.0)"]);
}

#[test]
fn what_cannot_be_stored_is_refused_with_its_reason() {
    let without = |time, attributes: usize| {
        message(|out| {
            (0..attributes).for_each(|at| put_bytes(7, &attribute(&at.to_string(), "x"), out));
            put_fixed(3, time, out);
        })
    };
    let gauge = |point: Message| message(|out| put_bytes(1, &point, out));
    let list = message(|out| {
        put_bytes(1, b"list", out);
        put_bytes(2, &message(|out| put_bytes(5, b"", out)), out);
    });
    let with_list = message(|out| {
        put_bytes(7, &list, out);
        put_fixed(3, 5, out);
        put_fixed(6, 1, out);
    });
    for (field, data, expected) in [
        (7, sum(1, 1), "not cumulative"),
        (7, sum(0, 1), "not cumulative"),
        (5, gauge(without(5, 1)), "no value"),
        (5, gauge(number(0, 1)), "no time"),
        (5, gauge(number(u64::MAX, 1)), "after the year 2262"),
        (5, gauge(without(5, ATTRIBUTES_MAX + 1)), "over 64 attributes"),
        (5, gauge(with_list), "\"list\" is not a plain value"),
        (9, histogram(&[1, 2], &[0.5, 2.0]), "2 bounds do not fit 2 buckets"),
        (9, histogram(&[0; BUCKETS_MAX + 1], &[1.0; BUCKETS_MAX]), "over 1024 buckets"),
    ] {
        let (found, refused) = values(&request(field, &data));
        assert!(found.is_empty() && refused.points == 1, "{expected}: {refused:?}");
        assert!(
            refused.reasons[0].starts_with("metric \"m\": ") && refused.reasons[0].contains(expected),
            "{refused:?}"
        );
    }
    // A point without a recorded value is a gap.
    let gap = message(|out| {
        put_fixed(3, 5, out);
        put_int(8, 1, out);
    });
    let (found, refused) = values(&request(5, &gauge(gap)));
    assert_eq!((found, refused.points), (vec![" W gauge Float(NaN)".to_owned()], 0));
}

#[test]
fn any_bytes_are_read_without_panic() {
    let mut random = Random::seeded_or(0x071f);
    for round in 0..20_000_usize {
        let mut bytes = match round % 2 {
            0 => request(7, &sum(2, 1)),
            _ => request(9, &histogram(&[1, 2, 3], &[0.5, 2.0])),
        };
        for _ in 0..1 + round % 4 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let _ = read(&bytes, &mut |point| if point.values.is_empty() { Err("none".to_owned()) } else { Ok(()) });
    }
}
