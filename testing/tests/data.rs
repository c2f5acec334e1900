//! Maintenance of data with the real programs: retention, deletion, compaction, backup and restore on a running server; a directory in use, of a
//! newer release, with damaged blocks; a full disk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use wholegrain_testing::probe::now_ns;
use wholegrain_testing::{Process, Site, wait_until};

const SECOND: i64 = 1_000_000_000;
/// Readings of each sensor.
const SAMPLES: i64 = 7_000;

/// Stores [`SAMPLES`] readings of each sensor below `/h/d`, one a second, the last one a minute ago, and waits until they are in blocks.
fn fill(site: &Site, server: &Process, sensors: &[&str]) -> i64 {
    let end = now_ns() / SECOND - 60;
    let blocks = || site.metric("wholegrain_server_store_block_rows ").unwrap_or(0.0);
    let wanted = blocks() + (SAMPLES * sensors.len() as i64) as f64;
    for sensor in sensors {
        let mut lines = String::new();
        for at in 0..SAMPLES {
            lines += &format!("d,hostname=h {sensor}={}i {}\n", at * 7919 % 10_007, (end - SAMPLES + at) * SECOND);
        }
        let file = site.path("lines.txt");
        fs::write(&file, lines).unwrap();
        let sent = post(site, "/api/v1/write/influx", &file);
        assert!(sent.status.success(), "{sent:?}: {}", server.log());
    }
    wait_until("the readings in blocks", || blocks() >= wanted);
    end - SAMPLES
}

fn post(site: &Site, path: &str, body: &Path) -> Output {
    let token = fs::read_to_string(site.path("token")).unwrap();
    Command::new("curl")
        .args(["--silent", "--show-error", "--fail-with-body", "--cacert"])
        .arg(site.path("ca.pem"))
        .args(["--header", &format!("Authorization: Bearer {}", token.trim()), "--data-binary"])
        .arg(format!("@{}", body.display()))
        .arg(format!("https://localhost:{}{path}", site.http_port))
        .output()
        .unwrap()
}

#[track_caller]
fn json(site: &Site, arguments: &[&str]) -> Value {
    serde_json::from_str(&site.answer(arguments)).unwrap()
}

#[track_caller]
fn ends_with(site: &Site, arguments: &[&str], code: i32, parts: &[&str]) -> String {
    let output = site.run(arguments);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "{arguments:?}: {part:?} is not in {said}"));
    said
}

/// The number of readings that a query returns.
fn count(site: &Site, pattern: &str) -> usize {
    let output = site.run(&["query", pattern, "--from", "-3h", "--format", "csv"]);
    // Exit code 4: a block that cannot be read may contain more.
    assert!(matches!(output.status.code(), Some(0 | 1 | 4)), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().count().saturating_sub(1)
}

fn blocks(site: &Site) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![site.path("server/store/blocks")];
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found
}

fn site() -> Site {
    let site = Site::new();
    site.set("server/server.toml", "store", "seal_after", "\"1s\"");
    site
}

