//! hpcc of Debian: what it is told, and what its parts took.
//!
//! hpcc always runs all of its parts. Some of them tell the time of one piece of fixed work (HPL); others tell the best of ten passes
//! (STREAM) or a rate of a few milliseconds (FFT), from which just that is gone which monitoring adds. So a part's time is that of its
//! sections in whole, by the marks that hpcc writes at their begin and end ([`super::marks`]); HPL's is its own.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, ensure};

/// A part, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Dense linear equations.
    Hpl,
    /// Memory bandwidth: on all ranks at once, then on one.
    Stream,
    /// Fourier transform: over all ranks, on each, then on one.
    Fft,
    /// Transpose of a matrix over all ranks.
    Ptrans,
    /// Random updates: over all ranks, on each, then on one, with both of its generators.
    RandomAccess,
    /// Matrix multiplication: on each rank, then on one.
    Dgemm,
    /// Latency and bandwidth of messages.
    Latency,
    /// All but `Latency`, whose amount of work is not fixed.
    All,
}

/// The parts of fixed work, their names, and the sections that each consists of.
const SECTIONS: [(Part, &str, &[&str]); 5] = [
    (Part::Stream, "stream", &["StarSTREAM", "SingleSTREAM"]),
    (Part::Fft, "fft", &["MPIFFT", "StarFFT", "SingleFFT"]),
    (Part::Ptrans, "ptrans", &["PTRANS"]),
    (
        Part::RandomAccess,
        "random_access",
        &[
            "MPIRandomAccess",
            "StarRandomAccess",
            "SingleRandomAccess",
            "MPIRandomAccess_LCG",
            "StarRandomAccess_LCG",
            "SingleRandomAccess_LCG",
        ],
    ),
    (Part::Dgemm, "dgemm", &["StarDGEMM", "SingleDGEMM"]),
];

/// The sections that hpcc cuts short when it expects them to take longer than a minute.
const LIMITED: [&str; 2] = ["MPIRandomAccess", "MPIRandomAccess_LCG"];

/// Messages whose time is the latency part's `seconds`.
const LATENCY_MESSAGES: f64 = 1e6;

/// Figures of hpcc's summary, what they are called here, and by what they are multiplied.
const FIGURES: [(&str, &str, f64); 9] = [
    ("HPL_Tflops", "hpl_gflops", 1e3),
    ("StarSTREAM_Triad", "triad_gb_s", 1.0),
    ("MPIFFT_Gflops", "fft_gflops", 1.0),
    ("PTRANS_GBs", "ptrans_gb_s", 1.0),
    ("MPIRandomAccess_GUPs", "random_access_gups", 1.0),
    ("StarDGEMM_Gflops", "dgemm_gflops", 1.0),
    ("RandomlyOrderedRingLatency_usec", "ring_latency_us", 1.0),
    ("RandomlyOrderedRingBandwidth_GBytes", "ring_gb_s", 1.0),
    ("AvgPingPongLatency_usec", "ping_pong_latency_us", 1.0),
];

/// What a run of hpcc gave.
#[derive(Debug, PartialEq)]
pub struct Result {
    /// Of the part that was asked for.
    pub seconds: f64,
    /// Whether each part's own check passed.
    pub verified: bool,
    /// Each part's seconds, and rates.
    pub figures: BTreeMap<String, f64>,
}

/// Understands hpcc's output. `spans` has what each section took, s.
pub fn parse(text: &str, spans: &BTreeMap<String, f64>, part: Part) -> anyhow::Result<Result> {
    let summary = text
        .split("Begin of Summary section.")
        .nth(1)
        .context("hpcc did not come to its end: its output has no summary")?;
    let values: BTreeMap<&str, f64> = summary
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter_map(|(k, v)| Some((k, v.parse().ok()?)))
        .collect();
    let value = |name: &str| values.get(name).copied().with_context(|| format!("hpcc's summary has no {name}"));
    let mut figures = BTreeMap::new();
    for (theirs, ours, factor) in FIGURES {
        figures.insert(ours.to_owned(), value(theirs)? * factor);
    }
    let mut all = value("HPL_time")?;
    figures.insert("hpl_s".into(), all);
    figures.insert("latency_s".into(), value("RandomlyOrderedRingLatency_usec")? * 1e-6 * LATENCY_MESSAGES);
    for (_, name, sections) in SECTIONS {
        let mut seconds = 0.0;
        for section in sections {
            let took = spans
                .get(*section)
                .with_context(|| format!("hpcc's output has no marks around the section {section}"))?;
            seconds += took / share_made(section, &values);
        }
        all += seconds;
        // Begin and end were seen at one look: too short to be timed, which is not a time of 0.
        if seconds > 0.0 {
            figures.insert(format!("{name}_s"), seconds);
        }
    }
    let least = LIMITED.iter().map(|section| share_made(section, &values)).fold(1.0, f64::min);
    figures.insert("random_access_made_share".into(), least);
    figures.insert("hpcc_s".into(), all);
    let seconds = figures.get(&format!("{}_s", name(part))).copied().unwrap_or_default();
    ensure!(seconds > 0.0, "{} was too short to be timed: say a larger size", name(part));
    Ok(Result { seconds, verified: is_right(text, &values), figures })
}

