use wholegrain_model::Kind;
use wholegrain_testkit::Random;

use super::*;
use crate::exposition::{MetricRule, PathTemplate};

/// A table of one text with its sensors and notes.
struct Learned {
    table: SeriesTable,
    sensors: Vec<SensorDef>,
    notes: Vec<String>,
}

fn learn_with(naming: SensorNaming, text: &str, dialect: Dialect) -> Learned {
    let mut notes = Vec::new();
    let mut catalogue = SeriesCatalogue::new(naming, 1000, 0);
    let (table, sensors) = catalogue.learn(text.as_bytes(), dialect, &|_| true, &mut |note| notes.push(note));
    Learned { table, sensors, notes }
}

fn learn(text: &str) -> Learned {
    learn_with(SensorNaming::default(), text, Dialect::Text)
}

impl Learned {
    fn read(&mut self, text: &str) -> (Vec<(String, Option<f64>)>, ExpositionRead) {
        let count = self.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        let mut row = Row::new(&mut values, &mut gaps);
        let result = self.table.read(text.as_bytes(), Some(1_000_000_000), &mut row);
        let value = |index: usize| {
            let bits = row.int(index)?;
            let is_integer = self.sensors[index].value_type == ValueType::Int;
            Some(if is_integer { bits as f64 } else { f64::from_bits(bits as u64) })
        };
        let named = self.sensors.iter().enumerate().map(|(index, sensor)| (sensor.name.clone(), value(index)));
        (named.collect(), result)
    }

    #[track_caller]
    fn check(&mut self, text: &str, expected: &[(&str, Option<f64>)]) -> ExpositionRead {
        let (values, result) = self.read(text);
        let values: Vec<(&str, Option<f64>)> = values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(values, expected, "{text:?}");
        result
    }
}

const TEXT: &str =
    "# TYPE a_total counter\n# HELP a_total Things.\na_total{x=\"1\",y=\"2\"} 5\na_total{x=\"2\",y=\"2\"} 6.5\nb 7\n";

#[test]
fn series_become_sensors_whose_names_do_not_depend_on_the_order() {
    let mut learned = learn(TEXT);
    let names: Vec<String> = learned.sensors.iter().map(|sensor| sensor.name.clone()).collect();
    assert_eq!(names, ["a_total/1/2", "a_total/2/2", "b"]);
    assert_eq!((learned.sensors[0].kind, learned.sensors[2].kind), (Kind::Counter, Kind::Gauge));
    assert_eq!(learned.sensors[0].description, "Things.");
    assert!(learned.notes.is_empty(), "{:?}", learned.notes);
    let all = [("a_total/1/2", Some(5.0)), ("a_total/2/2", Some(6.5)), ("b", Some(7.0))];
    let result = learned.check(TEXT, &all);
    assert_eq!(result, ExpositionRead { values: 3, ..ExpositionRead::default() });
    let turned = "b 7\na_total{y=\"2\",x=\"2\"} 6.5\na_total{y=\"2\",x=\"1\",z=\"\"} 5\n";
    assert_eq!(learned.check(turned, &all).unknown, 0);
    assert_eq!(learn(turned).sensors.iter().map(|sensor| sensor.name.clone()).collect::<Vec<_>>(), names);
}

#[test]
fn what_is_missing_new_wrong_or_twice() {
    let mut learned = learn(TEXT);
    let (one, two) = ("a_total/1/2", "a_total/2/2");
    let result = learned.check("b 1\nc 2\n", &[(one, None), (two, None), ("b", Some(1.0))]);
    assert_eq!((result.unknown, result.values), (1, 1));
    let result =
        learned.check("a_total{x=\"1\",y=\"2\"} x\nb{ 3\nb 4\n", &[(one, None), (two, None), ("b", Some(4.0))]);
    assert_eq!((result.bad, result.first_bad), (2, Some(1)));
    let result = learned.check("b 1\nb 2\nb 3\n", &[(one, None), (two, None), ("b", None)]);
    assert_eq!((result.duplicates, result.first_duplicate), (2, Some(2)));
    let result = learned.check("b 5\n", &[(one, None), (two, None), ("b", Some(5.0))]);
    assert_eq!(result.duplicates, 0, "the next text begins again");
    for none in ["NaN", "+Inf", "-Inf"] {
        assert_eq!(learned.check(&format!("b {none}\n"), &[(one, None), (two, None), ("b", None)]).bad, 0);
    }
}

