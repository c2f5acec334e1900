//! Numbers, names, operators and references, one after the other. Which of them `<` begins is known to the parser only: where an operand is
//! wanted it opens a reference, after one it compares.

use wholegrain_model::Interval;

use super::ast::{Binary, TextSpan};
use super::definition_error::{DefinitionError, word};

/// The text and how far it has been read.
pub(super) struct Lexer<'a> {
    pub text: &'a str,
    pub at: usize,
}

/// A number, as it begins.
pub(super) enum Numeral {
    Number(f64, Option<String>),
    Length(Interval),
}

/// The operators; those that begin others stand after them.
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
/// What other languages write.
const FOREIGN: &[(&str, &str)] = &[
    ("**", "write ^ for a power"),
    ("&&", "write and"),
    ("||", "write or"),
    ("=", "write == to compare"),
    ("%", "hundredths are written 5[%]; a remainder there is none"),
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

    /// What stands at the place, for a message.
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

    /// The name that is next, if one is: letters, digits, `_`.
    pub fn name(&mut self) -> Option<(&'a str, TextSpan)> {
        self.skip_blank();
        let rest = self.rest();
        rest.chars().next().filter(|c| c.is_alphabetic() || *c == '_')?;
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some((&rest[..length], TextSpan { start: self.at, end: self.at + length }))
    }

    /// The operator that is next, if one is; it is not taken.
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
            return self.refuse(span(text), format!("`{text}` is no operator; {instead}"));
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
                    .help(format!("a number's unit stands in brackets: {}[…]", &rest[..length]))),
            };
        }
        self.at += length;
        let span = TextSpan { start, end: self.at };
        let value: f64 = match rest[..length].parse() {
            Ok(value) if f64::is_finite(value) => value,
            _ => {
                return self
                    .refuse(span, format!("{} is not a number that can be computed with", word(&rest[..length])));
            }
        };
        let unit = self.unit()?;
        Ok((Numeral::Number(value, unit), TextSpan { start, end: self.at }))
    }

    /// `[…]` after a number. Codes hold brackets of their own: `[[degF]]`.
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
            return self.refuse(span, "the unit that `[` opens has no `]`");
        };
        let code = rest[1..end].trim().to_owned();
        let span = TextSpan { start: self.at, end: self.at + end + 1 };
        self.at = span.end;
        if code.is_empty() {
            return self.refuse(span, "there is no unit between the brackets; write [1] or none for a bare number");
        }
        Ok(Some(code))
    }

    /// What stands between `<` and `>`. The next character is `<`.
    pub fn reference(&mut self) -> Result<(&'a str, TextSpan), DefinitionError> {
        let (start, rest) = (self.at, self.rest());
        let opening = TextSpan { start, end: start + 1 };
        let Some(end) = rest.find('>') else {
            return Err(DefinitionError::at(self.text, opening, "the sensor's name that `<` opens has no `>`")
                .help("a sensor is written <name> or </path/name>"));
        };
        let span = TextSpan { start, end: start + end + 1 };
        let name = rest[1..end].trim();
        if name.is_empty() {
            return self.refuse(span, "there is no sensor's name between `<` and `>`");
        }
        self.at = span.end;
        Ok((name, span))
    }
}
