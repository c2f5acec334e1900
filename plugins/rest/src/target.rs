//! One device: the answers of its addresses become sensors and values.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wholegrain_device_http::{
    AnswerBody, AnswerHead, DeviceClient, DeviceRequest, NO_ROOM, NODES_MAX, SensorRoom, TreeRoom, check_status,
};
use wholegrain_devices::{AnswerSlot, BlockingProtocol, DeviceProblem, NewNames, OLD_TIME, system_time};

use crate::layout::{LayoutBounds, PageLayout};
use crate::notes::{GapRecord, RestNotes};
use crate::page::{self, PageFault, PageNode, PageTree};
use crate::settings::UrlPlan;
use crate::spec::{PageTable, row_name};
use crate::value::GapReason;

/// The first pause after rows were learned: 1 s. It doubles while new ones come soon after it.
const LEARN_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: 5 min. After it rows are learned again if some did not fit.
const LEARN_PAUSE_MAX: Duration = Duration::from_secs(300);
/// How far ahead the clock of a device may be: 60 s.
const AHEAD_NS_MAX: i64 = 60_000_000_000;
/// The longest name of a row.
const ROW_NAME_BYTES_MAX: usize = 256;
/// What is read of a text for the name of a row: more than a level of a path can have.
const ROW_TEXT_CHARACTERS: usize = 256;
/// The bytes of a row while its table is read: its node, its place among the rows, and its name twice.
const ROW_BYTES: usize = 300 + 2 * ROW_NAME_BYTES_MAX;
/// The part of `memory_bytes_max` that the sensors of all devices may take: 64 MiB of 256 MiB.
const ROOM_EIGHTHS: usize = 2;

/// Polls the addresses of one device.
pub struct RestDevice {
    path: String,
    client: DeviceClient,
    groups: Vec<RestGroup>,
    notes: Arc<RestNotes>,
}

impl RestDevice {
    /// A device that was not polled yet.
    pub fn new(path: &str, client: DeviceClient, urls: &[UrlPlan], notes: Arc<RestNotes>) -> Self {
        let groups = urls.iter().cloned().map(RestGroup::new).collect();
        Self { path: path.to_owned(), client, groups, notes }
    }
}

impl BlockingProtocol for RestDevice {
    fn poll(&mut self, group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        let Some(group) = self.groups.get_mut(group) else { return Ok(()) };
        let begin = Instant::now();
        let body = group.fetch(&self.client, deadline)?;
        let timing = AnswerTiming { begin, end: Instant::now(), end_ns: system_time() };
        group.take(&body, slot, timing, &self.path, &self.notes)
    }
}

/// When a request began and its answer ended.
#[derive(Clone, Copy)]
struct AnswerTiming {
    begin: Instant,
    end: Instant,
    /// The end in nanoseconds since the epoch.
    end_ns: i64,
}

/// One address of a device.
struct RestGroup {
    plan: UrlPlan,
    layout: PageLayout,
    /// When rows were learned, and the pause after it.
    learned: Option<(Instant, Duration)>,
    room: SensorRoom,
    new_names: NewNames,
    /// Whether rows did not fit at that time.
    is_full: bool,
    /// The newest time that an answer had of its own.
    own_time: Option<i64>,
    gaps: GapRecord,
    /// What was wrong with the last answer as a whole.
    fault: Option<&'static str>,
    values: Vec<Option<u64>>,
    reasons: Vec<Option<GapReason>>,
}

/// A table of an answer: its rows by name, `None` for a name of several rows.
struct TableRows<'t, 'i> {
    rows: HashMap<String, Option<PageNode<'t, 'i>>>,
    /// The names in the order of the answer.
    names: Vec<String>,
    nameless: usize,
    /// Rows with too long names, and those beyond the most of an answer.
    left_out: usize,
}

