//! Definitions of virtual sensors: errors and their messages, the sensors of templates, and effects of a change on other definitions.
//!
//! `virtual_definitions/*.txt` have the messages; `UPDATE_EXPECT=1` writes them.

use expect_test::{ExpectFile, expect, expect_file};
use wholegrain_model::{Kind, Pattern, SensorPath, ValueType};
use wholegrain_query::Space;
use wholegrain_query::virtuals::{ChangeReport, Definition, DefinitionChange, parse};
use wholegrain_store::{SchemalessSensor, Store, StoreConfig};
use wholegrain_testkit::Random;

/// Sensors by path, unit, and whether they are counters.
const SENSORS: &[(&str, &str, bool)] = &[
    ("/lab/facility/chiller1/power", "kW", false),
    ("/lab/facility/chiller2/power", "W", false),
    ("/lab/facility/flow", "l/min", false),
    ("/lab/facility/inlet", "Cel", false),
    ("/lab/facility/outlet", "Cel", false),
    ("/lab/n1/power", "W", false),
    ("/lab/n2/power", "W", false),
    ("/lab/n1/energy", "J", true),
    ("/lab/n2/energy", "J", true),
    ("/lab/n1/perf/cycles", "1", true),
    ("/lab/n1/perf/instructions", "1", true),
    ("/lab/n2/perf/cycles", "1", true),
    ("/lab/n2/perf/instructions", "1", true),
    ("/lab/n3/perf/cycles", "1", true),
    ("/lab/n1/cpu/0/busy", "s", true),
    ("/lab/n1/cpu/1/busy", "s", true),
    ("/lab/n1/odd", "furlong", false),
];

struct Lab {
    space: Space,
    _dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreConfig::new(dir.path().to_owned())).unwrap().0;
        let lab = Self { space: Space::new(store), _dir: dir };
        lab.add(SENSORS);
        lab
    }

    fn add(&self, sensors: &[(&str, &str, bool)]) {
        let sensor = |(path, unit, counter): &(&str, &str, bool)| SchemalessSensor {
            path: SensorPath::new(*path).unwrap(),
            unit: (*unit).to_owned(),
            kind: if *counter { Kind::Counter } else { Kind::Gauge },
            value_type: ValueType::Float,
            scale: 1.0,
            description: String::new(),
        };
        let sensors: Vec<SchemalessSensor> = sensors.iter().map(sensor).collect();
        self.space.store().register_sensors("test", &sensors).unwrap();
    }

    fn change(&self, change: DefinitionChange) -> Result<ChangeReport, String> {
        self.space.virtuals().change(change, "ada", 5).map_err(|error| error.to_string())
    }

    fn define(&self, path: &str, expression: &str, unit: &str) -> Result<ChangeReport, String> {
        self.change(DefinitionChange {
            define: vec![definition(path, expression, unit)],
            ..DefinitionChange::default()
        })
    }

    fn remove(&self, path: &str, force: bool) -> Result<ChangeReport, String> {
        self.change(DefinitionChange { remove: vec![path.to_owned()], force, ..DefinitionChange::default() })
    }

    #[track_caller]
    fn good(&self, path: &str, expression: &str, unit: &str) -> ChangeReport {
        self.define(path, expression, unit).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The virtual sensors of a pattern.
    fn made(&self, pattern: &str) -> Vec<String> {
        let found = self.space.sensors(&[Pattern::new(pattern).unwrap()]);
        found.into_iter().filter(|info| info.id.is_computed()).map(|info| info.path.to_string()).collect()
    }
}

fn definition(path: &str, expression: &str, unit: &str) -> Definition {
    Definition {
        path: path.to_owned(),
        expression: expression.to_owned(),
        unit: unit.to_owned(),
        ..Definition::default()
    }
}

/// Defines each expression as the sensor `/lab/v` with its unit, and compares the messages.
#[track_caller]
fn says(cases: &[(&str, &str)], expected: ExpectFile) {
    let lab = Lab::new();
    let mut said = String::new();
    for (expression, unit) in cases {
        let answer = match lab.define("/lab/v", expression, unit) {
            Ok(changed) => format!("good\n{}", changed.warnings.join("\n")),
            Err(error) => error,
        };
        said.push_str(&format!("{}\n\n", answer.trim_end()));
    }
    expected.assert_eq(&said);
}

