//! Polls one agent: objects by GET, tables by GETBULK or GETNEXT. A state machine without I/O.

use std::sync::Arc;

use wholegrain_devices::{DeviceProblem, DeviceProtocol, PollTurn};

use crate::ber::Oid;
use crate::layout::{GroupAnswer, GroupLayout, ROWS_MAX, TableCells, remark};
use crate::message::{GET, GET_BULK, GET_NEXT, NO_SUCH_NAME, PduAnswer, PduRequest, SnmpValue, TOO_BIG, Varbinds};
use crate::session::{SnmpIdentity, SnmpReply, SnmpSession};
use crate::spec::GroupSpec;

/// The most names of one GET.
const NAMES_MAX: usize = 32;
/// The most values that a GETBULK asks for, so that an answer fits into one or two packets of Ethernet.
const VALUES_MAX: usize = 60;
/// The most requests of one poll.
const REQUESTS_MAX: u32 = 5000;
/// How often an agent may correct our notion of its engine during one poll.
const SYNCHRONISATIONS_MAX: u32 = 3;
/// authorizationError and noAccess of RFC 3416.
const NOT_ALLOWED: [i64; 2] = [16, 6];

/// A group of an agent with what is known of it.
struct AgentGroup {
    spec: Arc<GroupSpec>,
    /// sysUpTime, then the objects of the group.
    names: Arc<[Oid]>,
    /// The walked columns of each table.
    columns: Arc<[Vec<Oid>]>,
    layout: GroupLayout,
    /// How many names a GET has, and how many values a GETBULK asks for; halved when an answer is too big.
    names_max: usize,
    values_max: usize,
}

/// A walked column: where it stands.
struct ColumnCursor {
    /// Its place among the walked columns.
    column: usize,
    last: Oid,
}

/// What a poll is doing.
enum PollStage {
    /// Asking for the names of the group with these numbers.
    Objects { left: Vec<usize>, asked: usize },
    /// Walking the columns of a table.
    Table { table: usize, cursors: Vec<ColumnCursor>, asked: usize },
}

struct AgentPoll {
    group: usize,
    stage: PollStage,
    answer: GroupAnswer,
    requests: u32,
    synchronisations: u32,
}

/// The protocol of one agent.
pub struct SnmpAgent {
    path: String,
    session: SnmpSession,
    groups: Vec<AgentGroup>,
    max_repetitions: u32,
    poll: Option<AgentPoll>,
}

/// The groups of a device as lists of names, shared by all devices with the same groups.
pub struct SharedGroup {
    pub spec: Arc<GroupSpec>,
    names: Arc<[Oid]>,
    columns: Arc<[Vec<Oid>]>,
}

impl SharedGroup {
    /// Lists the names to ask for.
    pub fn new(spec: Arc<GroupSpec>) -> Self {
        let uptime = Oid::new([1, 3, 6, 1, 2, 1, 1, 3, 0]);
        let names = std::iter::once(uptime).chain(spec.objects.iter().map(|object| object.oid.clone())).collect();
        let columns = spec.tables.iter().map(|table| table.walked()).collect();
        Self { spec, names, columns }
    }
}

impl SnmpAgent {
    /// An agent at `path` below the prefix, with these groups.
    pub fn new(path: &str, identity: SnmpIdentity, groups: &[SharedGroup], max_repetitions: u32) -> Self {
        let group = |group: &SharedGroup| AgentGroup {
            spec: group.spec.clone(),
            names: group.names.clone(),
            columns: group.columns.clone(),
            layout: GroupLayout::default(),
            names_max: NAMES_MAX,
            values_max: VALUES_MAX,
        };
        Self {
            path: path.to_owned(),
            session: SnmpSession::new(&identity),
            groups: groups.iter().map(group).collect(),
            max_repetitions: max_repetitions.max(1),
            poll: None,
        }
    }

    /// Sends the request of the present stage.
    fn ask(&mut self, turn: &mut PollTurn<'_>) {
        let Some(poll) = &mut self.poll else { return };
        poll.requests += 1;
        if poll.requests > REQUESTS_MAX {
            return turn.fail(DeviceProblem::Garbage("a walk without end"));
        }
        let group = &self.groups[poll.group];
        let (kind, repetitions, names): (u8, u32, Vec<Oid>) = match &mut poll.stage {
            PollStage::Objects { left, asked } => {
                *asked = left.len().min(group.names_max);
                (GET, 0, left[..*asked].iter().map(|name| group.names[*name].clone()).collect())
            }
            PollStage::Table { cursors, asked, .. } => {
                *asked = cursors.len().min(group.values_max);
                let names = cursors[..*asked].iter().map(|cursor| cursor.last.clone()).collect();
                let repetitions = (group.values_max / *asked).clamp(1, self.max_repetitions as usize) as u32;
                if self.session.has_bulk() { (GET_BULK, repetitions, names) } else { (GET_NEXT, 0, names) }
            }
        };
        let now_ns = turn.now_ns();
        let request = PduRequest { kind, id: 0, repetitions, names: &names };
        turn.send(|out| self.session.put_request(out, &request, now_ns));
    }

