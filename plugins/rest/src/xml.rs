//! XML: trees with bounds, and the paths of values in them.
//!
//! A path is a small part of XPath: `/ups/battery/charge`, `phase[@id='1']/voltage`, `//load`, `*`, `@attribute`, `../@name`, `row[2]`,
//! `input[type='mains']`. Names are those without a prefix of a namespace.

use std::borrow::Cow;

use roxmltree::{Document, Node, ParsingOptions};
use wholegrain_device_http::{NODES_MAX, TreeFault, TreeRoom};

use crate::value::PageScalar;

/// The most attributes of one element: the library compares each with all others.
const ATTRIBUTES_MAX: usize = 256;
/// The most declarations of namespaces in one text: the library copies them to each element below.
const NAMESPACES_MAX: usize = 256;
/// The bytes that the library allocates for each `<` and each `=` of a text before it parses, rounded up.
const MARK_BYTES: usize = 80;
/// The bytes of a declaration of a namespace at an element.
const NAMESPACE_BYTES: usize = 4;
/// The most steps of a path.
const STEPS_MAX: usize = 32;

/// Parses a text. A document type, which can define entities, is refused.
pub fn parse(text: &str) -> Result<(Document<'_>, TreeRoom), TreeFault> {
    let attributes = text.split('<').map(|tag| tag.bytes().filter(|byte| *byte == b'=').count()).max();
    if attributes.is_some_and(|count| count > ATTRIBUTES_MAX) {
        return Err(TreeFault::Wrong(format!("an element with more than {ATTRIBUTES_MAX} attributes")));
    }
    let namespaces = text.matches("xmlns").count();
    if namespaces > NAMESPACES_MAX {
        return Err(TreeFault::Wrong(format!("more than {NAMESPACES_MAX} namespaces")));
    }
    let count = |mark: u8| text.bytes().filter(|byte| *byte == mark).count();
    let (tags, values) = (count(b'<'), count(b'='));
    let room = TreeRoom::reserve((tags + values) * MARK_BYTES + tags * namespaces * NAMESPACE_BYTES + text.len())?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX as u32, ..ParsingOptions::default() };
    let tree = Document::parse_with_options(text, options).map_err(|error| TreeFault::Wrong(error.to_string()))?;
    Ok((tree, room))
}

/// Where in a tree something is.
#[derive(Debug, Clone, PartialEq)]
pub struct XmlPath {
    /// Whether it begins at the root, also from a row.
    is_absolute: bool,
    steps: Vec<XmlStep>,
    /// The attribute at the end.
    attribute: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum XmlStep {
    Parent,
    /// Elements of this name (`None`: of any), at any depth if `is_deep`.
    Elements {
        name: Option<String>,
        is_deep: bool,
        tests: Vec<XmlTest>,
    },
}

#[derive(Debug, Clone, PartialEq)]
enum XmlTest {
    /// The number among the elements that the step found below one parent, from 1 on.
    Position(usize),
    /// An attribute or the text of a child element; with a value, that it has this one.
    Attribute(String, Option<String>),
    Child(String, Option<String>),
}

impl XmlPath {
    /// Parses a path. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |reason: String| format!("the path {text:?} {reason}");
        let (is_absolute, mut rest) = match text.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mut steps, mut attribute) = (Vec::new(), None);
        while !rest.is_empty() || steps.is_empty() {
            // `//` at the beginning: the first `/` is consumed already.
            let is_deep = steps.is_empty() && is_absolute && rest.starts_with('/');
            rest = if is_deep { &rest[1..] } else { rest };
            let (step, after) = split_step(rest);
            rest = after;
            if let Some(name) = step.strip_prefix('@') {
                check_name(name).map_err(wrong)?;
                if !rest.is_empty() {
                    return Err(wrong("goes on after an attribute".to_owned()));
                }
                attribute = Some(name.to_owned());
                break;
            }
            if steps.len() == STEPS_MAX {
                return Err(wrong(format!("has more than {STEPS_MAX} steps")));
            }
            match step {
                ".." => steps.push(XmlStep::Parent),
                "" => return Err(wrong("has an empty step; `//` is for its beginning".to_owned())),
                step => steps.push(parse_step(step, is_deep).map_err(wrong)?),
            }
        }
        Ok(Self { is_absolute, steps, attribute })
    }

    /// The nodes at the path, from `base` on. A path with an attribute gives the elements that have it.
    pub fn nodes<'t, 'i>(&self, base: Node<'t, 'i>) -> Vec<Node<'t, 'i>> {
        let mut nodes = vec![if self.is_absolute { base.document().root() } else { base }];
        for step in &self.steps {
            match step {
                XmlStep::Parent => {
                    nodes = nodes.iter().filter_map(|node| node.parent()).collect();
                    nodes.dedup();
                }
                XmlStep::Elements { name, is_deep, tests } => {
                    let is_named = |node: &Node| {
                        node.is_element() && name.as_ref().is_none_or(|name| node.tag_name().name() == name)
                    };
                    let mut next = Vec::new();
                    for node in nodes {
                        let mut part: Vec<Node> = if *is_deep {
                            node.descendants().filter(is_named).collect()
                        } else {
                            node.children().filter(is_named).collect()
                        };
                        for test in tests {
                            match test {
                                XmlTest::Position(number) => part = part.get(number - 1).copied().into_iter().collect(),
                                test => part.retain(|node| test.is_true(*node)),
                            }
                        }
                        next.append(&mut part);
                    }
                    nodes = next;
                }
            }
        }
        match &self.attribute {
            Some(attribute) => nodes.into_iter().filter(|node| node.has_attribute(attribute.as_str())).collect(),
            None => nodes,
        }
    }

    /// What is at one of the nodes that [`XmlPath::nodes`] gave.
    pub fn scalar<'t>(&self, node: Node<'t, '_>) -> PageScalar<'t> {
        match &self.attribute {
            Some(attribute) => node.attribute(attribute.as_str()).map_or(PageScalar::Null, text_scalar),
            None => element_scalar(node),
        }
    }
}

