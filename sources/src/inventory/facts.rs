//! The facts, each with its file (Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-class-dmi-id, os-release(5)).

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use crate::source::Roots;
use crate::{glob, scan};

/// The longest file that is read: the first processors of cpuinfo, which has more than a kilobyte for each.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// The longest text of a fact, in characters.
const TEXT_CHARACTERS_MAX: usize = 200;
/// The highest number of a CPU in a list that is counted.
const CPU_MAX: u64 = 1 << 20;
/// Bytes of a sector of a disk's size.
const SECTOR_BYTES: f64 = 512.0;
/// Disks that are no hardware, or a part of other disks.
const NOT_DISKS: [&str; 5] = ["loop", "ram", "zram", "dm-", "md"];

/// The facts that are texts of files in class/dmi/id: sensor, what it is, files.
const DMI: [(&str, &str, &[&str]); 3] = [
    ("system", "Computer", &["sys_vendor", "product_name", "product_version"]),
    ("board", "Main board", &["board_vendor", "board_name", "board_version"]),
    ("firmware", "Firmware", &["bios_vendor", "bios_version", "bios_date"]),
];

/// All facts of the node with their raw values. What cannot be read is left out.
pub fn all(roots: &Roots, os_release: &Path) -> Vec<(SensorDef, i64)> {
    let mut facts = processors(roots);
    let meminfo = text(&roots.proc.join("meminfo")).unwrap_or_default();
    if let Some(total) = after(&meminfo, "MemTotal:") {
        let sensor = gauge("memory", "By", "Memory that the kernel can use.").scaled(1024.0);
        facts.extend(number(total.trim_end_matches(" kB")).map(|value| (sensor, value)));
    }
    facts.extend(disks(&roots.sys));
    facts.extend(boot(&roots.proc));
    facts.extend(texts(roots, os_release));
    facts
}

fn gauge(name: &str, unit: &str, description: &str) -> SensorDef {
    SensorDef::gauge(format!("inventory/{name}"), unit, description)
}

/// The beginning of a text file; `None` for one that cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The rest of the first line that begins with `key`.
fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

fn number(text: &str) -> Option<i64> {
    text.trim().parse().ok().filter(|value| *value >= 0)
}

fn processors(roots: &Roots) -> Vec<(SensorDef, i64)> {
    let cpus = roots.sys.join("devices/system/cpu");
    let count = |file: &str| text(&cpus.join(file)).and_then(|list| cpus_in(&list));
    let mut facts = Vec::new();
    let (online, present) = (count("online"), count("present"));
    facts.extend(online.map(|count| (gauge("cpu/online", "1", "CPUs that can run threads."), count)));
    facts.extend(present.map(|count| (gauge("cpu/present", "1", "CPUs that there are."), count)));
    let (mut packages, mut cores) = (BTreeSet::new(), BTreeSet::new());
    for found in glob::find(&roots.sys, "devices/system/cpu/cpu*/topology") {
        let id = |file: &str| text(&found.path.join(file)).and_then(|id| id.parse::<i64>().ok());
        if let (Some(package), Some(core)) = (id("physical_package_id"), id("core_id")) {
            packages.insert(package);
            cores.insert((package, core));
        }
    }
    if !cores.is_empty() {
        facts.push((gauge("cpu/packages", "1", "Processors in sockets."), packages.len() as i64));
        facts.push((gauge("cpu/cores", "1", "Cores of all processors."), cores.len() as i64));
    }
    let nodes = text(&roots.sys.join("devices/system/node/online")).and_then(|list| cpus_in(&list));
    facts.extend(nodes.map(|count| (gauge("numa_nodes", "1", "Nodes of memory."), count)));
    let frequency = text(&cpus.join("cpu0/cpufreq/cpuinfo_max_freq")).and_then(|text| number(&text));
    let sensor = gauge("cpu/frequency_max", "Hz", "The highest clock frequency of the first CPU.").scaled(1e3);
    facts.extend(frequency.map(|value| (sensor, value)));
    let microcode = text(&roots.proc.join("cpuinfo")).and_then(|text| cpuinfo(&text, "microcode"));
    let microcode = microcode.and_then(|text| i64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
    facts.extend(microcode.map(|value| (gauge("cpu/microcode", "1", "Revision of the microcode."), value)));
    facts
}

/// How many numbers a list such as `0-3,8` has; `None` for another text.
fn cpus_in(list: &str) -> Option<i64> {
    let mut count = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first).filter(|_| last <= CPU_MAX)? as i64 + 1;
    }
    Some(count)
}

