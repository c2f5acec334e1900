//! Decodes payloads. Every length is checked against the remaining bytes before an allocation.

mod check;
mod cursor;

use wholegrain_model::batch::{AGENT_BYTES_MAX, SAMPLES_MAX};
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SchemaHash, Value, ValueType};

use super::{FLAG_STEADY, MAGIC, PAYLOAD_BYTES_MAX, PayloadError, Span, VALUES_MAX, VERSION, mode, unzigzag};

pub use check::{Checked, check_batch};
use cursor::Cursor;

pub(super) type DecodeResult<T> = std::result::Result<T, PayloadError>;

/// Reads only the header.
pub fn read_header(payload: &[u8]) -> DecodeResult<(BatchHeader, Span)> {
    let head = Head::read(payload)?;
    Ok((head.to_header(), head.span))
}

/// The agent, the schema and the span of a payload, without a copy.
pub fn read_origin(payload: &[u8]) -> DecodeResult<(&str, SchemaHash, Span)> {
    let head = Head::read(payload)?;
    Ok((head.agent, head.schema, head.span))
}

/// The header, its span, and the smallest and the largest time, without reading the columns. Checks that the payload has this `schema`.
pub fn read_times(payload: &[u8], schema: &Schema) -> DecodeResult<(BatchHeader, Span, (i64, i64))> {
    let head = Head::read_for(payload, schema)?;
    Ok((head.to_header(), head.span, head.range(payload)?))
}

/// Decodes the whole payload. Trailing bytes are an error.
pub fn decode_batch(payload: &[u8], schema: &Schema) -> DecodeResult<Batch> {
    let head = Head::read_for(payload, schema)?;
    let mut walk = Walk::new(payload, &head)?;
    let mut columns = Vec::with_capacity(schema.len());
    if head.span.samples == 1 {
        columns.extend(schema.types().iter().map(|value_type| column_for(*value_type, 1)));
        walk.append_all(&mut columns, 1)?;
    } else {
        // A column is allocated only after the previous ones were decoded.
        for value_type in schema.types() {
            let mut column = column_for(*value_type, 0);
            walk.append_column(&mut column, head.span.samples)?;
            columns.push(column);
        }
    }
    walk.finish()?;
    Ok(Batch { header: head.to_header(), times: head.times(payload)?, columns })
}

/// Decodes the times and the column of one sensor (its index in the schema); skips the columns before it.
pub fn decode_column(payload: &[u8], schema: &Schema, sensor: usize) -> DecodeResult<(Vec<i64>, Column)> {
    let Some(definition) = schema.sensors().get(sensor) else {
        return Err(PayloadError::NoSuchSensor { sensor, sensors: schema.len() });
    };
    let head = Head::read_for(payload, schema)?;
    let mut walk = Walk::new(payload, &head)?;
    for _ in 0..sensor {
        walk.skip_column()?;
    }
    let mut column = column_for(definition.value_type, 0);
    walk.next_column(&mut column)?;
    Ok((head.times(payload)?, column))
}

/// The same of a payload that belongs to no registered schema: its sensors have these types. Only the number of sensors is checked.
pub fn decode_column_of(payload: &[u8], types: &[ValueType], sensor: usize) -> DecodeResult<(Vec<i64>, Column)> {
    let head = Head::read(payload)?;
    let Some(value_type) = types.get(sensor).filter(|_| head.span.sensors == types.len()) else {
        return Err(PayloadError::NoSuchSensor { sensor, sensors: head.span.sensors });
    };
    let mut walk = Walk::new(payload, &head)?;
    for _ in 0..sensor {
        walk.skip_column()?;
    }
    let mut column = column_for(*value_type, 0);
    walk.next_column(&mut column)?;
    Ok((head.times(payload)?, column))
}

/// The same for all columns.
pub fn decode_columns_of(payload: &[u8], types: &[ValueType]) -> DecodeResult<(Vec<i64>, Vec<Column>)> {
    let head = Head::read(payload)?;
    if head.span.sensors != types.len() {
        return Err(PayloadError::NoSuchSensor { sensor: types.len(), sensors: head.span.sensors });
    }
    let mut walk = Walk::new(payload, &head)?;
    let mut columns = Vec::with_capacity(types.len());
    for value_type in types {
        let mut column = column_for(*value_type, 0);
        walk.append_column(&mut column, head.span.samples)?;
        columns.push(column);
    }
    walk.finish()?;
    Ok((head.times(payload)?, columns))
}

