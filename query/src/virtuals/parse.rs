//! Parses expressions by operator precedence. Every recursion counts against [`NESTED_MAX`], which bounds the stack for any text.

use wholegrain_model::suggest::nearest;
use wholegrain_model::{Interval, Pattern};

use super::absolute;
use super::ast::{Along, Binary, Expr, ExprNode, Function, Reference, TextSpan, Unary};
use super::definition_error::{DefinitionError, word};
use super::lex::{Lexer, Numeral};
use crate::query::Agg;

/// The longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 64 << 10;
/// The greatest depth of the tree. Each operation in a row adds a level.
pub const DEPTH_MAX: usize = 128;
/// The deepest nesting of parentheses, functions and signs.
pub const NESTED_MAX: usize = 64;
/// The most numbers, sensors and operations of one expression.
pub const NODES_MAX: usize = 4096;
/// The largest absolute exponent of `^`.
const POWER_MAX: i32 = 9;

/// Describes an operand in messages.
const OPERAND: &str = "a number, a sensor in <…>, a function or `(`";
/// Describes the second operand of a function along time in messages.
const LENGTH: &str = "a length of time such as 5min or 1h";

/// The precedence of prefixes.
const NOT: u8 = 3;
const MINUS: u8 = 8;

/// A function by its operands.
#[derive(Clone, Copy)]
enum CallKind {
    If,
    Function(Function),
    /// `min` and `max`: of several operands at one time, or over the sensors of one reference.
    Either(Function, Agg),
    Over(Agg),
    Rate,
    Delta,
    Integral,
    Moving(Agg),
}

const FUNCTIONS: &[(&str, CallKind)] = &[
    ("if", CallKind::If),
    ("abs", CallKind::Function(Function::Abs)),
    ("clamp", CallKind::Function(Function::Clamp)),
    ("sqrt", CallKind::Function(Function::Sqrt)),
    ("exp", CallKind::Function(Function::Exp)),
    ("ln", CallKind::Function(Function::Ln)),
    ("min", CallKind::Either(Function::Min, Agg::Min)),
    ("max", CallKind::Either(Function::Max, Agg::Max)),
    ("sum", CallKind::Over(Agg::Sum)),
    ("mean", CallKind::Over(Agg::Mean)),
    ("count", CallKind::Over(Agg::Count)),
    ("first", CallKind::Over(Agg::First)),
    ("last", CallKind::Over(Agg::Last)),
    ("rate", CallKind::Rate),
    ("delta", CallKind::Delta),
    ("integral", CallKind::Integral),
    ("moving_average", CallKind::Moving(Agg::Mean)),
    ("moving_min", CallKind::Moving(Agg::Min)),
    ("moving_max", CallKind::Moving(Agg::Max)),
    ("moving_sum", CallKind::Moving(Agg::Sum)),
    ("moving_count", CallKind::Moving(Agg::Count)),
    ("moving_first", CallKind::Moving(Agg::First)),
    ("moving_last", CallKind::Moving(Agg::Last)),
];

/// Names of functions in other languages.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("average", "mean"),
    ("avg", "mean"),
    ("moving_mean", "moving_average"),
    ("derivative", "rate"),
    ("log", "ln"),
    ("pow", "^"),
    ("fabs", "abs"),
    ("total", "sum"),
];

/// The names of all functions.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|(name, _)| *name)
}

/// Parses the expression of a virtual sensor; relative references start at the place of `path`.
pub fn parse(text: &str, path: &str) -> Result<Expr, DefinitionError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let message = format!("the expression has {} bytes, at most {EXPRESSION_BYTES_MAX} are allowed", text.len());
        return Err(DefinitionError::whole(message).help("define parts of it as virtual sensors"));
    }
    if text.trim().is_empty() {
        return Err(DefinitionError::whole("the expression is empty"));
    }
    let mut parser = Parser { lexer: Lexer { text, at: 0 }, path, depth: 0, nodes: 0 };
    let (expr, _) = parser.expression(0)?;
    let (found, span) = parser.lexer.found();
    if !span.is_empty() {
        let message = match found.as_str() {
            "`)`" => "this `)` has no `(`".to_owned(),
            "`,`" => "this `,` is outside of a function".to_owned(),
            _ => format!("expected an operator or the end, found {found}"),
        };
        return parser.lexer.refuse(span, message);
    }
    Ok(expr)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    path: &'a str,
    depth: usize,
    nodes: usize,
}

