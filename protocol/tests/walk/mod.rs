//! Random walks: agents, a network that loses, repeats and delays messages, servers, deletions and snapshots, from one seed.

use wholegrain_protocol::{
    Acknowledgement, Action, Agent, BatchSet, Bounds, CUTS_MAX, CutRow, Fault, Invariant, Process, Reception, Recovery,
    Rules, RunState, SERVERS_MAX, Vector, World,
};
use wholegrain_testkit::Random;

/// Steps in which disturbances happen.
const DISTURBED_STEPS: usize = 800;
/// Steps after which everything must have come to an end without disturbances.
const QUIET_STEPS_MAX: usize = 20_000;
/// Messages in the network; further ones are lost.
const MESSAGES_MAX: usize = 64;

/// A snapshot that was taken, to be compared with what it shows later.
struct SnapshotRecord {
    vector: Vector,
    cuts: Vec<CutRow>,
    shown: BatchSet,
}

pub struct Walk {
    random: Random,
    pub rules: Rules,
    pub bounds: Bounds,
    pub world: World,
    agents: Vec<Agent>,
    owner: Vec<usize>,
    publishes: Vec<(u8, u8)>,
    acknowledgements: Vec<u8>,
    pinned: BatchSet,
    taken: Vec<SnapshotRecord>,
    pub trace: Vec<Action>,
}

/// What happened in a walk, to see that walks reach what they shall reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub steps: usize,
    pub acknowledged: usize,
    pub deleted: usize,
    pub runs: usize,
    pub adopted: usize,
    pub snapshots: usize,
}

