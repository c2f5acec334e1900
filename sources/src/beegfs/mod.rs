//! BeeGFS clients: the connections to each server.
//!
//! - In: `[sources.beegfs]` and /proc/fs/beegfs/*/{mgmt,meta,storage}_nodes.
//! - Out: the group `beegfs`, with the sensors `beegfs/<management host>/<role>/<server>/connections/<transport>`.
//! - Never: statistics of servers, which are programs without readable files: `README.md` says how `exec` takes them.

use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;

use crate::file;
use crate::glob::{self, PathMatch};
use crate::keyed::{KeyedFormat, KeyedGroup, TakeValue, ValueKey, each_line};
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::scan;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType =
    SourceType { name: "beegfs", summary: "BeeGFS clients: connections to each server", configure, jobs: None };

/// The roles of servers, each with a file of that name and `_nodes`.
const ROLES: [&str; 3] = ["mgmt", "meta", "storage"];
/// The transports in the file, and their names in sensors.
const TRANSPORTS: [(&[u8], &str); 2] = [(b"TCP: ", "tcp"), (b"RDMA: ", "rdma")];

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BeegfsKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, BeegfsKeys {}) = options::read(section)?;
    Ok(Box::new(BeegfsSource { options, proc: context.roots.proc.clone(), unseen: Vec::new() }))
}

struct BeegfsSource {
    options: GroupOptions,
    proc: PathBuf,
    unseen: Vec<&'static str>,
}

impl Source for BeegfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let mut files = KeyedGroup::new("beegfs", SensorPlan::new(&self.options, &NO_OPTIONS, report));
        for role in ROLES {
            for PathMatch { path, captures } in glob::find(&self.proc, &format!("fs/beegfs/*/{role}_nodes")) {
                let client = path.parent().and_then(management_host).or_else(|| captures.first().cloned());
                let folder = format!("beegfs/{}/{role}", sanitize_level(&client.unwrap_or_default()));
                files.add("fs/beegfs", &path, Box::new(NodeConnections { folder }));
            }
        }
        files.into_plan(self.options.timing(&NO_OPTIONS), false, &mut self.unseen).into_iter().collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// The management host of a mounted client. The name of the client's folder differs after each mount.
fn management_host(client: &Path) -> Option<String> {
    let bytes = file::read_file(&client.join("config")).ok()?;
    scan::lines(&bytes).find_map(|line| {
        let (key, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
        (key.trim() == "sysMgmtdHost").then(|| value.trim().to_owned()).filter(|host| !host.is_empty())
    })
}

/// Servers, each with a line `name [ID: 1]` and a line of its connections.
struct NodeConnections {
    /// The levels before the names of servers.
    folder: String,
}

impl KeyedFormat for NodeConnections {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let mut server: &[u8] = b"";
        each_line(text, |line| {
            let Some(connections) = line.trim_ascii_start().strip_prefix(b"Connections: ") else {
                if !line.starts_with(b" ") {
                    let end = line.windows(6).position(|window| window == b" [ID: ");
                    server = end.map_or(&b""[..], |end| &line[..end]);
                }
                return Some(());
            };
            if server.is_empty() {
                return None;
            }
            for (column, (word, _)) in TRANSPORTS.iter().enumerate() {
                // One count for each address of the server.
                let starts = connections.windows(word.len()).enumerate().filter(|(_, window)| window == word);
                let counts = starts.map(|(at, _)| scan::number_at(connections, at + word.len()));
                let sum = counts
                    .map(|count| i64::try_from(count?.0).ok())
                    .try_fold(0i64, |sum, count| sum.checked_add(count?));
                take(ValueKey { object: server, name: b"", column }, sum?);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let (_, transport) = TRANSPORTS.get(key.column)?;
        let server = sanitize_level(&String::from_utf8_lossy(key.object));
        let text = "Connections to the server that are established.";
        Some(SensorDef::gauge(format!("{}/{server}/connections/{transport}", self.folder), "1", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::checks::check_any_input;

    #[test]
    fn any_input() {
        for text in [
            include_bytes!("../../fixtures/handmade/proc/fs/beegfs/1A2B-65F0C0DE-node17/meta_nodes").as_slice(),
            include_bytes!("../../fixtures/handmade/proc/fs/beegfs/1A2B-65F0C0DE-node17/storage_nodes"),
        ] {
            check_any_input(text, || Box::new(NodeConnections { folder: "f".to_owned() }));
        }
    }
}