/// Decodes one column after another into the same two buffers, for readers of whole batches that do not keep the columns. Returns the times.
pub fn for_each_column(
    payload: &[u8],
    schema: &Schema,
    mut each: impl FnMut(usize, &Column),
) -> DecodeResult<Vec<i64>> {
    let head = Head::read_for(payload, schema)?;
    let mut walk = Walk::new(payload, &head)?;
    let mut ints = column_for(ValueType::Int, 0);
    let mut floats = column_for(ValueType::Float, 0);
    for (index, sensor) in schema.sensors().iter().enumerate() {
        let column = if sensor.value_type == ValueType::Int { &mut ints } else { &mut floats };
        walk.next_column(column)?;
        each(index, column);
    }
    walk.finish()?;
    head.times(payload)
}

/// Appends the times to `times` and each sensor's values to its column, which will have at most `rows_max` rows. After an error the columns are
/// unchanged. Their types must be those of the schema.
pub fn append_columns(
    payload: &[u8],
    schema: &Schema,
    times: &mut Vec<i64>,
    columns: &mut [Column],
    rows_max: usize,
) -> DecodeResult<()> {
    let head = Head::read_for(payload, schema)?;
    if columns.len() != schema.len() {
        return Err(PayloadError::NoSuchSensor { sensor: columns.len(), sensors: schema.len() });
    }
    let before = times.len();
    let mut walk = Walk::new(payload, &head)?;
    let whole = walk.append_all(columns, rows_max).and_then(|()| walk.finish());
    match whole.and_then(|()| head.times(payload)) {
        Ok(more) => times.extend(more),
        Err(error) => {
            columns.iter_mut().for_each(|column| cut(column, before));
            return Err(error);
        }
    }
    Ok(())
}

/// Truncates a column to its first `rows`.
fn cut(column: &mut Column, rows: usize) {
    match &mut column.values {
        ColumnValues::Int(values) => values.truncate(rows),
        ColumnValues::Float(values) => values.truncate(rows),
    }
    column.gaps.0.truncate(rows.div_ceil(64));
    if let Some(last) = column.gaps.0.get_mut(rows / 64) {
        *last &= (1 << (rows % 64)) - 1;
    }
    // Without gaps the bitmap is empty, which is faster to read.
    if column.gaps.0.iter().all(|word| *word == 0) {
        column.gaps.0.clear();
    }
}

/// The last sample: its time and each sensor's value; `None` for a gap.
pub fn last_row(payload: &[u8], schema: &Schema) -> DecodeResult<(i64, Vec<Option<Value>>)> {
    let head = Head::read_for(payload, schema)?;
    let mut row = Vec::with_capacity(schema.len());
    for_each_column(payload, schema, |_, column| row.push(column.get(head.span.samples - 1)))?;
    Ok((head.span.last_time, row))
}

/// An empty column with room for `rows`.
fn column_for(value_type: ValueType, rows: usize) -> Column {
    let values = match value_type {
        ValueType::Int => ColumnValues::Int(Vec::with_capacity(rows)),
        ValueType::Float => ColumnValues::Float(Vec::with_capacity(rows)),
    };
    Column { values, gaps: Gaps::default() }
}

/// The header, borrowed from the payload.
struct Head<'a> {
    agent: &'a str,
    boot: u64,
    seq: u64,
    schema: SchemaHash,
    interval_ns: u64,
    span: Span,
    steady: bool,
    /// The offset of the time differences.
    times_at: usize,
    /// The offset of the mode bytes.
    modes_at: usize,
}

