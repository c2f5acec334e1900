//! An answer as a tree, and the paths of values in it, in whichever format it is.

use std::borrow::Cow;

use serde_json::Value;
use serde_json_path::{JsonPath, NormalizedPath, PathElement};
use wholegrain_device_http::{JsonTree, NO_ROOM, TreeFault, TreeRoom, json};

use crate::csv_table::{self, CsvFormat};
use crate::value::{GapReason, PageScalar};
use crate::xml;
use crate::xml::XmlPath;

/// The most steps up (`../`) of a path.
const UP_MAX: usize = 16;

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    Json,
    Csv(CsvFormat),
    Xml,
}

/// Why an answer is not of its format: for the group's problem, and for a note.
#[derive(Debug, PartialEq)]
pub struct PageFault {
    pub what: &'static str,
    pub detail: String,
}

/// The text of an answer. JSON is UTF-8; other texts that are not are read as Latin-1, as old devices write it.
pub fn text(body: &[u8], format: PageFormat) -> Result<Cow<'_, str>, PageFault> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(PageFault { what: "an empty answer", detail: "the answer has no text".to_owned() });
    }
    match std::str::from_utf8(body) {
        Ok(text) => Ok(text.into()),
        Err(error) if format == PageFormat::Json => Err(PageFault { what: "no UTF-8", detail: error.to_string() }),
        Err(_) if body.contains(&0) => Err(PageFault { what: "no text", detail: "it has NUL bytes".to_owned() }),
        Err(_) => Ok(body.iter().map(|byte| char::from(*byte)).collect::<String>().into()),
    }
}

/// An answer as a tree.
pub enum PageTree<'i> {
    /// JSON, and CSV as a list of objects.
    Values(JsonTree),
    Elements {
        tree: roxmltree::Document<'i>,
        _room: TreeRoom,
    },
}

impl<'i> PageTree<'i> {
    /// Parses the text of an answer.
    pub fn parse(text: &'i str, format: PageFormat) -> Result<Self, PageFault> {
        // A page for logging in or one about an error, as a rule.
        let is_html = || {
            let begin: String = text.trim_start().chars().take(14).collect::<String>().to_ascii_lowercase();
            begin.starts_with("<!doctype html") || begin.starts_with("<html")
        };
        if is_html() {
            let detail = "it is HTML: does the device ask for a login?".to_owned();
            return Err(PageFault { what: "a web page", detail });
        }
        let (what, tree) = match format {
            PageFormat::Json => ("no JSON", json::parse(text).map(Self::Values)),
            PageFormat::Csv(csv) => ("no CSV", csv_table::parse(text, csv).map(Self::Values)),
            PageFormat::Xml => ("no XML", xml::parse(text).map(|(tree, _room)| Self::Elements { tree, _room })),
        };
        tree.map_err(|fault| {
            let what = match fault {
                TreeFault::NoRoom => NO_ROOM,
                _ if text.trim_start().starts_with('<') && format != PageFormat::Xml => {
                    "what begins as XML: check `format`"
                }
                _ => what,
            };
            PageFault { what, detail: fault.to_string() }
        })
    }

    /// The node where paths begin.
    pub fn root(&self) -> PageNode<'_, 'i> {
        match self {
            Self::Values(value) => PageNode::Value(value, None),
            Self::Elements { tree, .. } => PageNode::Element(tree.root()),
        }
    }