impl RestGroup {
    fn new(plan: UrlPlan) -> Self {
        Self {
            room: SensorRoom::new(ROOM_EIGHTHS),
            new_names: NewNames::new(plan.spec.series_max),
            plan,
            layout: PageLayout::default(),
            learned: None,
            is_full: false,
            own_time: None,
            gaps: GapRecord::default(),
            fault: None,
            values: Vec::new(),
            reasons: Vec::new(),
        }
    }

    fn fetch(&self, client: &DeviceClient, deadline: Instant) -> Result<AnswerBody, DeviceProblem> {
        let mut body = AnswerBody::default();
        let request = &self.plan.request;
        let headers: Vec<(&str, &str)> =
            request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let head: AnswerHead = client.call_with_room(
            &DeviceRequest {
                method: request.method,
                url: &request.url,
                headers: &headers,
                body: request.body.as_deref(),
                authorized: true,
            },
            deadline,
            &mut body,
        )?;
        // A POST can be answered with 201, 202 or 203 and a body.
        if !(200..=203).contains(&head.status) {
            check_status(head.status)?;
        }
        Ok(body)
    }

    /// Takes an answer: learns new rows, and publishes its values.
    fn take(
        &mut self,
        body: &[u8],
        slot: &AnswerSlot,
        timing: AnswerTiming,
        path: &str,
        notes: &RestNotes,
    ) -> Result<(), DeviceProblem> {
        let spec = self.plan.spec.clone();
        let place = format!("{path} ({})", self.plan.name);
        let text = page::text(body, spec.format);
        let tree = text.as_ref().map_err(|fault| PageFault { what: fault.what, detail: fault.detail.clone() });
        let tree = match tree.and_then(|text| PageTree::parse(text, spec.format)) {
            Ok(tree) => tree,
            Err(fault) => {
                if self.fault != Some(fault.what) {
                    notes.add(format!("{place}: the answer is {}: {}", fault.what, cut(&fault.detail)));
                }
                self.fault = Some(fault.what);
                // Not the device's fault: it is asked at its next interval.
                let is_ours = fault.what == NO_ROOM;
                return Err(if is_ours { DeviceProblem::Refused } else { DeviceProblem::Garbage }(fault.what));
            }
        };
        self.fault = None;
        let taken_at = match self.time_of(&tree, timing.end_ns)? {
            Some(taken_at) => taken_at,
            // The device has no newer values: a value is never repeated.
            None => {
                slot.repeat();
                return Ok(());
            }
        };
        // No format has more nodes than bytes.
        let nodes = if spec.tables.is_empty() { 0 } else { body.len().min(NODES_MAX) };
        let mut rows_left = (nodes * spec.tables.len()).min(2 * spec.series_max);
        let _room = TreeRoom::for_rows(nodes, rows_left, ROW_BYTES).map_err(|_| DeviceProblem::Refused(NO_ROOM))?;
        let tables: Vec<TableRows> = spec.tables.iter().map(|table| find_rows(&tree, table, &mut rows_left)).collect();
        if self.learned.is_none() || (self.has_unknown(&tables) && self.may_learn(timing.end)) {
            self.learn(&tables, slot, timing.end, path, notes);
        }
        self.read(&tree, &tables, timing.end_ns);
        let mut gaps = std::mem::take(&mut self.gaps);
        let note = gaps.update(&self.reasons, |index| self.name(index, path));
        self.gaps = gaps;
        if let Some(note) = note {
            notes.add(format!("{place}: {note}"));
        }
        let gaps = self.reasons.iter().flatten().filter(|reason| reason.is_noted()).count();
        let unknown = self.unknown(&tables) + tables.iter().map(|table| table.nameless + table.left_out).sum::<usize>();
        let own = [timing.end.duration_since(timing.begin).as_secs_f64().to_bits(), gaps as u64, unknown as u64];
        self.values.extend(own.map(Some));
        slot.publish(taken_at, &self.values);
        Ok(())
    }

