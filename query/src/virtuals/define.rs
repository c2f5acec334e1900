//! Checked definitions, and their virtual sensors.

use std::sync::Arc;

use wholegrain_model::unit::Unit;
use wholegrain_model::{Pattern, PatternError};
use wholegrain_store::SensorInfo;

use super::Definition;
use super::ast::{Expr, ExprNode, Reference};

/// The most direct operands of one virtual sensor.
pub const OPERANDS_MAX: usize = 10_000;
/// The most virtual sensors of all definitions together.
pub const INSTANCES_MAX: usize = 1_000_000;

/// A definition with its parsed expression.
#[derive(Debug, Clone)]
pub struct CheckedDefinition {
    pub definition: Definition,
    /// References are relative as written; [`VirtualSensor::expr`] has absolute ones.
    pub expr: Expr,
    pub unit: Unit,
    /// The number of the change in the registry that set it.
    pub number: u64,
}

/// One virtual sensor of a definition.
#[derive(Debug, Clone)]
pub struct VirtualSensor {
    /// Its id is computed ([`wholegrain_store::SensorId::is_computed`]); its values are floats in the definition's unit.
    pub info: SensorInfo,
    pub definition: Arc<CheckedDefinition>,
}

impl VirtualSensor {
    /// The absolute pattern of a reference.
    pub fn pattern(&self, reference: &Reference) -> Result<Pattern, PatternError> {
        absolute(&self.info.path, &reference.text)
    }

    /// The expression with absolute references.
    pub fn expr(&self) -> Result<Expr, PatternError> {
        let mut expr = self.definition.expr.clone();
        each_reference_mut(&mut expr, &mut |reference| {
            reference.pattern = absolute(&self.info.path, &reference.text)?;
            Ok(())
        })?;
        Ok(expr)
    }
}

/// Finds the operands of virtual sensors.
pub trait SensorLookup: Send + Sync {
    /// The measured and virtual sensors that a pattern selects, sorted by path, at most [`OPERANDS_MAX`] and one.
    fn sensors(&self, pattern: &Pattern) -> Vec<SensorInfo>;

    /// The definition of a virtual sensor; `None` for a measured one.
    fn instance(&self, sensor: &SensorInfo) -> Option<Arc<VirtualSensor>>;
}

/// The absolute pattern of a reference in the definition of `path`. A relative reference starts at the place of `path`; each leading `../` goes one
/// level up.
pub fn absolute(path: &str, text: &str) -> Result<Pattern, PatternError> {
    if text.starts_with('/') {
        return Pattern::new(text);
    }
    let (mut place, mut rest) = (path.rsplit_once('/').map_or("", |(place, _)| place), text);
    while let Some(below) = rest.strip_prefix("../") {
        // The pattern refuses a `..` that would go above the root.
        let Some((above, _)) = place.rsplit_once('/') else { break };
        (place, rest) = (above, below);
    }
    Pattern::new(format!("{place}/{rest}"))
}

/// Whether a reference selects sensors at the place of the defined sensor or below.
pub(super) fn beside(text: &str) -> bool {
    !text.starts_with('/') && text != ".." && !text.starts_with("../")
}

/// Calls `see` with every reference of an expression, in order.
pub fn each_reference<'a>(expr: &'a Expr, see: &mut dyn FnMut(&'a Reference, &'a Expr)) {
    match &expr.node {
        ExprNode::Number { .. } => {}
        ExprNode::Sensor(reference) | ExprNode::Over { reference, .. } => see(reference, expr),
        ExprNode::Unary(_, operand) | ExprNode::Along(_, operand) => each_reference(operand, see),
        ExprNode::Binary(_, left, right) => {
            each_reference(left, see);
            each_reference(right, see);
        }
        ExprNode::If(three) => three.iter().for_each(|part| each_reference(part, see)),
        ExprNode::Call(_, operands) => operands.iter().for_each(|operand| each_reference(operand, see)),
    }
}

/// As [`each_reference`], to change references.
fn each_reference_mut<E>(expr: &mut Expr, change: &mut dyn FnMut(&mut Reference) -> Result<(), E>) -> Result<(), E> {
    match &mut expr.node {
        ExprNode::Number { .. } => Ok(()),
        ExprNode::Sensor(reference) | ExprNode::Over { reference, .. } => change(reference),
        ExprNode::Unary(_, operand) | ExprNode::Along(_, operand) => each_reference_mut(operand, change),
        ExprNode::Binary(_, left, right) => {
            each_reference_mut(left, change)?;
            each_reference_mut(right, change)
        }
        ExprNode::If(three) => three.iter_mut().try_for_each(|part| each_reference_mut(part, change)),
        ExprNode::Call(_, operands) => operands.iter_mut().try_for_each(|operand| each_reference_mut(operand, change)),
    }
}