#[test]
fn times_of_values() {
    let mut learned = learn("a 1 2000\nb 2 5000\nc 3\n");
    let result = learned.check("a 1 2000\nb 2 5000\nc 3\n", &[("a", Some(1.0)), ("b", Some(2.0)), ("c", Some(3.0))]);
    assert_eq!((result.time, result.stale), (Some(5_000_000_000), 0));
    let result = learned.check("a 1 999\nb 2 x\nc 3\n", &[("a", None), ("b", None), ("c", Some(3.0))]);
    assert_eq!((result.time, result.stale, result.first_bad), (None, 1, Some(2)));
    let text = "# TYPE a counter\na_total 5 2.5 # {trace=\"x\"} 0.5 2.4\na_created 1.5\nb 3 # {trace=\"y\"} 1\n# EOF\n";
    let mut learned = learn_with(SensorNaming::default(), text, Dialect::OpenMetrics);
    let expected = [("a_created", Some(1.5)), ("a_total", Some(5.0)), ("b", Some(3.0))];
    let result = learned.check(text, &expected);
    assert_eq!((result.time, result.bad), (Some(2_500_000_000), 0));
    let result = learned.check(&format!("{text}b 9\n"), &expected);
    assert_eq!(result.duplicates, 0, "nothing counts after the end");
}

#[test]
fn plain_lines() {
    let text = "# a comment\nfan/1 1200 unit={revolution}/min\nenergy 5 unit=J kind=counter type=int time=3\nx.y 2\n";
    let mut learned =
        learn_with(SensorNaming { prefix: "exec/p".into(), ..SensorNaming::default() }, text, Dialect::Plain);
    let (energy, fan, x) = ("exec/p/energy", "exec/p/fan/1", "exec/p/x.y");
    let result = learned.check(text, &[(energy, Some(5.0)), (fan, Some(1200.0)), (x, Some(2.0))]);
    assert_eq!(result.time, Some(3_000_000_000));
    assert_eq!((learned.sensors[0].unit.as_str(), learned.sensors[0].kind), ("J", Kind::Counter));
    let result = learned.check("fan/1 1200.5\nenergy 5.5\n", &[(energy, None), (fan, Some(1200.5)), (x, None)]);
    assert!(result.is_no_integer);
    for value in ["9223372036854775808", "18446744073709551615", "-9223372036854775809"] {
        let result = learned.check(&format!("energy {value}\nx.y 2\n"), &[(energy, None), (fan, None), (x, Some(2.0))]);
        assert_eq!((result.first_bad, result.is_no_integer), (Some(1), true), "{value}");
    }
    let result =
        learned.check("energy -9223372036854775808\n", &[(energy, Some(i64::MIN as f64)), (fan, None), (x, None)]);
    assert_eq!(result.bad, 0);
    let result = learned.check("fan/1 1200.5\nenergy 5.5\n", &[(energy, None), (fan, Some(1200.5)), (x, None)]);
    assert_eq!(result.first_bad, Some(2), "only a value that is declared an integer must be one");
    let result = learned.check("x.y z\nenergy 5.5\n", &[(energy, None), (fan, None), (x, None)]);
    assert_eq!((result.first_bad, result.is_no_integer), (Some(1), false));
}

/// Each line after a good one: its note, or none.
#[test]
fn refused_plain_lines_say_what_is_wrong() {
    let prefix = "p/".repeat(10) + "q";
    for (line, expected) in [
        ("a 5", None),
        ("a b unit=Cel", None),
        ("fan:1 5", None),
        ("a", Some("line 2 does not match the format")),
        (
            "a//b 1",
            Some(
                "line 2: \"a//b\": sensor name \"a//b\" has an empty level; write /level/level/name without `//` or a trailing `/`",
            ),
        ),
        ("a: 5", Some("line 2: \"a:\": the name ends with a colon; leave it out")),
        (
            "c 5 unit=degC",
            Some("line 2: \"c\": unit \"degC\", at 1: `degC` is not a known UCUM unit; did you mean `Cel`?"),
        ),
        ("d 5 kind=count", Some("line 2: \"d\": kind=count is neither kind=gauge nor kind=counter")),
        ("e 5 unit=Cel foo=1", Some("line 2: \"e\": \"foo\" after the value is none of unit=, kind=, type= and time=")),
        ("e 5 6", Some("line 2: \"e\": \"a word\" after the value is none of unit=, kind=, type= and time=")),
        ("supply temp 5", Some("line 2: \"supply\": no number follows the name; a name has no blanks")),
        // The reader names it.
        ("f 5.5 type=int", None),
    ] {
        let naming = SensorNaming { prefix: prefix.clone(), ..SensorNaming::default() };
        let learned = learn_with(naming, &format!("good 1\n{line}\n"), Dialect::Plain);
        assert_eq!(learned.notes.iter().map(String::as_str).collect::<Vec<_>>(), Vec::from_iter(expected), "{line}");
        assert_eq!(learned.sensors.len(), 1 + usize::from(expected.is_none()), "{line}");
    }
}

