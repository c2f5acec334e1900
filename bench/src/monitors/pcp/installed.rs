//! Where PCP's programs are, and a set-up of them whose every file is below a folder of the run.
//!
//! PCP finds all its files through the variables of one file, `pcp.conf`, whose place the environment tells. A copy with other
//! places is therefore a PCP of its own. Debian's package starts its daemons as services while it is installed, without asking
//! whether it may, so `bench/prepare` only unpacks it; one that somebody has installed is used where it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::monitors::{Folder, program};

/// Where `bench/prepare` unpacks Debian's packages of PCP, below the checkout.
const UNPACKED: &str = "target/peers/pcp";
/// What `pcp.conf` says of the installation, and of the run when a folder of the run is given.
const IN_RUN: [(&str, &str); 6] = [
    ("PCP_VAR_DIR", "var"),
    ("PCP_RUN_DIR", "run"),
    ("PCP_LOG_DIR", "log"),
    ("PCP_ARCHIVE_DIR", "archive"),
    ("PCP_TMP_DIR", "tmp"),
    ("PCP_TMPFILE_DIR", "tmp"),
];

/// PCP as it is on this machine.
#[derive(Debug, Clone)]
pub struct Installed {
    /// What precedes every path of its `pcp.conf`.
    root: PathBuf,
    variables: BTreeMap<String, String>,
}

/// PCP with its files in a folder of the run.
#[derive(Debug, Clone)]
pub struct SetUp {
    installed: Installed,
    conf: PathBuf,
    /// The names of all metrics, for `-n`.
    pub names: PathBuf,
    /// The agents, for `pmcd -c`.
    pub agents: PathBuf,
    /// What was written, for [`crate::monitors::Ready::configured`].
    pub configured: String,
}