fn text_scalar(text: &str) -> PageScalar<'_> {
    if text.trim().is_empty() { PageScalar::Null } else { PageScalar::Text(text.into()) }
}

/// The text of an element without elements. Comments can cut it into pieces.
fn element_scalar<'t>(node: Node<'t, '_>) -> PageScalar<'t> {
    let (mut text, mut pieces) = (Cow::Borrowed(""), 0);
    for child in node.children() {
        match (child.is_element(), child.text().filter(|_| child.is_text())) {
            (true, _) => return PageScalar::Structure,
            (false, Some(piece)) if pieces == 0 => (text, pieces) = (Cow::Borrowed(piece), 1),
            (false, Some(piece)) => text.to_mut().push_str(piece),
            (false, None) => {}
        }
    }
    if text.trim().is_empty() { PageScalar::Null } else { PageScalar::Text(text) }
}

impl XmlTest {
    fn is_true(&self, node: Node) -> bool {
        let is_equal =
            |expected: &Option<String>, text: &str| expected.as_ref().is_none_or(|expected| expected == text.trim());
        match self {
            Self::Position(_) => true,
            Self::Attribute(name, value) => node.attribute(name.as_str()).is_some_and(|text| is_equal(value, text)),
            Self::Child(name, value) => node.children().any(|child| {
                child.tag_name().name() == name && is_equal(value, &element_scalar(child).text().unwrap_or_default())
            }),
        }
    }
}

/// The first step and what follows its `/`, which is not one within brackets.
fn split_step(text: &str) -> (&str, &str) {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') if depth > 0 => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => depth -= 1,
            (None, '/') if depth == 0 => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    (text, "")
}

fn parse_step(step: &str, is_deep: bool) -> Result<XmlStep, String> {
    let (name, mut rest) = step.split_at(step.find('[').unwrap_or(step.len()));
    let name = match name {
        "*" => None,
        name => {
            check_name(name)?;
            Some(name.to_owned())
        }
    };
    let mut tests = Vec::new();
    while let Some(inner) = rest.strip_prefix('[') {
        // A quoted value can have brackets.
        let (mut quote, mut end) = (None, None);
        for (at, c) in inner.char_indices() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, ']') => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let end = end.ok_or("has `[` without `]`")?;
        tests.push(parse_test(&inner[..end])?);
        rest = &inner[end + 1..];
    }
    if !rest.is_empty() {
        return Err(format!("has {rest:?} after a test in brackets"));
    }
    Ok(XmlStep::Elements { name, is_deep, tests })
}

