use wholegrain_testkit::Random;

use super::*;

fn one(text: &str) -> InfluxLine<'_> {
    let mut lines = InfluxLines::new(text);
    let line = lines.next().unwrap().1.unwrap_or_else(|e| panic!("{text:?}: {e}"));
    assert!(lines.next().is_none(), "{text:?}");
    line
}

fn show(line: &InfluxLine<'_>) -> String {
    let tags: Vec<String> = line.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let fields: Vec<String> = line.fields.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
    format!("{}|{}|{}|{:?}", line.measurement, tags.join(";"), fields.join(";"), line.timestamp)
}

#[test]
fn the_whole_syntax() {
    for (text, expected) in [
        ("cpu value=1", "cpu||value=Float(1.0)|None"),
        ("cpu,host=a,cpu=cpu0 user=1.5,n=-3i 17", "cpu|host=a;cpu=cpu0|user=Float(1.5);n=Int(-3)|Some(17)"),
        ("cpu v=18446744073709551615u -5\n", "cpu||v=Unsigned(18446744073709551615)|Some(-5)"),
        ("m a=t,b=F,c=true,d=FALSE", "m||a=Bool(true);b=Bool(false);c=Bool(true);d=Bool(false)|None"),
        ("m a=1e3,b=-.5,c=+2,d=5.", "m||a=Float(1000.0);b=Float(-0.5);c=Float(2.0);d=Float(5.0)|None"),
        (r"a\ b\,c,k\=1=v\ \,\= f\ \,\==1", "a b,c|k=1=v ,=|f ,==Float(1.0)|None"),
        (r"a=b,t=c\d v=1", r"a=b|t=c\d|v=Float(1.0)|None"),
        (r"m,t=x=y v=1", "m|t=x=y|v=Float(1.0)|None"),
        (r#"m s="a \"quoted\", text\\",v=1i 9"#, "m||s=Text;v=Int(1)|Some(9)"),
        ("m s=\"two\nlines # no comment\",v=1i 9", "m||s=Text;v=Int(1)|Some(9)"),
        ("m   v=1   5  ", "m||v=Float(1.0)|Some(5)"),
        ("m,t=ü v=1 5\r\n", "m|t=ü|v=Float(1.0)|Some(5)"),
        ("m v=1\r\n", "m||v=Float(1.0)|None"),
        ("  m v=1", "m||v=Float(1.0)|None"),
    ] {
        assert_eq!(show(&one(text)), expected, "{text:?}");
    }
}

#[test]
fn broken_lines_cost_themselves_only() {
    for (text, error) in [
        ("m", "there are no fields"),
        ("m,t=1", "there are no fields"),
        (",t=1 v=1", "there is no measurement"),
        ("m,t v=1", "a tag is not key=value"),
        ("m,=1 v=1", "a tag is not key=value"),
        ("m,t= v=1", "a tag has no value"),
        ("m,t=1,t=2 v=1", "a tag appears twice"),
        ("m v", "a field is not key=value"),
        ("m =1", "a field is not key=value"),
        ("m v=", "a field has no value"),
        ("m v=1,", "a field is not key=value"),
        ("m v=nan", "a value is neither"),
        ("m v=inf", "a value is neither"),
        ("m v=1e999", "a value is neither"),
        ("m v=0x1", "a value is neither"),
        ("m v=1.5i", "an integer is invalid"),
        ("m v=9223372036854775808i", "an integer is invalid"),
        ("m v=-1u", "an unsigned integer is invalid"),
        ("m v=\"x", "a string is not closed"),
        ("m v=\"x\"y", "something follows a field's value"),
        ("m v=1 x", "the timestamp is not a 64-bit integer"),
        ("m v=1 5 6", "something follows the timestamp"),
        ("m v=1 99999999999999999999", "the timestamp is not a 64-bit integer"),
    ] {
        let whole = format!("before v=1 1\n# a comment\n\n{text}\nafter v=1 2\n");
        let lines: Vec<_> = InfluxLines::new(&whole).collect();
        assert_eq!(lines.len(), 3, "{text:?}: {lines:?}");
        assert!(lines[0].1.is_ok() && lines[2].1.is_ok(), "{text:?}: {lines:?}");
        let found = lines[1].1.as_ref().unwrap_err();
        assert!(found.starts_with(error) && lines[1].0 == 4 && lines[2].0 == 5, "{text:?}: {lines:?}");
    }
}

#[test]
fn lines_are_counted_through_strings() {
    let text = "a s=\"1\n2\n3\",v=1\nb v=1\n\nc v=1";
    assert_eq!(InfluxLines::new(text).map(|(number, _)| number).collect::<Vec<_>>(), [1, 4, 6]);
}

#[test]
fn bounds() {
    let many = |count: usize| (0..count).map(|i| format!(",t{i}=1")).collect::<String>();
    assert!(InfluxLines::new(&format!("m{} v=1", many(TAGS_MAX))).next().unwrap().1.is_ok());
    assert!(InfluxLines::new(&format!("m{} v=1", many(TAGS_MAX + 1))).next().unwrap().1.is_err());
    assert!(InfluxLines::new(&format!("m v=\"{}\"", "x".repeat(LINE_BYTES_MAX))).next().unwrap().1.is_err());
    let fields = (0..=FIELDS_MAX).map(|i| format!("f{i}=1")).collect::<Vec<_>>().join(",");
    assert!(InfluxLines::new(&format!("m {fields}")).next().unwrap().1.is_err());
}

#[test]
fn any_text_is_parsed_to_its_end() {
    let mut random = Random::seeded_or(0x11e5_5eed);
    let pieces =
        ["m", ",", "t", "=", " ", "\n", "\\", "\"", "1", "i", "u", "true", "-", ".", "e", "#", "ü", "\r", "v=1", "9"];
    for round in 0..100_000 {
        let mut text = String::new();
        for _ in 0..round % 40 {
            text.push_str(random.pick(&pieces));
        }
        let ends = text.matches('\n').count() + 1;
        let lines: Vec<_> = InfluxLines::new(&text).collect();
        assert!(lines.len() <= ends, "round {round}: {text:?}");
        assert!(lines.windows(2).all(|pair| pair[0].0 < pair[1].0), "round {round}: {text:?}");
        assert!(lines.last().is_none_or(|(number, _)| *number <= ends), "round {round}: {text:?}");
    }
}
