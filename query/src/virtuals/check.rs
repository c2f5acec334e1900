//! Checks an expression: every sensor exists, operands of a sum have the same dimension, and the result has the dimension of the declared unit.
//!
//! Values are computed in coherent SI units, so W and kW can be added, W and J cannot. Temperatures on a scale with its own zero (`Cel`) can be compared
//! and subtracted, but not added or multiplied by a number: 2 times 20 °C is not 40 °C.

use std::sync::Arc;

use wholegrain_model::{Dimension, Kind, Pattern, Unit};

use super::ast::{Along, Binary, Expr, ExprNode, Function, Reference, TextSpan, Unary};
use super::definition_error::{DefinitionError, word};
use super::{Definition, OPERANDS_MAX};
use crate::query::Agg;

/// The properties of a sensor that the check needs.
#[derive(Debug, Clone)]
pub(super) struct OperandInfo {
    pub path: Arc<str>,
    pub unit: String,
    pub kind: Kind,
}

/// Finds the sensors to which an expression refers.
pub(super) trait KnownSensors {
    /// The sensors that a reference selects, at most [`OPERANDS_MAX`] + 1: one more shows that there are too many.
    fn selected(&self, pattern: &Pattern) -> Vec<OperandInfo>;
    /// A similar path that exists.
    fn nearest(&self, pattern: &Pattern) -> Option<String>;
}

/// What the value 0 of a quantity means; it restricts sums and products of temperatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroPoint {
    /// None of the quantity: 0 W, 0 K.
    Absolute,
    /// `Cel`, `[degF]`: a point on a scale.
    Scale,
    /// The difference of two of those.
    Difference,
}

/// The dimension of a value, derived from the expression.
#[derive(Debug, Clone)]
struct Quantity {
    dimension: Dimension,
    zero: ZeroPoint,
    /// The unit in messages.
    unit: String,
    /// A literal 0, which has every dimension.
    is_zero: bool,
}

impl Quantity {
    fn number() -> Self {
        Self { dimension: Dimension::NUMBER, zero: ZeroPoint::Absolute, unit: "1".to_owned(), is_zero: false }
    }

    fn of(dimension: Dimension) -> Self {
        Self { dimension, unit: dimension.base_code(), ..Self::number() }
    }

    fn named(&self) -> String {
        let unit = word(&self.unit);
        if self.dimension.is_number() { format!("{unit} (a number)") } else { format!("{unit} ({})", self.dimension) }
    }
}

/// Checks the expression of a definition and returns warnings.
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
        let message = format!("the expression gives {}, the declared unit is {}", found.named(), declared.named());
        return Err(DefinitionError::at(text, expr.span, message));
    }
    if let Some(factor) = repeated_factor(expr, unit) {
        let message = format!(
            "the expression multiplies by {factor}, but 1 (a number) is already {factor} {unit}: values would be {factor} times too large"
        );
        let help = format!("remove the factor {factor}, or write {factor}[1] if it is meant");
        return Err(DefinitionError::at(text, expr.span, message).help(help));
    }
    if unit.has_offset() && found.zero == ZeroPoint::Difference {
        let message =
            format!("the expression gives a difference of temperatures, which is not a temperature in {}", unit.code());
        return Err(DefinitionError::at(text, expr.span, message).help("declare the unit K"));
    }
    Ok(check.warnings)
}