    /// The time of the answer. `None` if it is not newer than that of the answer before.
    fn time_of(&mut self, tree: &PageTree, now_ns: i64) -> Result<Option<i64>, DeviceProblem> {
        let Some(time) = &self.plan.spec.time else { return Ok(Some(now_ns)) };
        let scalar = tree.scalar(&tree.root(), &time.path);
        let Some(own) = scalar.ok().and_then(|scalar| time.read(&scalar)) else {
            return Err(DeviceProblem::Refused("an answer without a time at `time`"));
        };
        if own.saturating_sub(now_ns) > AHEAD_NS_MAX {
            return Err(DeviceProblem::Refused("a time in the future: its clock is wrong"));
        }
        if now_ns.saturating_sub(own) > self.plan.stale_ns {
            return Err(DeviceProblem::Refused(OLD_TIME));
        }
        // A step back of the clock that is larger than stale_after is an error above; a smaller one passes.
        if self.own_time.is_some_and(|newest| own <= newest) {
            return Ok(None);
        }
        self.own_time = Some(own);
        Ok(Some(own.min(now_ns)))
    }

    /// The rows of the answer that have no sensors.
    fn unknown(&self, tables: &[TableRows]) -> usize {
        let unknown = |(number, table): (usize, &TableRows)| {
            table.rows.keys().filter(|name| self.layout.place(number, name).is_none()).count()
        };
        tables.iter().enumerate().map(unknown).sum()
    }

    fn has_unknown(&self, tables: &[TableRows]) -> bool {
        self.unknown(tables) > 0
    }

    fn may_learn(&self, now: Instant) -> bool {
        self.learned.is_none_or(|(at, pause)| now >= at + if self.is_full { LEARN_PAUSE_MAX } else { pause })
    }

    fn learn(&mut self, tables: &[TableRows], slot: &AnswerSlot, now: Instant, path: &str, notes: &RestNotes) {
        let found: Vec<Vec<String>> = tables.iter().map(|table| table.names.clone()).collect();
        let (layout, plan, new_max) = (&mut self.layout, &self.plan, self.new_names.left(now));
        let new = self.room.learn(|bytes_max| {
            let new = layout.learn(&plan.spec, path, &plan.name, &found, LayoutBounds { bytes_max, new_max });
            let bytes = new.bytes;
            (new, bytes)
        });
        self.new_names.take(new.new, now);
        if let Some(refused) = new.refused.as_ref().filter(|_| !self.is_full) {
            notes.add(format!("{path} ({}): {refused}", self.plan.name));
        }
        if let Some(table) = self.plan.spec.tables.iter().zip(tables).find(|(_, found)| found.nameless > 0) {
            notes.add(format!(
                "{path} ({}): table {:?}: {} rows have nothing at `index`",
                self.plan.name, table.0.name, table.1.nameless
            ));
        }
        let left_out: usize = tables.iter().map(|table| table.left_out).sum();
        if left_out > 0 && !self.is_full {
            notes.add(format!(
                "{path} ({}): {left_out} rows are left out: names longer than {ROW_NAME_BYTES_MAX} bytes, or too many rows",
                self.plan.name
            ));
        }
        self.is_full = new.refused.is_some() || left_out > 0;
        let pause = match self.learned {
            Some((at, pause)) if now < at + pause * 2 => (pause * 2).min(LEARN_PAUSE_MAX),
            _ => LEARN_PAUSE_MIN,
        };
        self.learned = Some((now, pause));
        self.gaps.forget_after(self.plan.spec.values.len());
        slot.set_sensors(new.sensors);
    }

