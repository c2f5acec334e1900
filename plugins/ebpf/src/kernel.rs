//! The programs and maps in the kernel. They are there as long as this object.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Read};
use std::os::fd::AsFd;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::{BtfTracePoint, Iter, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};

use crate::counts::{LOSSES_WORDS, SlotTotals, TOTALS_WORDS, sum_over_cpus};
use crate::programs::{KernelProgram, ProgramPlace, ProgramSet};
use crate::records::RunningJobs;
use crate::rights;
use crate::settings::EbpfConfig;
use crate::slots::{DIRECTORIES_PER_JOB, JobMaps};
use crate::syscall::{look_up, recursion_misses};

/// The most text of the kernel's verifier in a message, in bytes.
const VERIFIER_BYTES_MAX: usize = 300;
/// In the verifier's text: a field that the kernel's structures do not have.
const MISSING_FIELD: &str = "195896080";
/// How often the list of tasks is read on, of which the kernel gives a million at once.
const TASK_READS_MAX: usize = 64;

/// `struct control` of `programs.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ControlValue {
    generation: u32,
    hierarchy: u32,
    jobs: u32,
    padding: u32,
}

/// `struct job_slot` of `programs.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SlotValue {
    slot: u32,
    epoch: u32,
}

// SAFETY: plain numbers without padding.
unsafe impl aya::Pod for ControlValue {}
// SAFETY: plain numbers without padding.
unsafe impl aya::Pod for SlotValue {}

/// What was lost, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossCounts {
    /// `struct losses` of `programs.bpf.c`.
    pub by_reason: [u64; LOSSES_WORDS],
    /// Runs that the kernel refused because the program ran on that CPU already.
    pub nested: u64,
}

/// Loaded programs, and the maps in which they count.
pub struct KernelPrograms {
    ebpf: Ebpf,
    jobs: HashMap<MapData, u64, SlotValue>,
    control: Array<MapData, ControlValue>,
    epochs: Array<MapData, u32>,
    totals: MapData,
    losses: MapData,
    /// A value of `totals` on all possible CPUs.
    buffer: Vec<u64>,
    cpus: usize,
    /// The sets that run.
    running: BTreeSet<ProgramSet>,
    attached: Vec<&'static str>,
}

