//! The syntax tree of an expression. Each node has its place in the text.

use wholegrain_model::{Interval, Pattern};

use crate::query::Agg;

/// A range of bytes in the text; `end` is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSpan {
    pub start: usize,
    pub end: usize,
}

impl TextSpan {
    /// Whether the span is empty, as at the end of the text.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// A node with its place in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    pub node: ExprNode,
    pub span: TextSpan,
}

/// The kinds of nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprNode {
    /// A constant: `3.6`, or with a unit `3.6[MJ]`.
    Number {
        value: f64,
        /// A UCUM code; `None` is 1.
        unit: Option<String>,
    },
    /// One sensor: `<power>`, `</lab/facility/chiller1/power>`.
    Sensor(Reference),
    /// `sum(<…>)`, `sum(rate(<…>))`: the aggregate, at each time, over the sensors that the reference selects. `first` is the value of the sensor
    /// whose path comes first.
    Over {
        agg: Agg,
        /// A function along time, applied to each sensor first.
        along: Option<Along>,
        reference: Reference,
    },
    Unary(Unary, Box<Expr>),
    /// `a + b`, `a < b`, `a and b`.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `if(condition, then, otherwise)`: a gap in the other branch does not matter.
    If(Box<[Expr; 3]>),
    /// `abs(a)`, `min(a, b, …)`, `clamp(a, least, greatest)`: of values at one time.
    Call(Function, Vec<Expr>),
    /// A function along time: `rate(a)`, `moving_average(a, 5min)`.
    Along(Along, Box<Expr>),
}

/// A reference to sensors: relative to the place of the defined sensor, or absolute with a leading `/`.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// As written, without the angle brackets.
    pub text: String,
    /// The absolute pattern. A relative reference of a template has the template's wildcards in it until the instance is known.
    pub pattern: Pattern,
}

/// Operators with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Minus,
    Not,
}

/// Operators with two operands. Comparisons, `and` and `or` give the number 1 or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    /// `a / b`; a gap if `b` is 0.
    Divide,
    /// `a ^ 2`: the exponent is a literal whole number.
    Power,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

/// Functions of values at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Abs,
    Min,
    Max,
    /// The first operand, limited to the range from the second to the third.
    Clamp,
    Sqrt,
    /// e to the power of a number without unit.
    Exp,
    /// Natural logarithm of a number without unit.
    Ln,
}

/// Functions along time, of one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Along {
    /// For counters the increase per second, resets handled; otherwise the difference per second.
    Rate,
    /// Difference to the previous value.
    Delta,
    /// Area below the values since the last multiple of the length since the epoch, such as the start of the hour.
    Integral(Interval),
    /// Aggregate of the values in a window that ends at each time.
    Moving(Agg, Interval),
}
