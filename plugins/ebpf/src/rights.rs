//! The rights of this process.

use std::path::Path;

/// Numbers of capabilities (capabilities(7)).
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// The capabilities that the programs need and this process does not have.
pub fn missing(proc: &Path) -> Vec<&'static str> {
    // Without the file nothing is known, and the kernel decides.
    std::fs::read_to_string(proc.join("self/status")).map_or(Vec::new(), |status| missing_in(&status))
}

fn missing_in(status: &str) -> Vec<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(effective) = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()) else {
        return Vec::new();
    };
    let has = |number: u32| effective >> number & 1 == 1 || effective >> SYS_ADMIN & 1 == 1;
    [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|(number, _)| !has(*number))
        .map(|(_, name)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_a_process() {
        for (effective, expected) in [
            ("000001ffffffffff", &[][..]),
            ("0000000000200000", &[]),
            ("000000c000000000", &[]),
            ("0000004000000000", &["CAP_BPF"]),
            ("0000008000000000", &["CAP_PERFMON"]),
            ("0000000000000000", &["CAP_BPF", "CAP_PERFMON"]),
        ] {
            assert_eq!(missing_in(&format!("Name:\tx\nCapEff:\t{effective}\n")), expected, "{effective}");
        }
        assert!(missing_in("garbage").is_empty());
    }
}