#[test]
fn series_with_the_same_sensor_are_all_left_out_and_named() {
    let naming = || SensorNaming { path: PathTemplate::new("{name}/{label:x}").unwrap(), ..SensorNaming::default() };
    for text in
        ["a{x=\"1\",y=\"2\"} 1\na{x=\"1\",y=\"3\"} 2\nb 3\n", "b 3\na{x=\"1\",y=\"3\"} 2\na{x=\"1\",y=\"2\"} 1\n"]
    {
        let mut learned = learn_with(naming(), text, Dialect::Text);
        assert_eq!(
            learned.notes,
            [
                "a{x=\"1\",y=\"2\"}, a{x=\"1\",y=\"3\"} would all be the sensor a/1: left out; give them a path with more labels"
            ]
        );
        let result = learned.check(text, &[("b", Some(3.0))]);
        assert_eq!((result.unknown, result.duplicates), (0, 0));
    }
}

#[test]
fn rules_decide_on_path_unit_kind_and_scale() {
    let rule = |metrics: &str| MetricRule {
        metrics: metrics.to_owned(),
        path: None,
        unit: None,
        kind: None,
        scale: None,
        drop: false,
    };
    let rules = vec![
        MetricRule { drop: true, ..rule("go_*") },
        MetricRule { path: Some(PathTemplate::new("gpu/{label:gpu}/temperature").unwrap()), ..rule("DCGM_*_GPU_TEMP") },
        MetricRule { unit: Some("Cel".into()), ..rule("DCGM_*_TEMP") },
        MetricRule { unit: Some("J".into()), scale: Some(1e-3), kind: Some(Kind::Counter), ..rule("DCGM_*ENERGY*") },
    ];
    let text = "go_threads 5\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"x\"} 40\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\"} 7\n";
    let learned = learn_with(SensorNaming { rules, ..SensorNaming::default() }, text, Dialect::Text);
    let brief: Vec<(&str, &str, Kind, f64)> =
        learned.sensors.iter().map(|s| (s.name.as_str(), s.unit.as_str(), s.kind, s.scale)).collect();
    let energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION/0";
    assert_eq!(brief, [(energy, "J", Kind::Counter, 1e-3), ("gpu/0/temperature", "Cel", Kind::Gauge, 1.0)]);
}

#[test]
fn series_that_come_and_go_are_bounded_and_remembered_for_a_time() {
    let mut catalogue = SeriesCatalogue::new(SensorNaming::default(), 3, 2);
    let mut names = |text: &str| {
        let mut notes = Vec::new();
        let (_, sensors) = catalogue.learn(text.as_bytes(), Dialect::Text, &|_| true, &mut |note| notes.push(note));
        (sensors.into_iter().map(|sensor| sensor.name).collect::<Vec<_>>(), notes.len(), catalogue.left_out())
    };
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(names("a 1\nb 1\n"), (of(&["a", "b"]), 0, 0));
    assert_eq!(names("b 1\nc 1\n"), (of(&["a", "b", "c"]), 0, 0), "a may come back");
    assert_eq!(names("b 1\nd 1\ne 1\n"), (of(&["a", "b", "c"]), 1, 2), "there is room for three");
    assert_eq!(names("b 1\nd 1\n"), (of(&["b", "c"]), 1, 1), "a is forgotten");
    assert_eq!(names("b 1\nd 1\n"), (of(&["b", "d"]), 0, 0), "c is forgotten");
}

#[test]
fn whole_texts() {
    for (text, dialect, expected) in [
        ("a 1\n", Dialect::Text, true),
        ("a 1", Dialect::Text, false),
        ("", Dialect::Text, false),
        ("a 1\n# EOF\n", Dialect::OpenMetrics, true),
        ("a 1\n# EOF", Dialect::OpenMetrics, true),
        ("a 1\n", Dialect::OpenMetrics, false),
        ("a 1\nx# EOF\n", Dialect::OpenMetrics, false),
    ] {
        assert_eq!(SeriesTable::is_whole(text.as_bytes(), dialect), expected, "{text:?}");
    }
    assert_eq!(Dialect::of_file(b"# UNIT a bytes\na 1\n"), Dialect::OpenMetrics);
    assert_eq!(Dialect::of_file(b"# TYPE a gauge\na 1\n"), Dialect::Text);
}

