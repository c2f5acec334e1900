//! Values of Arrow arrays: which column types are times, names or numbers, and the value of a row.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use arrow_select::take::take;

use super::cells::Cell;
use crate::failure::Failure;

const SECOND_NS: i64 = 1_000_000_000;

/// The type of the values: a dictionary's own, else the type itself.
fn value_type(kind: &DataType) -> &DataType {
    match kind {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}

pub fn is_time(kind: &DataType) -> bool {
    matches!(value_type(kind), DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

pub fn is_text(kind: &DataType) -> bool {
    matches!(value_type(kind), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub fn is_number(kind: &DataType) -> bool {
    let kind = value_type(kind);
    kind.is_integer() || kind.is_floating() || kind.is_decimal() || *kind == DataType::Boolean
}

/// Whether values can be too large for a signed integer of 64 bits.
pub fn is_wide_unsigned(kind: &DataType) -> bool {
    *value_type(kind) == DataType::UInt64
}

/// The same column without a dictionary.
pub fn plain(column: &ArrayRef) -> Result<ArrayRef, Failure> {
    match column.as_any_dictionary_opt() {
        None => Ok(Arc::clone(column)),
        Some(dictionary) => take(dictionary.values(), dictionary.keys(), None)
            .map_err(|error| Failure::Failed(format!("cannot read a dictionary column: {error}"))),
    }
}

/// The text of a row of a column without a dictionary; `None` for null.
pub fn text(array: &ArrayRef, row: usize) -> Option<&str> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        _ => None,
    }
}

/// The time of a row, ns since the Unix epoch; a date is its midnight in UTC.
pub fn time(array: &ArrayRef, row: usize) -> Result<i64, String> {
    if array.is_null(row) {
        return Err("the time is missing".to_owned());
    }
    let (value, unit_ns) = match array.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => (array.as_primitive::<TimestampSecondType>().value(row), SECOND_NS),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            (array.as_primitive::<TimestampMillisecondType>().value(row), 1_000_000)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            (array.as_primitive::<TimestampMicrosecondType>().value(row), 1_000)
        }
        DataType::Date32 => (array.as_primitive::<Date32Type>().value(row).into(), 86_400 * SECOND_NS),
        DataType::Date64 => (array.as_primitive::<Date64Type>().value(row), 1_000_000),
        _ => (array.as_primitive::<TimestampNanosecondType>().value(row), 1),
    };
    value.checked_mul(unit_ns).ok_or_else(|| "the time is outside the years 1678 to 2261".to_owned())
}

/// The number of a row. An integer that does not fit into 64 bits with a sign becomes the nearest float.
pub fn number(array: &ArrayRef, row: usize) -> Result<Cell, String> {
    if array.is_null(row) {
        return Ok(Cell::Empty);
    }
    Ok(match array.data_type() {
        DataType::Boolean => Cell::Int(array.as_boolean().value(row).into()),
        DataType::Int8 => Cell::Int(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Cell::Int(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Cell::Int(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Cell::Int(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => Cell::Int(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Cell::Int(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Cell::Int(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => {
            let value = array.as_primitive::<UInt64Type>().value(row);
            i64::try_from(value).map_or(Cell::Float(value as f64), Cell::Int)
        }
        DataType::Decimal32(..) => decimal(&array.as_primitive::<Decimal32Type>().value_as_string(row))?,
        DataType::Decimal64(..) => decimal(&array.as_primitive::<Decimal64Type>().value_as_string(row))?,
        DataType::Decimal128(..) => decimal(&array.as_primitive::<Decimal128Type>().value_as_string(row))?,
        DataType::Decimal256(..) => decimal(&array.as_primitive::<Decimal256Type>().value_as_string(row))?,
        DataType::Float16 => Cell::Float(array.as_primitive::<Float16Type>().value(row).into()),
        DataType::Float32 => Cell::Float(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => Cell::Float(array.as_primitive::<Float64Type>().value(row)),
        other => return Err(format!("values of type {other} are not numbers")),
    })
}

/// Parses the digits of a decimal: an integer if it has no fraction and fits into 64 bits, else the nearest float.
fn decimal(digits: &str) -> Result<Cell, String> {
    if let Ok(value) = digits.parse() {
        return Ok(Cell::Int(value));
    }
    digits.parse().map(Cell::Float).map_err(|_| format!("the decimal {digits} is not a number"))
}

#[cfg(test)]
mod tests {
    use arrow_array::{Decimal128Array, DictionaryArray, Int8Array, StringArray, UInt64Array};

    use super::*;

    #[test]
    fn decimals_are_rounded_once_and_integers_stay_exact() {
        let array = Decimal128Array::from(vec![110, -5, 922_337_203_685_477_580_799]).with_precision_and_scale(38, 2);
        let array: ArrayRef = Arc::new(array.unwrap());
        assert_eq!(number(&array, 0), Ok(Cell::Float(1.1)));
        assert_eq!(number(&array, 1), Ok(Cell::Float(-0.05)));
        assert_eq!(number(&array, 2), Ok(Cell::Float(9_223_372_036_854_775_807.99)));
        let array = Decimal128Array::from(vec![i128::from(i64::MAX), 1 << 64]).with_precision_and_scale(38, 0).unwrap();
        let array: ArrayRef = Arc::new(array);
        assert_eq!(number(&array, 0), Ok(Cell::Int(i64::MAX)));
        assert_eq!(number(&array, 1), Ok(Cell::Float(2f64.powi(64))));
    }

    #[test]
    fn large_unsigned_values_become_floats() {
        let array: ArrayRef = Arc::new(UInt64Array::from(vec![1 << 63, (1 << 63) - 1]));
        assert_eq!(number(&array, 0), Ok(Cell::Float(2f64.powi(63))));
        assert_eq!(number(&array, 1), Ok(Cell::Int(i64::MAX)));
    }

    #[test]
    fn dictionaries_of_any_key_are_read() {
        let keys = Int8Array::from(vec![Some(1), None, Some(0)]);
        let array = DictionaryArray::new(keys, Arc::new(StringArray::from(vec!["/a", "/b"])));
        assert!(is_text(array.data_type()));
        let array = plain(&(Arc::new(array) as ArrayRef)).unwrap();
        assert_eq!([0, 1, 2].map(|row| text(&array, row)), [Some("/b"), None, Some("/a")]);
    }
}