impl<'a> Head<'a> {
    fn read(payload: &'a [u8]) -> DecodeResult<Self> {
        let mut cursor = Cursor { bytes: payload, at: 0 };
        if payload.len() > PAYLOAD_BYTES_MAX {
            return cursor.fail("longer than a payload may be");
        }
        if cursor.take(2)? != MAGIC {
            return Err(PayloadError::Malformed { reason: "does not begin with WG", offset: 0 });
        }
        match cursor.byte()? {
            VERSION => {}
            other => return Err(PayloadError::Version(other)),
        }
        let flags = cursor.byte()?;
        if flags & !FLAG_STEADY != 0 {
            return cursor.fail("unknown flags");
        }
        let steady = flags & FLAG_STEADY != 0;
        let agent_length = cursor.count(AGENT_BYTES_MAX, "agent's name is too long")?;
        let Ok(agent) = std::str::from_utf8(cursor.take(agent_length)?) else {
            return cursor.fail("agent's name is not UTF-8");
        };
        let boot = u64::from_le_bytes(cursor.array()?);
        let seq = cursor.varint()?;
        let schema = SchemaHash(cursor.array()?);
        let interval_ns = cursor.varint()?;
        let samples = cursor.count(SAMPLES_MAX, "more samples than a batch may have")?;
        let sensors = cursor.count(SENSORS_MAX, "more sensors than a batch may have")?;
        if samples == 0 || sensors == 0 {
            return cursor.fail("no samples or no sensors");
        }
        if samples * sensors > VALUES_MAX {
            return cursor.fail("more values than a batch may have");
        }
        let first_time = i64::from_le_bytes(cursor.array()?);
        let times_at = cursor.at;
        let mut last_time = first_time;
        if steady && samples > 1 {
            let step = unzigzag(cursor.varint()?);
            last_time = first_time.wrapping_add(step.wrapping_mul(samples as i64 - 1));
        } else if !steady {
            for _ in 1..samples {
                last_time = last_time.wrapping_add(unzigzag(cursor.varint()?));
            }
        }
        let span = Span { samples, sensors, first_time, last_time };
        Ok(Self { agent, boot, seq, schema, interval_ns, span, steady, times_at, modes_at: cursor.at })
    }

    /// Reads the header and checks that it names `schema`.
    fn read_for(payload: &'a [u8], schema: &Schema) -> DecodeResult<Self> {
        let head = Self::read(payload)?;
        if head.schema != schema.hash() {
            return Err(PayloadError::OtherSchema { payload: head.schema, schema: schema.hash() });
        }
        if head.span.sensors != schema.len() {
            let reason = format!("it has {} sensors, the schema {}", head.span.sensors, schema.len());
            return Err(PayloadError::Unfit { schema: schema.hash(), reason });
        }
        Ok(head)
    }

    fn to_header(&self) -> BatchHeader {
        BatchHeader {
            agent: self.agent.to_owned(),
            boot: self.boot,
            seq: self.seq,
            schema: self.schema,
            interval_ns: self.interval_ns,
        }
    }

    /// The smallest and the largest time.
    fn range(&self, payload: &[u8]) -> DecodeResult<(i64, i64)> {
        let mut time = self.span.first_time;
        let (mut smallest, mut largest) = (time, time);
        let mut cursor = Cursor { bytes: payload, at: self.times_at };
        let mut step = 0;
        for sample in 1..self.span.samples {
            if !self.steady || sample == 1 {
                step = unzigzag(cursor.varint()?);
            }
            time = time.wrapping_add(step);
            smallest = smallest.min(time);
            largest = largest.max(time);
        }
        Ok((smallest, largest))
    }

    fn times(&self, payload: &[u8]) -> DecodeResult<Vec<i64>> {
        let Span { samples, mut first_time, .. } = self.span;
        let mut times = Vec::with_capacity(samples);
        times.push(first_time);
        let mut cursor = Cursor { bytes: payload, at: self.times_at };
        let mut step = 0;
        for sample in 1..samples {
            if !self.steady || sample == 1 {
                step = unzigzag(cursor.varint()?);
            }
            first_time = first_time.wrapping_add(step);
            times.push(first_time);
        }
        Ok(times)
    }
}

/// Iterates over the columns: one cursor in the runs of modes, one in the bodies.
struct Walk<'a> {
    runs: Cursor<'a>,
    bodies: Cursor<'a>,
    samples: usize,
    /// For messages of errors.
    schema: SchemaHash,
    /// Sensors after the current run.
    sensors_left: usize,
    mode: u8,
    run_left: usize,
}