#[test]
fn a_text_cut_or_changed_anywhere_gives_true_values_or_gaps() {
    let mut random = Random::seeded();
    let mut learned = learn(TEXT);
    let (right, _) = learned.read(TEXT);
    for cut in 0..TEXT.len() {
        // Whole lines only, as a complete text has them.
        let text = &TEXT[..TEXT[..cut].rfind('\n').map_or(0, |end| end + 1)];
        let (values, _) = learned.read(text);
        assert!(values.iter().zip(&right).all(|(is, right)| is.1.is_none() || is == right), "{text:?}: {values:?}");
    }
    for _ in 0..2_000 {
        let mut bytes = TEXT.as_bytes().to_vec();
        for _ in 0..=random.below(4) {
            let at = random.index(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        let count = learned.sensors.len();
        let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
        learned.table.read(&bytes, None, &mut Row::new(&mut values, &mut gaps));
        let mut catalogue = SeriesCatalogue::new(SensorNaming::default(), 10, 0);
        let (mut table, sensors) = catalogue.learn(&bytes, Dialect::OpenMetrics, &|_| true, &mut |_| {});
        let (mut values, mut gaps) = (vec![0; sensors.len()], vec![0; sensors.len().div_ceil(64)]);
        table.read(&bytes, None, &mut Row::new(&mut values, &mut gaps));
    }
}

#[test]
fn long_series_new_ones_and_memory_are_bounded_and_named() {
    let mut catalogue = SeriesCatalogue::new(SensorNaming::default(), 1000, 0);
    let mut learn = |text: &str, bytes_max: usize, new_max: usize| {
        let mut notes = Vec::new();
        catalogue.set_bounds(SeriesBounds { bytes_max, sensor_bytes: |_| 1000, new_max, notes_max: 2 });
        let learned = catalogue.learn(text.as_bytes(), Dialect::Text, &|_| true, &mut |note| notes.push(note));
        let (mut table, sensors) = learned;
        let (mut values, mut gaps) = (vec![0; sensors.len()], vec![0; sensors.len().div_ceil(64)]);
        let unknown = table.read(text.as_bytes(), None, &mut Row::new(&mut values, &mut gaps)).unknown;
        assert_eq!(unknown, 0, "what is left out is no reason to learn again");
        let names: Vec<String> = sensors.into_iter().map(|sensor| sensor.name).collect();
        (names.join(" "), catalogue.new_series(), (catalogue.left_out(), catalogue.is_full()), notes, catalogue.bytes())
    };
    let (names, new, left_out, notes, bytes) = learn("a 1\nb 1\na 2\n", usize::MAX, 5);
    assert_eq!((names.as_str(), new, left_out), ("a b", 2, (0, false)));
    assert!(notes.is_empty() && bytes > 2000, "{bytes}: {notes:?}");
    // The same text again takes no more.
    assert_eq!(learn("a 1\nb 1\n", bytes, 0), (names, 0, (0, false), Vec::new(), bytes));
    let (names, new, left_out, notes, after) = learn("c 1\nd 1\ne 1\n", usize::MAX, 2);
    assert_eq!((names.as_str(), new, left_out), ("c d", 2, (1, true)));
    assert!(notes.len() == 1 && notes[0].starts_with("too many series are new"), "{notes:?}");
    assert_eq!(after, bytes, "what is forgotten takes nothing");
    let (names, _, left_out, notes, _) = learn("c 1\nd 1\ne 1\nf 1\n", bytes / 2 * 3, 100);
    assert_eq!((names.as_str(), left_out), ("c d e", (1, true)));
    assert!(notes.len() == 1 && notes[0].starts_with("its series take too much memory"), "{notes:?}");
    let long = format!("c 1\nm{{a=\"{}\"}} 1\n", "x".repeat(SERIES_BYTES_MAX));
    let (names, _, left_out, notes, _) = learn(&long, usize::MAX, 100);
    assert_eq!((names.as_str(), left_out), ("c", (1, false)));
    assert_eq!(notes, ["series whose name and labels are longer than 2048 bytes are left out"]);
    let (names, .., notes, _) = learn("c 1\n{\n{\n{\n{\n", usize::MAX, 100);
    assert_eq!((names.as_str(), notes.len()), ("c", 3));
    assert_eq!(notes[2], "and 2 more lines or sensors are wrong");
}
