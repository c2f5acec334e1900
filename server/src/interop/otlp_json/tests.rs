//! JSON as exporters send it, and as nobody should.

use wholegrain_testkit::Random;

use super::super::otlp::{OtlpPoint, read};
use super::*;

const BYTES_MAX: usize = 1 << 20;

/// The values of a request as text: metric, attributes, field and tag, unit, kind, time, value.
fn values(json: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut take = |point: &OtlpPoint<'_>| {
        let OtlpPoint { metric, attributes, resource, time_ns, values, .. } = point;
        for value in values {
            let tags: Vec<_> =
                resource.iter().chain(*attributes).map(|(key, value)| format!("{key}={value}")).collect();
            let tag = value.tag.as_ref().map_or_else(String::new, |(key, text)| format!(" {key}={text}"));
            let (unit, kind) = (value.unit, value.kind.name());
            found.push(format!(
                "{metric} {} {}{tag} {unit} {kind} {time_ns} {:?}",
                tags.join(","),
                value.field,
                value.value
            ));
        }
        Ok(())
    };
    let bytes = to_protobuf(json.as_bytes(), BYTES_MAX)?;
    let refusals = read(&bytes, &mut take)?;
    found.extend(refusals.reasons);
    Ok(found)
}

/// A request with one metric.
fn request(metric: &str) -> String {
    format!(
        r#"{{"resourceMetrics":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":"s"}}}}],
            "droppedAttributesCount":1}},"scopeMetrics":[{{"scope":{{"name":"x","attributes":[{{}}]}},"metrics":[{metric}],
            "schemaUrl":"u"}}]}}]}}"#
    )
}

#[test]
fn every_kind_of_metric() {
    for (metric, expected) in [
        // The data may precede the name, and integers are texts or numbers.
        (
            r#"{"sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[{"asInt":"9007199254740993",
                "startTimeUnixNano":"1","timeUnixNano":"5","attributes":[{"key":"a","value":{"intValue":"-3"}},
                {"key":"b","value":{"boolValue":true}},{"key":"c","value":{"doubleValue":0.5}}]}]},"name":"m","unit":"J"}"#,
            &["m service.name=s,a=-3,b=true,c=0.5  J counter 5 Int(9007199254740993)"][..],
        ),
        (
            r#"{"name":"m","gauge":{"dataPoints":[{"asDouble":1.5,"timeUnixNano":5},{"asDouble":3,"timeUnixNano":6},
                {"asInt":-7,"timeUnixNano":"7"},{"asDouble":"NaN","timeUnixNano":8},{"flags":1,"timeUnixNano":9},
                {"asDouble":"-Infinity","timeUnixNano":10,"exemplars":[{"asDouble":1}]}]}}"#,
            &[
                "m service.name=s   gauge 5 Float(1.5)",
                "m service.name=s   gauge 6 Float(3.0)",
                "m service.name=s   gauge 7 Int(-7)",
                "m service.name=s   gauge 8 Float(NaN)",
                "m service.name=s   gauge 9 Float(NaN)",
                "m service.name=s   gauge 10 Float(-inf)",
            ],
        ),
        (
            r#"{"name":"m","unit":"s","histogram":{"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"5","count":"3",
                "sum":1.5,"bucketCounts":["1","2"],"explicitBounds":[0.5],"min":0.25,"max":1}]}}"#,
            &[
                "m service.name=s count 1 counter 5 Int(3)",
                "m service.name=s sum s counter 5 Float(1.5)",
                "m service.name=s min s gauge 5 Float(0.25)",
                "m service.name=s max s gauge 5 Float(1.0)",
                "m service.name=s bucket le=0.5 1 counter 5 Int(1)",
                "m service.name=s bucket le=+Inf 1 counter 5 Int(3)",
            ],
        ),
        (
            r#"{"name":"m","exponentialHistogram":{"aggregationTemporality":2,"dataPoints":[{"timeUnixNano":"5","count":3,
                "scale":2,"positive":{"offset":1,"bucketCounts":["1"]},"max":2}]}}"#,
            &[
                "m service.name=s count 1 counter 5 Int(3)",
                "m service.name=s max  gauge 5 Float(2.0)",
                "metric \"m\": the buckets of exponential histograms are not stored, only count, sum, min and max",
            ],
        ),
        (
            r#"{"name":"m","summary":{"dataPoints":[{"timeUnixNano":"5","count":3,"sum":4,"quantileValues":[{"quantile":0.5,"value":7}]}]}}"#,
            &[
                "m service.name=s count 1 counter 5 Int(3)",
                "m service.name=s sum  counter 5 Float(4.0)",
                "m service.name=s quantile quantile=0.5  gauge 5 Float(7.0)",
            ],
        ),
        (
            r#"{"name":"m","gauge":{"dataPoints":[{"asInt":1,"timeUnixNano":5,"attributes":[{"key":"l","value":{"arrayValue":{"values":[]}}}]}]}}"#,
            &["metric \"m\": the attribute \"l\" is not a plain value"],
        ),
        (
            r#"{"name":"m","sum":{"aggregationTemporality":1,"dataPoints":[{"asInt":1,"timeUnixNano":5}]}}"#,
            &[
                "metric \"m\": its temporality is not cumulative; set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative",
            ],
        ),
    ] {
        assert_eq!(values(&request(metric)).unwrap(), expected, "{metric}");
    }
    for empty in ["{}", r#"{"resourceMetrics":[]}"#, r#"{"resourceMetrics":null,"other":{"x":[1]}}"#] {
        assert_eq!(values(empty).unwrap(), Vec::<String>::new(), "{empty}");
    }
    // What is ignored may be as deep as it likes.
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(values(&deep).unwrap(), Vec::<String>::new());
}

