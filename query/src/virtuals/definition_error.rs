//! Errors in expressions and definitions, with the place in the text marked.

use std::fmt;

use super::ast::TextSpan;

/// The most characters of a line that a message shows.
const SHOWN_MAX: usize = 100;
/// The most characters of a name or number in a message.
const WORD_MAX: usize = 60;

/// An error in a definition. `Display` writes the message, the line of the text with the place marked below it, and help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionError {
    pub message: String,
    /// The text and the place in it; `None` if the error is about the whole definition.
    pub at: Option<(String, TextSpan)>,
    /// Advice, line by line.
    pub help: Vec<String>,
    /// Path of the definition; empty for an expression alone.
    pub path: String,
}

impl DefinitionError {
    /// An error at a place in a text.
    pub fn at(text: &str, span: TextSpan, message: impl Into<String>) -> Self {
        Self { message: message.into(), at: Some((text.to_owned(), span)), help: Vec::new(), path: String::new() }
    }

    /// An error about the whole definition.
    pub fn whole(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None, help: Vec::new(), path: String::new() }
    }

    /// Adds a line of help.
    #[must_use]
    pub fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    /// Sets the path of the definition.
    #[must_use]
    pub fn of(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// The line of the text, and the marks below it.
    fn marked(&self) -> Option<(String, String)> {
        let (text, span) = self.at.as_ref()?;
        let start = floor(text, span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let end = floor(text, span.end).clamp(start, line_end);
        let line: Vec<char> = text[line_start..line_end].chars().collect();
        let (before, marks) = (text[line_start..start].chars().count(), text[start..end].chars().count());
        // A long line is cut around the place.
        let first = if before + marks.min(SHOWN_MAX / 2) <= SHOWN_MAX { 0 } else { before - SHOWN_MAX / 2 };
        let last = line.len().min(first + SHOWN_MAX);
        let shown: String = line[first..last].iter().map(|c| if c.is_control() { ' ' } else { *c }).collect();
        let (head, tail) = (if first > 0 { "…" } else { "" }, if last < line.len() { "…" } else { "" });
        let blank = " ".repeat(before - first + head.chars().count());
        let marks = "^".repeat(marks.min(last.saturating_sub(before)).max(1));
        Some((format!("{head}{shown}{tail}"), format!("{blank}{marks}")))
    }
}

/// The start of the character that contains a byte.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Shortens a word to one line for a message.
pub(super) fn word(text: &str) -> String {
    let mut shown: String = text.chars().take(WORD_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some((line, marks)) = self.marked() {
            write!(f, "\n  {line}\n  {marks}")?;
        }
        self.help.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

impl std::error::Error for DefinitionError {}