impl<'a> Walk<'a> {
    fn new(payload: &'a [u8], head: &Head<'_>) -> DecodeResult<Self> {
        let runs = Cursor { bytes: payload, at: head.modes_at };
        let mut walk = Self {
            runs,
            bodies: runs,
            samples: head.span.samples,
            schema: head.schema,
            sensors_left: head.span.sensors,
            mode: 0,
            run_left: 0,
        };
        while walk.sensors_left > 0 {
            walk.next_run()?;
        }
        // The bodies begin at the end of the runs. The runs are then read again together with the bodies.
        walk.bodies = walk.runs;
        walk.runs = runs;
        walk.sensors_left = head.span.sensors;
        walk.run_left = 0;
        Ok(walk)
    }

    fn next_run(&mut self) -> DecodeResult<()> {
        let byte = self.runs.byte()?;
        let mut less_one = usize::from(byte >> mode::RUN_SHIFT);
        if less_one == usize::from(mode::RUN_MORE) {
            less_one += self.runs.count(SENSORS_MAX, "more columns than sensors")?;
        }
        if less_one >= self.sensors_left {
            return self.runs.fail("more columns than sensors");
        }
        self.mode = byte & mode::MASK;
        self.run_left = less_one + 1;
        self.sensors_left -= less_one + 1;
        Ok(())
    }

    fn next_mode(&mut self) -> DecodeResult<(u8, bool)> {
        if self.run_left == 0 {
            self.next_run()?;
        }
        self.run_left -= 1;
        Ok((self.mode & !mode::GAPS, self.mode & mode::GAPS != 0))
    }

    /// The number of values in the next body, after its gap bitmap was read.
    fn present(&mut self, gaps: bool) -> DecodeResult<(usize, &'a [u8])> {
        if !gaps {
            return Ok((self.samples, &[]));
        }
        let bitmap = self.bodies.take(self.samples.div_ceil(8))?;
        let missing: usize = bitmap.iter().map(|byte| byte.count_ones() as usize).sum();
        let unused = self.samples % 8;
        if unused != 0 && bitmap[bitmap.len() - 1] >> unused != 0 {
            return self.bodies.fail("gaps after the last sample");
        }
        if missing == 0 || missing >= self.samples {
            return self.bodies.fail("a gap bitmap where none is allowed");
        }
        Ok((self.samples - missing, bitmap))
    }

    fn skip_column(&mut self) -> DecodeResult<()> {
        let (column_mode, gaps) = self.next_mode()?;
        if column_mode == mode::ABSENT {
            return Ok(());
        }
        let (present, _) = self.present(gaps)?;
        let bodies = &mut self.bodies;
        let steps = present - 1;
        if column_mode < mode::FLOAT_CONSTANT {
            bodies.skip_varints(1)?;
        } else {
            bodies.skip_xor()?;
        }
        match column_mode {
            mode::INT_CONSTANT | mode::FLOAT_CONSTANT => Ok(()),
            mode::INT_STEP => bodies.skip_varints(1),
            mode::INT_VARINT => bodies.skip_varints(steps),
            mode::INT_PACKED => {
                let width = bodies.byte()?;
                bodies.skip_varints(1)?;
                bodies.take((steps * usize::from(width)).div_ceil(8)).map(|_| ())
            }
            mode::INT_SPARSE => {
                let bitmap = bodies.changes(steps)?;
                bodies.skip_varints(bitmap.iter().map(|byte| byte.count_ones() as usize).sum())
            }
            mode::FLOAT_XOR => (0..steps).try_for_each(|_| bodies.skip_xor()),
            mode::FLOAT_RAW => bodies.take(steps * 8).map(|_| ()),
            _ => bodies.fail("unknown column mode"),
        }
    }

    /// Decodes the next column into `column`, which has the sensor's type.
    fn next_column(&mut self, column: &mut Column) -> DecodeResult<()> {
        column.gaps.0.clear();
        match &mut column.values {
            ColumnValues::Int(values) => values.clear(),
            ColumnValues::Float(values) => values.clear(),
        }
        self.append_column(column, self.samples)
    }

    /// Appends the values of every column.
    fn append_all(&mut self, columns: &mut [Column], rows_max: usize) -> DecodeResult<()> {
        let mut at = 0;
        while at < columns.len() {
            let taken = self.append_single_run(&mut columns[at..])?;
            at += taken;
            if taken == 0 {
                self.append_column(&mut columns[at], rows_max)?;
                at += 1;
            }
        }
        Ok(())
    }

