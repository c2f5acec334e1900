//! What is read of the answers of one address, checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, SENSORS_MAX, UNIT_BYTES_MAX};
use wholegrain_model::unit::Unit;
use wholegrain_model::{Kind, SensorDef, ValueType};

use crate::csv_table::CsvFormat;
use crate::page::{PageFormat, PagePath};
use crate::time::PageTime;
use crate::value::PageValue;

/// The most sensors of the tables of one address without `series_max`.
const SERIES_USUAL: usize = 10_000;
/// The most values, and the most columns of all tables, of one address.
const VALUES_MAX: usize = 2000;
/// The most tables of one address.
const TABLES_MAX: usize = 64;
/// The most texts in `states`, in `absent` and in `index`.
const TEXTS_MAX: usize = 256;
/// The sensors of a group that are about the answer itself.
pub const OWN_SENSORS: usize = 3;

/// The keys of what is read of an answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValueKeys {
    pub name: String,
    pub path: String,
    unit: Option<String>,
    scale: Option<f64>,
    offset: Option<f64>,
    kind: Option<Kind>,
    #[serde(rename = "type")]
    value_type: Option<ValueType>,
    description: Option<String>,
    states: BTreeMap<String, f64>,
    absent: Vec<AbsentValue>,
    min: Option<f64>,
    max: Option<f64>,
}

/// A number or a text that means that there is no value.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum AbsentValue {
    Number(f64),
    Text(String),
}

/// The keys of a table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableKeys {
    pub name: String,
    rows: String,
    index: OneOrMore,
    time: Option<String>,
    column: Vec<ValueKeys>,
}

/// A text or a list of texts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Default for OneOrMore {
    fn default() -> Self {
        Self::More(Vec::new())
    }
}

impl OneOrMore {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::More(texts) => texts,
        }
    }
}

/// The format of an answer in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FormatName {
    #[default]
    Json,
    Csv,
    Xml,
}

/// How CSV is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvKeys {
    #[serde(default = "comma")]
    delimiter: char,
    #[serde(default = "point")]
    decimal: char,
    #[serde(default = "yes")]
    header: bool,
    #[serde(default)]
    skip: usize,
}

fn comma() -> char {
    ','
}

fn point() -> char {
    '.'
}

fn yes() -> bool {
    true
}

/// The keys of an address that say what is in its answers.
#[derive(Debug, Clone, Default)]
pub struct PageKeys<'a> {
    pub format: FormatName,
    pub csv: Option<&'a CsvKeys>,
    pub time: Option<&'a str>,
    pub time_format: Option<&'a str>,
    pub time_zone: Option<&'a str>,
    pub values: &'a [ValueKeys],
    pub tables: &'a [TableKeys],
    pub series_max: Option<usize>,
}

/// Where a value is.
#[derive(Debug, Clone)]
pub struct PathValue {
    pub path: PagePath,
    pub value: PageValue,
}

/// A table: each row of it has a name and all columns.
#[derive(Debug, Clone)]
pub struct PageTable {
    /// The levels above the rows; may be empty.
    pub name: String,
    pub rows: PagePath,
    /// What names a row, from a row on. Empty: its key or number in the answer.
    pub index: Vec<PagePath>,
    pub time: Option<PageTime>,
    pub columns: Vec<PathValue>,
}

/// What is read of the answers of one address.
#[derive(Debug, Clone)]
pub struct PageSpec {
    pub format: PageFormat,
    pub time: Option<PageTime>,
    pub values: Vec<PathValue>,
    pub tables: Vec<PageTable>,
    /// The most sensors of the tables together.
    pub series_max: usize,
}

impl PageSpec {
    /// Checks the keys. An error has the key and the message.
    pub fn new(keys: &PageKeys) -> Result<Self, String> {
        let (format, has_comma) = format(keys)?;
        let time = |path: Option<&str>| path.map(|path| page_time(keys, path, format)).transpose();
        if keys.values.len() > VALUES_MAX
            || keys.tables.iter().map(|table| table.column.len()).sum::<usize>() > VALUES_MAX
        {
            return Err(format!("more than {VALUES_MAX} values, or columns of tables"));
        }
        if keys.tables.len() > TABLES_MAX {
            return Err(format!("more than {TABLES_MAX} tables"));
        }
        let values = values(keys.values, format, has_comma)?;
        let mut tables = Vec::new();
        for table in keys.tables {
            let in_table = |message: String| format!("table {:?}: {message}", table.name);
            tables.push(page_table(table, format, has_comma, time(table.time.as_deref())?).map_err(in_table)?);
        }
        if values.is_empty() && tables.is_empty() {
            return Err("nothing is read of its answers: give value or table".to_owned());
        }
        let most = SENSORS_MAX - OWN_SENSORS - values.len();
        let series_max = keys.series_max.unwrap_or(SERIES_USUAL);
        if series_max == 0 || series_max > most {
            return Err(format!("series_max is {series_max}; expected 1 to {most}"));
        }
        Ok(Self { format, time: time(keys.time)?, values, tables, series_max })
    }
}

fn format(keys: &PageKeys) -> Result<(PageFormat, bool), String> {
    let format = match keys.format {
        FormatName::Json => PageFormat::Json,
        FormatName::Xml => PageFormat::Xml,
        FormatName::Csv => {
            let usual = CsvKeys { delimiter: ',', decimal: '.', header: true, skip: 0 };
            let CsvKeys { delimiter, decimal, header, skip } = *keys.csv.unwrap_or(&usual);
            if !delimiter.is_ascii() || delimiter.is_ascii_alphanumeric() || "\"\r\n.".contains(delimiter) {
                return Err(format!("csv: the delimiter {delimiter:?} is not one such as ',', ';' or a tab"));
            }
            if !['.', ','].contains(&decimal) || decimal == delimiter {
                return Err("csv: decimal is \".\" or \",\", and not the delimiter".to_owned());
            }
            let csv = CsvFormat { delimiter: delimiter as u8, has_header: header, skip };
            return Ok((PageFormat::Csv(csv), decimal == ','));
        }
    };
    match keys.csv {
        Some(_) => Err("csv is for format = \"csv\"".to_owned()),
        None => Ok((format, false)),
    }
}