    /// The nodes at a path from the root, each with what leads to it.
    pub fn rows<'t>(&'t self, path: &PagePath) -> Vec<PageNode<'t, 'i>> {
        match (self, path) {
            (Self::Values(root), PagePath::Json { path, .. }) => {
                let nodes = path.query_located(root).all().into_iter();
                nodes.map(|node| PageNode::Value(node.node(), Some(node.to_location()))).collect()
            }
            (Self::Elements { tree, .. }, PagePath::Xml(path)) => {
                path.nodes(tree.root()).into_iter().map(PageNode::Element).collect()
            }
            _ => Vec::new(),
        }
    }

    /// What is at a path from `base`: exactly one thing.
    pub fn scalar<'t>(&'t self, base: &PageNode<'t, 'i>, path: &PagePath) -> Result<PageScalar<'t>, GapReason> {
        match (self, base, path) {
            (Self::Values(root), PageNode::Value(value, location), PagePath::Json { up, path }) => {
                let from = if *up == 0 { Some(*value) } else { ancestor(root, location.as_ref(), *up) };
                let nodes = path.query(from.ok_or(GapReason::Missing)?);
                one(nodes.len())?;
                nodes.first().map(json_scalar).ok_or(GapReason::Missing)
            }
            (_, PageNode::Element(element), PagePath::Xml(path)) => {
                let nodes = path.nodes(*element);
                one(nodes.len())?;
                nodes.first().map(|node| path.scalar(*node)).ok_or(GapReason::Missing)
            }
            _ => Err(GapReason::Missing),
        }
    }
}

fn one(count: usize) -> Result<(), GapReason> {
    match count {
        0 => Err(GapReason::Missing),
        1 => Ok(()),
        _ => Err(GapReason::Several),
    }
}

/// The value that is `up` levels above a location.
fn ancestor<'t>(root: &'t Value, location: Option<&NormalizedPath<'t>>, up: usize) -> Option<&'t Value> {
    let location = location?;
    let depth = location.len().checked_sub(up)?;
    location.iter().take(depth).try_fold(root, |value, step| match step {
        PathElement::Name(name) => value.get(*name),
        PathElement::Index(index) => value.get(*index),
    })
}

/// A node of JSON as a value of a sensor.
pub fn json_scalar(value: &Value) -> PageScalar<'_> {
    match value {
        Value::Null => PageScalar::Null,
        Value::Bool(value) => PageScalar::Bool(*value),
        Value::Number(number) => PageScalar::Number(number),
        Value::String(text) => PageScalar::Text(text.into()),
        Value::Array(_) | Value::Object(_) => PageScalar::Structure,
    }
}

/// A node of a tree from which paths lead on.
pub enum PageNode<'t, 'i> {
    Value(&'t Value, Option<NormalizedPath<'t>>),
    Element(roxmltree::Node<'t, 'i>),
}

impl PageNode<'_, '_> {
    /// The name or number under which the node is in what contains it. XML has none.
    pub fn key(&self) -> Option<String> {
        match self {
            Self::Value(_, Some(location)) => location.last().map(|step| match step {
                PathElement::Name(name) => (*name).to_owned(),
                PathElement::Index(index) => index.to_string(),
            }),
            _ => None,
        }
    }
}

/// Where in an answer something is.
#[derive(Debug, Clone)]
pub enum PagePath {
    /// A query of RFC 9535, begun `up` levels above.
    Json {
        up: usize,
        path: JsonPath,
    },
    Xml(XmlPath),
}

impl PagePath {
    /// Parses a path for a format. In JSON and CSV a path without `$` is one of members: `a.b` is `$.a.b`.
    pub fn parse(text: &str, format: PageFormat) -> Result<Self, String> {
        if format == PageFormat::Xml {
            return XmlPath::parse(text).map(Self::Xml);
        }
        let (mut up, mut rest) = (0, text);
        while let Some(after) = rest.strip_prefix("../") {
            (up, rest) = (up + 1, after);
        }
        if up > UP_MAX {
            return Err(format!("the path {text:?} goes up more than {UP_MAX} times"));
        }
        let query = match rest.chars().next() {
            Some('$') => rest.to_owned(),
            Some('[') => format!("${rest}"),
            _ => format!("$.{rest}"),
        };
        check_cost(&query).map_err(|reason| format!("the path {text:?} {reason}"))?;
        let path =
            JsonPath::parse(&query).map_err(|error| format!("the path {text:?} is no JSONPath (RFC 9535): {error}"))?;
        Ok(Self::Json { up, path })
    }
}

