//! Where a monitor's files are: what its server shares with all nodes, and what is one node's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::Role;

/// What the server's part leaves for the nodes in the folder that they share.
const ADDRESS: &str = "server.json";

/// The folder of one run of a monitor.
#[derive(Debug, Clone)]
pub struct Folder {
    shared: PathBuf,
    role: Role,
}

/// Where the server's part is reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Address {
    /// Host.
    pub host: String,
    /// Ports by what they are for.
    pub ports: BTreeMap<String, u16>,
}

impl Folder {
    /// `dir` of `monitor run --dir`; makes it.
    pub fn new(dir: &Path, role: Role) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("making the folder {}", dir.display()))?;
        let shared = dir.canonicalize().with_context(|| format!("the folder {}", dir.display()))?;
        Ok(Self { shared, role })
    }

    /// Whether the server's part is to be started.
    pub fn has_server(&self) -> bool {
        self.role != Role::Node
    }

    /// Whether the node's part is to be started.
    pub fn has_node(&self) -> bool {
        self.role != Role::Server
    }

    /// The host that nodes reach the server's part at, and that it listens on: loopback where both are on one machine.
    pub fn server_host(&self) -> String {
        if self.role == Role::Both { "127.0.0.1".to_owned() } else { host() }
    }

    /// What the server's part listens on: loopback where both are on one machine, else every address.
    pub fn listen(&self) -> &'static str {
        if self.role == Role::Both { "127.0.0.1" } else { "0.0.0.0" }
    }

    /// A path that all nodes see.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.shared.join(name)
    }

    /// A path of the server's part, the part's folder itself without a name; the folder it is in is there.
    pub fn server(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.made("server", name)
    }

    /// A path of this node alone, likewise.
    pub fn node(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.made(&format!("node-{}", self::node()), name)
    }

    fn made(&self, part: &str, name: &str) -> anyhow::Result<PathBuf> {
        let part = self.shared.join(part);
        let path = if name.is_empty() { part.clone() } else { part.join(name) };
        let dir = if name.is_empty() { &part } else { path.parent().unwrap_or(&part) };
        std::fs::create_dir_all(dir).with_context(|| format!("making the folder {}", dir.display()))?;
        Ok(path)
    }

    /// Writes a file, and gives back its text as [`super::Ready::configured`] shows it.
    pub fn write(&self, path: &Path, text: &str) -> anyhow::Result<String> {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        let name = path.strip_prefix(&self.shared).unwrap_or(path);
        Ok(format!("# {}\n{}\n", name.display(), text.trim_end()))
    }

    /// Tells the nodes where the server's part is reached.
    pub fn announce(&self, ports: &[(&str, u16)]) -> anyhow::Result<Address> {
        let ports = ports.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
        let address = Address { host: self.server_host(), ports };
        let path = self.shared(ADDRESS);
        std::fs::write(&path, serde_json::to_string(&address)?)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(address)
    }

    /// Where the server's part is reached, as it told.
    pub fn address(&self) -> anyhow::Result<Address> {
        let path = self.shared(ADDRESS);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("reading {}: start the monitor with --role server and the same --dir first", path.display())
        })?;
        serde_json::from_str(&text).with_context(|| format!("{} is not what the server's part wrote", path.display()))
    }
}

impl Address {
    /// The port for something.
    pub fn port(&self, name: &str) -> anyhow::Result<u16> {
        self.ports.get(name).copied().with_context(|| format!("the server's part told of no port for {name}"))
    }
}

/// The variable by which Slurm tells a step what it calls the node.
const SLURM_NODE: &str = "SLURMD_NODENAME";

/// What this node is called: by Slurm within one of its steps, where two nodes may be one machine, else as [`host`].
pub fn node() -> String {
    std::env::var(SLURM_NODE).ok().filter(|name| !name.is_empty()).unwrap_or_else(host)
}

/// This machine's name as the kernel has it, at which other machines reach it.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_find_what_the_server_told() {
        let dir = tempfile::tempdir().unwrap();
        let node = Folder::new(dir.path(), Role::Node).unwrap();
        let error = node.address().unwrap_err().to_string();
        assert!(error.contains("--role server"), "{error}");
        let server = Folder::new(dir.path(), Role::Server).unwrap();
        let told = server.announce(&[("mqtt", 12_345)]).unwrap();
        assert_eq!(node.address().unwrap(), told);
        assert_eq!((told.host, node.address().unwrap().port("mqtt").unwrap()), (host(), 12_345));
        assert!(node.address().unwrap().port("http").is_err());
        assert!(node.node("etc/x").unwrap().parent().unwrap().is_dir());
    }
}
