//! The modules that a program in Python could import from its own folder: their code has the same rights.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::services::PluginError;
use super::trusted::{open_at, open_file, open_folder, refuse, weakness};

/// The most files and folders that are looked at.
const ENTRIES_MAX: usize = 10_000;
/// The most folders within each other.
const LEVELS_MAX: usize = 16;
/// The endings of files that can be imported.
const ENDINGS: [&str; 3] = [".py", ".pyc", ".so"];

/// Whether a folder of this name can be a package.
fn is_package(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Refuses a folder of which another user could change a module, and links that lead to another user's files.
pub(super) fn check(folder: &File, path: &Path, plugin: &Path) -> Result<(), PluginError> {
    check_level(folder, path, plugin, LEVELS_MAX, &mut ENTRIES_MAX.clone())
}

fn check_level(folder: &File, path: &Path, plugin: &Path, levels: usize, left: &mut usize) -> Result<(), PluginError> {
    let failed =
        |at: &Path, error: std::io::Error| refuse(plugin, &format!("cannot look at {}: {error}", at.display()));
    // The entry in /proc is the open folder itself.
    let entries = match std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())) {
        Ok(entries) => entries,
        Err(error) => return failed(path, error),
    };
    for entry in entries {
        let (entry, kind) =
            match entry.and_then(|entry| Ok((entry.file_type()?, entry)).map(|(kind, entry)| (entry, kind))) {
                Ok(found) => found,
                Err(error) => return failed(path, error),
            };
        if *left == 0 || levels == 0 {
            return refuse(
                plugin,
                &format!("its folder has more than {ENTRIES_MAX} files, or too many levels; give it one of its own"),
            );
        }
        *left -= 1;
        let (name, at) = (entry.file_name(), path.join(entry.file_name()));
        let text = name.to_string_lossy();
        let is_module = ENDINGS.iter().any(|ending| text.ends_with(ending));
        if kind.is_dir() && is_package(&text) {
            let next = match open_at(folder.as_raw_fd(), &name, libc::O_DIRECTORY) {
                Ok(next) => next,
                Err(error) => return failed(&at, error),
            };
            match next.metadata().map(|metadata| weakness(&metadata, false)) {
                Ok(None) => check_level(&next, &at, plugin, levels - 1, left)?,
                Ok(Some(weakness)) => return refuse(plugin, &format!("the folder {} {weakness}", at.display())),
                Err(error) => return failed(&at, error),
            }
        } else if kind.is_file() && is_module {
            open_file(folder, &name, &at).map_err(|error| {
                let plugin = plugin.display();
                PluginError(format!(
                    "{error}. It lies beside {plugin}, which could import it: change its owner or move it"
                ))
            })?;
        } else if kind.is_symlink() && (is_module || is_package(&text)) {
            check_link(&at, plugin)?;
        } else if is_module && (kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()) {
            return refuse(plugin, &format!("{} beside it is not a regular file", at.display()));
        }
    }
    Ok(())
}

/// A link has to lead to a file or a folder that nobody else can change. What is below the folder is not looked at.
fn check_link(at: &Path, plugin: &Path) -> Result<(), PluginError> {
    let Ok(target) = at.canonicalize() else {
        return refuse(plugin, &format!("{} beside it is a link to nothing; remove it", at.display()));
    };
    if target.is_dir() {
        return open_folder(&target, plugin).map(drop);
    }
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else { return Ok(()) };
    open_file(&open_folder(folder, plugin)?, name, &target).map(drop)
}