#[test]
fn invalid_syntax_is_refused_with_its_place() {
    let cases = [
        "",
        "1 +",
        "<n1/power> 2",
        "(<n1/power>",
        "<n1/power>)",
        "sum(<n1/power>",
        "1, 2",
        "<n1/power",
        "<>",
        "n1/power",
        "<n1/power> + * 2",
        "sun(<n1/power>)",
        "average(<n1/power>)",
        "frobnicate(1)",
        "true",
        "power",
        "abs 5",
        "abs(1, 2)",
        "clamp(1)",
        "if(1, 2)",
        "min(<n1/power> + 1)",
        "sum(<n1/power>, <n2/power>)",
        "sum(<*/power> * 2)",
        "<*/power> + 1",
        "5min + 1",
        "5minutes",
        "integral(<n1/power>)",
        "integral(<n1/power>, 5)",
        "moving_average(<n1/power>, <n2/power>)",
        "integral(<n1/power>, 0s)",
        "2 ^ <n1/power>",
        "2 ^ 0.5",
        "2 ^ 10",
        "2 ** 3",
        "1 < 2 < 3",
        "1 = 2",
        "1 && 2",
        "1 || 2",
        "!1",
        "7 % 2",
        "1 ? 2 : 3",
        "</lab/n1/power> </lab/n2/power>",
        "3.6[MJ",
        "3.6[]",
        "1e999",
        "<n 1/power>",
        "<../../../x>",
        "<a//b>",
        "§",
        "1 + 1",
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|text| (*text, "W")).collect();
    says(&cases, expect_file!["virtual_definitions/syntax.txt"]);
}

#[test]
fn different_dimensions_are_refused_and_both_named() {
    says(
        &[
            ("<n1/power> + <n1/energy>", "W"),
            ("<n1/power> - 5", "W"),
            ("5 + <n1/power>", "W"),
            ("<n1/power> > rate(<n1/perf/cycles>)", "1"),
            ("if(<n1/power>, 1, 2)", "1"),
            ("if(<n1/power> > 5[W], <n1/power>, rate(<n1/perf/cycles>))", "W"),
            ("<n1/power> and 1", "1"),
            ("not <n1/power>", "1"),
            ("exp(<n1/power>)", "1"),
            ("ln(<n1/power>)", "1"),
            ("sqrt(<n1/power>)", "1"),
            ("max(<n1/power>, <facility/inlet>)", "W"),
            ("clamp(<n1/power>, 0, 5[J])", "W"),
            ("rate(<n1/perf/cycles>)", "1"),
            ("integral(<n1/power>, 1h)", "W"),
            ("<n1/power> * <facility/flow>", "W"),
            ("100 * (<n1/power> - <n2/power>) / <n1/power>", "%"),
            ("-(<n1/power> / <n2/power>) * 1000", "[ppth]"),
            ("<n1/power>", "furlong"),
            ("5[furlong] * <n1/power>", "W"),
            ("<n1/odd>", "m"),
            ("mean(<**>)", "W"),
            ("<facility/inlet> + <facility/outlet>", "Cel"),
            ("2 * <facility/inlet>", "Cel"),
            ("-<facility/inlet>", "Cel"),
            ("<facility/inlet> ^ 2", "K2"),
            ("sum(<facility/*let>)", "Cel"),
            ("<facility/outlet> - <facility/inlet>", "Cel"),
            ("<facility/inlet> > 0", "1"),
            ("(<facility/outlet> - <facility/inlet>) > <facility/inlet>", "1"),
        ],
        expect_file!["virtual_definitions/dimensions.txt"],
    );
}

#[test]
fn good_expressions_and_their_warnings() {
    says(
        &[
            ("<n1/power>", "kW"),
            ("sum(</lab/facility/*/power>) / sum(</lab/n*/power>)", "1"),
            ("sum(</lab/facility/*/power>) / sum(</lab/n*/power>)", "%"),
            ("rate(<n1/energy>)", "W"),
            ("sum(rate(<*/energy>))", "W"),
            ("<n1/energy>", "kW.h"),
            ("sum(<*/energy>)", "J"),
            ("count(<*/energy>)", "1"),
            ("integral(<n1/power>, 1h)", "kW.h"),
            ("moving_average(<n1/power>, 5min)", "W"),
            ("<facility/outlet> - <facility/inlet>", "K"),
            ("<facility/flow> * 4.18[kJ/kg/K] * 0.998[kg/l] * (<facility/outlet> - <facility/inlet>)", "kW"),
            ("if(<n1/power> > 0 and not (<n2/power> < 5[W]), <n1/power>, 0)", "W"),
            ("<facility/inlet> + 5[K]", "Cel"),
            ("mean(<facility/*let>)", "[degF]"),
            ("max(<facility/inlet>, 20[Cel])", "Cel"),
            ("sqrt(<n1/power> ^ 2 + <n2/power> ^ 2)", "W"),
            ("clamp(<n1/power>, 0, 500[W])", "W"),
            ("-abs(delta(<n1/power>)) ^ 2", "W2"),
            ("<n1/power>\n  + <n2/power>", "W"),
        ],
        expect_file!["virtual_definitions/good.txt"],
    );
}