#[test]
fn an_administrator_maintains_the_data_of_a_running_server() {
    let site = site();
    let mut server = site.start_server();
    let begin = fill(&site, &server, &["a", "b", "c"]);
    let samples = SAMPLES as usize;
    assert_eq!(count(&site, "/h/d/**"), 3 * samples);
    // Statistics.
    let stats = json(&site, &["config", "stats", "--level", "0", "--json"]);
    assert_eq!(
        (&stats["subtrees"][0]["readings"], &stats["subtrees"][0]["sensors"]),
        (&(3 * SAMPLES).into(), &3.into())
    );
    ends_with(&site, &["config", "stats", "/none/**"], 1, &["no sensor"]);
    // Retention: a dry run, then in effect at once, then removed.
    let set = ["config", "retention", "set", "/h/d/c", "10min"];
    let would = json(&site, &[&set[..], &["--dry-run", "--json"]].concat());
    assert!(would["readings"].as_i64().unwrap() > 0 && would["sensors"] == 1, "{would}");
    assert_eq!(count(&site, "/h/d/**"), 3 * samples, "asking changes nothing");
    site.answer(&set);
    let rules = json(&site, &["config", "retention", "list", "--json"]);
    assert_eq!((&rules["rules"][0]["pattern"], &rules["rules"][0]["source"]), (&"/h/d/c".into(), &"set".into()));
    wait_until("the rule is in force", || count(&site, "/h/d/c") < samples);
    site.answer(&["config", "retention", "unset", "/h/d/c"]);
    ends_with(&site, &["config", "retention", "unset", "/h/d/c"], 1, &["no rule"]);
    ends_with(&site, &["config", "retention", "set", "/h/d/**", "soon"], 2, &["keep"]);
    // Deletion: asks, refuses without an answer, deletes.
    let (from, to) = (format!("@{}", begin + 100), format!("@{}", begin + 200));
    let delete = ["config", "delete", "/h/d/a", "--from", &from, "--to", &to];
    assert_eq!(json(&site, &[&delete[..], &["--dry-run", "--json"]].concat())["readings"], 100);
    ends_with(&site, &delete, 2, &["--yes"]);
    assert_eq!(count(&site, "/h/d/a"), samples);
    ends_with(&site, &[&delete[..], &["--yes"]].concat(), 0, &["deleted: 100 readings of 1 sensors"]);
    assert_eq!(count(&site, "/h/d/a"), samples - 100);
    ends_with(&site, &[&delete[..], &["--yes"]].concat(), 1, &["no readings of these sensors"]);
    // A second server on the same directory.
    ends_with(
        &site,
        &["server", "--config", site.path("server/server.toml").to_str().unwrap()],
        4,
        &["is in use by the process", &server.id().to_string()],
    );
    ends_with(
        &site,
        &["store", "repair", "--dir", site.path("server/store").to_str().unwrap()],
        4,
        &["is in use by the process"],
    );
    // Compaction and verification.
    ends_with(&site, &["config", "compact"], 0, &["compact, begun"]);
    ends_with(&site, &["config", "verify"], 0, &["block: ", "0 damaged"]);
    ends_with(&site, &["config", "verify", "--status", "--json"], 0, &["\"running\": false"]);
    ends_with(&site, &["config", "repair", "--stop"], 1, &["not going on"]);
    // A backup into a directory, an incremental one, one into a file; and a restore.
    let (kept_a, kept_b) = (count(&site, "/h/d/a"), count(&site, "/h/d/b"));
    let (dir, file) = (site.path("kept"), site.path("kept.tar"));
    let first = json(&site, &["config", "backup", dir.to_str().unwrap(), "--json"]);
    let second = json(&site, &["config", "backup", dir.to_str().unwrap(), "--json"]);
    assert!(second["received_files"].as_u64() < first["received_files"].as_u64(), "{first} {second}");
    site.answer(&["config", "backup", file.to_str().unwrap()]);
    assert!(server.stop().success());
    for backup in [&dir, &file] {
        let store = site.path("server/store");
        ends_with(
            &site,
            &["store", "restore", backup.to_str().unwrap(), "--dir", store.to_str().unwrap()],
            4,
            &["is not empty"],
        );
        fs::remove_dir_all(&store).unwrap();
        let restore = ["store", "restore", backup.to_str().unwrap(), "--dir", store.to_str().unwrap()];
        ends_with(&site, &restore, 0, &["3 sensors", "restored to"]);
        let mut again = site.start_server();
        assert_eq!((count(&site, "/h/d/a"), count(&site, "/h/d/b")), (kept_a, kept_b));
        assert!(again.stop().success());
    }
    let audit = fs::read_to_string(site.path("server/audit.jsonl")).unwrap_or_default();
    assert!(audit.contains("delete /h/d/a") && audit.contains("retention of /h/d/c set"), "{audit}");
}