/// Refuses queries whose time can grow with the square of the answer's length.
fn check_cost(query: &str) -> Result<(), &'static str> {
    let (mut quote, mut descents, mut roots, mut before) = (None, 0, 0, ' ');
    let mut characters = query.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(characters.next()),
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '.') if before == '.' => descents += 1,
            (None, '$') => roots += 1,
            _ => {}
        }
        before = c;
    }
    if descents > 1 {
        Err("has `..` more than once: its time has no bound")
    } else if roots > 1 {
        Err("has `$` within a filter: its time has no bound")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANT: &str = r#"{"halls": [{"name": "A", "pumps": [{"id": 1, "rpm": 900}, {"id": 2, "rpm": null}]}],
        "by name": {"x": {"v": 1}, "y": {"v": 2}}, "a": {"b": [10, 20]}}"#;

    fn tree() -> PageTree<'static> {
        PageTree::parse(PLANT, PageFormat::Json).unwrap()
    }

    #[track_caller]
    fn check(path: &str, expected: Result<&str, GapReason>) {
        let tree = tree();
        let scalar = tree.scalar(&tree.root(), &PagePath::parse(path, PageFormat::Json).unwrap());
        assert_eq!(
            scalar.map(|scalar| scalar.text().unwrap_or_default().into_owned()),
            expected.map(str::to_owned),
            "{path}"
        );
    }

    #[test]
    fn values_of_json() {
        check("$.a.b[0]", Ok("10"));
        check("a.b[-1]", Ok("20"));
        check("['by name'].x.v", Ok("1"));
        check("$.halls[*].pumps[?@.id==1].rpm", Ok("900"));
        check("$..rpm", Err(GapReason::Several));
        check("$.a.b[*]", Err(GapReason::Several));
        check("$.a.c", Err(GapReason::Missing));
        check("$.a", Ok(""));
        check("../a", Err(GapReason::Missing));
        check("$.halls[?length(@.pumps)==2].name", Ok("A"));
    }

    #[test]
    fn rows_know_their_keys_and_what_contains_them() {
        let tree = tree();
        let path = |text: &str| PagePath::parse(text, PageFormat::Json).unwrap();
        let rows = tree.rows(&path("$.halls[*].pumps[*]"));
        assert_eq!(rows.iter().filter_map(PageNode::key).collect::<Vec<_>>(), ["0", "1"]);
        let text = |row: &PageNode, at: &str| {
            tree.scalar(row, &path(at)).map(|scalar| scalar.text().unwrap_or_default().into_owned())
        };
        assert_eq!(text(&rows[1], "../../name").unwrap(), "A");
        assert_eq!(text(&rows[1], "id").unwrap(), "2");
        assert_eq!(text(&rows[1], "../../../../../name"), Err(GapReason::Missing));
        let rows = tree.rows(&path("['by name'].*"));
        assert_eq!(rows.iter().filter_map(PageNode::key).collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn paths_with_mistakes() {
        for (path, part) in [
            ("$.a-b", "is no JSONPath"),
            ("$[", "is no JSONPath"),
            ("", "is no JSONPath"),
            ("$..a..b", "`..` more than once"),
            ("$.a[?@.b > $.c]", "`$` within a filter"),
            ("$[?match(@.a, 'x')]", "is no JSONPath"),
        ] {
            let error = PagePath::parse(path, PageFormat::Json).unwrap_err();
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(PagePath::parse("$['..']['..']['$']", PageFormat::Json).is_ok());
    }

    #[test]
    fn texts_in_other_encodings_and_pages_of_html() {
        let csv = PageFormat::Csv(CsvFormat { delimiter: b',', has_header: true, skip: 0 });
        assert_eq!(text(b"\xef\xbb\xbf1", PageFormat::Json).unwrap(), "1");
        assert_eq!(text(b"T \xb0C", csv).unwrap(), "T °C");
        assert_eq!(text(b"T \xb0C", PageFormat::Json).unwrap_err().what, "no UTF-8");
        assert_eq!(text(b"\xff\xfea\0", csv).unwrap_err().what, "no text");
        assert_eq!(text(b" \n", csv).unwrap_err().what, "an empty answer");
        for format in [csv, PageFormat::Json, PageFormat::Xml] {
            let fault = PageTree::parse("\n<!DOCTYPE HTML><html><body/></html>", format).err().unwrap();
            assert_eq!(fault.what, "a web page");
        }
    }
}