#[test]
fn wrong_json_is_named() {
    let gauge = |point: &str| request(&format!(r#"{{"name":"m","gauge":{{"dataPoints":[{point}]}}}}"#));
    for (json, expected) in [
        ("[]".to_owned(), "expected an object"),
        ("{".to_owned(), "EOF"),
        ("{} x".to_owned(), "trailing characters"),
        (gauge(r#"{"asInt":"x"}"#), "asInt is not a number: \"x\""),
        (gauge(r#"{"asInt":"18446744073709551616"}"#), "asInt is beyond 64 bits"),
        (gauge(r#"{"asInt":1.5}"#), "asInt is not a float"),
        (gauge(r#"{"asDouble":true}"#), "asDouble is not a boolean"),
        (gauge(r#"{"asDouble":[[1]]}"#), "asDouble is an array of arrays"),
        (gauge(r#"{"timeUnixNano":{}}"#), "timeUnixNano is an object"),
        (gauge("5"), "dataPoints is not a number"),
        (gauge("\"x\""), "dataPoints is not an object"),
        (format!("{}1{}", "[".repeat(1000), "]".repeat(1000)), "expected an object"),
        (gauge(&format!("{{\"attributes\":{}}}", "[".repeat(1000))), "array of arrays"),
        // Ten bytes as text, nine in protobuf; then two, and nine.
        (
            request(&format!(r#"{{"histogram":{{"dataPoints":[{{"bucketCounts":[{}1]}}]}}}}"#, "1,".repeat(200_000))),
            "over 1048576 bytes",
        ),
    ] {
        let error = values(&json).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn any_text_is_read_without_panic() {
    let mut random = Random::seeded_or(0x0715);
    let whole = request(
        r#"{"name":"m","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[{"asInt":"42","timeUnixNano":"5"}]}}"#,
    );
    for round in 0..20_000_usize {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..1 + round % 4 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.pick(b"{}[]\",:0123456789.-eaNx\\\0\xff");
        }
        if let Ok(bytes) = to_protobuf(&bytes, BYTES_MAX) {
            read(&bytes, &mut |_| Ok(())).map(drop).unwrap_or_default();
        }
    }
}
