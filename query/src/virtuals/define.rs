//! A definition that has been read and checked, and the sensors it makes.

use std::sync::Arc;

use wholegrain_model::unit::Unit;
use wholegrain_model::{Pattern, PatternError};
use wholegrain_store::SensorInfo;

use super::Definition;
use super::ast::{Expr, Node, Reference};

/// The most sensors that one virtual sensor is computed from, without what those are computed from in turn.
pub const OPERANDS_MAX: usize = 10_000;
/// The most sensors that all templates together make.
pub const INSTANCES_MAX: usize = 1_000_000;

/// A definition whose expression has been read.
#[derive(Debug, Clone)]
pub struct Checked {
    /// As a person wrote it.
    pub definition: Definition,
    /// Its expression. References are as written: [`Instance::expr`] has those of one sensor.
    pub expr: Expr,
    pub unit: Unit,
    /// Number of the change in the registry that set it: another one means that results of before are worth nothing.
    pub number: u64,
}

/// One virtual sensor.
#[derive(Debug, Clone)]
pub struct Instance {
    /// It as a sensor: [`wholegrain_store::SensorId::is_computed`], floats of the definition's unit.
    pub info: SensorInfo,
    /// What it is computed by.
    pub definition: Arc<Checked>,
}

impl Instance {
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

/// Where the operands of virtual sensors are found.
pub trait Resolve: Send + Sync {
    /// The sensors, measured and virtual, that a pattern chooses, sorted by path; no more than [`OPERANDS_MAX`] and one.
    fn sensors(&self, pattern: &Pattern) -> Vec<SensorInfo>;

    /// What a computed sensor is; `None` for a measured one.
    fn instance(&self, sensor: &SensorInfo) -> Option<Arc<Instance>>;
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
        Node::Number { .. } => {}
        Node::Sensor(reference) | Node::Over { reference, .. } => see(reference, expr),
        Node::Unary(_, operand) | Node::Along(_, operand) => each_reference(operand, see),
        Node::Binary(_, left, right) => {
            each_reference(left, see);
            each_reference(right, see);
        }
        Node::If(three) => three.iter().for_each(|part| each_reference(part, see)),
        Node::Call(_, operands) => operands.iter().for_each(|operand| each_reference(operand, see)),
    }
}

/// The same, to change them.
fn each_reference_mut<E>(expr: &mut Expr, change: &mut dyn FnMut(&mut Reference) -> Result<(), E>) -> Result<(), E> {
    match &mut expr.node {
        Node::Number { .. } => Ok(()),
        Node::Sensor(reference) | Node::Over { reference, .. } => change(reference),
        Node::Unary(_, operand) | Node::Along(_, operand) => each_reference_mut(operand, change),
        Node::Binary(_, left, right) => {
            each_reference_mut(left, change)?;
            each_reference_mut(right, change)
        }
        Node::If(three) => three.iter_mut().try_for_each(|part| each_reference_mut(part, change)),
        Node::Call(_, operands) => operands.iter_mut().try_for_each(|operand| each_reference_mut(operand, change)),
    }
}