#[test]
fn unknown_sensors_are_refused_with_a_similar_one() {
    says(
        &[
            ("<n1/powr>", "W"),
            ("</lab/facilty/flow>", "W"),
            ("sum(<*/pover>)", "W"),
            ("</zzz/xyz>", "W"),
            ("sum(</lab/none/*>)", "W"),
        ],
        expect_file!["virtual_definitions/unknown.txt"],
    );
}

#[test]
fn expressions_over_a_bound_are_refused_with_it() {
    let lab = Lab::new();
    let says = |expression: String| lab.define("/lab/v", &expression, "W").unwrap_err();
    let mut said = String::new();
    for bomb in [
        "(".repeat(30_000),
        "-".repeat(30_000),
        "not ".repeat(10_000),
        "abs(".repeat(10_000),
        "1+".repeat(300) + "1",
        "2".to_owned() + &"^1".repeat(300),
        format!("min({}1)", "1,".repeat(10_000)),
        format!("min({}<n1/power>)", "<n1/power>,".repeat(5_000)),
        " ".repeat(70_000),
    ] {
        said.push_str(&says(bomb));
        said.push_str("\n\n");
    }
    let many: Vec<String> = (0..10_001).map(|n| format!("/lab/many/{n}/power")).collect();
    let many: Vec<(&str, &str, bool)> = many.iter().map(|path| (path.as_str(), "W", false)).collect();
    many.chunks(5_000).for_each(|some| lab.add(some));
    said.push_str(&says("sum(<many/*/power>)".into()));
    expect_file!["virtual_definitions/bombs.txt"].assert_eq(&said);
    // The deepest allowed expressions need at most half of a thread's usual stack, in debug builds all of it.
    let stack_bytes = if cfg!(debug_assertions) { 2 << 20 } else { 1 << 20 };
    let sum = "1[W] + ".repeat(127) + "<n1/power>";
    for deepest in
        ["(".repeat(63) + "<n1/power>" + &")".repeat(63), "abs(".repeat(63) + "<n1/power>" + &")".repeat(63), sum]
    {
        let work = move || drop(Lab::new().good("/lab/v", &deepest, "W"));
        std::thread::Builder::new().stack_size(stack_bytes).spawn(work).unwrap().join().unwrap();
    }
}

/// Any text gives an expression or an error, with a place within the text.
#[test]
fn no_text_makes_the_parser_panic() {
    let pieces = [
        "<a>",
        "<*/b>",
        "</x/y>",
        "<",
        ">",
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "^",
        "2",
        "3.5",
        "1e3",
        ".",
        "[W]",
        "[",
        "]",
        "5min",
        "ü",
        "\n",
        " ",
        "and",
        "or ",
        "not ",
        "if(",
        "sum(",
        "min(",
        "rate(",
        "integral(",
        "==",
        "<=",
        "!",
        "%",
        "\u{0}",
        "<..",
        "/..",
        "**",
    ];
    let mut random = Random::seeded();
    let mut read = 0;
    for _ in 0..50_000 {
        let text: String = (0..random.index(12)).map(|_| random.pick(&pieces)).collect();
        match parse(&text, "/lab/n1/v") {
            Ok(expr) => {
                read += 1;
                assert!(text.get(expr.span.start..expr.span.end).is_some(), "{text:?}: {expr:?}");
            }
            Err(refused) => assert!(!refused.to_string().is_empty(), "{text:?}"),
        }
    }
    assert!(read > 500, "{read} of them are expressions");
}