impl Installed {
    /// The system's own, else the unpacked one.
    pub fn find() -> anyhow::Result<Self> {
        let unpacked = wholegrain_testing::checkout().join(UNPACKED);
        let conf = |root: &PathBuf| std::fs::read_to_string(root.join("etc/pcp.conf")).ok();
        let found = [PathBuf::from("/"), unpacked].into_iter().find_map(|root| Some((conf(&root)?, root)));
        let Some((text, root)) = found else {
            bail!("Performance Co-Pilot is not here: bench/prepare unpacks it");
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let variables = lines.filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.trim().to_owned()));
        let installed = Self { root, variables: variables.collect() };
        let daemon = installed.daemon("pmcd")?;
        if !daemon.exists() {
            bail!("{} is not there: install Debian's package pcp, or let bench/prepare unpack it", daemon.display());
        }
        Ok(installed)
    }

    /// As its programs tell it: `pmcd` itself has no such option, `pminfo` has.
    pub fn version(&self) -> anyhow::Result<String> {
        let conf = self.root.join("etc/pcp.conf");
        let mut command = self.command(&self.path("PCP_BIN_DIR")?.join("pminfo"), &conf);
        // It prints that among its errors.
        let output = command.arg("--version").output().context("asking pminfo for its version")?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let version = text.trim().strip_prefix("pminfo version ");
        version.map(str::to_owned).with_context(|| format!("pminfo tells no version: {}", text.trim()))
    }

    /// A variable's path on this machine.
    fn path(&self, variable: &str) -> anyhow::Result<PathBuf> {
        let value = self.variables.get(variable).with_context(|| format!("pcp.conf says nothing of {variable}"))?;
        Ok(self.root.join(value.trim_start_matches('/')))
    }

    fn daemon(&self, name: &str) -> anyhow::Result<PathBuf> {
        Ok(self.path("PCP_BINADM_DIR")?.join(name))
    }

    fn command(&self, program: &Path, conf: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("PCP_CONF", conf);
        if self.root != Path::new("/") {
            command.env("LD_LIBRARY_PATH", self.root.join("usr/lib"));
        }
        command
    }

    /// Writes a `pcp.conf`, the agents' table and the name space below the node's part of `folder`. Of the agents of the
    /// package's own table those are kept that `keep` names; all of them when it names none.
    pub fn set_up(&self, folder: &Folder, keep: &[&str]) -> anyhow::Result<SetUp> {
        let conf = folder.node("pcp.conf")?;
        let text = self.conf(folder)?;
        std::fs::write(&conf, text).with_context(|| format!("writing {}", conf.display()))?;
        let agents_path = folder.node("pmcd.conf")?;
        let packaged = self.path("PCP_PMCDCONF_PATH")?;
        let packaged = std::fs::read_to_string(&packaged)
            .with_context(|| format!("reading the package's table of agents {}", packaged.display()))?;
        let own = self.path("PCP_PMDASADM_DIR")?;
        let text = agents(&packaged, keep).replace(&self.variables["PCP_PMDAS_DIR"], &own.display().to_string());
        let configured = folder.write(&agents_path, &text)?;
        let names = self.names(folder, &conf, &text)?;
        Ok(SetUp { installed: self.clone(), conf, names, agents: agents_path, configured })
    }

    /// The package's `pcp.conf` with everything that is written in the folder of the run, and this user.
    fn conf(&self, folder: &Folder) -> anyhow::Result<String> {
        let mut variables = self.variables.clone();
        for value in variables.values_mut().filter(|value| value.starts_with('/')) {
            let here = self.root.join(value.trim_start_matches('/'));
            if here.exists() {
                *value = here.display().to_string();
            }
        }
        for (variable, name) in IN_RUN {
            let dir = folder.node(name)?;
            std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
            variables.insert(variable.to_owned(), dir.display().to_string());
        }
        let agents = self.path("PCP_PMDASADM_DIR")?;
        variables.insert("PCP_PMDAS_DIR".to_owned(), agents.display().to_string());
        variables.insert("PCP_USER".to_owned(), program::user()?);
        variables.insert("PCP_GROUP".to_owned(), program::user()?);
        Ok(variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect())
    }

    /// Merges the name spaces of the agents of a table, which an installed package would do when its services start.
    fn names(&self, folder: &Folder, conf: &Path, agents: &str) -> anyhow::Result<PathBuf> {
        let own = self.path("PCP_BINADM_DIR")?.with_file_name("pmns");
        let sources = if own.join("root_linux").exists() { own } else { self.path("PCP_VAR_DIR")?.join("pmns") };
        let of_agents = agents.lines().filter_map(|line| Some(sources.join(format!("root_{}", agent(line)?))));
        let files: Vec<PathBuf> = of_agents.filter(|file| file.exists()).collect();
        if files.is_empty() {
            bail!("no name space of an agent in {}", sources.display());
        }
        let merged = folder.node("var/pmns/root")?;
        let output = self.command(&self.daemon("pmnsmerge")?, conf).arg("-f").args(files).arg(&merged).output();
        let output = output.context("starting pmnsmerge")?;
        if !merged.exists() {
            bail!("pmnsmerge made no name space: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(merged)
    }
}

impl SetUp {
    /// One of its daemons.
    pub fn daemon(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = self.installed.command(&self.installed.daemon(name)?, &self.conf);
        // Agents write their logs where they are started.
        command.current_dir(self.conf.parent().unwrap_or(Path::new(".")));
        Ok(command)
    }

    /// The groups of metrics that the package's logger asks for when nobody has told it others.
    pub fn groups(&self) -> anyhow::Result<PathBuf> {
        Ok(self.installed.path("PCP_SYSCONF_DIR")?.join("pmlogconf"))
    }
}

/// The agent that a line of pmcd's table is of.
fn agent(line: &str) -> Option<&str> {
    let mut fields = line.split_whitespace();
    let name = fields.next()?;
    fields.next()?.parse::<u32>().is_ok().then_some(name)
}

/// Pmcd's table without comments, with the agents that are kept, and its rules of access.
fn agents(packaged: &str, keep: &[&str]) -> String {
    let lines = packaged.lines().filter(|line| !line.starts_with('#'));
    let kept = lines.filter(|line| agent(line).is_none_or(|name| keep.is_empty() || keep.contains(&name)));
    kept.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_kept_by_name_and_access_stays() {
        let packaged = "# Name\tId\nroot\t1\tpipe\tbinary\t/x/pmdaroot\nlinux\t60\tpipe\tbinary\t/x/pmdalinux\n\n[access]\ndisallow \".*\" : store;\n";
        let all = agents(packaged, &[]);
        assert!(all.contains("root\t1") && all.contains("linux\t60") && !all.contains('#'));
        let kept = agents(packaged, &["linux"]);
        assert_eq!(kept, "linux\t60\tpipe\tbinary\t/x/pmdalinux\n\n[access]\ndisallow \".*\" : store;\n");
        assert_eq!((agent("linux 60 pipe"), agent("[access]"), agent("allow x : all;")), (Some("linux"), None, None));
    }
}
