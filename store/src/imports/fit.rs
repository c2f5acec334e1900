//! Values of an import as its sensor has them: with the sensor's own scale, and as floats where its readings are floats.

use wholegrain_model::{Column, ColumnValues, ValueType};

use crate::imports::ImportSeries;
use crate::settings::Settings;
use crate::{SchemalessSensor, SensorId, SensorInfo, StoreError};

/// Up to this number a double represents every integer.
const EXACT_MAX: u64 = 1 << 53;
/// A raw value that differs from an integer by no more than this part of its size is taken as the integer: decimal fractions are not exact.
const NEAR: f64 = 1e-9;

/// A new sensor with the settings in force; `None` if no setting matches it.
pub(super) fn as_set(sensor: &SchemalessSensor, settings: &Settings) -> Option<SensorInfo> {
    let held = settings.held(sensor.path.as_str())?;
    let SchemalessSensor { path, unit, kind, value_type, scale, description } = sensor.clone();
    let mut info = SensorInfo {
        // Not registered yet: a number that no sensor has.
        id: SensorId(u32::MAX),
        path: path.as_str().into(),
        unit,
        kind,
        value_type,
        scale,
        wraps_at: None,
        description,
        interval_ns: 0,
        last_time: None,
        agent: "".into(),
    };
    settings.apply(&held, &mut info);
    Some(info)
}

/// Converts the values to the scale of the sensor. Another unit is refused, and a scale that overflows.
pub(super) fn fit(series: &mut ImportSeries, known: &SensorInfo) -> Result<(), StoreError> {
    let SchemalessSensor { unit, scale, .. } = &series.sensor;
    if !known.unit.is_empty() && !unit.is_empty() && known.unit != *unit {
        return Err(StoreError::Sensor(format!(
            "{} has the unit {:?} at the server and {unit:?} in the import; convert the values, or give the unit that they really have with --unit",
            known.path, known.unit
        )));
    }
    let factor = scale / known.scale;
    if factor != 1.0 {
        let values = scaled(&series.column, factor, known.value_type);
        if let Some(value) = lost(&series.column, &values) {
            return Err(StoreError::Sensor(format!(
                "{} has the scale {:?} here, and no raw value gives {value:?} with it; set another scale",
                known.path, known.scale
            )));
        }
        series.column.values = values;
        series.sensor.scale = known.scale;
    }
    if known.value_type == ValueType::Float
        && let ColumnValues::Int(values) = &series.column.values
        && values.iter().all(|value| value.unsigned_abs() <= EXACT_MAX)
    {
        series.column.values = ColumnValues::Float(values.iter().map(|value| *value as f64).collect());
    }
    if matches!(series.column.values, ColumnValues::Float(_)) {
        series.sensor.value_type = ValueType::Float;
    }
    Ok(())
}

/// The first value that the conversion made infinite or 0.
fn lost(before: &Column, after: &ColumnValues) -> Option<f64> {
    let ColumnValues::Float(after) = after else { return None };
    let value = |at: usize| match &before.values {
        ColumnValues::Int(values) => values[at] as f64,
        ColumnValues::Float(values) => values[at],
    };
    let is_lost = |at: usize, after: f64| {
        let value = value(at);
        let is_same = after.is_finite() && (after == 0.0) == (value == 0.0);
        value.is_finite() && !is_same && !before.gaps.is_gap(at)
    };
    after.iter().enumerate().find(|(at, after)| is_lost(*at, **after)).map(|(at, _)| value(at))
}

/// Multiplies the values by `factor`; integers if they are near enough and the sensor has integers.
fn scaled(column: &Column, factor: f64, wanted: ValueType) -> ColumnValues {
    // 1 / 0.001 is not 1000, and a quotient is nearer than a product with a rounded factor.
    let by = |value: f64| if factor.abs() < 1.0 { value / (1.0 / factor) } else { value * factor };
    let floats: Vec<f64> = match &column.values {
        ColumnValues::Int(values) => values.iter().map(|value| by(*value as f64)).collect(),
        ColumnValues::Float(values) => values.iter().map(|value| by(*value)).collect(),
    };
    let near = |(at, value): (usize, &f64)| {
        column.gaps.is_gap(at)
            || (value.abs() < EXACT_MAX as f64 && (value - value.round()).abs() <= NEAR * value.abs())
    };
    if wanted == ValueType::Int && floats.iter().enumerate().all(near) {
        return ColumnValues::Int(floats.iter().map(|value| value.round() as i64).collect());
    }
    ColumnValues::Float(floats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::{Gaps, Kind, SensorPath};

    fn series(values: ColumnValues, unit: &str) -> ImportSeries {
        let sensor = SchemalessSensor {
            path: SensorPath::new("/a/b").unwrap(),
            unit: unit.to_owned(),
            kind: Kind::Gauge,
            value_type: ValueType::Float,
            scale: 1.0,
            description: String::new(),
        };
        let times = (0..match &values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        } as i64)
            .collect();
        ImportSeries { sensor, times, column: Column { values, gaps: Gaps::default() } }
    }

    fn known(value_type: ValueType, scale: f64) -> SensorInfo {
        SensorInfo {
            id: SensorId(0),
            path: "/a/b".into(),
            unit: "W".to_owned(),
            kind: Kind::Gauge,
            value_type,
            scale,
            wraps_at: None,
            description: String::new(),
            interval_ns: 0,
            last_time: None,
            agent: "".into(),
        }
    }

    #[track_caller]
    fn check(values: ColumnValues, known: &SensorInfo, expected: &ColumnValues) {
        let mut series = series(values, "W");
        fit(&mut series, known).unwrap();
        assert_eq!(series.column.values, *expected);
    }

    #[test]
    fn values_become_the_sensors() {
        let (int, float) = (ColumnValues::Int, ColumnValues::Float);
        check(int(vec![1, -2]), &known(ValueType::Int, 1.0), &int(vec![1, -2]));
        check(float(vec![1.5, 0.001, 4.096]), &known(ValueType::Int, 0.001), &int(vec![1500, 1, 4096]));
        check(float(vec![1.5, 0.0005]), &known(ValueType::Int, 0.001), &float(vec![1500.0, 0.5]));
        check(int(vec![3]), &known(ValueType::Float, 1.0), &float(vec![3.0]));
        check(int(vec![i64::MAX]), &known(ValueType::Float, 1.0), &int(vec![i64::MAX]));
        check(int(vec![4096]), &known(ValueType::Int, 1024.0), &int(vec![4]));
        check(int(vec![1, 0]), &known(ValueType::Int, 1e10), &float(vec![1e-10, 0.0]));
        check(float(vec![f64::INFINITY]), &known(ValueType::Int, 0.5), &float(vec![f64::INFINITY]));
    }

    #[test]
    fn another_unit_is_refused() {
        let error = fit(&mut series(ColumnValues::Int(vec![1]), "kW"), &known(ValueType::Int, 1.0)).unwrap_err();
        assert!(error.to_string().contains("\"W\"") && error.to_string().contains("\"kW\""), "{error}");
        fit(&mut series(ColumnValues::Int(vec![1]), ""), &known(ValueType::Int, 1.0)).unwrap();
    }
}