#[test]
fn paths_and_other_parts_of_a_definition() {
    let lab = Lab::new();
    let mut said = String::new();
    for (path, expression) in [
        ("lab/v", "<n1/power>"),
        ("/lab/v w", "<n1/power>"),
        ("/lab/n1/power", "<../n2/power>"),
        ("/lab/*/*", "<power>"),
        ("/lab/*/v", "</lab/n1/power>"),
        ("/lab/*/v", "<nothing>"),
        ("/lab/v", "1 + 2"),
        ("/lab/*/v", "<power> + <perf/cycles>"),
        ("/lab/**/v", "<../power>"),
    ] {
        let error = lab.define(path, expression, "W").unwrap_err();
        said.push_str(&format!("{error}\n\n"));
    }
    let odd = Definition { interval: Some("1us".parse().unwrap()), ..definition("/lab/v", "<n1/power>", "W") };
    said.push_str(&lab.change(DefinitionChange { define: vec![odd], ..DefinitionChange::default() }).unwrap_err());
    expect_file!["virtual_definitions/definitions.txt"].assert_eq(&said);
}

#[test]
fn cycles_are_refused_and_shown() {
    let lab = Lab::new();
    let mut said = String::new();
    let mut refused = |lab: &Lab, path: &str, expression: &str| {
        let error = lab.define(path, expression, "W").unwrap_err();
        said.push_str(&format!("{error}\n\n"));
    };
    refused(&lab, "/lab/v", "<v>");
    refused(&lab, "/lab/total/power", "sum(</lab/*/power>)");
    refused(&lab, "/lab/*/watts", "<power> + <../n1/watts>");
    lab.good("/lab/a", "<n1/power>", "W");
    lab.good("/lab/b", "2 * <a>", "W");
    lab.good("/lab/c", "<a> + <b>", "W");
    refused(&lab, "/lab/a", "<n1/power> + <c>");
    lab.good("/lab/*/twice", "2 * <power>", "W");
    lab.good("/lab/all", "sum(<*/twice>)", "W");
    refused(&lab, "/lab/*/twice", "2 * <power> + <../all>");
    expect_file!["virtual_definitions/cycles.txt"].assert_eq(&said);
}

#[test]
fn the_length_of_a_chain_is_bounded() {
    let lab = Lab::new();
    let link = |n: usize| definition(&format!("/lab/v{n}"), &format!("<v{}> + <v{}>", n - 1, n - 1), "W");
    let mut define = vec![definition("/lab/v0", "<n1/power>", "W")];
    define.extend((1..100).map(link));
    lab.change(DefinitionChange { define, ..DefinitionChange::default() }).unwrap();
    // With two operands on each of a hundred levels, each sensor is visited once.
    assert_eq!(lab.made("/lab/v*").len(), 100);
    let error = lab.change(DefinitionChange { define: vec![link(100)], ..DefinitionChange::default() }).unwrap_err();
    assert_eq!(error, "/lab/v100: the definition is the end of a chain of more than 100 virtual sensors");
}