    /// Appends the next column's values to `column`, which will have at most `rows_max` rows.
    fn append_column(&mut self, column: &mut Column, rows_max: usize) -> DecodeResult<()> {
        let (column_mode, gaps) = self.next_mode()?;
        let start = column.len();
        let (present, bitmap) = if column_mode == mode::ABSENT {
            if gaps {
                return self.bodies.fail("a gap bitmap where none is allowed");
            }
            (start..start + self.samples).for_each(|row| set_gap(&mut column.gaps, row, rows_max));
            (0, &[][..])
        } else {
            self.present(gaps)?
        };
        match &mut column.values {
            ColumnValues::Int(values) => {
                values.reserve(self.samples);
                match column_mode {
                    mode::ABSENT => values.resize(start + self.samples, 0),
                    mode::INT_CONSTANT..=mode::INT_SPARSE => take_ints(&mut self.bodies, column_mode, present, values)?,
                    _ => return self.wrong_type(column_mode, "integers"),
                }
                spread(values, start, self.samples, bitmap);
            }
            ColumnValues::Float(values) => {
                values.reserve(self.samples);
                match column_mode {
                    mode::ABSENT => values.resize(start + self.samples, 0.0),
                    mode::FLOAT_CONSTANT..=mode::FLOAT_RAW => {
                        take_floats(&mut self.bodies, column_mode, present, values)?
                    }
                    _ => return self.wrong_type(column_mode, "floats"),
                }
                spread(values, start, self.samples, bitmap);
            }
        }
        if start == 0 && rows_max == self.samples {
            column.gaps.0.extend(bitmap.chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }));
        } else if !bitmap.is_empty() {
            let missing = (0..self.samples).filter(|sample| bitmap[sample / 8] >> (sample % 8) & 1 == 1);
            missing.for_each(|sample| set_gap(&mut column.gaps, start + sample, rows_max));
        }
        Ok(())
    }

    /// Appends the columns of the current run of integers or floats, in a batch of one sample. Returns their number; 0 if the run is of another mode.
    fn append_single_run(&mut self, columns: &mut [Column]) -> DecodeResult<usize> {
        if self.samples != 1 {
            return Ok(0);
        }
        if self.run_left == 0 {
            self.next_run()?;
        }
        let run = self.run_left.min(columns.len());
        let mut taken = 0;
        match self.mode {
            mode::INT_CONSTANT => {
                for column in &mut columns[..run] {
                    let ColumnValues::Int(values) = &mut column.values else { break };
                    values.push(unzigzag(self.bodies.wide_varint()?));
                    taken += 1;
                }
            }
            mode::FLOAT_CONSTANT => {
                for column in &mut columns[..run] {
                    let ColumnValues::Float(values) = &mut column.values else { break };
                    values.push(f64::from_bits(self.bodies.xor()?));
                    taken += 1;
                }
            }
            _ => {}
        }
        self.run_left -= taken;
        Ok(taken)
    }

    fn wrong_type(&self, column_mode: u8, wanted: &str) -> DecodeResult<()> {
        if column_mode > mode::FLOAT_RAW {
            return self.bodies.fail("unknown column mode");
        }
        let reason = format!("a column has mode {column_mode} where the schema has {wanted}");
        Err(PayloadError::Unfit { schema: self.schema, reason })
    }

    fn finish(&self) -> DecodeResult<()> {
        if self.bodies.at == self.bodies.bytes.len() { Ok(()) } else { self.bodies.fail("bytes after the end") }
    }
}

/// Marks a gap in a column that will have at most `rows_max` rows.
fn set_gap(gaps: &mut Gaps, row: usize, rows_max: usize) {
    let words = rows_max.max(row + 1).div_ceil(64);
    if gaps.0.len() < words {
        gaps.0.resize(words, 0);
    }
    gaps.0[row / 64] |= 1 << (row % 64);
}

