//! Conversion of results to the requested unit, decided for each sensor before its readings are read.

use std::collections::HashMap;

use wholegrain_model::{ColumnValues, Conversion, Kind, Unit, UnitError, Value};
use wholegrain_store::{Chunk, SensorInfo};

use crate::columns::ChunkBuilder;
use crate::error::QueryError;
use crate::query::{Agg, Op};

/// The conversions to the requested unit, by unit and kind of the sensors.
#[derive(Debug)]
pub(crate) struct Conversions {
    by: HashMap<(String, Kind), Conversion>,
}

impl Conversions {
    /// For values after `op` and each sensor's aggregate. Fails if one sensor cannot be converted.
    pub(crate) fn new(
        unit: &str,
        sensors: &[SensorInfo],
        op: Option<Op>,
        agg_of: impl Fn(&SensorInfo) -> Option<Agg>,
    ) -> Result<Self, QueryError> {
        let requested = Unit::parse(unit).map_err(|error| QueryError::Invalid(error.to_string()))?;
        let mut by = HashMap::new();
        for sensor in sensors {
            let key = (sensor.unit.clone(), sensor.kind);
            if by.contains_key(&key) {
                continue;
            }
            let conversion = conversion(&sensor.unit, op, agg_of(sensor), &requested).map_err(|reason| {
                let alike = sensors.iter().filter(|other| (&other.unit, other.kind) == (&sensor.unit, sensor.kind));
                let others = alike.count() - 1;
                let others = if others > 0 { format!(" and {others} more of its unit") } else { String::new() };
                QueryError::Invalid(format!("sensor {}{others}: {reason}", sensor.path))
            })?;
            by.insert(key, conversion);
        }
        Ok(Self { by })
    }

    /// The conversion of one of the sensors.
    pub(crate) fn of(&self, sensor: &SensorInfo) -> Conversion {
        self.by.get(&(sensor.unit.clone(), sensor.kind)).copied().unwrap_or(Conversion::IDENTITY)
    }
}

/// The conversion of values of a sensor in `unit`, after the operation and the aggregate.
fn conversion(unit: &str, op: Option<Op>, agg: Option<Agg>, requested: &Unit) -> Result<Conversion, String> {
    let answer = unit_of(unit, op, agg);
    if answer == requested.code() {
        return Ok(Conversion::IDENTITY);
    }
    let from = Unit::parse(&answer).map_err(|error| {
        let UnitError::Code { reason, .. } = &error else { return error.to_string() };
        format!(
            "its unit is {unit:?}, which cannot be converted to {requested}: {reason}; set the right unit with `wholegrain config sensor set`"
        )
    })?;
    // A difference of temperatures in Cel is the same number of K.
    let (from, to) =
        if op == Some(Op::Delta) { (from.interval(), requested.interval()) } else { (from, requested.clone()) };
    let conversion = from.to(&to).map_err(|error| error.to_string())?;
    if !conversion.is_linear() && agg == Some(Agg::Sum) {
        return Err(format!("a sum of temperatures in {from} has no meaning in {to}; take the mean, or convert first"));
    }
    Ok(conversion)
}

/// Converts a value. Integers stay integers if that is exact.
pub(crate) fn converted(value: Value, conversion: Conversion, exact: bool) -> Option<Value> {
    match (value, conversion.integer()) {
        (Value::Int(value), Some(factor)) if exact => value.checked_mul(factor).map(Value::Int),
        (value, _) => Some(Value::Float(conversion.apply(value.as_f64()))),
    }
}

/// Converts a whole chunk.
pub(crate) fn converted_chunk(mut chunk: Chunk, conversion: Conversion, exact: bool) -> Chunk {
    if exact {
        let mut out = ChunkBuilder::new(true);
        for (row, time) in chunk.times.iter().enumerate() {
            out.push(*time, chunk.column.get(row).and_then(|value| converted(value, conversion, true)));
        }
        return out.take().unwrap_or(chunk);
    }
    chunk.column.values = ColumnValues::Float(match chunk.column.values {
        ColumnValues::Int(values) => values.into_iter().map(|value| conversion.apply(value as f64)).collect(),
        ColumnValues::Float(values) => values.into_iter().map(|value| conversion.apply(value)).collect(),
    });
    chunk
}

/// The unit of an answer's values, from the sensor's unit: `By` becomes `By/s` by rate; the integral of `W` is `W.s` and of
/// `By/s` is `By`; a count is `1`.
pub fn unit_of(unit: &str, op: Option<Op>, agg: Option<Agg>) -> String {
    if agg == Some(Agg::Count) {
        return "1".to_owned();
    }
    let base = if unit.is_empty() { "1" } else { unit };
    let per_second = matches!(op, Some(Op::Rate | Op::Derivative));
    if matches!(op, None | Some(Op::Delta)) {
        return unit.to_owned();
    }
    if base == "s" && per_second {
        // Clearer than `1`: seconds per second.
        return "s/s".to_owned();
    }
    let composed = Unit::parse(base).and_then(|unit| {
        let second = Unit::parse("s")?;
        if per_second { unit.divide(&second) } else { unit.multiply(&second) }
    });
    match composed {
        Ok(composed) => composed.code().to_owned(),
        // Not a UCUM code: append the operation as text.
        Err(_) if per_second => format!("{base}/s"),
        Err(_) => base.strip_suffix("/s").map_or_else(|| format!("{base}.s"), str::to_owned),
    }
}