    /// Reads the values of an answer, each with the reason why it is a gap.
    fn read(&mut self, tree: &PageTree, tables: &[TableRows], now_ns: i64) {
        let count = self.layout.count();
        self.values.clear();
        self.reasons.clear();
        self.values.resize(count, None);
        self.reasons.resize(count, Some(GapReason::NoRow));
        let root = tree.root();
        let (values, reasons) = (&mut self.values, &mut self.reasons);
        let mut set = |index: usize, result: Result<u64, GapReason>| {
            if let (Some(value), Some(reason)) = (values.get_mut(index), reasons.get_mut(index)) {
                (*value, *reason) = (result.ok(), result.err());
            }
        };
        for (index, value) in self.plan.spec.values.iter().enumerate() {
            set(index, tree.scalar(&root, &value.path).and_then(|scalar| value.value.bits(&scalar)));
        }
        for (number, (table, found)) in self.plan.spec.tables.iter().zip(tables).enumerate() {
            for (name, row) in &found.rows {
                let Some(place) = self.layout.place(number, name) else { continue };
                let refused = match row {
                    None => Some(GapReason::SeveralRows),
                    Some(row) => row_refused(tree, table, row, now_ns, self.plan.stale_ns),
                };
                for (at, column) in table.columns.iter().enumerate() {
                    let result = match (refused, row) {
                        (None, Some(row)) => {
                            tree.scalar(row, &column.path).and_then(|scalar| column.value.bits(&scalar))
                        }
                        (reason, _) => Err(reason.unwrap_or(GapReason::NoRow)),
                    };
                    set(place + at, result);
                }
            }
        }
    }

    /// The name of a sensor, for notes.
    fn name(&self, index: usize, path: &str) -> String {
        if let Some(value) = self.plan.spec.values.get(index) {
            return format!("{path}/{}", value.value.sensor.name);
        }
        for (number, table) in self.plan.spec.tables.iter().enumerate() {
            let columns = table.columns.len();
            if let Some((row, place)) =
                self.layout.rows(number).find(|(_, place)| (*place..*place + columns).contains(&index))
            {
                let column = &table.columns[index - place].value.sensor.name;
                return [path, &table.name, row, column]
                    .into_iter()
                    .filter(|level| !level.is_empty())
                    .collect::<Vec<_>>()
                    .join("/");
            }
        }
        path.to_owned()
    }
}

/// Why a whole row has no values: its own time.
fn row_refused(tree: &PageTree, table: &PageTable, row: &PageNode, now_ns: i64, stale_ns: i64) -> Option<GapReason> {
    let time = table.time.as_ref()?;
    match tree.scalar(row, &time.path).ok().and_then(|scalar| time.read(&scalar)) {
        None => Some(GapReason::NoTime),
        Some(own) if own.saturating_sub(now_ns) > AHEAD_NS_MAX => Some(GapReason::NoTime),
        Some(own) => (now_ns.saturating_sub(own) > stale_ns).then_some(GapReason::Stale),
    }
}

/// The rows of a table with their names, at most `left`, which is lowered.
fn find_rows<'t, 'i>(tree: &'t PageTree<'i>, table: &PageTable, left: &mut usize) -> TableRows<'t, 'i> {
    let mut found = TableRows { rows: HashMap::new(), names: Vec::new(), nameless: 0, left_out: 0 };
    for row in tree.rows(&table.rows) {
        if *left == 0 {
            found.left_out += 1;
            continue;
        }
        *left -= 1;
        let begin = |text: &str| text.chars().take(ROW_TEXT_CHARACTERS).collect();
        let text = |path| tree.scalar(&row, path).ok().and_then(|scalar| scalar.text().map(|text| begin(&text)));
        let texts: Option<Vec<String>> = if table.index.is_empty() {
            row.key().map(|key| vec![key])
        } else {
            table.index.iter().map(text).collect()
        };
        let Some(name) = texts.map(|texts| row_name(&texts)) else {
            found.nameless += 1;
            continue;
        };
        if name.len() > ROW_NAME_BYTES_MAX {
            found.left_out += 1;
            continue;
        }
        match found.rows.get_mut(&name) {
            Some(row) => *row = None,
            None => {
                found.names.push(name.clone());
                found.rows.insert(name, Some(row));
            }
        }
    }
    found
}

/// The begin of a message, which can have what the device sent.
fn cut(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(120).collect()
}
