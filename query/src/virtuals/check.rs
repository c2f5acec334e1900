//! Whether an expression makes sense: every sensor is there, what is added is of one dimension, the result is what the definition says.
//!
//! Values are computed in the coherent SI units, so that W may be added to kW; not to J. Temperatures with a zero of their own (`Cel`) may be
//! compared and subtracted, but not added up or multiplied by a number: 2 times 20 °C is no 40 °C.

use std::sync::Arc;

use wholegrain_model::{Dimension, Kind, Pattern, Unit};

use super::ast::{Along, Binary, Expr, ExprNode, Function, Reference, TextSpan, Unary};
use super::definition_error::{DefinitionError, word};
use super::{Definition, OPERANDS_MAX};
use crate::query::Agg;

/// A sensor as far as the check is concerned.
#[derive(Debug, Clone)]
pub(super) struct OperandInfo {
    pub path: Arc<str>,
    pub unit: String,
    pub kind: Kind,
}

/// What is known of the sensors that an expression refers to.
pub(super) trait KnownSensors {
    /// What a reference chooses, at most [`OPERANDS_MAX`] and one.
    fn chosen(&self, pattern: &Pattern) -> Vec<OperandInfo>;
    /// A path near to one that is not there.
    fn nearest(&self, pattern: &Pattern) -> Option<String>;
}

/// How a temperature's zero stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroPoint {
    Own,
    /// `Cel`, `[degF]`: a place on a scale.
    Scale,
    /// The difference of two of those.
    Difference,
}

/// What is known of a value before there is one.
#[derive(Debug, Clone)]
struct Quantity {
    dimension: Dimension,
    zero: ZeroPoint,
    /// How it is named in messages.
    unit: String,
    /// A bare 0, which is 0 of everything.
    is_zero: bool,
}

impl Quantity {
    fn number() -> Self {
        Self { dimension: Dimension::NUMBER, zero: ZeroPoint::Own, unit: "1".to_owned(), is_zero: false }
    }

    fn of(dimension: Dimension) -> Self {
        Self { dimension, unit: dimension.base_code(), ..Self::number() }
    }

    fn named(&self) -> String {
        let unit = word(&self.unit);
        if self.dimension.is_number() { format!("{unit} (a number)") } else { format!("{unit} ({})", self.dimension) }
    }
}

/// Checks the expression of a definition. What it gives back are warnings.
pub(super) fn check(
    definition: &Definition,
    unit: &Unit,
    expr: &Expr,
    known: &dyn KnownSensors,
) -> Result<Vec<String>, DefinitionError> {
    let text = definition.expression.as_str();
    let mut check = ExpressionCheck { text, is_template: definition.path.contains('*'), known, warnings: Vec::new() };
    let found = check.quantity(expr)?;
    if found.dimension != unit.dimension() && !found.is_zero {
        let declared = Quantity { unit: unit.code().to_owned(), ..Quantity::of(unit.dimension()) };
        let message = format!("the expression gives {}, the unit declared is {}", found.named(), declared.named());
        return Err(DefinitionError::at(text, expr.span, message));
    }
    if let Some(factor) = hundredfold(expr, unit) {
        let message = format!(
            "multiplied by {factor}, and 1 (a number) is {factor} {unit} already: it would be shown {factor} times too large"
        );
        let help = format!("leave the factor {factor} away; one that is meant so is written {factor}[1]");
        return Err(DefinitionError::at(text, expr.span, message).help(help));
    }
    if unit.has_offset() && found.zero == ZeroPoint::Difference {
        let message = format!(
            "the expression gives a difference of temperatures, which has no place on the scale of {}",
            unit.code()
        );
        return Err(DefinitionError::at(text, expr.span, message).help("declare the unit K"));
    }
    Ok(check.warnings)
}

/// The bare number by which an expression is multiplied when it is the very one that a unit of numbers (%, [ppth], [ppm], [ppb]) stands for:
/// `100 * a / b` in % would be a hundred times too large.
fn hundredfold(expr: &Expr, unit: &Unit) -> Option<f64> {
    let in_one = 1.0 / unit.to_base().factor();
    if !unit.dimension().is_number() || in_one <= 1.0 {
        return None;
    }
    let is_it = |value: f64| (value / in_one - 1.0).abs() < 1e-9;
    let mut parts = vec![expr];
    while let Some(part) = parts.pop() {
        match &part.node {
            ExprNode::Number { value, unit: None } if is_it(*value) => return Some(*value),
            ExprNode::Binary(Binary::Multiply, left, right) => parts.extend([left.as_ref(), right.as_ref()]),
            ExprNode::Binary(Binary::Divide, left, _) => parts.push(left.as_ref()),
            ExprNode::Unary(Unary::Minus, of) => parts.push(of.as_ref()),
            _ => {}
        }
    }
    None
}