/// Moves the values, which begin at `start`, to their samples, with 0 at the gaps.
fn spread<T: Copy + Default>(values: &mut Vec<T>, start: usize, samples: usize, bitmap: &[u8]) {
    if bitmap.is_empty() {
        return;
    }
    let mut from = values.len();
    values.resize(start + samples, T::default());
    for sample in (0..samples).rev() {
        values[start + sample] = if bitmap[sample / 8] >> (sample % 8) & 1 == 1 {
            T::default()
        } else {
            from -= 1;
            values[from]
        };
    }
}

fn take_ints(bodies: &mut Cursor<'_>, column_mode: u8, count: usize, out: &mut Vec<i64>) -> DecodeResult<()> {
    let mut value = unzigzag(bodies.varint()?);
    if column_mode == mode::INT_CONSTANT {
        out.resize(out.len() + count, value);
        return Ok(());
    }
    out.push(value);
    let steps = count - 1;
    let mut next = |delta: i64| {
        value = value.wrapping_add(delta);
        value
    };
    match column_mode {
        mode::INT_STEP => {
            let step = unzigzag(bodies.varint()?);
            out.extend((0..steps).map(|_| next(step)));
        }
        mode::INT_VARINT => {
            for slot in longer(out, steps) {
                *slot = next(unzigzag(bodies.varint()?));
            }
        }
        mode::INT_PACKED => {
            let width = bodies.byte()?;
            let min = unzigzag(bodies.varint()?);
            if !(1..=64).contains(&width) {
                return bodies.fail("packed differences of a width that is not 1 to 64 bits");
            }
            unpack(bodies, usize::from(width), steps, |bits| next(min.wrapping_add(bits as i64)), out)?;
        }
        _ => {
            let bitmap = bodies.changes(steps)?;
            for (step, slot) in longer(out, steps).iter_mut().enumerate() {
                let changed = bitmap[step / 8] >> (step % 8) & 1 == 1;
                *slot = next(if changed { unzigzag(bodies.varint()?) } else { 0 });
            }
        }
    }
    Ok(())
}

/// Extends `out` by `count` values and returns them for filling, which is faster than a push for each value.
fn longer<T: Copy + Default>(out: &mut Vec<T>, count: usize) -> &mut [T] {
    let start = out.len();
    out.resize(start + count, T::default());
    &mut out[start..]
}

/// Unpacks `count` numbers of `width` bits and appends `value` of each.
fn unpack(
    bodies: &mut Cursor<'_>,
    width: usize,
    count: usize,
    mut value: impl FnMut(u64) -> i64,
    out: &mut Vec<i64>,
) -> DecodeResult<()> {
    let packed = bodies.take((count * width).div_ceil(8))?;
    let mask = u64::MAX >> (64 - width);
    // Eight bytes contain any value of up to 57 bits at any bit offset. The last values have fewer bytes after
    // them and take the slow path, as do wider ones.
    let quick = if width > 57 || packed.len() < 8 { 0 } else { count.min((packed.len() - 7) * 8 / width) };
    out.extend((0..quick).map(|index| {
        let bit = index * width;
        let bytes = packed.get(bit / 8..).and_then(|rest| rest.first_chunk::<8>());
        value(u64::from_le_bytes(*bytes.unwrap_or(&[0; 8])) >> (bit % 8) & mask)
    }));
    for index in quick..count {
        let bit = index * width;
        let rest = &packed[bit / 8..];
        let mut bytes = [0; 16];
        let length = rest.len().min(16);
        bytes[..length].copy_from_slice(&rest[..length]);
        out.push(value((u128::from_le_bytes(bytes) >> (bit % 8)) as u64 & mask));
    }
    Ok(())
}

fn take_floats(bodies: &mut Cursor<'_>, column_mode: u8, count: usize, out: &mut Vec<f64>) -> DecodeResult<()> {
    let mut bits = bodies.xor()?;
    out.push(f64::from_bits(bits));
    match column_mode {
        mode::FLOAT_CONSTANT => out.resize(out.len() + count - 1, f64::from_bits(bits)),
        mode::FLOAT_XOR => {
            for slot in longer(out, count - 1) {
                bits ^= bodies.xor()?;
                *slot = f64::from_bits(bits);
            }
        }
        _ => {
            let (chunks, _) = bodies.take((count - 1) * 8)?.as_chunks::<8>();
            out.extend(chunks.iter().map(|bytes| f64::from_le_bytes(*bytes)));
        }
    }
    Ok(())
}