fn page_time(keys: &PageKeys, path: &str, format: PageFormat) -> Result<PageTime, String> {
    let zone = keys.time_zone.unwrap_or("UTC");
    let zone = jiff::tz::TimeZone::get(zone)
        .map_err(|_| format!("time_zone {zone:?} is unknown; write a name such as \"Europe/Berlin\""))?;
    Ok(PageTime { path: PagePath::parse(path, format)?, format: keys.time_format.map(str::to_owned), zone })
}

fn values(keys: &[ValueKeys], format: PageFormat, has_comma: bool) -> Result<Vec<PathValue>, String> {
    let mut values: Vec<PathValue> = Vec::new();
    for key in keys {
        let value = path_value(key, format, has_comma).map_err(|message| format!("value {:?}: {message}", key.name))?;
        if values.iter().any(|other| other.value.sensor.name == key.name) {
            return Err(format!("two values have the name {:?}", key.name));
        }
        values.push(value);
    }
    Ok(values)
}

fn page_table(
    keys: &TableKeys,
    format: PageFormat,
    has_comma: bool,
    time: Option<PageTime>,
) -> Result<PageTable, String> {
    if !keys.name.is_empty() {
        check_relative(&keys.name).map_err(|error| error.to_string())?;
    }
    let rows = PagePath::parse(&keys.rows, format).map_err(|error| format!("rows: {error}"))?;
    if matches!(rows, PagePath::Json { up: 1.., .. }) {
        return Err("rows begin at the root: nothing is above it".to_owned());
    }
    let index = keys.index.texts();
    if index.len() > TEXTS_MAX || (index.is_empty() && format == PageFormat::Xml) {
        return Err("index is missing: write what names a row, such as index = \"@id\"".to_owned());
    }
    let index = index.iter().map(|path| PagePath::parse(path, format)).collect::<Result<_, _>>()?;
    let columns = values(&keys.column, format, has_comma)?;
    if columns.is_empty() {
        return Err("has no column".to_owned());
    }
    Ok(PageTable { name: keys.name.clone(), rows, index, time, columns })
}

fn path_value(keys: &ValueKeys, format: PageFormat, has_comma: bool) -> Result<PathValue, String> {
    check_relative(&keys.name).map_err(|error| error.to_string())?;
    let path = PagePath::parse(&keys.path, format)?;
    let unit = keys.unit.as_deref().unwrap_or("1");
    if unit.len() > UNIT_BYTES_MAX {
        return Err(format!("the unit is longer than {UNIT_BYTES_MAX} bytes"));
    }
    Unit::parse(unit).map_err(|error| error.to_string())?;
    let scale = keys.scale.unwrap_or(1.0);
    if !scale.is_finite() || scale == 0.0 || keys.offset.is_some_and(|offset| !offset.is_finite()) {
        return Err("scale and offset must be finite, and scale not 0".to_owned());
    }
    let is_int = keys.value_type == Some(ValueType::Int);
    if is_int && keys.offset.is_some() {
        return Err("type = \"int\" has no offset".to_owned());
    }
    if keys.states.len() > TEXTS_MAX || keys.absent.len() > TEXTS_MAX {
        return Err(format!("states and absent have at most {TEXTS_MAX} entries"));
    }
    if let Some((state, number)) =
        keys.states.iter().find(|(_, number)| !number.is_finite() || (is_int && number.fract() != 0.0))
    {
        return Err(format!("the number {number} of the state {state:?} does not fit the type"));
    }
    let (min, max) = (keys.min.unwrap_or(f64::NEG_INFINITY), keys.max.unwrap_or(f64::INFINITY));
    if min.is_nan() || max.is_nan() || min > max {
        return Err("min is more than max".to_owned());
    }
    let description = keys.description.as_deref().unwrap_or_default();
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!("the description is longer than {DESCRIPTION_BYTES_MAX} bytes"));
    }
    let sensor = SensorDef::gauge(keys.name.clone(), unit, description);
    let sensor = SensorDef { kind: keys.kind.unwrap_or(Kind::Gauge), ..sensor };
    let sensor = if is_int { sensor } else { sensor.float() };
    let linear = keys.offset.map(|offset| (scale, offset));
    let sensor = if linear.is_some() { sensor } else { sensor.scaled(scale) };
    let number = |absent: &AbsentValue| match absent {
        AbsentValue::Number(number) => Some(*number),
        AbsentValue::Text(_) => None,
    };
    let text = |absent: &AbsentValue| match absent {
        AbsentValue::Text(text) => Some(text.trim().to_owned()),
        AbsentValue::Number(_) => None,
    };
    let value = PageValue {
        sensor,
        states: keys.states.clone(),
        absent_numbers: keys.absent.iter().filter_map(number).collect(),
        absent_texts: keys.absent.iter().filter_map(text).collect(),
        min,
        max,
        linear,
        has_decimal_comma: has_comma,
    };
    Ok(PathValue { path, value })
}

/// The name of a row from the texts of its index.
pub fn row_name(texts: &[String]) -> String {
    texts.iter().map(|text| sanitize_level(text)).collect::<Vec<_>>().join("/")
}
