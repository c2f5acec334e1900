//! The grammar of the UCUM: `.` and `/` from left to right, exponents after a unit, integers as factors, annotations in braces.

use super::error::{CODE_BYTES_MAX, DEPTH_MAX, EXPONENT_MAX, UnitError};
use super::magnitude::Magnitude;
use super::measure::Measure;
use super::nearest;
use super::symbol::{Atoms, unit};

/// The most digits of an integer factor.
const DIGITS_MAX: usize = 18;

/// One factor of a code: `kW`, `m` to the power 2, `{cpu}`, `10`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Factor<'a> {
    /// A unit with its prefix, or an integer; empty for an annotation alone.
    pub base: &'a str,
    /// With its braces, or empty.
    pub annotation: &'a str,
    /// Negative for a divisor.
    pub exponent: i32,
}

/// Returns the value of a code, and its factors in order.
pub(super) fn parse<'a>(code: &'a str, atoms: &Atoms) -> Result<(Measure, Vec<Factor<'a>>), UnitError> {
    parse_with(code, atoms, true)
}

/// `suggest` adds a similar valid code to an error.
fn parse_with<'a>(code: &'a str, atoms: &Atoms, suggest: bool) -> Result<(Measure, Vec<Factor<'a>>), UnitError> {
    let mut parser = Parser { code, at: 0, depth: 0, atoms, suggest, factors: Vec::new() };
    if code.len() > CODE_BYTES_MAX {
        let code = code.chars().take(40).collect();
        return Err(UnitError::Beyond { code, reason: "it is longer than 256 bytes" });
    }
    let measure = parser.term(1)?;
    Ok((measure, parser.factors))
}

struct Parser<'a, 'b> {
    code: &'a str,
    /// The offset of the next byte.
    at: usize,
    depth: usize,
    atoms: &'b Atoms,
    suggest: bool,
    factors: Vec<Factor<'a>>,
}