/// The share of a section's work that was done, by which its time is divided: updates, of four for each word of the table.
fn share_made(section: &str, values: &BTreeMap<&str, f64>) -> f64 {
    let value = |name: &str| values.get(format!("{section}_{name}").as_str()).copied();
    let share = if LIMITED.contains(&section) { value("ExeUpdates").zip(value("N")) } else { None };
    share.map_or(1.0, |(made, words)| made / (4.0 * words)).max(f64::MIN_POSITIVE)
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Hpl => "hpl",
        Part::Latency => "latency",
        Part::All => "hpcc",
        _ => SECTIONS.iter().find(|(of, ..)| *of == part).map_or("hpcc", |(_, name, _)| name),
    }
}

/// Whether every check passed: hpcc's own verdict, the residuals of HPL and PTRANS, RandomAccess' table (of which a hundredth may be
/// wrong, by its rules), the Fourier transform turned back, and each rank's word.
fn is_right(text: &str, values: &BTreeMap<&str, f64>) -> bool {
    const ERRORS_MAX: f64 = 0.01;
    const RESIDUAL_MAX: f64 = 16.0;
    const FFT_ERROR_MAX: f64 = 1e-10;
    let at_most = |name: &str, most: f64| values.get(name).is_some_and(|value| *value <= most);
    let is_bad = |line: &str| {
        let line = line.trim();
        let failed = line.strip_suffix("tests completed and failed residual checks.");
        let failed = failed.or(line.strip_suffix("tests completed and failed residual checks,"));
        failed.is_some_and(|count| count.trim() != "0")
            || line.strip_prefix("Node(s) with error").is_some_and(|count| count.trim() != "0")
            || line.contains("FAILED")
    };
    values.get("Success") == Some(&1.0)
        && at_most("PTRANS_residual", RESIDUAL_MAX)
        && at_most("MPIRandomAccess_ErrorsFraction", ERRORS_MAX)
        && at_most("MPIRandomAccess_LCG_ErrorsFraction", ERRORS_MAX)
        && at_most("MPIFFT_maxErr", FFT_ERROR_MAX)
        && text.contains("1 tests completed and passed residual checks,")
        && !text.lines().any(is_bad)
}

/// hpcc's input: one matrix of this order over all ranks.
pub fn input(order: u64, ranks: usize) -> String {
    // As square as the ranks allow, wider than high, as HPL's documentation advises.
    let high = (1..=ranks).filter(|p| ranks.is_multiple_of(*p) && p * p <= ranks).max().unwrap_or(1);
    let wide = ranks / high;
    let lines = [
        "HPLinpack benchmark input file".to_owned(),
        "one problem".to_owned(),
        "HPL.out      output file name (if any)".to_owned(),
        "8            device out (6=stdout,7=stderr,file)".to_owned(),
        "1            # of problems sizes (N)".to_owned(),
        format!("{order:<12} Ns"),
        "1            # of NBs".to_owned(),
        "80           NBs".to_owned(),
        "0            PMAP process mapping (0=Row-,1=Column-major)".to_owned(),
        "1            # of process grids (P x Q)".to_owned(),
        format!("{high:<12} Ps"),
        format!("{wide:<12} Qs"),
        "16.0         threshold".to_owned(),
        "1            # of panel fact".to_owned(),
        "2            PFACTs (0=left, 1=Crout, 2=Right)".to_owned(),
        "1            # of recursive stopping criterium".to_owned(),
        "4            NBMINs (>= 1)".to_owned(),
        "1            # of panels in recursion".to_owned(),
        "2            NDIVs".to_owned(),
        "1            # of recursive panel fact.".to_owned(),
        "1            RFACTs (0=left, 1=Crout, 2=Right)".to_owned(),
        "1            # of broadcast".to_owned(),
        "1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)".to_owned(),
        "1            # of lookahead depth".to_owned(),
        "1            DEPTHs (>=0)".to_owned(),
        "2            SWAP (0=bin-exch,1=long,2=mix)".to_owned(),
        "64           swapping threshold".to_owned(),
        "0            L1 in (0=transposed,1=no-transposed) form".to_owned(),
        "0            U  in (0=transposed,1=no-transposed) form".to_owned(),
        "1            Equilibration (0=no,1=yes)".to_owned(),
        "8            memory alignment in double (> 0)".to_owned(),
    ];
    lines.join("\n") + "\n"
}

