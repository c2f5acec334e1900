//! Exhaustive exploration of the protocol by the model checker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use stateright::{Checker, Model, Property};
use wholegrain_protocol::{Acknowledgement, Action, BatchSet, Bounds, Fault, Invariant, Recovery, Rules, World};

/// A system to explore, and its rules.
#[derive(Clone, Debug)]
pub struct Setup {
    pub rules: Rules,
    pub bounds: Bounds,
    /// Names of servers and batches are exchanged where it makes no difference: fewer states, but a path is harder to read.
    pub is_symmetric: bool,
    /// Invariants with a counterexample, one bit each. The checker keeps the last one it sees, the first one is the shortest.
    broken: Arc<AtomicU8>,
}

impl Setup {
    /// Two servers and three batches; a crash and a fence, without a deletion and without snapshots.
    pub fn new(acknowledgement: Acknowledgement) -> Self {
        let bounds = Bounds {
            servers: 2,
            joins: 0,
            batches: 3,
            cuts: Vec::new(),
            crashes: 1,
            losses: 0,
            fences: 1,
            repeats: 1,
            snapshots: false,
            runs: 2,
            adopters: 1,
            splits_steps: false,
        };
        Self { rules: Rules::new(acknowledgement), bounds, is_symmetric: true, broken: Arc::default() }
    }

    /// Reads arguments that are separated by spaces, as [`Setup::parse`] does.
    #[allow(dead_code)]
    pub fn of(text: &str) -> Self {
        let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Self::parse(&arguments).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Reads `journal` or `quorum`, and `name=value` for the bounds.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut setup = Self::new(Acknowledgement::Quorum);
        let mut cuts = 0;
        for argument in arguments {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            let number = || value.parse::<u8>().map_err(|error| format!("{argument}: {error}"));
            match name {
                "journal" => setup.rules.acknowledgement = Acknowledgement::Journal,
                "quorum" => setup.rules.acknowledgement = Acknowledgement::Quorum,
                "keep" => setup.rules.recovery = Recovery::Keep,
                "plain" => setup.is_symmetric = false,
                "window" => setup.rules.window = number()?,
                "servers" => setup.bounds.servers = number()?,
                "joins" => setup.bounds.joins = number()?,
                "batches" => setup.bounds.batches = number()?,
                "cuts" => cuts = number()?,
                "crashes" => setup.bounds.crashes = number()?,
                "losses" => setup.bounds.losses = number()?,
                "fences" => setup.bounds.fences = number()?,
                "repeats" => setup.bounds.repeats = number()?,
                "snapshots" => setup.bounds.snapshots = true,
                "adopters" => setup.bounds.adopters = number()?,
                "split" => setup.bounds.splits_steps = true,
                "runs" => setup.bounds.runs = number()?,
                "fault" => {
                    let fault = Fault::ALL.into_iter().find(|fault| format!("{fault:?}") == value);
                    setup.rules.fault = Some(fault.ok_or_else(|| format!("{value}: not one of {:?}", Fault::ALL))?);
                }
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        Ok(setup.with_cuts(cuts))
    }

    /// Deletions cover all batches but the last; with one batch they cover it.
    pub fn with_cuts(mut self, cuts: u8) -> Self {
        let covered = BatchSet::of(0..(self.bounds.batches - 1).max(1));
        self.bounds.cuts = vec![covered; usize::from(cuts)];
        self
    }

    /// False for the first world in which an invariant does not hold.
    fn holds(&self, world: &World, invariant: Invariant) -> bool {
        let bit = 1 << invariant as u8;
        world.holds(invariant, &self.rules) || self.broken.fetch_or(bit, Ordering::Relaxed) & bit != 0
    }
}

impl Model for Setup {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.bounds)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(&self.bounds, &self.rules, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.perform(action, &self.bounds, &self.rules);
        Some(if self.is_symmetric { next.reduced(&self.rules).canonical(&self.bounds) } else { next })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("A: acknowledged is kept", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::AcknowledgedIsKept)
            }),
            Property::always("B: each reading counts once", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::CountsOnce)
            }),
            Property::always("C: deleted stays deleted", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::DeletedStaysDeleted)
            }),
            Property::always("D: a snapshot does not change", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::SnapshotIsStable)
            }),
            Property::always("E: a complete answer has all", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::CompleteHasAll)
            }),
            Property::always("F: no late acknowledgement", |setup: &Self, world: &World| {
                setup.holds(world, Invariant::NoLateAcknowledgement)
            }),
        ]
    }
}

/// A path from the first world to one in which an invariant does not hold.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub invariant: &'static str,
    pub actions: Vec<Action>,
}

#[derive(Clone, Debug)]
pub struct Exploration {
    /// The number of distinct worlds.
    pub worlds: usize,
    /// Worlds generated, repetitions included.
    pub steps: usize,
    pub depth: usize,
    pub counterexamples: Vec<Counterexample>,
    pub elapsed: std::time::Duration,
}

pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Explores all worlds breadth first, or until an invariant does not hold. With one thread a counterexample is a shortest one.
pub fn explore(setup: &Setup, threads: usize) -> Exploration {
    let begin = std::time::Instant::now();
    let setup = Setup { broken: Arc::default(), ..setup.clone() };
    let checker = setup.checker().threads(threads).finish_when(stateright::HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let mut counterexamples: Vec<Counterexample> = checker
        .discoveries()
        .into_iter()
        .map(|(invariant, path)| Counterexample { invariant, actions: path.into_actions() })
        .collect();
    counterexamples.sort_by_key(|example| (example.actions.len(), example.invariant));
    Exploration {
        worlds: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        counterexamples,
        elapsed: begin.elapsed(),
    }
}

pub fn describe(setup: &Setup, result: &Exploration) -> String {
    let Exploration { worlds, steps, depth, elapsed, .. } = result;
    let mut text = format!("{:?} {:?}\n", setup.rules, setup.bounds);
    text += &format!("{worlds} worlds, {steps} steps, depth {depth}, {:.1} s\n", elapsed.as_secs_f64());
    for example in &result.counterexamples {
        text += &format!("{} after {} steps:\n", example.invariant, example.actions.len());
        for (number, action) in example.actions.iter().enumerate() {
            text += &format!("  {:2} {action:?}\n", number + 1);
        }
    }
    text
}