#[test]
fn damaged_blocks_are_reported_and_the_rest_is_returned() {
    let site = site();
    let mut server = site.start_server();
    fill(&site, &server, &["a", "b"]);
    site.answer(&["config", "compact"]);
    let before = blocks(&site);
    // Of another type, so that it is in its own block.
    fill(&site, &server, &["f"]);
    assert!(server.stop().success());
    let block = before[0].clone();
    let name = block.file_name().unwrap().to_string_lossy().into_owned();
    let mut content = fs::read(&block).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 4;
    fs::write(&block, &content).unwrap();
    let mut server = site.start_server();
    ends_with(&site, &["query", "/h/d/a", "--from", "-3h"], 4, &[&name, "incomplete"]);
    assert!(count(&site, "/h/d/f") >= SAMPLES as usize, "the rest is served");
    ends_with(&site, &["config", "verify"], 4, &[&name, "1 damaged"]);
    ends_with(&site, &["config", "repair", "--dry-run"], 4, &[&name]);
    let said = ends_with(&site, &["config", "repair"], 4, &[&name, "damaged file moved to", "could not be read"]);
    assert!(said.contains("rows kept"), "{said}");
    assert!(site.path("server/store/damaged").join(&name).exists() && !block.exists());
    ends_with(&site, &["config", "verify"], 0, &["0 damaged"]);
    ends_with(&site, &["query", "/h/d/f", "--from", "-3h"], 0, &[]);
    assert!(server.stop().success());
    // A truncated block: reported when the server starts, and omitted.
    let block = blocks(&site)[0].clone();
    let name = block.file_name().unwrap().to_string_lossy().into_owned();
    let content = fs::read(&block).unwrap();
    fs::write(&block, &content[..content.len() / 2]).unwrap();
    let store = site.path("server/store");
    ends_with(&site, &["store", "verify", "--dir", store.to_str().unwrap()], 4, &[&name]);
    let mut server = site.start_server();
    assert!(server.log().contains(&name), "{}", server.log());
    ends_with(&site, &["query", "/h/d/**", "--from", "-3h"], 4, &[&name]);
    assert!(server.stop().success());
    ends_with(&site, &["store", "repair", "--dir", store.to_str().unwrap()], 4, &[&name, "damaged file moved to"]);
    ends_with(&site, &["store", "verify", "--dir", store.to_str().unwrap()], 0, &[]);
    let mut server = site.start_server();
    assert!(matches!(site.run(&["query", "/h/d/**", "--from", "-3h"]).status.code(), Some(0 | 1)));
    assert!(server.stop().success());
}

#[test]
fn files_of_a_newer_release_are_refused_by_name_and_version() {
    let site = site();
    let mut server = site.start_server();
    fill(&site, &server, &["a"]);
    site.answer(&["config", "retention", "set", "/x", "forever"]);
    assert!(server.stop().success());
    let config = site.path("server/server.toml");
    let start = ["server", "--config", config.to_str().unwrap()];
    let refused = |file: &str, content: &[u8], version: &str| {
        let path = site.path("server/store").join(file);
        let before = fs::read(&path).ok();
        fs::write(&path, content).unwrap();
        ends_with(&site, &start, 4, &[file, version, "use the release that wrote it"]);
        match before {
            Some(before) => fs::write(&path, before).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    };
    refused("registry.log", b"wholegrain registry 7\n", "format version 7");
    let mut segment = b"WGJOURNL".to_vec();
    segment.extend_from_slice(&9u32.to_le_bytes());
    segment.extend_from_slice(&99_999u64.to_le_bytes());
    segment.extend_from_slice(&crc32c(&segment).to_le_bytes());
    segment.resize(44, 0);
    refused("journal/0000099999.wal", &segment, "format version 9");
    let mut server = site.start_server();
    assert_eq!(count(&site, "/h/d/a"), SAMPLES as usize, "nothing was changed by the refusals");
    assert!(server.stop().success());
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    !sum
}

#[test]
fn maintenance_on_a_full_disk_is_complete_or_refused() {
    let site = site();
    let mut server = site.start_server_on_small_disk("24m");
    fill(&site, &server, &["a"]);
    fill(&site, &server, &["b"]);
    let ballast = server.sees(&site.path("server/store/ballast"));
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write(&[0x5a; 4096]).is_ok_and(|written| written > 0) {}
    drop(file);
    let kept = site.path("kept");
    for arguments in [&["config", "compact"][..], &["config", "backup", kept.to_str().unwrap()]] {
        let output = site.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(3 | 4)) && said.contains("disk is full"), "{arguments:?}: {said}");
    }
    assert!(!kept.join("backup.json").exists());
    assert_eq!(count(&site, "/h/d/**"), 2 * SAMPLES as usize, "all is there");
    // A deletion needs only a page of the catalogue: there may be room for it or not.
    let deletion = ["config", "delete", "/h/d/a", "--from", "-3h", "--to", "now", "--yes"];
    let deleted = site.run(&deletion).status.success();
    assert_eq!(count(&site, "/h/d/**"), if deleted { 1 } else { 2 } * SAMPLES as usize, "all of it or nothing");
    fs::remove_file(&ballast).unwrap();
    wait_until("there is room again", || deleted || site.run(&deletion).status.success());
    assert_eq!(count(&site, "/h/d/**"), SAMPLES as usize);
    ends_with(&site, &["config", "compact"], 0, &[]);
    ends_with(&site, &["config", "backup", kept.to_str().unwrap()], 0, &["all readings before "]);
    assert!(server.stop().success());
}