#[test]
fn a_change_is_checked_with_the_definitions_that_refer_to_it() {
    let lab = Lab::new();
    lab.good("/lab/all", "sum(<n*/power>)", "W");
    lab.good("/lab/pue", "sum(<facility/*/power>) / <all>", "1");
    lab.good("/lab/half", "<all> / 2", "kW");
    let mut said = String::new();
    said.push_str(&lab.define("/lab/all", "sum(rate(<n*/energy>)) * 1[s]", "J").unwrap_err());
    said.push_str("\n\n");
    said.push_str(&lab.remove("/lab/all", false).unwrap_err());
    said.push_str("\n\n");
    said.push_str(&lab.remove("/lab/al", false).unwrap_err());
    expect![[r#"
        /lab/half: the expression gives J (energy), the declared unit is kW (power)
          <all> / 2
          ^^^^^^^^^
        it refers to the changed /lab/all

        /lab/pue: the expression gives s-1 (frequency), the declared unit is 1 (a number)
          sum(<facility/*/power>) / <all>
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        it refers to the changed /lab/all

        /lab/all: other definitions refer to it: /lab/half, /lab/pue
        remove them too, or force the removal: then they have gaps where it is missing

        /lab/al: this definition does not exist
        did you mean /lab/all?"#]]
    .assert_eq(&said);
    // The earlier definitions still exist.
    assert_eq!(lab.made("/lab/*"), ["/lab/all", "/lab/half", "/lab/pue"]);
    // A matching definition replaces it, and all can be removed together.
    assert_eq!(lab.good("/lab/all", "sum(rate(<n*/energy>))", "MW").changed, ["/lab/all"]);
    assert_eq!(lab.good("/lab/all", "sum(rate(<n*/energy>))", "MW").unchanged, 1);
    let remove = ["/lab/all", "/lab/half", "/lab/pue"].map(str::to_owned).to_vec();
    lab.change(DefinitionChange { remove, ..DefinitionChange::default() }).unwrap();
    assert!(lab.made("/**").is_empty());
    let history = lab.space.virtuals().history(Some("/lab/all"), 10).unwrap();
    assert_eq!(history.iter().map(|entry| entry.value.is_some()).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(history[0].who, "ada");
}

#[test]
fn removing_by_force_leaves_the_others() {
    let lab = Lab::new();
    lab.good("/lab/a", "<n1/power>", "W");
    lab.good("/lab/b", "<a>", "W");
    lab.remove("/lab/a", true).unwrap();
    assert_eq!(lab.made("/lab/*"), ["/lab/b"]);
}

#[test]
fn a_template_makes_a_sensor_where_all_references_exist() {
    let lab = Lab::new();
    let changed = lab.good("/lab/*/ipc", "rate(<perf/instructions>) / rate(<perf/cycles>)", "1");
    assert_eq!(changed.sensors["/lab/*/ipc"], 2);
    assert_eq!(lab.made("/lab/*/ipc"), ["/lab/n1/ipc", "/lab/n2/ipc"]);
    lab.good("/lab/*/load", "sum(rate(<cpu/*/busy>)) / count(<cpu/*/busy>)", "%");
    assert_eq!(lab.made("/lab/*/load"), ["/lab/n1/load"]);
    // At any depth, and over sensors of other templates.
    lab.good("/**/busy_ipc", "<ipc> * <load>", "1");
    assert_eq!(lab.made("/**/busy_ipc"), ["/lab/n1/busy_ipc"]);
    // Sensors that come later.
    lab.add(&[
        ("/lab/n3/perf/instructions", "1", true),
        ("/lab/n3/cpu/7/busy", "s", true),
        ("/lab/n4/cpu/7/busy", "s", true),
    ]);
    assert_eq!(lab.made("/lab/*/ipc"), ["/lab/n1/ipc", "/lab/n2/ipc", "/lab/n3/ipc"]);
    assert_eq!(lab.made("/lab/*/load"), ["/lab/n1/load", "/lab/n3/load", "/lab/n4/load"]);
    assert_eq!(lab.made("/**/busy_ipc"), ["/lab/n1/busy_ipc", "/lab/n3/busy_ipc"]);
    // A measured sensor hides a virtual one.
    lab.add(&[("/lab/n2/ipc", "1", false)]);
    assert_eq!(lab.made("/lab/*/ipc"), ["/lab/n1/ipc", "/lab/n3/ipc"]);
    let all = lab.space.sensors(&[Pattern::new("/lab/*/ipc").unwrap(), Pattern::new("/**").unwrap()]);
    assert_eq!(all.iter().filter(|info| info.path.ends_with("n2/ipc")).count(), 1);
    assert!(all.windows(2).all(|two| two[0].path < two[1].path));
    // A definition of one sensor takes precedence over a template.
    lab.good("/lab/n1/load", "rate(<cpu/0/busy>)", "%");
    assert_eq!(lab.made("/lab/*/load"), ["/lab/n1/load", "/lab/n3/load", "/lab/n4/load"]);
    let list = lab.space.virtuals().list();
    let listed: Vec<(&str, usize)> = list.iter().map(|one| (one.definition.path.as_str(), one.sensors)).collect();
    assert_eq!(listed, [("/**/busy_ipc", 2), ("/lab/*/ipc", 2), ("/lab/*/load", 2), ("/lab/n1/load", 1)]);
    let error = lab.define("/lab/n*/load", "sum(rate(<cpu/*/busy>))", "1").unwrap_err();
    expect![[r#"
        /lab/n*/load: the template /lab/*/load would make sensors with the same paths
        a definition of one sensor, without wildcards, takes precedence over a template and is allowed"#]]
    .assert_eq(&error);
}

#[test]
fn definitions_survive_a_restart() {
    let lab = Lab::new();
    lab.good("/lab/*/ipc", "rate(<perf/instructions>) / rate(<perf/cycles>)", "1");
    let again = Space::new(lab.space.store().clone());
    let found = again.sensors(&[Pattern::new("/lab/*/ipc").unwrap()]);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].unit.as_str(), found[0].kind, found[0].scale), ("1", Kind::Gauge, 1.0));
}
