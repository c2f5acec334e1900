//! Evaluates an expression over columns.

use super::super::ast::{Binary, Function, Unary};
use super::along::TrailingState;
use super::grid::finite;
use super::plan::StageCode;

/// Values at successive points, or one value for all. NaN is a gap.
enum StageColumn {
    Same(f64),
    Each(Vec<f64>),
}

/// The inputs of an expression.
pub(super) struct StageColumns<'a> {
    /// The point of the first value.
    pub point: i64,
    pub len: usize,
    pub operands: Vec<Vec<f64>>,
    pub groups: Vec<Vec<f64>>,
    pub states: &'a mut [TrailingState],
}

impl StageColumn {
    fn at(&self, at: usize) -> f64 {
        match self {
            StageColumn::Same(value) => *value,
            StageColumn::Each(values) => values[at],
        }
    }

    fn into_values(self, len: usize) -> Vec<f64> {
        match self {
            StageColumn::Same(value) => vec![value; len],
            StageColumn::Each(values) => values,
        }
    }

    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        match self {
            StageColumn::Same(value) => StageColumn::Same(finite(f(value))),
            StageColumn::Each(mut values) => {
                values.iter_mut().for_each(|value| *value = finite(f(*value)));
                StageColumn::Each(values)
            }
        }
    }

    fn join(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        match (self, other) {
            (StageColumn::Same(left), StageColumn::Same(right)) => StageColumn::Same(finite(f(left, right))),
            (StageColumn::Same(left), right) => right.map(|right| f(left, right)),
            (left, StageColumn::Same(right)) => left.map(|left| f(left, right)),
            (StageColumn::Each(mut left), StageColumn::Each(right)) => {
                left.iter_mut().zip(right.iter()).for_each(|(left, right)| *left = finite(f(*left, *right)));
                StageColumn::Each(left)
            }
        }
    }
}

/// A truth value as a number; a gap if an operand is a gap.
fn truth(known: bool, is: bool) -> f64 {
    if known { f64::from(u8::from(is)) } else { f64::NAN }
}

fn binary(operator: Binary, a: f64, b: f64) -> f64 {
    let known = !a.is_nan() && !b.is_nan();
    match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        // Compiled to `StageCode::Power`.
        Binary::Power => f64::NAN,
        Binary::Less => truth(known, a < b),
        Binary::LessOrEqual => truth(known, a <= b),
        Binary::Greater => truth(known, a > b),
        Binary::GreaterOrEqual => truth(known, a >= b),
        Binary::Equal => truth(known, a == b),
        Binary::NotEqual => truth(known, a != b),
        Binary::And => truth(known, a != 0.0 && b != 0.0),
        Binary::Or => truth(known, a != 0.0 || b != 0.0),
    }
}

/// The minimum or maximum; a gap if one is a gap.
fn extreme(least: bool, a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if least {
        a.min(b)
    } else {
        a.max(b)
    }
}

impl StageColumns<'_> {
    /// The values of the whole expression.
    pub fn values(mut self, code: &StageCode) -> Vec<f64> {
        let column = self.column(code);
        column.into_values(self.len)
    }

    /// The recursion is as deep as the expression, which the parser bounds. Each operand is used once, so its column can be moved.
    fn column(&mut self, code: &StageCode) -> StageColumn {
        let owned = |values: &mut Vec<f64>| StageColumn::Each(std::mem::take(values));
        match code {
            StageCode::Constant(value) => StageColumn::Same(finite(*value)),
            StageCode::Operand(at) => owned(&mut self.operands[*at]),
            StageCode::Group(at) => owned(&mut self.groups[*at]),
            StageCode::Divided(of, by) => self.column(of).map(|value| value / by),
            StageCode::Unary(Unary::Minus, of) => self.column(of).map(|value| -value),
            StageCode::Unary(Unary::Not, of) => self.column(of).map(|value| truth(!value.is_nan(), value == 0.0)),
            // NaN to the power 0 would be 1.
            StageCode::Power(of, exponent) => {
                self.column(of).map(|value| if value.is_nan() { value } else { value.powi(*exponent) })
            }
            StageCode::Binary(operator, left, right) => {
                let left = self.column(left);
                let right = self.column(right);
                match operator {
                    // Separate closures compile to separate loops.
                    Binary::Add => left.join(right, |a, b| a + b),
                    Binary::Subtract => left.join(right, |a, b| a - b),
                    Binary::Multiply => left.join(right, |a, b| a * b),
                    Binary::Divide => left.join(right, |a, b| a / b),
                    operator => left.join(right, |a, b| binary(*operator, a, b)),
                }
            }
            StageCode::If(three) => {
                let condition = self.column(&three[0]);
                let (then, otherwise) = (self.column(&three[1]), self.column(&three[2]));
                let mut values = condition.into_values(self.len);
                for (at, value) in values.iter_mut().enumerate().filter(|(_, value)| !value.is_nan()) {
                    *value = if *value == 0.0 { otherwise.at(at) } else { then.at(at) };
                }
                StageColumn::Each(values)
            }
            StageCode::Call(function, operands) => self.call(*function, operands),
            StageCode::Along(state, _, of) => {
                let mut values = self.column(of).into_values(self.len);
                self.states[*state].run(self.point, &mut values);
                StageColumn::Each(values)
            }
        }
    }

    fn call(&mut self, function: Function, operands: &[StageCode]) -> StageColumn {
        let Some((first, others)) = operands.split_first() else { return StageColumn::Same(f64::NAN) };
        let mut column = self.column(first);
        match function {
            Function::Abs => column.map(f64::abs),
            Function::Sqrt => column.map(f64::sqrt),
            Function::Exp => column.map(f64::exp),
            Function::Ln => column.map(f64::ln),
            Function::Min | Function::Max => {
                for other in others {
                    let other = self.column(other);
                    column = column.join(other, |a, b| extreme(function == Function::Min, a, b));
                }
                column
            }
            Function::Clamp => {
                for (at, bound) in others.iter().take(2).enumerate() {
                    let bound = self.column(bound);
                    // First the lower bound, then the upper one.
                    column = column.join(bound, |a, b| extreme(at == 1, a, b));
                }
                column
            }
        }
    }
}