/// A literal factor of the expression that equals the number of declared units (%, [ppth], [ppm], [ppb]) in 1: `100 * a / b` in % would be a hundred
/// times too large.
fn repeated_factor(expr: &Expr, unit: &Unit) -> Option<f64> {
    let in_one = 1.0 / unit.to_base().factor();
    if !unit.dimension().is_number() || in_one <= 1.0 {
        return None;
    }
    let is_factor = |value: f64| (value / in_one - 1.0).abs() < 1e-9;
    let mut parts = vec![expr];
    while let Some(part) = parts.pop() {
        match &part.node {
            ExprNode::Number { value, unit: None } if is_factor(*value) => return Some(*value),
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

    /// Derives the quantity of an expression. The parser bounds the depth of the recursion.
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
                self.common_quantity(then, otherwise, "a choice between", three[2].span)
            }
            ExprNode::Call(function, operands) => self.call(*function, operands),
            ExprNode::Along(along, operand) => {
                // Rate and delta are meant for counters: no warning.
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

    /// The quantity that the sensors of a reference share.
    fn sensors(
        &mut self,
        reference: &Reference,
        span: TextSpan,
        warn_of_counters: bool,
    ) -> Result<Quantity, DefinitionError> {
        let selected = self.known.selected(&reference.pattern);
        let Some(first) = selected.first() else { return Err(self.unknown(reference, span)) };
        if selected.len() > OPERANDS_MAX && !self.is_template {
            let message = format!("<{}> selects more than {OPERANDS_MAX} sensors", word(&reference.text));
            return Err(DefinitionError::at(self.text, span, message)
                .help("define virtual sensors for parts, such as the sum of a rack, and refer to them"));
        }
        let unit_of = |operand: &OperandInfo| {
            Unit::parse(&operand.unit).map_err(|error| {
                DefinitionError::at(self.text, span, format!("the unit of {} is invalid: {error}", operand.path))
                    .help(format!("set it with `wholegrain config sensor set {} --unit …`", operand.path))
            })
        };
        let mut common = unit_of(first)?;
        let mut before = first;
        for operand in &selected[1..] {
            if operand.unit == before.unit {
                continue;
            }
            let unit = unit_of(operand)?;
            if unit.dimension() != common.dimension() {
                let (one, other) = (quantity(&common), quantity(&unit));
                let message = format!("<{}> selects sensors of different dimensions", word(&reference.text));
                return Err(DefinitionError::at(self.text, span, message)
                    .help(format!("{} is in {}", first.path, one.named()))
                    .help(format!("{} is in {}", operand.path, other.named())));
            }
            if unit.has_offset() {
                common = unit;
            }
            before = operand;
        }
        if let Some(counter) =
            selected.iter().find(|operand| operand.kind == Kind::Counter).filter(|_| warn_of_counters)
        {
            let warning = DefinitionError::at(
                self.text,
                span,
                format!(
                    "{} is a counter, whose running total falls when it restarts; did you mean rate(…) or delta(…)?",
                    counter.path
                ),
            );
            self.warnings.push(warning.to_string());
        }
        Ok(quantity(&common))
    }

    fn unknown(&self, reference: &Reference, span: TextSpan) -> DefinitionError {
        let pattern = &reference.pattern;
        let message = if pattern.is_literal() {
            format!("the sensor {pattern} does not exist")
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
        DefinitionError::at(self.text, span, message).help("use their mean, or a difference: <a> - <b>")
    }

    fn along(&self, along: Along, of: Quantity, span: TextSpan) -> Result<Quantity, DefinitionError> {
        let beyond = || DefinitionError::at(self.text, span, "the exponents of its unit are too large");
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
        self.refuse(operand.span, format!("{what} requires a number without dimension, found {}", of.named()))
    }

    fn truth(&mut self, operand: &Expr, what: &str) -> Result<Quantity, DefinitionError> {
        self.number(operand, what).map_err(|refused| refused.help("write a comparison: <a> > 5[W]"))
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
                    None => self.refuse(operands[0].span, format!("{} has no square root", of.named())),
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
                    all = self.common_quantity(all, other, what, operand.span)?;
                }
                Ok(all)
            }
        }
    }

    /// Checks two operands that must have the same dimension.
    fn common_quantity(
        &self,
        one: Quantity,
        other: Quantity,
        what: &str,
        span: TextSpan,
    ) -> Result<Quantity, DefinitionError> {
        // 0 °C is not 0 K: a temperature needs a zero with a unit.
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
                Some(unit) => refused.help(format!("write the unit of a constant in brackets: 5[{unit}]")),
                None => refused,
            });
        }
        let zero = match (one.zero, other.zero) {
            (ZeroPoint::Scale, ZeroPoint::Difference) | (ZeroPoint::Difference, ZeroPoint::Scale) => {
                let message = format!("{what} a temperature and a difference of temperatures");
                return self.refuse(span, message);
            }
            (ZeroPoint::Absolute, zero) | (zero, _) => zero,
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
                    return self.refuse(
                        left.span,
                        format!("a temperature in {} cannot be raised to a power: its zero is not 0", of.unit),
                    );
                }
                match of.dimension.power(exponent) {
                    Some(power) => Ok(Quantity::of(power)),
                    None => self.refuse(span, "the exponents of its unit are too large"),
                }
            }
            _ => {
                let (one, other) = (self.quantity(left)?, self.quantity(right)?);
                self.common_quantity(one, other, "a comparison of", right.span)?;
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
                    return self.refuse(span, "a temperature cannot be subtracted from a difference of temperatures");
                }
                (_, ZeroPoint::Scale) => ZeroPoint::Difference,
                (ZeroPoint::Difference, _) | (_, ZeroPoint::Difference) => ZeroPoint::Difference,
                _ => ZeroPoint::Absolute,
            };
            let is_zero = one.is_zero && other.is_zero;
            let unit = if a == ZeroPoint::Scale || b != ZeroPoint::Scale { one.unit } else { other.unit };
            let unit = if zero == ZeroPoint::Difference { "K".to_owned() } else { unit };
            return Ok(Quantity { zero, is_zero, unit, dimension: one.dimension });
        }
        self.common_quantity(one, other, if is_sum { "a sum of" } else { "a difference of" }, span)
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
                let message = format!(
                    "a temperature in {} cannot be multiplied or divided by a number: its zero is not 0",
                    scale.unit
                );
                return Err(DefinitionError::at(self.text, place, message)
                    .help(format!("subtract a temperature first: <a> - 0[{}]", scale.unit)));
            }
        }
        let dimension = match operator {
            Binary::Multiply => one.dimension.times(other.dimension),
            _ => one.dimension.over(other.dimension),
        };
        let Some(dimension) = dimension else {
            return self.refuse(span, "the exponents of its unit are too large");
        };
        // 2 W is still in W: messages keep the unit that the user knows.
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
    let zero = if unit.has_offset() { ZeroPoint::Scale } else { ZeroPoint::Absolute };
    Quantity { dimension: unit.dimension(), zero, unit: unit.code().to_owned(), is_zero: false }
}
