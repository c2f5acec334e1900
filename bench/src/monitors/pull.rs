//! The server's part of a monitor that asks its nodes: a program a node, which the node knows how to call.
//!
//! On one machine it is started like any other part. For nodes elsewhere the server's part is there before them, so each of them
//! leaves the command in the folder that all share, and the server's part starts it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::{Folder, Role, Running, Started, folder};

/// Looks for commands once a second, starts each once, and ends them when it is ended.
const STARTER: &str = "ids=
trap 'kill $ids 2>/dev/null; wait; exit' TERM
while :; do
    for script in \"$1\"/*.sh; do
        [ -e \"$script\" ] || continue
        mv \"$script\" \"$script.started\"
        sh \"$script.started\" &
        ids=\"$ids $!\"
    done
    sleep 1
done
";

/// Where what is pulled from this node is kept, and whether that is done here.
pub struct Pull<'a> {
    folder: &'a Folder,
    role: Role,
}

/// Starts a monitor whose server's part, called `name`, asks its nodes: what `node` starts, or what waits for the nodes' commands.
pub fn start(
    role: Role,
    interval: Duration,
    dir: &Path,
    name: &str,
    node: impl FnOnce(&mut Started, &Folder, &Pull) -> anyhow::Result<()>,
) -> anyhow::Result<Box<dyn Running>> {
    let folder = Folder::new(dir, role)?;
    let pull = Pull::new(&folder, role)?;
    let mut started = Started::new(interval);
    if folder.has_node() {
        node(&mut started, &folder, &pull)?;
    } else {
        pull.server(&mut started, name)?;
    }
    Ok(Box::new(started))
}

impl<'a> Pull<'a> {
    /// Makes the folders that the server's part and the nodes share.
    fn new(folder: &'a Folder, role: Role) -> anyhow::Result<Self> {
        for name in ["kept", "commands"] {
            let path = folder.shared(name);
            std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        }
        Ok(Self { folder, role })
    }

    /// Where to keep what comes from this node; the server's part and the node both see it.
    pub fn kept(&self) -> PathBuf {
        self.folder.shared("kept").join(folder::node())
    }

    /// The host at which the server's part reaches this node.
    pub fn host(&self) -> String {
        if self.role == Role::Both { "127.0.0.1".to_owned() } else { folder::host() }
    }

    /// The server's part for nodes elsewhere.
    fn server(&self, started: &mut Started, name: &str) -> anyhow::Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", STARTER, name]).arg(self.folder.shared("commands"));
        started.run(name, true, &mut command, &self.folder.server("out.log")?)
    }

    /// Has the server's part run a command that asks this node: here, or where that part is.
    pub fn node(&self, started: &mut Started, name: &str, command: &mut Command) -> anyhow::Result<()> {
        if self.role == Role::Both {
            return started.run(name, true, command, &self.folder.server("out.log")?);
        }
        started.configured += &format!("# {command:?}\n");
        let path = self.folder.shared("commands").join(format!("{}.sh", folder::node()));
        // Whole or not at all.
        let written = path.with_extension("part");
        std::fs::write(&written, script(command)).with_context(|| format!("writing {}", written.display()))?;
        std::fs::rename(&written, &path).with_context(|| format!("naming {}", path.display()))
    }
}

/// The command as a shell takes it.
fn script(command: &Command) -> String {
    let quoted = |text: &OsStr| format!("'{}'", text.to_string_lossy().replace('\'', "'\\''"));
    let mut script = "exec env".to_owned();
    for (name, value) in command.get_envs() {
        script += &format!(" {}={}", name.to_string_lossy(), quoted(value.unwrap_or_default()));
    }
    script += &format!(" {}", quoted(command.get_program()));
    script.extend(command.get_args().map(|argument| format!(" {}", quoted(argument))));
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_runs_the_command_that_was_left() {
        let mut command = Command::new("printf");
        command.args(["%s|", "it's", "two words", "$HOME"]).env("A", "b c").arg("x");
        let output = Command::new("sh").arg("-c").arg(script(&command)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's|two words|$HOME|x|");
    }
}