    /// Goes to the next stage that has something to ask for, or ends the poll.
    fn advance(&mut self, turn: &mut PollTurn<'_>) {
        let Some(poll) = &mut self.poll else { return };
        let group = &self.groups[poll.group];
        loop {
            let next = match &poll.stage {
                PollStage::Objects { left, .. } if !left.is_empty() => break,
                PollStage::Table { cursors, .. } if !cursors.is_empty() => break,
                PollStage::Objects { .. } => 0,
                PollStage::Table { table, .. } => table + 1,
            };
            let Some(columns) = group.columns.get(next) else { return self.finish(turn) };
            let cursors =
                columns.iter().enumerate().map(|(column, last)| ColumnCursor { column, last: last.clone() }).collect();
            poll.answer.tables.push(TableCells::new());
            poll.stage = PollStage::Table { table: next, cursors, asked: 0 };
        }
        self.ask(turn);
    }

    fn finish(&mut self, turn: &mut PollTurn<'_>) {
        let Some(mut poll) = self.poll.take() else { return };
        let group = &mut self.groups[poll.group];
        (poll.answer.at_ns, poll.answer.boots) = (turn.now_ns(), self.session.boots());
        if turn.slot().sensors().is_none()
            && let Some(remark) = remark(&self.path, &group.spec, &poll.answer)
        {
            turn.slot().set_remark(remark);
        }
        if turn.slot().is_read() {
            group.layout.note_read();
        }
        if let Some(sensors) = group.layout.take(&self.path, &group.spec, &poll.answer) {
            turn.slot().set_sensors(sensors);
        } else if turn.slot().sensors().is_none() {
            turn.slot().set_sensors(Vec::new());
        }
        turn.slot().publish(turn.now_ns(), group.layout.values());
        turn.finish();
    }

    fn fail(&mut self, turn: &mut PollTurn<'_>, problem: DeviceProblem) {
        self.poll = None;
        turn.fail(problem);
    }

    /// Takes the answer to the last request. `false`: it does not fit.
    fn take_answer(&mut self, answer: PduAnswer, turn: &mut PollTurn<'_>) -> bool {
        let Some(poll) = &mut self.poll else { return false };
        let group = &mut self.groups[poll.group];
        if answer.error == TOO_BIG {
            let bound = match &poll.stage {
                PollStage::Objects { .. } => &mut group.names_max,
                PollStage::Table { .. } => &mut group.values_max,
            };
            if *bound == 1 {
                self.fail(turn, DeviceProblem::Refused("the answer is too big for the agent"));
                return true;
            }
            *bound = (*bound / 2).max(1);
        } else if NOT_ALLOWED.contains(&answer.error) {
            self.fail(turn, DeviceProblem::Refused("access is not allowed"));
            return true;
        } else if answer.error != 0 {
            skip_name(&mut poll.stage, group, &answer);
        } else {
            let result = match &mut poll.stage {
                PollStage::Objects { left, asked } => {
                    take_objects(left, *asked, group, answer.values, &mut poll.answer)
                }
                PollStage::Table { table, cursors, asked } => {
                    let cells = &mut poll.answer.tables[*table];
                    take_cells(cursors, *asked, &group.columns[*table], answer.values, cells)
                }
            };
            match result {
                Ok(()) => {}
                Err(AnswerFault::OtherNames) => return false,
                Err(AnswerFault::Broken(what)) => {
                    self.fail(turn, DeviceProblem::Garbage(what));
                    return true;
                }
            }
        }
        self.advance(turn);
        true
    }
}