impl KernelPrograms {
    /// Loads and attaches the sets of programs. A set that the kernel refuses is reported, the others run.
    pub fn load(object: &[u8], config: &EbpfConfig, report: &mut dyn FnMut(String)) -> Result<Self, String> {
        let missing = rights::missing(&config.proc);
        if !missing.is_empty() {
            return Err(format!(
                "this process lacks {}; set capabilities = [\"CAP_BPF\", \"CAP_PERFMON\"] in the plug-in's table, and give them to the agent",
                missing.join(" and ")
            ));
        }
        let btf = Btf::parse_file(&config.btf, Endianness::default()).map_err(|error| {
            format!("{}: {}; a kernel with CONFIG_DEBUG_INFO_BTF is needed", config.btf.display(), explain(&error))
        })?;
        let slots = config.jobs_max + 1;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            // The states of tasks are only used by the programs.
            .allow_unsupported_maps()
            .map_max_entries("totals", slots)
            .map_max_entries("epochs", slots)
            .map_max_entries("jobs", config.jobs_max * DIRECTORIES_PER_JOB)
            .load(object)
            .map_err(|error| {
                format!("the kernel refuses the maps (Linux 5.11 or later is needed): {}", explain(&error))
            })?;
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| format!("{what}: {error}"))?;
        let mut map = |name: &str| ebpf.take_map(name).ok_or_else(|| format!("the programs have no map {name}"));
        let text = |error: MapError| explain(&error);
        let mut programs = Self {
            jobs: map("jobs")?.try_into().map_err(text)?,
            control: map("control")?.try_into().map_err(text)?,
            epochs: map("epochs")?.try_into().map_err(text)?,
            totals: per_cpu(map("totals")?)?,
            losses: per_cpu(map("losses")?)?,
            buffer: vec![0; cpus * TOTALS_WORDS],
            cpus,
            running: BTreeSet::new(),
            attached: Vec::new(),
            ebpf,
        };
        for set in &config.programs {
            match programs.start(*set, &btf) {
                Ok(()) => _ = programs.running.insert(*set),
                Err(reason) => report(format!("ebpf: no {} sensors: {reason}", set.name())),
            }
        }
        if programs.running.is_empty() { Err("the kernel refuses all programs".to_owned()) } else { Ok(programs) }
    }

    /// The sets of programs that run.
    pub fn running(&self) -> &BTreeSet<ProgramSet> {
        &self.running
    }

    fn start(&mut self, set: ProgramSet, btf: &Btf) -> Result<(), String> {
        let mut reason = String::new();
        for programs in set.variants() {
            // All are loaded before the first is attached: a set that is refused leaves nothing.
            let loaded = programs.iter().try_for_each(|program| {
                self.load_program(program, btf).map_err(|error| (program, matches!(error, ProgramError::Btf(_)), error))
            });
            match loaded {
                Ok(()) => return self.attach_all(&programs),
                Err((program, is_absent, error)) => {
                    reason = format!("{}: {}", program.name, explain(&error));
                    if !is_absent {
                        break;
                    }
                }
            }
        }
        Err(reason)
    }

    fn attach_all(&mut self, programs: &[KernelProgram]) -> Result<(), String> {
        for program in programs {
            self.attach(program).map_err(|error| format!("{}: {}", program.name, explain(error.as_ref())))?;
            self.attached.push(program.name);
        }
        Ok(())
    }

    fn load_program(&mut self, program: &KernelProgram, btf: &Btf) -> Result<(), ProgramError> {
        let loaded = self.ebpf.program_mut(program.name).ok_or(ProgramError::NotLoaded)?;
        match program.place {
            ProgramPlace::Tracepoint(name) => <&mut BtfTracePoint>::try_from(loaded)?.load(name, btf),
            ProgramPlace::Tasks => <&mut Iter>::try_from(loaded)?.load("task", btf),
        }
    }

    fn attach(&mut self, program: &KernelProgram) -> Result<(), Box<dyn Error>> {
        let loaded = self.ebpf.program_mut(program.name).ok_or(ProgramError::NotLoaded)?;
        match program.place {
            ProgramPlace::Tracepoint(_) => {
                <&mut BtfTracePoint>::try_from(loaded)?.attach()?;
                Ok(())
            }
            ProgramPlace::Tasks => {
                let iterator: &mut Iter = loaded.try_into()?;
                let link = iterator.attach()?;
                let mut file = iterator.take_link(link)?.into_file()?;
                let mut rest = TASK_READS_MAX;
                loop {
                    match file.read(&mut [0; 64]) {
                        Ok(0) => return Ok(()),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock && rest > 0 => rest -= 1,
                        Err(error) => return Err(error.into()),
                        Ok(_) => {}
                    }
                }
            }
        }
    }

    /// What was lost so far.
    pub fn losses(&mut self) -> io::Result<LossCounts> {
        let buffer = &mut self.buffer[..self.cpus * LOSSES_WORDS];
        look_up(self.losses.fd().as_fd(), 0, buffer)?;
        let by_reason = sum_over_cpus(buffer);
        let mut nested = 0;
        for program in self.attached.iter().filter_map(|name| self.ebpf.program(name)?.fd().ok()) {
            nested += recursion_misses(program.as_fd())?;
        }
        Ok(LossCounts { by_reason, nested })
    }
}

fn per_cpu(map: Map) -> Result<MapData, String> {
    match map {
        Map::PerCpuArray(data) => Ok(data),
        _ => Err("a map of the programs has another type".to_owned()),
    }
}

fn os_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        other => io::Error::other(other),
    }
}

impl JobMaps for KernelPrograms {
    fn read(&mut self, slot: u32) -> io::Result<SlotTotals> {
        look_up(self.totals.fd().as_fd(), slot, &mut self.buffer)?;
        Ok(SlotTotals(sum_over_cpus(&self.buffer)))
    }

    fn insert(&mut self, cgroup: u64, slot: u32, epoch: u32) -> io::Result<()> {
        self.jobs.insert(cgroup, SlotValue { slot, epoch }, 0).map_err(os_error)
    }

    fn remove(&mut self, cgroup: u64) -> io::Result<()> {
        self.jobs.remove(&cgroup).map_err(os_error)
    }

    fn set_epoch(&mut self, slot: u32, epoch: u32) -> io::Result<()> {
        self.epochs.set(slot, epoch, 0).map_err(os_error)
    }

    fn publish(&mut self, jobs: &RunningJobs, generation: u32) -> io::Result<()> {
        let count = jobs.jobs.len() as u32;
        let value = ControlValue { generation, hierarchy: jobs.hierarchy as u32, jobs: count, padding: 0 };
        self.control.set(0, value, 0).map_err(os_error)
    }
}

/// An error with its causes, and of the verifier's text the end, which has the reason.
fn explain(error: &(dyn Error + 'static)) -> String {
    if let Some(ProgramError::LoadError { io_error, verifier_log }) = error.downcast_ref::<ProgramError>() {
        let log = verifier_log.to_string();
        if log.contains(MISSING_FIELD) {
            return format!("{io_error}: this kernel's structures lack a field that the program reads");
        }
        let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("processed "));
        let last = lines.next_back().unwrap_or("no reason is given");
        let cut = last.char_indices().nth(VERIFIER_BYTES_MAX).map_or(last, |(at, _)| &last[..at]);
        return format!("{io_error}: {cut}");
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