fn parse_test(test: &str) -> Result<XmlTest, String> {
    if let Ok(number) = test.trim().parse::<usize>() {
        return if number == 0 {
            Err("has [0]; the first one is [1]".to_owned())
        } else {
            Ok(XmlTest::Position(number))
        };
    }
    let (name, value) = match test.split_once('=') {
        None => (test.trim(), None),
        Some((name, quoted)) => {
            let quoted = quoted.trim();
            let value = ['\'', '"'].iter().find_map(|quote| quoted.strip_prefix(*quote)?.strip_suffix(*quote));
            (name.trim(), Some(value.ok_or("has a test whose value is not in quotes: [@id='1']")?.to_owned()))
        }
    };
    match name.strip_prefix('@') {
        Some(name) => check_name(name).map(|()| XmlTest::Attribute(name.to_owned(), value)),
        None => check_name(name).map(|()| XmlTest::Child(name.to_owned(), value)),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_good = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_good) || !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return Err(format!("has {name:?}, which is no name; names are without the prefix of a namespace"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPS: &str = r#"<?xml version="1.0"?>
<u:ups xmlns:u="urn:u" model="a b"><battery><charge unit="%"> 97.5 </charge><empty/></battery>
<phase id="1"><voltage>230<!-- V -->.5</voltage></phase><phase id="2"><voltage><![CDATA[231]]></voltage></phase>
<group name="g]/"><phase id="9"><voltage>1</voltage></phase></group></u:ups>"#;

    #[track_caller]
    fn check(path: &str, expected: &[&str]) {
        let (tree, _room) = parse(UPS).unwrap();
        let path = XmlPath::parse(path).unwrap();
        let nodes = path.nodes(tree.root());
        let texts = nodes.iter().map(|node| match path.scalar(*node) {
            PageScalar::Text(text) => text.trim().to_owned(),
            other => format!("{other:?}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), expected, "{path:?}");
    }

    #[test]
    fn paths_find_elements_and_attributes() {
        check("/ups/battery/charge", &["97.5"]);
        check("ups/battery/charge", &["97.5"]);
        check("/ups/@model", &["a b"]);
        check("/ups/battery/charge/@unit", &["%"]);
        check("/ups/battery/charge/@none", &[]);
        check("/ups/phase/voltage", &["230.5", "231"]);
        check("/ups/phase[@id='2']/voltage", &["231"]);
        check("/ups/phase[1]/voltage", &["230.5"]);
        check("/ups/phase[2][@id='1']/voltage", &[]);
        check("/ups/phase[voltage=\"231\"]/@id", &["2"]);
        check("/ups/*[voltage]/@id", &["1", "2"]);
        check("//voltage", &["230.5", "231", "1"]);
        check("/ups/group[@name='g]/']/phase/@id", &["9"]);
        check("/ups/battery/charge/../../@model", &["a b"]);
        check("/ups/battery", &["Structure"]);
        check("/ups/battery/empty", &["Null"]);
        check("/none", &[]);
        check("/../../ups", &[]);
    }

    #[test]
    fn paths_with_mistakes() {
        for (path, part) in [
            ("", "empty step"),
            ("/", "empty step"),
            ("a//b", "empty step"),
            ("a/@b/c", "goes on after an attribute"),
            ("u:a", "which is no name"),
            ("a[0]", "the first one is [1]"),
            ("a[@b=c]", "not in quotes"),
            ("a[1", "`[` without `]`"),
            ("a[1]b", "after a test"),
            ("text()", "which is no name"),
        ] {
            let error = XmlPath::parse(path).unwrap_err();
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(XmlPath::parse(&"a/".repeat(STEPS_MAX + 1)).unwrap_err().contains("more than 32 steps"));
    }

    #[test]
    fn bombs_are_refused() {
        let fault = |text: &str| parse(text).err().unwrap().to_string();
        let entities = "<!DOCTYPE a [<!ENTITY x \"xxxxxxxxxx\"><!ENTITY y \"&x;&x;&x;&x;&x;\">]><a>&y;</a>";
        assert!(fault(entities).contains("DTD"));
        let many: String = (0..=ATTRIBUTES_MAX).map(|number| format!(" a{number}='1'")).collect();
        assert!(fault(&format!("<a{many}/>")).contains("more than 256 attributes"));
        let spaces: String = (0..=NAMESPACES_MAX).map(|number| format!("<a xmlns:n{number}='u'>")).collect();
        assert!(fault(&spaces).contains("more than 256 namespaces"));
        assert!(parse(&format!("<a>{}</a>", "<b/>".repeat(NODES_MAX))).is_err());
        for text in [
            "<".repeat(1 << 20),
            "<a b=''/>".repeat(60_000),
            format!("<a {}/>", "xmlns:n='u' ".repeat(200) + &"<b/>".repeat(20_000)),
        ] {
            assert!(fault(&text).contains("more than 8 MiB as a tree"), "{text:.20}");
        }
        // Deep trees are parsed and searched without recursion.
        let deep = format!("{}1{}", "<a>".repeat(NODES_MAX - 10), "</a>".repeat(NODES_MAX - 10));
        let (tree, _room) = parse(&deep).unwrap();
        assert_eq!(XmlPath::parse("//b").unwrap().nodes(tree.root()).len(), 0);
    }
}
