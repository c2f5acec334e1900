//! The syntax tree of an expression; nodes have their place in the text.

use wholegrain_model::{Interval, Pattern};

use crate::query::Agg;

/// A place in the text: bytes from `start` (within) to `end` (not within).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSpan {
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

impl TextSpan {
    /// Whether it holds nothing: the end of the text.
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
        /// The number as written.
        value: f64,
        /// Its unit, a UCUM code; 1 without one.
        unit: Option<String>,
    },
    /// One sensor: `<power>`, `</lab/facility/chiller1/power>`.
    Sensor(Reference),
    /// `sum(<…>)`, `sum(rate(<…>))`: what the values of all sensors that the reference chooses come to at one time. The first is that of the
    /// sensor whose path comes first.
    Over {
        /// What they come to.
        agg: Agg,
        /// What is done along time with each sensor before.
        along: Option<Along>,
        reference: Reference,
    },
    Unary(Unary, Box<Expr>),
    /// `a + b`, `a < b`, `a and b`.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `if(condition, then, otherwise)`: only the branch that is taken matters.
    If(Box<[Expr; 3]>),
    /// `abs(a)`, `min(a, b, …)`, `clamp(a, least, greatest)`: at one time.
    Call(Function, Vec<Expr>),
    /// `rate(a)`, `moving_average(a, 5min)`: along time.
    Along(Along, Box<Expr>),
}

/// Sensors, as the expression names them: beside the one that is defined, or with a leading `/` from the root.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// As written, without the angle brackets.
    pub text: String,
    /// What it chooses. For a template's relative reference with the template's wildcards in it, until the instance is known.
    pub pattern: Pattern,
}

/// Operators with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    Minus,
    Not,
}

/// Operators with two operands. Comparisons and `and`, `or` give 1 or 0 of no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    /// `a / b`; nothing when `b` is 0.
    Divide,
    /// `a ^ 2`: the exponent is a whole number written out.
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
    /// The least of the operands.
    Min,
    Max,
    /// The first operand, not below the second and not above the third.
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
    /// Increase per second: of a counter with its resets understood, of anything else the difference per second.
    Rate,
    /// Difference to the value before.
    Delta,
    /// Area below it since the start of the hour, the day or whatever length is given.
    Integral(Interval),
    /// What the values of so long before each time come to.
    Moving(Agg, Interval),
}