/// The units of the answer, one for each sensor.
pub(crate) fn units(
    sensors: &[SensorInfo],
    op: Option<Op>,
    agg_of: impl Fn(&SensorInfo) -> Option<Agg>,
    wanted: Option<&str>,
) -> Vec<String> {
    let mut known: HashMap<(&str, Option<Agg>), String> = HashMap::new();
    let one = |sensor| match wanted {
        Some(unit) => unit.to_owned(),
        None => {
            let (SensorInfo { unit, .. }, agg) = (sensor, agg_of(sensor));
            known.entry((unit, agg)).or_insert_with(|| unit_of(unit, op, agg)).clone()
        }
    };
    sensors.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(unit: &str, op: Option<Op>, agg: Option<Agg>, wanted: &str, value: f64, expected: Result<f64, &str>) {
        let got = conversion(unit, op, agg, &Unit::parse(wanted).unwrap()).map(|conversion| conversion.apply(value));
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{unit} {op:?} {agg:?} {wanted}"),
            (Err(got), Err(expected)) => assert!(got.contains(expected), "{got}"),
            (got, expected) => panic!("{unit} {op:?} {agg:?} {wanted}: {got:?}, not {expected:?}"),
        }
    }

    #[test]
    fn conversions_after_operations_and_aggregates() {
        check("W", None, None, "kW", 1500.0, Ok(1.5));
        check("By", Some(Op::Rate), None, "MBy/s", 2e6, Ok(2.0));
        check("By", Some(Op::Rate), None, "Mbit/s", 2e6, Ok(16.0));
        check("W", Some(Op::Integral), Some(Agg::Sum), "kW.h", 7.2e6, Ok(2.0));
        check("kW", Some(Op::Integral), None, "J", 2.0, Ok(2000.0));
        check("J", Some(Op::Rate), None, "W", 3.0, Ok(3.0));
        check("By/s", Some(Op::Integral), None, "KiBy", 2048.0, Ok(2.0));
        check("ns", Some(Op::Rate), None, "%", 5e8, Ok(50.0));
        check("Cel", None, Some(Agg::Mean), "[degF]", 100.0, Ok(212.0));
        check("Cel", Some(Op::Delta), None, "[degF]", 100.0, Ok(180.0));
        check("Cel", Some(Op::Delta), Some(Agg::Sum), "K", 2.0, Ok(2.0));
        check("Cel", Some(Op::Derivative), None, "K/min", 1.0, Ok(60.0));
        check("Cel", None, Some(Agg::Sum), "K", 1.0, Err("has no meaning"));
        check("Cel", None, Some(Agg::Sum), "Cel", 1.0, Ok(1.0));
        check("W", None, Some(Agg::Count), "1", 7.0, Ok(7.0));
        check("W", None, Some(Agg::Count), "kW", 7.0, Err("1 (number) cannot be converted to kW (power)"));
        check("W", None, None, "J", 7.0, Err("W (power) cannot be converted to J (energy)"));
        check("furlongs", None, None, "W", 7.0, Err("\"furlongs\""));
        check("", None, None, "%", 0.5, Ok(50.0));
    }

    #[test]
    fn integers_stay_integers_only_when_that_is_exact() {
        let of = |from: &str, to: &str| Unit::parse(from).unwrap().to(&Unit::parse(to).unwrap()).unwrap();
        let exact = of("kBy", "bit");
        assert_eq!(converted(Value::Int(3), exact, true), Some(Value::Int(24_000)));
        assert_eq!(converted(Value::Int(i64::MAX), exact, true), None);
        assert_eq!(converted(Value::Int(3), exact, false), Some(Value::Float(24_000.0)));
        assert_eq!(converted(Value::Int(3), of("By", "kBy"), false), Some(Value::Float(0.003)));
        assert_eq!((of("By", "kBy").integer(), of("Cel", "K").integer()), (None, None));
    }

    #[test]
    fn units_of_operations() {
        for (unit, op, agg, expected) in [
            ("By", None, Some(Agg::Mean), "By"),
            ("By", Some(Op::Rate), None, "By/s"),
            ("", Some(Op::Rate), None, "1/s"),
            ("By", Some(Op::Delta), Some(Agg::Sum), "By"),
            ("Cel", Some(Op::Derivative), None, "Cel/s"),
            ("W", Some(Op::Integral), None, "W.s"),
            ("By/s", Some(Op::Integral), None, "By"),
            ("1", Some(Op::Integral), None, "s"),
            ("1/s", Some(Op::Integral), None, "1"),
            ("W.s", Some(Op::Rate), None, "W"),
            ("furlongs", Some(Op::Rate), None, "furlongs/s"),
            ("furlongs/s", Some(Op::Integral), None, "furlongs"),
            ("furlongs", Some(Op::Integral), None, "furlongs.s"),
            ("By", Some(Op::Rate), Some(Agg::Count), "1"),
        ] {
            assert_eq!(unit_of(unit, op, agg), expected, "{unit} {op:?} {agg:?}");
        }
    }
}
