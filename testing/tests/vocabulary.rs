//! Names and prose use the words of `docs/glossary.md`; types have unique names; docs have content.

use std::collections::{BTreeMap, BTreeSet};

use wholegrain_testkit::checkout::{files, root, test_modules};

/// The glossary contains the refused words; this file uses some in its tests.
const EXEMPT: &[&str] = &["docs/glossary.md", "testing/tests/vocabulary.rs"];

/// Names of others that contain a refused word.
const FOREIGN: &[&str] = &["NotFound", "NoItemsFound", "SESSION_TAKEN_OVER", "SessionTakenOver", "session taken over"];

/// How many types may have the same name.
const SAME_NAME_MAX: usize = 2;
/// Shorter docs only repeat a name.
const DOC_WORDS_MIN: usize = 4;
/// Crates whose public items need docs. Fields and variants need none.
const LIBRARIES: &[&str] =
    &["model/src/", "query/src/", "sources/src/", "sources/abi/src/", "store/src/", "transport/src/"];

/// The checked text files in git, with their paths from the root. `VOCABULARY=store/` limits them to a folder.
fn checked() -> Vec<(String, String)> {
    let only = std::env::var("VOCABULARY").ok();
    let is_chosen = |path: &str| only.as_ref().is_none_or(|folder| path.starts_with(folder.as_str()));
    let ends = [".rs", ".md", ".toml", ".py", ".ts", ".svelte", ".sh"];
    files()
        .into_iter()
        .filter(|path| ends.iter().any(|end| path.ends_with(end)))
        .filter(|path| !EXEMPT.contains(&path.as_str()) && is_chosen(path))
        .filter_map(|path| Some((path.clone(), std::fs::read_to_string(root().join(&path)).ok()?)))
        .collect()
}

#[track_caller]
fn report(findings: Vec<String>) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// A word or phrase that is refused, and its replacement.
#[derive(Debug, PartialEq)]
struct Refused {
    words: Vec<String>,
    /// Refused at the beginning of a type's name only: the plain word is good English, and so is `NotFound`.
    in_types_only: bool,
    replacement: String,
}

/// Parses the last table of the glossary. Entries with a capital are refused at the beginning of types' names, other entries everywhere.
fn refused(glossary: &str) -> Vec<Refused> {
    let (_, table) = glossary.split_once("\n## Words that are not used\n").expect("the table of refused words");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.skip(1)
        .flat_map(|(left, right)| left.split(", ").map(move |phrase| (phrase.trim_matches('`'), right)))
        .map(|(phrase, right)| Refused {
            words: words(phrase).map(|(word, _)| word).collect(),
            in_types_only: phrase.starts_with(char::is_uppercase),
            replacement: right.to_owned(),
        })
        .collect()
}

/// The words of a line in lower case, with names split (`take_over`, `KeptOf`), and whether a type's name begins with the word.
fn words(line: &str) -> impl Iterator<Item = (String, bool)> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|name| !name.is_empty()).flat_map(|name| {
        let is_type = is_type_name(name);
        let mut parts: Vec<String> = Vec::new();
        let mut was_lower = false;
        for c in name.chars() {
            if c == '_' || (c.is_uppercase() && was_lower) || parts.is_empty() {
                parts.push(String::new());
            }
            was_lower = c.is_lowercase() || c.is_ascii_digit();
            if let Some(part) = parts.last_mut().filter(|_| c != '_') {
                part.extend(c.to_lowercase());
            }
        }
        parts.into_iter().filter(|part| !part.is_empty()).enumerate().map(move |(at, part)| (part, is_type && at == 0))
    })
}

/// Whether a word has the form of a type's name: `Kept`, `KeptOf`, not `kept` or `KEPT`.
fn is_type_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains(|c: char| c.is_ascii_lowercase())
}

/// The refused words of a line; `is_code` says whether capitalized words are types or beginnings of sentences.
fn found<'a>(line: &str, is_code: bool, refused: &'a [Refused]) -> Vec<&'a Refused> {
    let all: Vec<(String, bool)> = words(line).collect();
    let is_here = |refused: &Refused| {
        let mut places = all.windows(refused.words.len());
        places.any(|place| {
            let is_same = place.iter().zip(&refused.words).all(|((word, _), expected)| word == expected);
            is_same && (!refused.in_types_only || (is_code && place[0].1))
        })
    };
    refused.iter().filter(|refused| is_here(refused)).collect()
}