/// The value of a key in the first block of cpuinfo, whose keys end in tabs and a colon.
fn cpuinfo(text: &str, key: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
}

fn disks(sys: &Path) -> Vec<(SensorDef, i64)> {
    let disks = glob::find(sys, "block/*/size").into_iter().filter(|found| {
        let name = &found.captures[0];
        !NOT_DISKS.iter().any(|other| name.starts_with(other))
    });
    let facts = disks.filter_map(|found| {
        let size = text(&found.path).and_then(|text| number(&text)).filter(|size| *size > 0)?;
        let model = text(&found.path.with_file_name("device").join("model")).unwrap_or_default();
        let description = bounded(&format!("Size of the disk {model}")).trim_end().to_owned() + ".";
        let name = format!("disk/{}/size", sanitize_level(&found.captures[0]));
        Some((gauge(&name, "By", &description).scaled(SECTOR_BYTES), size))
    });
    facts.collect()
}

/// The line `btime` of stat may follow those of thousands of CPUs and interrupts, so that the whole file is read.
fn boot(proc: &Path) -> Option<(SensorDef, i64)> {
    let bytes = crate::file::read_file(&proc.join("stat")).ok()?;
    let line = scan::lines(&bytes).find_map(|line| line.strip_prefix(b"btime "))?;
    let (time, _) = scan::int_at(line, 0).filter(|(_, end)| *end == line.len())?;
    Some((gauge("boot_time", "s", "When the node was started, since 1970."), time))
}

fn texts(roots: &Roots, os_release: &Path) -> Vec<(SensorDef, i64)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, what: &str, text: Option<String>| {
        if let Some(text) = text {
            facts.push((gauge(name, "1", &format!("{what}: {}.", bounded(&text))), 1));
        }
    };
    let cpu = text(&roots.proc.join("cpuinfo"));
    add("processor", "Processor", cpu.and_then(|text| cpuinfo(&text, "model name")));
    for (name, what, files) in DMI {
        let words = files.iter().filter_map(|file| text(&roots.sys.join("class/dmi/id").join(file)));
        let words: Vec<String> = words.collect();
        add(name, what, (!words.is_empty()).then(|| words.join(", ")));
    }
    let kernel = ["ostype", "osrelease", "version"].map(|file| text(&roots.proc.join("sys/kernel").join(file)));
    let words: Vec<String> = kernel.into_iter().flatten().collect();
    add("kernel", "Kernel", (!words.is_empty()).then(|| words.join(" ")));
    let release = text(os_release).unwrap_or_default();
    let name = after(&release, "PRETTY_NAME=").map(|name| name.trim_matches('"').to_owned());
    add("distribution", "Distribution", name);
    facts
}

/// A text without control characters and of a bounded length.
fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, expected) in [
            ("0", Some(1)),
            ("0-3,8", Some(5)),
            ("0-255", Some(256)),
            ("", None),
            ("3-0", None),
            ("0-x", None),
            ("0-99999999999", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(cpus_in(list), expected, "{list:?}");
        }
    }

    #[test]
    fn facts_of_files_with_garbage_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let roots = Roots { proc: folder.path().join("proc"), sys: folder.path().join("sys"), ..Roots::default() };
        let facts = || {
            let all = all(&roots, &folder.path().join("os-release")).into_iter();
            all.map(|(sensor, value)| (sensor.name, value, sensor.description)).collect::<Vec<_>>()
        };
        assert!(facts().is_empty());
        write("proc/meminfo", b"MemTotal:  x kB\n");
        write("proc/stat", b"btime 17x\n");
        write("proc/cpuinfo", b"\xff\xfe\nmicrocode : zz\n");
        write("sys/devices/system/cpu/online", b"0-\n");
        write("sys/block/sda/size", b"-5\n");
        write("os-release", b"PRETTY_NAME=\n");
        assert!(facts().iter().all(|(name, ..)| name == "inventory/distribution"), "{:?}", facts());
        write("os-release", &[b"PRETTY_NAME=\"\x1b[31m".to_vec(), vec![b'x'; 1 << 20]].concat());
        write("sys/block/sda/size", b"8\n");
        let found = facts();
        assert_eq!(found[0], ("inventory/disk/sda/size".to_owned(), 8, "Size of the disk.".to_owned()));
        let description = &found[1].2;
        assert!(description.starts_with("Distribution: [31mxx") && description.len() < 300, "{description}");
    }
}
