//! Checks that a batch can be decoded, without decoding its values, before a server stores it.

use wholegrain_model::{Schema, ValueType};

use super::{DecodeResult, Head, Walk};
use crate::payload::mode;

/// A batch that can be decoded, and the facts of its header and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked<'a> {
    pub agent: &'a str,
    /// Start of the agent's process, ns since the Unix epoch.
    pub boot: u64,
    /// Its number within (agent, boot).
    pub seq: u64,
    /// The configured interval, ns.
    pub interval_ns: u64,
    /// The number of samples.
    pub samples: usize,
    /// The smallest and the largest time, ns since the Unix epoch.
    pub range: (i64, i64),
}

/// Fails wherever [`decode_batch`] would fail, without decoding values.
pub fn check_batch<'a>(payload: &'a [u8], schema: &Schema) -> DecodeResult<Checked<'a>> {
    let head = Head::read_for(payload, schema)?;
    let mut walk = Walk::new(payload, &head)?;
    let mut types = schema.types();
    while let [value_type, rest @ ..] = types {
        let taken = walk.check_single_run(types)?;
        if taken == 0 {
            walk.check_column(*value_type)?;
            types = rest;
        } else {
            types = &types[taken..];
        }
    }
    walk.finish()?;
    let range = head.range(payload)?;
    let Head { agent, boot, seq, interval_ns, span, .. } = head;
    Ok(Checked { agent, boot, seq, interval_ns, samples: span.samples, range })
}

impl Walk<'_> {
    /// Skips the columns of the current run that have its type, in a batch of one sample. Returns their number; 0 if the run is of another mode.
    fn check_single_run(&mut self, types: &[ValueType]) -> DecodeResult<usize> {
        if self.samples != 1 {
            return Ok(0);
        }
        if self.run_left == 0 {
            self.next_run()?;
        }
        let types = &types[..self.run_left.min(types.len())];
        let of = |wanted| types.iter().position(|found| *found != wanted).unwrap_or(types.len());
        let taken = match self.mode {
            mode::INT_CONSTANT => {
                let taken = of(ValueType::Int);
                self.bodies.check_varints(taken)?;
                taken
            }
            mode::FLOAT_CONSTANT => {
                let taken = of(ValueType::Float);
                (0..taken).try_for_each(|_| self.bodies.skip_xor())?;
                taken
            }
            _ => 0,
        };
        self.run_left -= taken;
        Ok(taken)
    }

    /// Skips a column; fails wherever decoding it would fail.
    fn check_column(&mut self, value_type: ValueType) -> DecodeResult<()> {
        let (column_mode, gaps) = self.next_mode()?;
        if column_mode == mode::ABSENT {
            return if gaps { self.bodies.fail("a gap bitmap where none is allowed") } else { Ok(()) };
        }
        let (present, _) = self.present(gaps)?;
        let (bodies, steps) = (&mut self.bodies, present - 1);
        match (value_type, column_mode) {
            (ValueType::Int, mode::INT_CONSTANT) => bodies.check_varints(1),
            (ValueType::Int, mode::INT_STEP) => bodies.check_varints(2),
            (ValueType::Int, mode::INT_VARINT) => bodies.check_varints(1 + steps),
            (ValueType::Int, mode::INT_PACKED) => {
                bodies.check_varints(1)?;
                let width = usize::from(bodies.byte()?);
                bodies.check_varints(1)?;
                if !(1..=64).contains(&width) {
                    return bodies.fail("packed differences of a width that is not 1 to 64 bits");
                }
                bodies.take((steps * width).div_ceil(8)).map(drop)
            }
            (ValueType::Int, mode::INT_SPARSE) => {
                bodies.check_varints(1)?;
                let bitmap = bodies.changes(steps)?;
                bodies.check_varints(bitmap.iter().map(|byte| byte.count_ones() as usize).sum())
            }
            (ValueType::Float, mode::FLOAT_CONSTANT) => bodies.skip_xor(),
            (ValueType::Float, mode::FLOAT_XOR) => (0..=steps).try_for_each(|_| bodies.skip_xor()),
            (ValueType::Float, mode::FLOAT_RAW) => {
                bodies.skip_xor()?;
                bodies.take(steps * 8).map(drop)
            }
            (ValueType::Int, _) => self.wrong_type(column_mode, "integers"),
            (ValueType::Float, _) => self.wrong_type(column_mode, "floats"),
        }
    }
}
