//! A table of a document as a text of its own, with the lines that it comes from.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, Section};

/// A table as TOML of its own: its keys are the keys of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableText {
    pub text: String,
    /// For each line of the text the line of the document, from 1.
    pub lines: Vec<usize>,
}

impl TableText {
    /// The line of the document for a line of the text, both from 1; that of its first line if there is no such line.
    pub fn line(&self, line: usize) -> usize {
        self.lines.get(line.wrapping_sub(1)).or(self.lines.first()).copied().unwrap_or(1)
    }

    fn push(&mut self, text: &str, line: usize) {
        for (count, part) in text.split('\n').enumerate() {
            self.text.push_str(part);
            self.text.push('\n');
            self.lines.push(line + count);
        }
    }
}

impl Section {
    /// This table without the keys `left_out` as a text of its own. A missing table is empty.
    pub fn text_without(&self, left_out: &[&str]) -> Result<TableText, ConfigError> {
        let mut writer = TableWriter { document: &self.document.text, out: TableText::default() };
        let table = self.table()?.into_inner();
        let own = table.into_iter().filter(|(key, _)| !left_out.contains(&key.get_ref().as_ref()));
        writer.table("", &own.collect());
        Ok(writer.out)
    }

    /// An error at `line` of the document, from 1.
    pub fn error_in_line(&self, line: usize, message: impl Into<String>) -> ConfigError {
        ConfigError { line, column: 1, ..self.document.error(0, message) }
    }
}

struct TableWriter<'a> {
    document: &'a str,
    out: TableText,
}

/// How a value was written.
enum Written {
    /// In the line of its key, after `key =`.
    Inline,
    /// Below a header, or by dotted keys.
    Table,
    /// Below several headers of the form `[[key]]`.
    Tables,
}

impl<'a> TableWriter<'a> {
    fn text_of<T>(&self, value: &Spanned<T>) -> &'a str {
        self.document.get(value.span()).unwrap_or_default()
    }

    fn written(&self, value: &Spanned<DeValue<'_>>) -> Written {
        match value.get_ref() {
            DeValue::Table(_) if !self.text_of(value).starts_with('{') => Written::Table,
            DeValue::Array(items) => {
                let is_header = |item: &Spanned<DeValue<'_>>| matches!(self.written(item), Written::Table);
                if !items.is_empty() && items.iter().all(is_header) { Written::Tables } else { Written::Inline }
            }
            _ => Written::Inline,
        }
    }

    fn line(&self, offset: usize) -> usize {
        self.document.get(..offset).map_or(0, |before| before.matches('\n').count()) + 1
    }

    /// Writes a table whose header is written: first its values, then the tables in it.
    fn table(&mut self, path: &str, table: &DeTable<'_>) {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let (values, tables): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(_, value)| matches!(self.written(value), Written::Inline));
        for (key, value) in values {
            let line = self.line(key.span().start);
            let text = format!("{} = {}", self.text_of(key), self.text_of(value));
            self.out.push(&text, line);
        }
        for (key, value) in tables {
            let name = self.text_of(key);
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            match value.get_ref() {
                DeValue::Table(inner) => {
                    self.out.push(&format!("[{path}]"), self.line(key.span().start));
                    self.table(&path, inner);
                }
                DeValue::Array(items) => {
                    for item in items.iter() {
                        let line = self.line(item.span().start);
                        self.out.push(&format!("[[{path}]]"), line);
                        if let DeValue::Table(inner) = item.get_ref() {
                            self.table(&path, inner);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Document;

    #[track_caller]
    fn check(document: &str, expected: &str, lines: &[usize]) {
        let section = Document::new("agent.toml", document).root().child("plugins").child("pdu");
        let text = section.text_without(&["library", "isolate"]).unwrap();
        assert_eq!((text.text.as_str(), &text.lines[..]), (expected, lines));
        let whole: toml::Table = document.parse().unwrap();
        let own: toml::Table = text.text.parse().unwrap();
        let mut given = whole["plugins"]["pdu"].as_table().unwrap().clone();
        given.retain(|key, _| !["library", "isolate"].contains(&key));
        assert_eq!(own, given, "both mean the same");
    }

    #[test]
    fn a_table_keeps_its_meaning_and_its_lines() {
        check(
            "name = \"n\"\n[plugins.pdu]\nlibrary = \"x.so\"\nhosts = [\"a\",\n  \"b\"]\n\n\"odd key\" = 1\n",
            "hosts = [\"a\",\n  \"b\"]\n\"odd key\" = 1\n",
            &[4, 5, 7],
        );
        check(
            "[plugins.pdu.deep.er]\na = 1\n[plugins.pdu]\nx = { y = 1, z = [{ a = 1 }] }\nd.e = 2\nisolate = false\n",
            "x = { y = 1, z = [{ a = 1 }] }\n[deep]\n[deep.er]\na = 1\n[d]\ne = 2\n",
            &[4, 1, 1, 2, 5, 5],
        );
        check(
            "[[plugins.pdu.device]]\nname = \"a\"\n[plugins.pdu.device.login]\nuser = \"u\"\n[[plugins.pdu.device]]\nname = '''b\nc'''\n[plugins.other]\nx = 1\n",
            "[[device]]\nname = \"a\"\n[device.login]\nuser = \"u\"\n[[device]]\nname = '''b\nc'''\n",
            &[1, 2, 3, 4, 5, 6, 7],
        );
        check("[plugins]\npdu = { a = 1, library = \"x\" }\n", "a = 1\n", &[2]);
        check("[plugins]\npdu.a = [[1, 2], [3]]\npdu.b = []\n", "a = [[1, 2], [3]]\nb = []\n", &[2, 3]);
        check("[plugins.pdu]\nlibrary = \"x\"\n", "", &[]);
    }

    #[test]
    fn lines_of_errors() {
        let document = "[plugins.pdu]\nlibrary = \"x\"\nhosts = 1\n";
        let section = Document::new("agent.toml", document).root().child("plugins").child("pdu");
        let text = section.text_without(&["library"]).unwrap();
        assert_eq!((text.line(1), text.line(0), text.line(9)), (3, 3, 3));
        assert_eq!(section.error_in_line(text.line(1), "no").to_string(), "agent.toml:3:1: no");
    }
}