/// A tree with its depth.
type ParsedTree = (Expr, usize);

impl Parser<'_> {
    fn node(&mut self, node: ExprNode, span: TextSpan, below: usize) -> Result<ParsedTree, DefinitionError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = format!("the expression has more than {NODES_MAX} numbers, sensors and operations");
            return Err(DefinitionError::at(self.lexer.text, span, message)
                .help("use sum(<…/*/…>) for many sensors, or define parts of it as virtual sensors"));
        }
        self.fits(below + 1, span)?;
        Ok((Expr { node, span }, below + 1))
    }

    fn fits(&self, depth: usize, span: TextSpan) -> Result<(), DefinitionError> {
        if depth > DEPTH_MAX {
            let message = format!("the expression is more than {DEPTH_MAX} operations deep");
            return Err(DefinitionError::at(
                self.lexer.text,
                TextSpan { start: span.end.saturating_sub(1), ..span },
                message,
            )
            .help("use sum(<…/*/…>) for many sensors, or define parts of it as virtual sensors"));
        }
        Ok(())
    }

    /// Parses an expression of operators with at least the precedence `least`.
    fn expression(&mut self, least: u8) -> Result<ParsedTree, DefinitionError> {
        self.depth += 1;
        if self.depth > NESTED_MAX {
            let span = TextSpan { start: self.lexer.at, end: self.lexer.at + 1 };
            let message = format!("parentheses, functions and signs are nested more than {NESTED_MAX} deep");
            return Err(
                DefinitionError::at(self.lexer.text, span, message).help("define parts of it as virtual sensors")
            );
        }
        let mut left = self.prefix()?;
        while let Some((operator, span)) = self.lexer.operator()? {
            if precedence(operator) < least {
                break;
            }
            self.lexer.at = span.end;
            left = self.binary(left, operator, span)?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn binary(
        &mut self,
        (left, depth): ParsedTree,
        operator: Binary,
        at: TextSpan,
    ) -> Result<ParsedTree, DefinitionError> {
        if operator == Binary::Power {
            return self.power((left, depth));
        }
        // An expression in parentheses begins before its first operand.
        if let ExprNode::Binary(of, first, _) = &left.node
            && is_comparison(operator)
            && is_comparison(*of)
            && first.span.start == left.span.start
        {
            return Err(
                DefinitionError::at(self.lexer.text, at, "comparisons cannot be chained").help("write a < b and b < c")
            );
        }
        if operator == Binary::Less && self.lexer.rest().starts_with('/') {
            return Err(DefinitionError::at(self.lexer.text, at, "an operator is missing between these two sensors"));
        }
        let (right, other) = self.expression(precedence(operator) + 1)?;
        let span = TextSpan { start: left.span.start, end: right.span.end };
        self.node(ExprNode::Binary(operator, Box::new(left), Box::new(right)), span, depth.max(other))
    }

    /// Parses the exponent after `^`.
    fn power(&mut self, (base, depth): ParsedTree) -> Result<ParsedTree, DefinitionError> {
        self.lexer.skip_blank();
        let start = self.lexer.at;
        let negative = self.lexer.take('-');
        let expected = format!("`^` needs a whole number from -{POWER_MAX} to {POWER_MAX}");
        let number = match self.lexer.peek() {
            Some(c) if c.is_ascii_digit() => self.lexer.numeral()?,
            _ => {
                let (found, span) = self.lexer.found();
                return self.lexer.refuse(span, format!("{expected}, found {found}"));
            }
        };
        let span = TextSpan { start, end: number.1.end };
        let value = match number.0 {
            Numeral::Number(value, None) if value.fract() == 0.0 && value <= f64::from(POWER_MAX) => value,
            _ => return self.lexer.refuse(span, expected),
        };
        let value = if negative { -value } else { value };
        let (exponent, _) = self.node(ExprNode::Number { value, unit: None }, span, 0)?;
        let span = TextSpan { start: base.span.start, end: span.end };
        self.node(ExprNode::Binary(Binary::Power, Box::new(base), Box::new(exponent)), span, depth)
    }

    /// Parses the first operand of an expression, with its prefix.
    fn prefix(&mut self) -> Result<ParsedTree, DefinitionError> {
        let first = self.lexer.peek();
        let start = self.lexer.at;
        match first {
            Some(c) if c.is_ascii_digit() || c == '.' => match self.lexer.numeral()? {
                (Numeral::Number(value, unit), span) => self.node(ExprNode::Number { value, unit }, span, 0),
                (Numeral::Length(length), span) => {
                    let message = format!("expected {OPERAND}, found the length of time {length}");
                    Err(DefinitionError::at(self.lexer.text, span, message)
                        .help(format!("write it as a number: {}[s]", length.seconds())))
                }
            },
            Some('<') => {
                let (reference, span) = self.reference()?;
                if reference.text.contains('*') {
                    let message = format!("<{}> can select several sensors", word(&reference.text));
                    return Err(DefinitionError::at(self.lexer.text, span, message)
                        .help("use sum, mean, min, max, count, first or last: sum(<…>)"));
                }
                self.node(ExprNode::Sensor(reference), span, 0)
            }
            Some('(') => {
                self.lexer.at += 1;
                let (mut inner, depth) = self.expression(0)?;
                self.close(TextSpan { start, end: start + 1 })?;
                inner.span = TextSpan { start, end: self.lexer.at };
                Ok((inner, depth))
            }
            Some('-') => {
                self.lexer.at += 1;
                let (operand, depth) = self.expression(MINUS)?;
                let span = TextSpan { start, end: operand.span.end };
                self.node(ExprNode::Unary(Unary::Minus, Box::new(operand)), span, depth)
            }
            Some('!') => self.lexer.refuse(TextSpan { start, end: start + 1 }, "`!` is not an operator; write not"),
            _ => match self.lexer.name() {
                Some((name, span)) => self.named(name, span),
                None => {
                    let (found, span) = self.lexer.found();
                    self.lexer.refuse(span, format!("expected {OPERAND}, found {found}"))
                }
            },
        }
    }

    /// Parses `not` or a function.
    fn named(&mut self, name: &str, span: TextSpan) -> Result<ParsedTree, DefinitionError> {
        self.lexer.at = span.end;
        if name == "not" {
            let (operand, depth) = self.expression(NOT)?;
            let span = TextSpan { start: span.start, end: operand.span.end };
            return self.node(ExprNode::Unary(Unary::Not, Box::new(operand)), span, depth);
        }
        let called = FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, called)| *called);
        let Some(called) = called else { return Err(self.unknown(name, span)) };
        self.lexer.skip_blank();
        let open = TextSpan { start: self.lexer.at, end: self.lexer.at + 1 };
        if !self.lexer.take('(') {
            let (found, at) = self.lexer.found();
            return self.lexer.refuse(at, format!("expected `(` after {name}, found {found}"));
        }
        let (node, depth) = self.call(name, span, called)?;
        self.close(open)?;
        self.node(node, TextSpan { start: span.start, end: self.lexer.at }, depth)
    }

    fn unknown(&mut self, name: &str, span: TextSpan) -> DefinitionError {
        let refuse = |message: String| DefinitionError::at(self.lexer.text, span, message);
        let is_call = self.lexer.peek() == Some('(');
        if matches!(name, "true" | "false") {
            return refuse(format!("{name} is not defined; write {}", u8::from(name == "true")));
        }
        if !is_call {
            return refuse(format!("`{}` is neither a number nor a function", word(name)))
                .help(format!("write a sensor in angle brackets: <{}>", word(name)));
        }
        let other = OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, known)| *known);
        let near = other.or_else(|| nearest(name, function_names()));
        let names = function_names().collect::<Vec<_>>().join(", ");
        let refused = refuse(format!("the function {} does not exist", word(name)));
        match near {
            Some(near) => refused.help(format!("did you mean {near}?")),
            None => refused.help(format!("functions: {names}")),
        }
    }

    /// Parses the operands of a function, up to its `)`.
    fn call(&mut self, name: &str, span: TextSpan, called: CallKind) -> Result<(ExprNode, usize), DefinitionError> {
        match called {
            CallKind::Over(agg) => self.over(name, agg),
            CallKind::Rate | CallKind::Delta | CallKind::Integral | CallKind::Moving(_) => {
                let (operand, depth) = self.expression(0)?;
                let along = self.along(name, called)?;
                Ok((ExprNode::Along(along, Box::new(operand)), depth))
            }
            CallKind::Either(function, agg) => {
                if let Some(over) = self.over_of_one(agg)? {
                    return Ok((over, 1));
                }
                let (operands, depth) = self.operands()?;
                if operands.len() < 2 {
                    let message = format!("{name} takes two or more operands, or sensors: {name}(<…>)");
                    return self.lexer.refuse(span, message);
                }
                Ok((ExprNode::Call(function, operands), depth))
            }
            CallKind::Function(function) => {
                let (operands, depth) = self.operands()?;
                let expected = if function == Function::Clamp { 3 } else { 1 };
                if operands.len() != expected {
                    let form = if expected == 3 {
                        "clamp(value, least, greatest)".to_owned()
                    } else {
                        format!("{name}(value)")
                    };
                    return self.lexer.refuse(span, format!("expected {form}, {}", counted(operands.len())));
                }
                Ok((ExprNode::Call(function, operands), depth))
            }
            CallKind::If => {
                let (operands, depth) = self.operands()?;
                let count = operands.len();
                match <[Expr; 3]>::try_from(operands) {
                    Ok(three) => Ok((ExprNode::If(Box::new(three)), depth)),
                    Err(_) => {
                        self.lexer.refuse(span, format!("expected if(condition, then, otherwise), {}", counted(count)))
                    }
                }
            }
        }
    }

    fn operands(&mut self) -> Result<(Vec<Expr>, usize), DefinitionError> {
        let (mut operands, mut depth) = (Vec::new(), 0);
        loop {
            let (operand, below) = self.expression(0)?;
            operands.push(operand);
            depth = depth.max(below);
            if !self.lexer.take(',') {
                return Ok((operands, depth));
            }
        }
    }

    /// Parses the rest of a function along time after its first operand.
    fn along(&mut self, name: &str, called: CallKind) -> Result<Along, DefinitionError> {
        match called {
            CallKind::Rate => return Ok(Along::Rate),
            CallKind::Delta => return Ok(Along::Delta),
            _ => {}
        }
        let expected = format!("{name}(…, 1h) needs {LENGTH}");
        if !self.lexer.take(',') {
            let (found, span) = self.lexer.found();
            return self.lexer.refuse(span, format!("{expected}; found {found}"));
        }
        let (found, at) = self.lexer.found();
        if self.lexer.peek().is_none_or(|c| !c.is_ascii_digit() && c != '.') {
            return self.lexer.refuse(at, format!("{expected}; found {found}"));
        }
        let (length, span) = match self.lexer.numeral()? {
            (Numeral::Length(length), span) if length > Interval::from_ns(0) => (length, span),
            (_, span) => return self.lexer.refuse(span, expected),
        };
        match called {
            CallKind::Moving(agg) => Ok(Along::Moving(agg, length)),
            CallKind::Integral => Ok(Along::Integral(length)),
            _ => self.lexer.refuse(span, expected),
        }
    }

    fn over(&mut self, name: &str, agg: Agg) -> Result<(ExprNode, usize), DefinitionError> {
        self.lexer.skip_blank();
        let start = self.lexer.at;
        if let Some(over) = self.over_of_one(agg)? {
            return Ok((over, 1));
        }
        let (operand, _) = self.expression(0)?;
        let span = TextSpan { start, end: operand.span.end };
        let refused =
            DefinitionError::at(self.lexer.text, span, format!("{name} aggregates the sensors of one reference"))
                .help(format!("write {name}(<…>), or {name}(rate(<…>)) with a function along time"));
        Err(if agg == Agg::Sum { refused.help("the sum of two operands is a + b") } else { refused })
    }

    /// Parses a reference, alone or in a function along time, up to `)`. Takes nothing and returns `None` for anything else.
    fn over_of_one(&mut self, agg: Agg) -> Result<Option<ExprNode>, DefinitionError> {
        let (start, nodes) = (self.lexer.at, self.nodes);
        if self.lexer.peek() == Some('<') {
            let (reference, span) = self.reference()?;
            if matches!(self.lexer.peek(), None | Some(')')) {
                self.node(ExprNode::Number { value: 0.0, unit: None }, span, 0)?;
                return Ok(Some(ExprNode::Over { agg, along: None, reference }));
            }
        } else if let Some((name, span)) = self.lexer.name() {
            let called = FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, called)| *called);
            let along = called.filter(|called| {
                matches!(called, CallKind::Rate | CallKind::Delta | CallKind::Integral | CallKind::Moving(_))
            });
            self.lexer.at = span.end;
            if let Some(called) = along
                && self.lexer.take('(')
                && self.lexer.peek() == Some('<')
            {
                let (reference, _) = self.reference()?;
                if matches!(self.lexer.peek(), Some(',' | ')')) {
                    let along = self.along(name, called)?;
                    if self.lexer.take(')') && self.lexer.peek() == Some(')') {
                        self.nodes += 2;
                        return Ok(Some(ExprNode::Over { agg, along: Some(along), reference }));
                    }
                }
            }
        }
        (self.lexer.at, self.nodes) = (start, nodes);
        Ok(None)
    }

    fn reference(&mut self) -> Result<(Reference, TextSpan), DefinitionError> {
        let (text, span) = self.lexer.reference()?;
        let refuse = |reason: String| DefinitionError::at(self.lexer.text, span, reason);
        // `..` cannot go above `**`, which is an unknown number of levels.
        let ups = text.split('/').take_while(|level| *level == "..").count();
        let place: Vec<&str> = self.path.split('/').skip(1).collect();
        let climbed = place.iter().rev().skip(1).take(ups);
        if ups > place.len().saturating_sub(1) {
            return Err(refuse(format!("<{}> goes above the root", word(text))));
        }
        if climbed.into_iter().any(|level| *level == "**") {
            return Err(refuse(format!("<{}> goes above the `**` of {}", word(text), self.path)));
        }
        let pattern: Pattern = absolute(self.path, text).map_err(|error| refuse(error.to_string()))?;
        Ok((Reference { text: text.to_owned(), pattern }, span))
    }

    /// Takes the `)` that closes the `(` at `open`.
    fn close(&mut self, open: TextSpan) -> Result<(), DefinitionError> {
        if self.lexer.take(')') {
            return Ok(());
        }
        let (found, span) = self.lexer.found();
        if span.is_empty() {
            return self.lexer.refuse(open, "this `(` has no `)`");
        }
        self.lexer.refuse(span, format!("expected `,`, `)` or an operator, found {found}"))
    }
}

fn counted(operands: usize) -> String {
    if operands == 1 { "found 1 operand".to_owned() } else { format!("found {operands} operands") }
}

/// The precedence of an operator.
fn precedence(operator: Binary) -> u8 {
    match operator {
        Binary::Or => 1,
        Binary::And => 2,
        Binary::Add | Binary::Subtract => 5,
        Binary::Multiply | Binary::Divide => 6,
        Binary::Power => MINUS,
        _ => 4,
    }
}

fn is_comparison(operator: Binary) -> bool {
    precedence(operator) == 4
}