/// Why the values of an answer cannot be taken.
enum AnswerFault {
    /// They are of names that were not asked for: the answer to another request.
    OtherNames,
    Broken(&'static str),
}

/// An error about one name, such as noSuchName of version 1: that name is left out. If none is named, the next request has fewer.
fn skip_name(stage: &mut PollStage, group: &mut AgentGroup, answer: &PduAnswer) {
    let named = usize::try_from(answer.error_index).ok().and_then(|index| index.checked_sub(1));
    match stage {
        PollStage::Objects { left, asked } => match named.filter(|index| index < asked) {
            Some(index) => drop(left.remove(index)),
            None if *asked > 1 => group.names_max = 1,
            None => drop(left.remove(0)),
        },
        // In a walk, noSuchName is the end of all names; another error ends its column.
        PollStage::Table { cursors, asked, .. } => match named.filter(|index| index < asked) {
            Some(index) => drop(cursors.remove(index)),
            None if answer.error == NO_SUCH_NAME || *asked <= 1 => drop(cursors.remove(0)),
            None => group.values_max = 1,
        },
    }
}

fn take_objects(
    left: &mut Vec<usize>,
    asked: usize,
    group: &AgentGroup,
    values: Varbinds,
    answer: &mut GroupAnswer,
) -> Result<(), AnswerFault> {
    if values.len() != asked || left.iter().zip(&values).any(|(name, (oid, _))| group.names[*name] != *oid) {
        return Err(AnswerFault::OtherNames);
    }
    for (name, (_, value)) in left.drain(..asked).zip(values) {
        match (name.checked_sub(1), value) {
            (_, SnmpValue::Absent | SnmpValue::EndOfMib) => {}
            (None, SnmpValue::TimeTicks(uptime)) => answer.uptime = Some(uptime),
            (None, _) => {}
            (Some(object), value) => answer.objects[object] = Some(value),
        }
    }
    Ok(())
}

fn take_cells(
    cursors: &mut Vec<ColumnCursor>,
    asked: usize,
    columns: &[Oid],
    values: Varbinds,
    cells: &mut TableCells,
) -> Result<(), AnswerFault> {
    if values.is_empty() {
        return Err(AnswerFault::Broken("an answer without values"));
    }
    let mut has_ended = vec![false; asked];
    for (at, (oid, value)) in values.into_iter().enumerate() {
        let cursor = &mut cursors[at % asked];
        if has_ended[at % asked] {
            continue;
        }
        let index = oid.below(&columns[cursor.column]);
        let Some(index) = index.filter(|_| !matches!(value, SnmpValue::EndOfMib | SnmpValue::Absent)) else {
            has_ended[at % asked] = true;
            continue;
        };
        if oid <= cursor.last {
            return Err(AnswerFault::Broken("a walk whose names do not increase"));
        }
        if let Some(row) = cells.get_mut(index) {
            row[cursor.column] = Some(value);
        } else if cells.len() == ROWS_MAX {
            return Err(AnswerFault::Broken("a table of more than 8192 rows"));
        } else {
            let mut row = vec![None; columns.len()];
            row[cursor.column] = Some(value);
            cells.insert(index.to_vec(), row);
        }
        cursor.last = oid;
    }
    let mut at = 0;
    cursors.retain(|_| {
        at += 1;
        !has_ended.get(at - 1).copied().unwrap_or(false)
    });
    Ok(())
}

impl DeviceProtocol for SnmpAgent {
    fn begin(&mut self, group: usize, turn: &mut PollTurn<'_>) {
        let names = self.groups[group].names.len();
        let answer = GroupAnswer { objects: vec![None; names - 1], ..GroupAnswer::default() };
        let stage = PollStage::Objects { left: (0..names).collect(), asked: 0 };
        self.poll = Some(AgentPoll { group, stage, answer, requests: 0, synchronisations: 0 });
        self.ask(turn);
    }

    fn receive(&mut self, bytes: &[u8], turn: &mut PollTurn<'_>) -> usize {
        let Some(poll) = &mut self.poll else { return 0 };
        let is_taken = match self.session.read(bytes, turn.now_ns()) {
            Err(_) => false,
            Ok(SnmpReply::Answer(answer)) => self.take_answer(answer, turn),
            Ok(SnmpReply::Refused(_)) => {
                self.fail(turn, DeviceProblem::Credentials);
                true
            }
            Ok(SnmpReply::SendAgain) => {
                poll.synchronisations += 1;
                if poll.synchronisations > SYNCHRONISATIONS_MAX {
                    self.fail(turn, DeviceProblem::Garbage("an engine whose time is never right"));
                } else {
                    self.ask(turn);
                }
                true
            }
        };
        if is_taken { bytes.len() } else { 0 }
    }

    fn disconnected(&mut self) {
        self.poll = None;
        // The device may have been exchanged; an engine that is still the same costs one request.
        self.session.reset();
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