impl<'a> Parser<'a, '_> {
    /// Parses components separated by `.` and `/` up to the end or the closing parenthesis. `sign` is -1 in a divisor.
    fn term(&mut self, sign: i32) -> Result<Measure, UnitError> {
        let mut product = match self.peek() {
            Some('/') => Measure::ONE,
            _ => self.component(sign)?,
        };
        loop {
            let start = self.at;
            product = match self.peek() {
                None if self.depth == 0 => return Ok(product),
                Some(')') if self.depth > 0 => return Ok(product),
                Some(operator @ ('.' | '/')) => {
                    self.at += 1;
                    let power = if operator == '.' { 1 } else { -1 };
                    let next = self.component(sign * power)?;
                    self.bounded(next.power(power).and_then(|next| product.times(next)), start)?
                }
                None => return Err(self.refuse(start, "a `)` is missing".to_owned())),
                Some(')') => return Err(self.refuse(start, "there is no `(` for this `)`".to_owned())),
                Some(other) => {
                    let text = format!("`{other}` is not allowed here; write `.` or `/` between units");
                    return Err(self.refuse(start, text));
                }
            };
        }
    }

    fn component(&mut self, sign: i32) -> Result<Measure, UnitError> {
        let start = self.at;
        match self.peek() {
            Some('(') => self.parenthesis(sign),
            Some('{') => {
                let annotation = self.annotation()?;
                self.factors.push(Factor { base: "", annotation, exponent: sign });
                Ok(Measure::ONE)
            }
            Some(c) if c.is_ascii_digit() && !["10*", "10^"].iter().any(|ten| self.rest().starts_with(ten)) => {
                self.integer(sign)
            }
            None => Err(self.refuse(start, "a unit is missing".to_owned())),
            Some('.' | '/' | ')') => Err(self.refuse(start, "a unit is missing before this".to_owned())),
            Some(_) => self.simple(sign),
        }
    }

    fn parenthesis(&mut self, sign: i32) -> Result<Measure, UnitError> {
        let start = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.refuse(start, format!("parentheses are nested more than {DEPTH_MAX} deep")));
        }
        let inner = self.term(sign)?;
        self.at += 1;
        self.depth -= 1;
        match self.peek() {
            Some(c) if c.is_ascii_digit() || matches!(c, '+' | '-' | '^' | '*') => {
                Err(self
                    .refuse(self.at, "parentheses take no exponent; write it after each unit, as in `m2/s2`".into()))
            }
            _ => Ok(inner),
        }
    }

    fn integer(&mut self, sign: i32) -> Result<Measure, UnitError> {
        let start = self.at;
        let digits = self.while_digits();
        let refuse = |text: &str| Err(self.refuse(start, text.to_owned()));
        if digits.len() > DIGITS_MAX {
            return refuse("a factor has at most 18 digits; write powers of ten as `10*20`");
        }
        let after = self.rest().as_bytes();
        if after.first() == Some(&b'.')
            && after.get(1).is_some_and(u8::is_ascii_digit)
            && ![b".10*", b".10^"].iter().any(|ten| after.starts_with(*ten))
        {
            return refuse("in a unit `.` multiplies, so 2.5 would be 10; factors are integers, `25.10*-1` is 2.5");
        }
        if !matches!(after.first(), None | Some(b'.' | b'/' | b')')) {
            return refuse("write `.` or `/` after a factor, as in `10.m`");
        }
        let Some(magnitude) = digits.parse().ok().and_then(|digits| Magnitude::decimal(digits, 0)) else {
            return refuse("a factor of 0 is not a unit");
        };
        self.factors.push(Factor { base: digits, annotation: "", exponent: sign });
        Ok(Measure { magnitude, ..Measure::ONE })
    }

    /// Parses a unit with or without a prefix, its exponent and its annotation.
    fn simple(&mut self, sign: i32) -> Result<Measure, UnitError> {
        let start = self.at;
        let base = self.name();
        let found = unit(base, self.atoms);
        let end = self.at;
        let of = found.map_err(|reason| {
            let suggestion = if self.suggest { nearest::suggest(base, self.atoms) } else { None };
            let suggestion = suggestion.map(|name| format!("{}{name}{}", &self.code[..start], &self.code[end..]));
            // The suggested code must be valid up to here; what follows may have another error.
            let suggestion = suggestion.filter(|code| match parse_with(code, self.atoms, false) {
                Ok(_) => true,
                Err(error) => error.at().is_some_and(|at| at > start),
            });
            UnitError::Code { code: self.code.to_owned(), at: start, reason, suggestion }
        })?;
        let exponent = self.exponent()?;
        let annotation = if self.peek() == Some('{') { self.annotation()? } else { "" };
        self.factors.push(Factor { base, annotation, exponent: sign * exponent.unwrap_or(1) });
        match exponent {
            None => Ok(of),
            Some(exponent) => self.bounded(of.power(exponent), start),
        }
    }

    /// Takes a name. Within brackets it can have any character.
    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        if rest.starts_with("10*") || rest.starts_with("10^") {
            self.at += 3;
            return &rest[..3];
        }
        let mut brackets = 0usize;
        let end = rest.find(|c: char| {
            match c {
                '[' => brackets += 1,
                ']' => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            brackets == 0 && (matches!(c, '.' | '/' | '(' | ')' | '{' | '}' | '+' | '-' | '^') || c.is_ascii_digit())
        });
        // At least one character is taken, so that the error can show it.
        let end = match end {
            Some(0) => rest.chars().next().map_or(0, char::len_utf8),
            Some(end) => end,
            None => rest.len(),
        };
        self.at += end;
        &rest[..end]
    }

    fn exponent(&mut self) -> Result<Option<i32>, UnitError> {
        let start = self.at;
        let sign = if self.take('-') { -1 } else { 1 };
        let signed = sign < 0 || self.take('+');
        let digits = self.while_digits();
        match digits.parse::<i32>() {
            _ if digits.is_empty() && signed => Err(self.refuse(start, "an exponent is missing".to_owned())),
            _ if digits.is_empty() => Ok(None),
            Ok(exponent) if exponent <= EXPONENT_MAX => Ok(Some(sign * exponent)),
            _ => Err(self.refuse(start, format!("exponents are at most {EXPONENT_MAX}"))),
        }
    }

    fn annotation(&mut self) -> Result<&'a str, UnitError> {
        let (start, rest) = (self.at, self.rest());
        let Some(end) = rest.find('}') else {
            return Err(self.refuse(start, "the annotation has no `}`".to_owned()));
        };
        if let Some(at) = rest[1..end].find(|c: char| !c.is_ascii_graphic() || c == '{') {
            let text = "an annotation consists of visible ASCII characters without braces".to_owned();
            return Err(self.refuse(start + 1 + at, text));
        }
        self.at += end + 1;
        Ok(&rest[..=end])
    }

    fn while_digits(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn rest(&self) -> &'a str {
        &self.code[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        self.at += if found { expected.len_utf8() } else { 0 };
        found
    }

    fn bounded(&self, measure: Option<Measure>, at: usize) -> Result<Measure, UnitError> {
        measure
            .ok_or_else(|| self.refuse(at, "here the unit becomes too large or too small to compute with".to_owned()))
    }

    fn refuse(&self, at: usize, reason: String) -> UnitError {
        UnitError::Code { code: self.code.to_owned(), at, reason, suggestion: None }
    }
}