impl Walk {
    pub fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut random = Random::new(seed);
        let mut rules =
            Rules::new(random.pick(&[Acknowledgement::Journal, Acknowledgement::Quorum, Acknowledgement::Quorum]));
        rules.recovery = random.pick(&[Recovery::Discard, Recovery::Keep]);
        rules.window = random.within(1, 5) as u8;
        rules.fault = fault;
        let batches = random.within(4, 25) as u8;
        let cuts = random.below(CUTS_MAX as u64);
        let cut = |random: &mut Random| BatchSet::of((0..batches).filter(|_| random.chance(50)));
        let bounds = Bounds {
            servers: random.within(2, SERVERS_MAX as u64 + 1) as u8,
            joins: random.below(2) as u8,
            batches,
            cuts: (0..cuts).map(|_| cut(&mut random)).collect(),
            crashes: random.below(7) as u8,
            losses: random.below(3) as u8,
            fences: random.below(7) as u8,
            repeats: u8::MAX,
            snapshots: true,
            runs: 30,
            adopters: random.within(1, 4) as u8,
            splits_steps: random.chance(50),
        };
        let count = random.within(2, 6) as usize;
        let owner: Vec<usize> = (0..batches).map(|_| random.index(count)).collect();
        let agents = (0..count).map(|agent| {
            let own = (0..batches).filter(|batch| owner[usize::from(*batch)] == agent);
            Agent::new(BatchSet::of(own), random.within(1, 5) as usize, random.below(u64::from(bounds.servers)) as u8)
        });
        let agents = agents.collect();
        let world = World::new(&bounds);
        Self {
            random,
            rules,
            bounds,
            world,
            agents,
            owner,
            publishes: Vec::new(),
            acknowledgements: Vec::new(),
            pinned: BatchSet::EMPTY,
            taken: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// Walks to the end; the error says which invariant does not hold after which steps.
    pub fn run(&mut self) -> Result<Totals, String> {
        for _ in 0..DISTURBED_STEPS {
            self.step(true)?;
        }
        self.publishes.clear();
        let mut quiet = 0;
        while !self.is_finished() {
            self.step(false)?;
            quiet += 1;
            if quiet > QUIET_STEPS_MAX {
                return Err(format!("no end after {quiet} steps without disturbances: {:?}", self.world));
            }
        }
        self.check_end()
    }

    fn step(&mut self, is_disturbed: bool) -> Result<(), String> {
        match self.random.below(10) {
            0 => self.agent_step(is_disturbed),
            1..3 => self.network_step(is_disturbed)?,
            _ => self.world_step(is_disturbed)?,
        }
        Ok(())
    }

    fn agent_step(&mut self, is_disturbed: bool) {
        let agent = self.random.index(self.agents.len());
        let server = self.random.below(u64::from(self.bounds.servers)) as u8;
        let agent = &mut self.agents[agent];
        if self.random.chance(70) {
            let next = agent.send_next().map(|batch| (agent.server, batch));
            self.publishes.extend(next);
        } else if is_disturbed && self.random.chance(5) {
            agent.crash();
        } else {
            self.publishes.extend(agent.send_again(server).iter().map(|batch| (server, batch)));
        }
        self.publishes.truncate(MESSAGES_MAX);
    }

    /// A message arrives, and may stay in the network to arrive again; or it is lost.
    fn network_step(&mut self, is_disturbed: bool) -> Result<(), String> {
        if !self.acknowledgements.is_empty() && self.random.chance(40) {
            let batch = self.acknowledgements.swap_remove(self.random.index(self.acknowledgements.len()));
            if !is_disturbed || self.random.chance(80) {
                self.agents[self.owner[usize::from(batch)]].acknowledged(batch);
            }
            return Ok(());
        }
        if self.publishes.is_empty() {
            return Ok(());
        }
        let place = self.random.index(self.publishes.len());
        let stays = is_disturbed && self.random.chance(20);
        let (server, batch) = if stays { self.publishes[place] } else { self.publishes.swap_remove(place) };
        let receiver = &self.world.servers[usize::from(server)];
        if receiver.process != Process::Serving {
            return Ok(());
        }
        let is_acknowledged = match receiver.receive(batch, &self.rules) {
            Reception::Acknowledge => true,
            Reception::Wait => return Ok(()),
            Reception::Append => {
                let mut possible = Vec::new();
                self.world.actions(&self.bounds, &self.rules, &mut possible);
                if !possible.contains(&Action::Deliver { server, batch }) {
                    return Ok(());
                }
                self.rules.acknowledgement == Acknowledgement::Journal
            }
        };
        self.world.remaining.repeats = u8::MAX;
        self.perform(Action::Deliver { server, batch })?;
        self.acknowledgements.extend(is_acknowledged.then_some(batch));
        Ok(())
    }

    fn world_step(&mut self, is_disturbed: bool) -> Result<(), String> {
        let mut actions = Vec::new();
        self.world.actions(&self.bounds, &self.rules, &mut actions);
        let is_disturbance = |action: &Action| matches!(action, Action::Crash { .. } | Action::Fence { .. });
        let is_rare = |action: &Action| matches!(action, Action::BeginDeletion { .. } | Action::BeginSnapshot { .. });
        let disturbs = is_disturbed && self.random.chance(4);
        let begins = is_disturbed && self.random.chance(5);
        actions.retain(|action| {
            !matches!(action, Action::Deliver { .. })
                && is_disturbance(action) == disturbs
                && (begins || !is_rare(action))
        });
        if actions.is_empty() {
            return Ok(());
        }
        let action = match self.random.pick(&actions) {
            Action::BeginSnapshot { reader, .. } => {
                self.pinned = BatchSet::EMPTY;
                Action::BeginSnapshot { reader, targets: BatchSet::of(0..self.bounds.batches) }
            }
            action => action,
        };
        let acknowledged = self.world.history.acknowledged();
        if let Action::PinLocalPart { server } = action {
            self.pinned = self.pinned.with(self.world.servers[usize::from(server)].local());
        }
        self.remember_snapshot(action);
        self.perform(action)?;
        let new = self.world.history.acknowledged().without(acknowledged);
        self.acknowledgements.extend(new.iter());
        Ok(())
    }

    /// Keeps what a snapshot shows, before the step that finishes it.
    fn remember_snapshot(&mut self, action: Action) {
        let is_last = match action {
            Action::ReadVector { .. } => !self.bounds.splits_steps,
            Action::FinishSnapshot => true,
            _ => false,
        };
        let Some(snapshot) = self.world.snapshot.as_ref().filter(|_| is_last) else { return };
        let read = match action {
            Action::ReadVector { sees_in_flight } => {
                self.world.database.vector(sees_in_flight, self.rules.has(Fault::VectorOfServer))
            }
            _ => snapshot.vector.clone().expect("a vector before the end of a snapshot"),
        };
        let shown = self.world.database.visible(&read).0.with(self.pinned);
        let cuts = self.world.database.cuts.clone();
        self.taken.push(SnapshotRecord { vector: read, cuts, shown });
    }

    fn perform(&mut self, action: Action) -> Result<(), String> {
        self.trace.push(action);
        self.world.perform(action, &self.bounds, &self.rules);
        for invariant in Invariant::ALL {
            // With several deletions only a snapshot knows which of them had returned when it began.
            let is_broken = self.world.history.broken >> invariant as u8 & 1 == 1;
            let holds = match invariant {
                Invariant::DeletedStaysDeleted => !is_broken,
                _ => self.world.holds(invariant, &self.rules),
            };
            if !holds {
                return Err(format!("{invariant:?} does not hold after {} steps", self.trace.len()));
            }
        }
        Ok(())
    }

    /// All is acknowledged and uploaded, all deletions returned, all runs that ended are adopted.
    fn is_finished(&self) -> bool {
        let servers = &self.world.servers;
        let is_idle = servers.iter().all(|server| {
            let is_alive = self.world.database.is_alive(server.run);
            server.process == Process::Serving && is_alive && server.local().is_empty() && server.upload.is_none()
        });
        let has_fenced = self.world.database.runs.iter().any(|row| row.state == RunState::Fenced);
        let has_open_cut = (0..self.world.database.cuts.len()).any(|cut| !self.is_returned(cut));
        is_idle
            && !has_fenced
            && !has_open_cut
            && self.agents.iter().all(Agent::is_done)
            && self.world.snapshot.is_none()
    }

    fn is_returned(&self, cut: usize) -> bool {
        self.world.database.cuts[cut].state == wholegrain_protocol::CutState::Done
    }

    /// Invariant A at the end, and D for each snapshot.
    fn check_end(&self) -> Result<Totals, String> {
        let world = &self.world;
        let acknowledged = world.history.acknowledged();
        let missing = acknowledged.without(world.hideable()).without(world.database.committed());
        if !missing.is_empty() {
            return Err(format!("acknowledged batches {missing:?} are not visible in the end"));
        }
        let again = world.shown_again(&self.rules);
        if !again.is_empty() {
            return Err(format!("deleted batches {again:?} are visible in the end"));
        }
        for (number, taken) in self.taken.iter().enumerate() {
            let later = world.database.visible_with(&taken.vector, &taken.cuts).0;
            if !later.is_within(taken.shown) {
                return Err(format!("snapshot {number} showed {:?}, and later {later:?}", taken.shown));
            }
        }
        Ok(Totals {
            steps: self.trace.len(),
            acknowledged: acknowledged.iter().count(),
            deleted: world.history.deleted.iter().count(),
            runs: world.database.runs.len(),
            adopted: world.database.runs.iter().filter(|row| row.state == RunState::Adopted).count(),
            snapshots: self.taken.len(),
        })
    }
}