#[test]
fn no_word_is_used_that_the_glossary_refuses() {
    let glossary = std::fs::read_to_string(root().join("docs/glossary.md")).expect("docs/glossary.md");
    let refused = refused(&glossary);
    assert!(refused.len() > 40, "the table has {} words: is this test blind?", refused.len());
    let mut findings = Vec::new();
    for (path, text) in checked() {
        for (number, line) in text.lines().enumerate() {
            let line = &FOREIGN.iter().fold(line.to_owned(), |line, name| line.replace(name, ""));
            let is_code = path.ends_with(".rs") && !line.trim_start().starts_with("//");
            let code = if is_code { without_strings(line) } else { line.to_owned() };
            let mut all = found(&code, is_code, &refused);
            if is_code && code != *line {
                all.extend(found(line, false, &refused));
            }
            all.dedup();
            for one in all {
                findings.push(format!("{path}:{}: `{}`; write {}", number + 1, one.words.join(" "), one.replacement));
            }
        }
    }
    report(findings);
}

/// The line without string literals and without its comment.
fn without_strings(line: &str) -> String {
    let mut code = String::new();
    let (mut in_string, mut before) = (false, ' ');
    for c in line.chars() {
        match c {
            '"' if before != '\\' && before != '\'' => in_string = !in_string,
            _ if in_string => {}
            '/' if before == '/' => {
                code.pop();
                break;
            }
            _ => code.push(c),
        }
        before = c;
    }
    code
}

#[test]
fn refused_words_are_found_in_names_and_in_prose() {
    let table = "x\n## Words that are not used\n\n| not | but |\n|---|---|\n| anew | again |\n| is wanted | is expected |\n| Kept, `Desk` | IncrementalParser |\n";
    let refused = refused(table);
    assert_eq!(refused.len(), 4, "{refused:?}");
    for (line, is_code, expected) in [
        ("/// Reads it anew.", false, 1),
        ("fn read_anew() {}", true, 1),
        ("what is wanted", false, 1),
        ("what is\twanted by it is wanted", false, 1),
        ("wanted is", false, 0),
        ("let kept = 1;", true, 0),
        ("struct KeptOf(Desk);", true, 2),
        ("struct NotKept;", true, 0),
        ("// Kept for later.", false, 0),
        ("renewed", true, 0),
    ] {
        assert_eq!(found(line, is_code, &refused).len(), expected, "{line}");
    }
    assert_eq!(without_strings("a(\"Kept \\\" x\", b) // Kept"), "a(, b) ");
}

/// The name of a type that the line defines at the top level of a file or in a function; not of associated types.
fn defined(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let is_nested = text.len() != line.len();
    let text = match text.strip_prefix("pub") {
        Some(rest) => rest.strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or(rest, |(_, rest)| rest)),
        None => text,
    };
    let (keyword, rest) = text.trim_start().split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&keyword) || (keyword == "type" && !is_nested);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (is_type && rest.starts_with(char::is_uppercase)).then_some(&rest[..end])
}

#[test]
fn types_have_names_of_their_own() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let files = checked();
    let tests: BTreeSet<String> = files.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let is_product =
        |path: &str| !["/tests/", "/examples/"].iter().any(|part| path.contains(part)) && !tests.contains(path);
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && is_product(path)) {
        for (number, line) in text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]") {
            if let Some(name) = defined(line) {
                places.entry(name.to_owned()).or_default().push(format!("{path}:{}", number + 1));
            }
        }
    }
    let often = places.into_iter().filter(|(_, places)| places.len() > SAME_NAME_MAX);
    report(
        often
            .map(|(name, places)| format!("{name} is defined {} times: {}", places.len(), places.join(", ")))
            .collect(),
    );
}

#[test]
fn definitions_of_types_are_found() {
    for (line, name) in [
        ("pub struct Schema {", Some("Schema")),
        ("pub(crate) enum Level<'a> {", Some("Level")),
        ("type Rows = Vec<u8>;", Some("Rows")),
        ("    type Item = u8;", None),
        ("    struct Inner;", Some("Inner")),
        ("/// struct Schema", None),
    ] {
        assert_eq!(defined(line), name, "{line}");
    }
}

#[test]
fn docs_say_something() {
    let mut findings = Vec::new();
    for (path, text) in checked().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]").collect();
        let is_library = LIBRARIES.iter().any(|folder| path.starts_with(folder));
        let mut doc: Vec<&str> = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            if let Some(text) = line.strip_prefix("///") {
                doc.push(text);
                continue;
            }
            // Attributes between an item and its doc, on one line or several.
            if line.starts_with("#[") || line.starts_with(")]") {
                continue;
            }
            let words = doc.iter().flat_map(|text| text.split_whitespace()).count();
            if !doc.is_empty() && words < DOC_WORDS_MIN {
                findings.push(format!("{path}:{number}: a doc of {words} words; say more, or let the name say it"));
            }
            if is_library && doc.is_empty() && is_public_item(line) {
                findings.push(format!("{path}:{}: a public item without a doc: {line}", number + 1));
            }
            doc.clear();
        }
    }
    report(findings);
}

/// Whether the line begins a public item: no field, no variant, no re-export.
fn is_public_item(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("pub ") else { return false };
    let words = ["struct ", "enum ", "trait ", "fn ", "async fn ", "unsafe fn ", "const ", "static ", "type "];
    words.iter().any(|word| rest.starts_with(word))
}
