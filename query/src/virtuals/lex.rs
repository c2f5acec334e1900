//! Reads numbers, names, operators and references. Only the parser knows the meaning of `<`: before an operand it opens a reference, after one it
//! compares.

use wholegrain_model::Interval;

use super::ast::{Binary, TextSpan};
use super::definition_error::{DefinitionError, word};

/// The text and how far it has been read.
pub(super) struct Lexer<'a> {
    pub text: &'a str,
    pub at: usize,
}

pub(super) enum Numeral {
    Number(f64, Option<String>),
    Length(Interval),
}

/// The operators; each stands after those that begin with it.
const OPERATORS: &[(&str, Binary)] = &[
    ("<=", Binary::LessOrEqual),
    (">=", Binary::GreaterOrEqual),
    ("==", Binary::Equal),
    ("!=", Binary::NotEqual),
    ("<", Binary::Less),
    (">", Binary::Greater),
    ("+", Binary::Add),
    ("-", Binary::Subtract),
    ("*", Binary::Multiply),
    ("/", Binary::Divide),
    ("^", Binary::Power),
];
/// Operators of other languages, with advice.
const FOREIGN: &[(&str, &str)] = &[
    ("**", "write ^ for a power"),
    ("&&", "write and"),
    ("||", "write or"),
    ("=", "write == to compare"),
    ("%", "write per cent as 5[%]; there is no remainder operator"),
    ("?", "write if(condition, then, otherwise)"),
];

impl<'a> Lexer<'a> {
    pub(crate) fn skip_blank(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    pub(crate) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(crate) fn peek(&mut self) -> Option<char> {
        self.skip_blank();
        self.rest().chars().next()
    }

    /// Takes `c` if it is next.
    pub fn take(&mut self, c: char) -> bool {
        let there = self.peek() == Some(c);
        self.at += if there { c.len_utf8() } else { 0 };
        there
    }

    /// The text at the current place, for a message.
    pub fn found(&mut self) -> (String, TextSpan) {
        self.skip_blank();
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return ("the end".to_owned(), TextSpan { start: self.at, end: self.at });
        };
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let length = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        (format!("`{}`", word(&rest[..length])), TextSpan { start: self.at, end: self.at + length })
    }

    pub(crate) fn refuse<T>(&self, span: TextSpan, message: impl Into<String>) -> Result<T, DefinitionError> {
        Err(DefinitionError::at(self.text, span, message))
    }

    /// The next name, if there is one: letters, digits, `_`. It is not taken.
    pub fn name(&mut self) -> Option<(&'a str, TextSpan)> {
        self.skip_blank();
        let rest = self.rest();
        rest.chars().next().filter(|c| c.is_alphabetic() || *c == '_')?;
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some((&rest[..length], TextSpan { start: self.at, end: self.at + length }))
    }

    /// The next operator, if there is one. It is not taken.
    pub fn operator(&mut self) -> Result<Option<(Binary, TextSpan)>, DefinitionError> {
        self.skip_blank();
        if let Some((name, span)) = self.name() {
            return Ok(match name {
                "and" => Some((Binary::And, span)),
                "or" => Some((Binary::Or, span)),
                _ => None,
            });
        }
        let rest = self.rest();
        let span = |text: &str| TextSpan { start: self.at, end: self.at + text.len() };
        let foreign = FOREIGN.iter().find(|(text, _)| rest.starts_with(text) && !rest.starts_with("=="));
        if let Some((text, instead)) = foreign {
            return self.refuse(span(text), format!("`{text}` is not an operator; {instead}"));
        }
        let found = OPERATORS.iter().find(|(text, _)| rest.starts_with(text));
        Ok(found.map(|(text, operator)| (*operator, span(text))))
    }

    /// A number with its unit, or a length of time. The next character is a digit or a dot.
    pub fn numeral(&mut self) -> Result<(Numeral, TextSpan), DefinitionError> {
        let (start, rest) = (self.at, self.rest());
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let mut length = digits(rest);
        if rest[length..].starts_with('.') {
            length += 1 + digits(&rest[length + 1..]);
        }
        if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let whole = digits(&exponent[sign..]);
            length += if whole > 0 { 1 + sign + whole } else { 0 };
        }
        if rest[length..].starts_with(|c: char| c.is_alphabetic() || c == 'µ') {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '.').unwrap_or(rest.len());
            self.at += end;
            let span = TextSpan { start, end: start + end };
            return match Interval::parse(&rest[..end]) {
                Ok(interval) => Ok((Numeral::Length(interval), span)),
                Err(error) => Err(DefinitionError::at(self.text, span, error.to_string())
                    .help(format!("write the unit of a number in brackets: {}[…]", &rest[..length]))),
            };
        }
        self.at += length;
        let span = TextSpan { start, end: self.at };
        let value: f64 = match rest[..length].parse() {
            Ok(value) if f64::is_finite(value) => value,
            _ => {
                return self.refuse(span, format!("{} is not a finite number", word(&rest[..length])));
            }
        };
        let unit = self.unit()?;
        Ok((Numeral::Number(value, unit), TextSpan { start, end: self.at }))
    }

    /// Takes `[…]` after a number. Codes can have brackets: `[[degF]]`.
    fn unit(&mut self) -> Result<Option<String>, DefinitionError> {
        let rest = self.rest();
        if !rest.starts_with('[') {
            return Ok(None);
        }
        let mut open = 0usize;
        let end = rest.char_indices().find(|(_, c)| {
            open = if *c == '[' {
                open + 1
            } else if *c == ']' {
                open.saturating_sub(1)
            } else {
                open
            };
            open == 0
        });
        let Some((end, _)) = end else {
            let span = TextSpan { start: self.at, end: self.at + 1 };
            return self.refuse(span, "the unit has no closing `]`");
        };
        let code = rest[1..end].trim().to_owned();
        let span = TextSpan { start: self.at, end: self.at + end + 1 };
        self.at = span.end;
        if code.is_empty() {
            return self
                .refuse(span, "the brackets contain no unit; write [1], or omit them for a number without unit");
        }
        Ok(Some(code))
    }

    /// Takes a reference in `<…>`. The next character is `<`.
    pub fn reference(&mut self) -> Result<(&'a str, TextSpan), DefinitionError> {
        let (start, rest) = (self.at, self.rest());
        let opening = TextSpan { start, end: start + 1 };
        let Some(end) = rest.find('>') else {
            return Err(DefinitionError::at(self.text, opening, "the reference has no closing `>`")
                .help("write a sensor as <name> or </path/name>"));
        };
        let span = TextSpan { start, end: start + end + 1 };
        let name = rest[1..end].trim();
        if name.is_empty() {
            return self.refuse(span, "the reference `<>` contains no name");
        }
        self.at = span.end;
        Ok((name, span))
    }
}
