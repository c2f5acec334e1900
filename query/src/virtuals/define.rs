//! Checked definitions, and the virtual sensors that they make.

use std::sync::Arc;

use wholegrain_model::unit::Unit;
use wholegrain_model::{Pattern, PatternError};
use wholegrain_store::SensorInfo;

use super::Definition;
use super::ast::{Expr, ExprNode, Reference};

/// The most direct operands of one virtual sensor.
pub const OPERANDS_MAX: usize = 10_000;
/// The most sensors that all templates together make.
pub const INSTANCES_MAX: usize = 1_000_000;

/// A definition with its parsed expression.
#[derive(Debug, Clone)]
pub struct CheckedDefinition {
    /// As a person wrote it.
    pub definition: Definition,
    /// Its expression. References are as written: [`VirtualSensor::expr`] has those of one sensor.
    pub expr: Expr,
    pub unit: Unit,
    /// Number of the change in the registry that set it: a new number invalidates cached results.
    pub number: u64,
}

/// A virtual sensor that a definition makes.
#[derive(Debug, Clone)]
pub struct VirtualSensor {
    /// The sensor's properties: [`wholegrain_store::SensorId::is_computed`], floats of the definition's unit.
    pub info: SensorInfo,
    pub definition: Arc<CheckedDefinition>,
}

impl VirtualSensor {
    /// The sensors that a reference of the definition means for this one.
    pub fn pattern(&self, reference: &Reference) -> Result<Pattern, PatternError> {
        absolute(&self.info.path, &reference.text)
    }

    /// The expression with every reference absolute.
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
    /// The sensors, measured and virtual, that a pattern chooses, sorted by path; no more than [`OPERANDS_MAX`] and one.
    fn sensors(&self, pattern: &Pattern) -> Vec<SensorInfo>;

    /// The virtual sensor behind a computed one; `None` for a measured one.
    fn instance(&self, sensor: &SensorInfo) -> Option<Arc<VirtualSensor>>;
}

/// What `text` chooses, written in the definition of `path`: beside it, or with leading `../` beside what it is below.
pub fn absolute(path: &str, text: &str) -> Result<Pattern, PatternError> {
    if text.starts_with('/') {
        return Pattern::new(text);
    }
    let (mut place, mut rest) = (path.rsplit_once('/').map_or("", |(place, _)| place), text);
    while let Some(below) = rest.strip_prefix("../") {
        // Above the root there is nothing: the `..` that is left over is refused as such.
        let Some((above, _)) = place.rsplit_once('/') else { break };
        (place, rest) = (above, below);
    }
    Pattern::new(format!("{place}/{rest}"))
}

/// Whether a reference is to something beside the sensor that is defined, or below there.
pub(super) fn beside(text: &str) -> bool {
    !text.starts_with('/') && text != ".." && !text.starts_with("../")
}

/// Every reference of an expression, in the order in which they stand there.
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

/// The same, to change them.
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