/// Which hpcc there is, as Debian numbers it.
pub fn version() -> anyhow::Result<String> {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "hpcc"]).output();
    let known = output.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("hpcc")).find(|file| file.is_file());
    let found = found.context("there is no hpcc: install the package hpcc")?;
    Ok(known.unwrap_or_else(|| found.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A real run: Debian's hpcc 1.5.0-3, two ranks, order 1000, with the machine's name taken out.
    const RECORDED: &str = include_str!("../../workloads/fixtures/hpccoutf.txt");

    fn spans() -> BTreeMap<String, f64> {
        SECTIONS.iter().flat_map(|(_, _, sections)| sections.iter()).map(|name| ((*name).to_owned(), 0.5)).collect()
    }

    #[test]
    fn a_recorded_run_is_understood() {
        let result = parse(RECORDED, &spans(), Part::Hpl).expect("it is whole");
        assert!(result.verified);
        assert_eq!(result.seconds, 0.562617);
        assert_eq!(result.figures["hpl_gflops"], 1.18761);
        assert_eq!(result.figures["triad_gb_s"], 64.5857);
        assert_eq!(result.figures["random_access_gups"], 0.0037175);
        assert_eq!(result.figures["ring_latency_us"], 0.340143);
        for (part, seconds) in
            [(Part::Stream, 1.0), (Part::Fft, 1.5), (Part::Ptrans, 0.5), (Part::RandomAccess, 3.0), (Part::Dgemm, 1.0)]
        {
            assert_eq!(parse(RECORDED, &spans(), part).expect("it is whole").seconds, seconds);
        }
        let all = parse(RECORDED, &spans(), Part::All).expect("it is whole").seconds;
        assert!((all - 7.562617).abs() < 1e-9, "{all}");
        let latency = parse(RECORDED, &spans(), Part::Latency).expect("it is whole").seconds;
        assert!((latency - 0.340143).abs() < 1e-9, "{latency}");
    }

    #[test]
    fn a_wrong_result_is_not_verified() {
        for (right, wrong) in [
            ("Success=1", "Success=0"),
            ("0.0072510 ...... PASSED", "72510.0 ...... FAILED"),
            ("MPIRandomAccess_ErrorsFraction=0", "MPIRandomAccess_ErrorsFraction=0.02"),
            ("Node(s) with error 0", "Node(s) with error 1"),
            ("MPIFFT_maxErr=1.29948e-15", "MPIFFT_maxErr=1.3"),
            ("0 tests completed and failed residual checks.", "1 tests completed and failed residual checks."),
            ("PTRANS_residual=0", "PTRANS_residual=17"),
        ] {
            assert!(RECORDED.contains(right), "{right}");
            let text = RECORDED.replacen(right, wrong, 1);
            assert!(!parse(&text, &spans(), Part::Hpl).expect("it is whole").verified, "{wrong}");
        }
    }

    #[test]
    fn half_a_run_is_an_error() {
        let half = &RECORDED[..RECORDED.len() / 2];
        assert!(parse(half, &spans(), Part::Hpl).is_err());
        let mut fewer = spans();
        fewer.remove("StarSTREAM");
        assert!(parse(RECORDED, &fewer, Part::Stream).is_err());
    }

    #[test]
    fn what_was_too_short_to_be_timed_has_no_time() {
        let mut short = spans();
        short.iter_mut().filter(|(section, _)| section.contains("STREAM")).for_each(|(_, seconds)| *seconds = 0.0);
        let told = parse(RECORDED, &short, Part::Stream).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains("stream was too short"), "{told}");
        assert!(!parse(RECORDED, &short, Part::All).expect("the others have times").figures.contains_key("stream_s"));
    }

    #[test]
    fn work_that_was_cut_short_counts_as_if_it_were_whole() {
        let half = RECORDED.replace("MPIRandomAccess_ExeUpdates=2097152", "MPIRandomAccess_ExeUpdates=1048576");
        let result = parse(&half, &spans(), Part::RandomAccess).expect("it is whole");
        assert_eq!((result.seconds, result.figures["random_access_made_share"]), (3.5, 0.5));
    }

    #[test]
    fn ranks_make_a_rectangle() {
        for (ranks, high, wide) in [(1, 1, 1), (2, 1, 2), (4, 2, 2), (6, 2, 3), (7, 1, 7), (12, 3, 4)] {
            let input = input(100, ranks);
            let lines: Vec<&str> = input.lines().collect();
            assert_eq!((lines[10].trim(), lines[11].trim()), (&*format!("{high:<12} Ps"), &*format!("{wide:<12} Qs")));
        }
    }
}