struct ExpressionCheck<'a> {
    text: &'a str,
    is_template: bool,
    known: &'a dyn KnownSensors,
    warnings: Vec<String>,
}

impl ExpressionCheck<'_> {
    fn refuse<T>(&self, span: TextSpan, message: impl Into<String>) -> Result<T, DefinitionError> {
        Err(DefinitionError::at(self.text, span, message))
    }

    /// As deep as the tree is, which the parser bounds.
    fn quantity(&mut self, expr: &Expr) -> Result<Quantity, DefinitionError> {
        match &expr.node {
            ExprNode::Number { value, unit } => self.constant(*value, unit.as_deref(), expr.span),
            ExprNode::Sensor(reference) => self.sensors(reference, expr.span, true),
            ExprNode::Over { agg, along, reference } => {
                let mut of = self.sensors(reference, expr.span, along.is_none() && *agg != Agg::Count)?;
                if let Some(along) = along {
                    of = self.along(*along, of, expr.span)?;
                }
                self.aggregated(*agg, of, expr.span)
            }
            ExprNode::Unary(Unary::Minus, operand) => {
                let of = self.quantity(operand)?;
                if of.zero == ZeroPoint::Scale {
                    let message = format!("a temperature in {} cannot be negated: its zero is not 0", of.unit);
                    return self.refuse(operand.span, message);
                }
                Ok(of)
            }
            ExprNode::Unary(Unary::Not, operand) => self.truth(operand, "not"),
            ExprNode::Binary(operator, left, right) => self.binary(*operator, left, right, expr.span),
            ExprNode::If(three) => {
                self.truth(&three[0], "the condition")?;
                let (then, otherwise) = (self.quantity(&three[1])?, self.quantity(&three[2])?);
                self.alike(then, otherwise, "a choice between", three[2].span)
            }
            ExprNode::Call(function, operands) => self.call(*function, operands),
            ExprNode::Along(along, operand) => {
                // A counter is what these are made for.
                let of = match &operand.node {
                    ExprNode::Sensor(reference) => {
                        self.sensors(reference, operand.span, matches!(along, Along::Integral(_) | Along::Moving(..)))?
                    }
                    _ => self.quantity(operand)?,
                };
                self.along(*along, of, expr.span)
            }
        }
    }

    fn constant(&self, value: f64, unit: Option<&str>, span: TextSpan) -> Result<Quantity, DefinitionError> {
        let Some(code) = unit else { return Ok(Quantity { is_zero: value == 0.0, ..Quantity::number() }) };
        match Unit::parse(code) {
            Ok(unit) => Ok(quantity(&unit)),
            Err(error) => self.refuse(span, error.to_string()),
        }
    }

    /// What the sensors of a reference have in common.
    fn sensors(&mut self, reference: &Reference, span: TextSpan, bare: bool) -> Result<Quantity, DefinitionError> {
        let chosen = self.known.chosen(&reference.pattern);
        let Some(first) = chosen.first() else { return Err(self.unknown(reference, span)) };
        if chosen.len() > OPERANDS_MAX && !self.is_template {
            let message = format!("<{}> chooses more than {OPERANDS_MAX} sensors", word(&reference.text));
            return Err(DefinitionError::at(self.text, span, message)
                .help("define a sensor for each part, such as the sum of a rack, and compute from those"));
        }
        let unit_of = |operand: &OperandInfo| {
            Unit::parse(&operand.unit).map_err(|error| {
                DefinitionError::at(
                    self.text,
                    span,
                    format!("the unit of {} is none that can be computed with: {error}", operand.path),
                )
                .help(format!("set it: wholegrain config sensor set {} --unit …", operand.path))
            })
        };
        let mut common = unit_of(first)?;
        let mut before = first;
        for operand in &chosen[1..] {
            if operand.unit == before.unit {
                continue;
            }
            let unit = unit_of(operand)?;
            if unit.dimension() != common.dimension() {
                let (one, other) = (quantity(&common), quantity(&unit));
                let message = format!("<{}> chooses sensors of different dimensions", word(&reference.text));
                return Err(DefinitionError::at(self.text, span, message)
                    .help(format!("{} is in {}", first.path, one.named()))
                    .help(format!("{} is in {}", operand.path, other.named())));
            }
            if unit.has_offset() {
                common = unit;
            }
            before = operand;
        }
        if let Some(counter) = chosen.iter().find(|operand| operand.kind == Kind::Counter).filter(|_| bare) {
            let reset = "a running total says little by itself and falls when it restarts";
            let warning = DefinitionError::at(
                self.text,
                span,
                format!("{} is a counter; {reset}: rate(…) or delta(…)?", counter.path),
            );
            self.warnings.push(warning.to_string());
        }
        Ok(quantity(&common))
    }

    fn unknown(&self, reference: &Reference, span: TextSpan) -> DefinitionError {
        let pattern = &reference.pattern;
        let message = if pattern.is_literal() {
            format!("there is no sensor {pattern}")
        } else {
            format!("no sensor matches {pattern}")
        };
        let refused = DefinitionError::at(self.text, span, message);
        match self.known.nearest(pattern) {
            Some(near) => refused.help(format!("did you mean {near}?")),
            None => refused.help("`wholegrain sensors` lists them"),
        }
    }

    fn aggregated(&self, agg: Agg, of: Quantity, span: TextSpan) -> Result<Quantity, DefinitionError> {
        match agg {
            Agg::Count => Ok(Quantity::number()),
            Agg::Sum if of.zero == ZeroPoint::Scale => Err(self.no_sum(&of, span)),
            _ => Ok(of),
        }
    }

    fn no_sum(&self, of: &Quantity, span: TextSpan) -> DefinitionError {
        let message = format!("temperatures in {} cannot be added up: their zero is not 0", of.unit);
        DefinitionError::at(self.text, span, message).help("take their mean, or a difference: <a> - <b>")
    }

    fn along(&self, along: Along, of: Quantity, span: TextSpan) -> Result<Quantity, DefinitionError> {
        let beyond = || DefinitionError::at(self.text, span, "the exponents of its unit grow beyond what is kept");
        let difference = if of.zero == ZeroPoint::Scale { ZeroPoint::Difference } else { of.zero };
        Ok(match along {
            Along::Rate => Quantity::of(of.dimension.over(Dimension::TIME).ok_or_else(beyond)?),
            Along::Integral(_) => Quantity::of(of.dimension.times(Dimension::TIME).ok_or_else(beyond)?),
            Along::Delta => Quantity { zero: difference, ..of },
            Along::Moving(agg, _) => return self.aggregated(agg, of, span),
        })
    }

    fn number(&mut self, operand: &Expr, what: &str) -> Result<Quantity, DefinitionError> {
        let of = self.quantity(operand)?;
        if of.dimension.is_number() {
            return Ok(Quantity::number());
        }
        self.refuse(operand.span, format!("{what} takes a number without dimension, this is {}", of.named()))
    }

    fn truth(&mut self, operand: &Expr, what: &str) -> Result<Quantity, DefinitionError> {
        self.number(operand, what).map_err(|refused| refused.help("compare it with something: <a> > 5[W]"))
    }

    fn call(&mut self, function: Function, operands: &[Expr]) -> Result<Quantity, DefinitionError> {
        match function {
            Function::Exp => self.number(&operands[0], "exp"),
            Function::Ln => self.number(&operands[0], "ln"),
            Function::Abs => self.quantity(&operands[0]),
            Function::Sqrt => {
                let of = self.quantity(&operands[0])?;
                match of.dimension.root(2) {
                    Some(root) => Ok(Quantity::of(root)),
                    None => self.refuse(operands[0].span, format!("there is no square root of {}", of.named())),
                }
            }
            Function::Min | Function::Max | Function::Clamp => {
                let mut all = self.quantity(&operands[0])?;
                let what = match function {
                    Function::Min => "the least of",
                    Function::Max => "the greatest of",
                    _ => "a clamp of",
                };
                for operand in &operands[1..] {
                    let other = self.quantity(operand)?;
                    all = self.alike(all, other, what, operand.span)?;
                }
                Ok(all)
            }
        }
    }

    /// Two that must be of one dimension.
    fn alike(&self, one: Quantity, other: Quantity, what: &str, span: TextSpan) -> Result<Quantity, DefinitionError> {
        // 0 °C is not 0 K: which is meant must be said.
        let is_free = |zero: &Quantity, of: &Quantity| zero.is_zero && of.zero != ZeroPoint::Scale;
        if is_free(&other, &one) {
            return Ok(Quantity { is_zero: one.is_zero && other.is_zero, ..one });
        }
        if is_free(&one, &other) {
            return Ok(other);
        }
        if one.dimension != other.dimension {
            let refused = DefinitionError::at(self.text, span, format!("{what} {} and {}", one.named(), other.named()));
            let constant = [&one, &other].into_iter().find(|of| !of.dimension.is_number()).map(|of| &of.unit);
            return Err(match constant.filter(|_| one.dimension.is_number() || other.dimension.is_number()) {
                Some(unit) => refused.help(format!("a constant's unit stands in brackets: 5[{unit}]")),
                None => refused,
            });
        }
        let zero = match (one.zero, other.zero) {
            (ZeroPoint::Scale, ZeroPoint::Difference) | (ZeroPoint::Difference, ZeroPoint::Scale) => {
                let message = format!("{what} a temperature and a difference of temperatures");
                return self.refuse(span, message);
            }
            (ZeroPoint::Own, zero) | (zero, _) => zero,
        };
        Ok(Quantity { zero, ..one })
    }

    fn binary(
        &mut self,
        operator: Binary,
        left: &Expr,
        right: &Expr,
        span: TextSpan,
    ) -> Result<Quantity, DefinitionError> {
        match operator {
            Binary::And | Binary::Or => {
                let name = if operator == Binary::And { "and" } else { "or" };
                self.truth(left, name)?;
                self.truth(right, name)
            }
            Binary::Add | Binary::Subtract => {
                let (one, other) = (self.quantity(left)?, self.quantity(right)?);
                self.sum(operator, one, other, right.span)
            }
            Binary::Multiply | Binary::Divide => self.product(operator, left, right, span),
            Binary::Power => {
                let of = self.quantity(left)?;
                let exponent = if let ExprNode::Number { value, .. } = right.node { value as i32 } else { 1 };
                if of.zero == ZeroPoint::Scale {
                    return self.refuse(left.span, format!("no power is taken of a temperature in {}", of.unit));
                }
                match of.dimension.power(exponent) {
                    Some(power) => Ok(Quantity::of(power)),
                    None => self.refuse(span, "the exponents of its unit grow beyond what is kept"),
                }
            }
            _ => {
                let (one, other) = (self.quantity(left)?, self.quantity(right)?);
                self.alike(one, other, "a comparison of", right.span)?;
                Ok(Quantity::number())
            }
        }
    }

    fn sum(
        &self,
        operator: Binary,
        one: Quantity,
        other: Quantity,
        span: TextSpan,
    ) -> Result<Quantity, DefinitionError> {
        let is_sum = operator == Binary::Add;
        let (a, b) = (one.zero, other.zero);
        if one.dimension == other.dimension {
            let zero = match (a, b) {
                (ZeroPoint::Scale, ZeroPoint::Scale) if is_sum => return Err(self.no_sum(&one, span)),
                (ZeroPoint::Scale, ZeroPoint::Scale) => ZeroPoint::Difference,
                (ZeroPoint::Scale, _) => ZeroPoint::Scale,
                (_, ZeroPoint::Scale) if is_sum => ZeroPoint::Scale,
                (ZeroPoint::Difference, ZeroPoint::Scale) => {
                    return self.refuse(span, "a temperature is taken from a difference of temperatures");
                }
                (_, ZeroPoint::Scale) => ZeroPoint::Difference,
                (ZeroPoint::Difference, _) | (_, ZeroPoint::Difference) => ZeroPoint::Difference,
                _ => ZeroPoint::Own,
            };
            let is_zero = one.is_zero && other.is_zero;
            let unit = if a == ZeroPoint::Scale || b != ZeroPoint::Scale { one.unit } else { other.unit };
            let unit = if zero == ZeroPoint::Difference { "K".to_owned() } else { unit };
            return Ok(Quantity { zero, is_zero, unit, dimension: one.dimension });
        }
        self.alike(one, other, if is_sum { "a sum of" } else { "a difference of" }, span)
    }

    fn product(
        &mut self,
        operator: Binary,
        left: &Expr,
        right: &Expr,
        span: TextSpan,
    ) -> Result<Quantity, DefinitionError> {
        let (one, other) = (self.quantity(left)?, self.quantity(right)?);
        for (scale, by, place) in [(&one, &other, left.span), (&other, &one, right.span)] {
            if scale.zero == ZeroPoint::Scale && by.dimension.is_number() {
                let message =
                    format!("a temperature in {} is multiplied or divided by a number: its zero is not 0", scale.unit);
                return Err(DefinitionError::at(self.text, place, message)
                    .help(format!("subtract a temperature first: <a> - 0[{}]", scale.unit)));
            }
        }
        let dimension = match operator {
            Binary::Multiply => one.dimension.times(other.dimension),
            _ => one.dimension.over(other.dimension),
        };
        let Some(dimension) = dimension else {
            return self.refuse(span, "the exponents of its unit grow beyond what is kept");
        };
        // 2 W is still W: the unit that a person knows is named in messages.
        if other.dimension.is_number() && other.unit == "1" {
            return Ok(Quantity { is_zero: one.is_zero, ..one });
        }
        if one.dimension.is_number() && one.unit == "1" && operator == Binary::Multiply {
            return Ok(other);
        }
        Ok(Quantity::of(dimension))
    }
}

fn quantity(unit: &Unit) -> Quantity {
    let zero = if unit.has_offset() { ZeroPoint::Scale } else { ZeroPoint::Own };
    Quantity { dimension: unit.dimension(), zero, unit: unit.code().to_owned(), is_zero: false }
}
