//! Opens the file of a plug-in once, and checks the open file: its code will have the rights of the agent.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use super::services::PluginError;
use super::{elf, modules};

/// The first bytes of an ELF file for 64 bits.
const ELF: [u8; 5] = [0x7f, b'E', b'L', b'F', 2];
/// The ending of a program in Python.
const SCRIPT_ENDING: &str = "py";
/// The module beside a program in Python that speaks with the agent.
const SCRIPT_MODULE: &str = "wholegrain_plugin.py";
/// Write permission for the group or for others.
const WRITABLE: u32 = 0o022;

/// An open file that only the agent's user or root can change.
#[derive(Debug)]
pub(super) struct TrustedFile {
    pub file: File,
    /// With every link resolved.
    pub path: PathBuf,
    pub is_script: bool,
}

pub(super) fn refuse<T>(path: &Path, reason: &str) -> Result<T, PluginError> {
    Err(PluginError(format!("the plug-in {} is refused: {reason}", path.display())))
}

pub(super) fn open_at(dir: RawFd, name: &std::ffi::OsStr, flags: libc::c_int) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: a string with an end, and an open folder or AT_FDCWD.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened here.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Why others could change a file or a folder with these properties.
pub(super) fn weakness(metadata: &Metadata, is_ancestor: bool) -> Option<String> {
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != 0 && owner != own {
        return Some(format!("belongs to the user {owner}, who is neither root nor the agent's user ({own})"));
    }
    // In a folder such as /tmp nobody can exchange the entries of others.
    let is_sticky = is_ancestor && mode & libc::S_ISVTX != 0;
    (mode & WRITABLE != 0 && !is_sticky)
        .then(|| format!("can be written by others (mode {:04o}): chmod go-w", mode & 0o7777))
}

/// Opens a folder from `/` on, step by step, each checked while it is open.
pub(super) fn open_folder(folder: &Path, plugin: &Path) -> Result<File, PluginError> {
    let failed =
        |at: &Path, error: io::Error| refuse(plugin, &format!("cannot open the folder {}: {error}", at.display()));
    let (mut at, mut open) = (
        PathBuf::from("/"),
        match File::open("/") {
            Ok(root) => root,
            Err(error) => return failed(Path::new("/"), error),
        },
    );
    let names: Vec<_> = folder.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for (index, name) in names.iter().enumerate() {
        at.push(name);
        let next = open_at(open.as_raw_fd(), name.as_os_str(), libc::O_DIRECTORY);
        let next = match next.and_then(|next| Ok((next.metadata()?, next))) {
            Ok((metadata, next)) => {
                if let Some(weakness) = weakness(&metadata, index + 1 < names.len()) {
                    return refuse(plugin, &format!("the folder {} {weakness}", at.display()));
                }
                next
            }
            Err(error) => return failed(&at, error),
        };
        open = next;
    }
    Ok(open)
}

/// A regular file in an open folder that others cannot change.
pub(super) fn open_file(folder: &File, name: &std::ffi::OsStr, path: &Path) -> Result<File, PluginError> {
    let file = match open_at(folder.as_raw_fd(), name, 0) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return refuse(path, "it is a link; name the file itself");
        }
        Err(error) => return refuse(path, &format!("cannot open it: {error}")),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return refuse(path, &format!("cannot look at it: {error}")),
    };
    if !metadata.is_file() {
        return refuse(path, "it is not a regular file");
    }
    match weakness(&metadata, false) {
        Some(weakness) => refuse(path, &format!("it {weakness}")),
        None => Ok(file),
    }
}

/// Opens the file of a plug-in.
pub(super) fn open(path: &Path) -> Result<TrustedFile, PluginError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return refuse(path, "it is not the name of a file");
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let resolved = match folder.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) => return refuse(path, &format!("cannot open the folder {}: {error}", folder.display())),
    };
    let folder = open_folder(&resolved, path)?;
    let file = open_file(&folder, name, path)?;
    let is_script = path.extension().is_some_and(|ending| ending == SCRIPT_ENDING);
    if is_script {
        open_file(&folder, SCRIPT_MODULE.as_ref(), &resolved.join(SCRIPT_MODULE))?;
        modules::check(&folder, &resolved, path)?;
    } else {
        let mut start = [0; ELF.len()];
        if file.read_exact_at(&mut start, 0).is_err() || start != ELF {
            return refuse(
                path,
                "it is not a shared object (an ELF file for 64 bits), and its name does not end in .py",
            );
        }
        check_libraries(&file, &resolved, path)?;
    }
    Ok(TrustedFile { file, path: resolved.join(name), is_script })
}

/// Refuses a shared object for which the loader would look for libraries where another user can put some.
fn check_libraries(file: &File, folder: &Path, path: &Path) -> Result<(), PluginError> {
    let places = match elf::library_places(file) {
        Ok(places) => places,
        Err(error) => return refuse(path, &format!("its list of libraries cannot be read: {error}")),
    };
    for place in places {
        let expanded =
            place.replace("$ORIGIN", &folder.to_string_lossy()).replace("${ORIGIN}", &folder.to_string_lossy());
        let hint = "link it without -rpath, or remove it with patchelf --remove-rpath";
        if !expanded.starts_with('/') || expanded.contains('$') {
            return refuse(path, &format!("it looks for libraries in {place:?}, which is no fixed folder: {hint}"));
        }
        // A folder that does not exist is one that others could make, if they can write to the one above it.
        let existing = Path::new(&expanded).ancestors().find_map(|folder| folder.canonicalize().ok());
        let Some(existing) = existing else { continue };
        let folder = if existing.is_dir() { &existing } else { existing.parent().unwrap_or(&existing) };
        if let Err(PluginError(why)) = open_folder(folder, path) {
            return Err(PluginError(format!("{why}; it looks for libraries in {place:?}: {hint}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn libraries_that_others_can_exchange_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (object, source, libraries) = (dir.path().join("a.so"), dir.path().join("a.c"), dir.path().join("lib"));
        fs::write(&source, "int a;\n").unwrap();
        fs::create_dir(&libraries).unwrap();
        let build = |place: &str| {
            let mut cc = std::process::Command::new("cc");
            let status = cc
                .args(["-shared", "-fPIC", "-o"])
                .arg(&object)
                .arg(&source)
                .arg(format!("-Wl,-rpath,{place}"))
                .status();
            assert!(status.unwrap().success());
            set(&object, 0o755);
        };
        set(dir.path(), 0o755);
        set(&libraries, 0o755);
        for place in [libraries.to_str().unwrap(), "$ORIGIN/lib", "/usr/lib"] {
            build(place);
            assert!(open(&object).is_ok(), "{place}: {:?}", open(&object));
        }
        set(&libraries, 0o777);
        for (place, part) in [
            (
                libraries.to_str().unwrap(),
                "lib can be written by others (mode 0777): chmod go-w; it looks for libraries in",
            ),
            ("$ORIGIN/lib", "lib can be written by others"),
            ("/tmp/not/there/yet", "the folder /tmp can be written by others"),
            ("lib", "in \"lib\", which is no fixed folder"),
        ] {
            build(place);
            check(&object, part);
        }
    }

    #[test]
    fn modules_that_others_can_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in ["", "package", "package/__pycache__", "not-a-package"] {
            fs::create_dir_all(at(folder)).unwrap();
            set(&at(folder), 0o755);
        }
        for file in [
            "a.py",
            "wholegrain_plugin.py",
            "helper.py",
            "notes.txt",
            "package/__init__.py",
            "package/__pycache__/b.pyc",
        ] {
            fs::write(at(file), "pass\n").unwrap();
            set(&at(file), 0o644);
        }
        set(&at("notes.txt"), 0o666);
        set(&at("not-a-package"), 0o777);
        assert!(open(&at("a.py")).is_ok(), "{:?}", open(&at("a.py")));
        for (name, good, bad) in
            [("helper.py", 0o644, 0o664), ("package/__pycache__/b.pyc", 0o644, 0o646), ("package", 0o755, 0o777)]
        {
            set(&at(name), bad);
            check(&at("a.py"), "can be written by others");
            set(&at(name), good);
        }
        symlink("helper.py", at("alias.py")).unwrap();
        assert!(open(&at("a.py")).is_ok());
        symlink(at("not-a-package"), at("linked")).unwrap();
        check(&at("a.py"), "not-a-package can be written by others");
        fs::remove_file(at("linked")).unwrap();
        symlink("/tmp/not-there-yet.py", at("later.py")).unwrap();
        check(&at("a.py"), "later.py beside it is a link to nothing");
        fs::remove_file(at("later.py")).unwrap();
        set(&at("helper.py"), 0o664);
        check(&at("a.py"), "a.py, which could import it: change its owner or move it");
    }

    #[track_caller]
    fn check(path: &Path, part: &str) {
        let error = open(path).map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains("is refused: ") && error.contains(part), "{error}");
    }

    #[test]
    fn hostile_files_and_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.so");
        fs::write(&file, [&ELF[..], &[0; 100]].concat()).unwrap();
        set(&file, 0o644);
        set(dir.path(), 0o755);
        assert!(open(&file).is_ok());
        for mode in [0o664, 0o646, 0o777] {
            set(&file, mode);
            check(&file, "can be written by others");
        }
        set(&file, 0o644);
        for mode in [0o775, 0o757, 0o1777] {
            set(dir.path(), mode);
            check(&file, "the folder");
        }
        set(dir.path(), 0o755);
        let link = dir.path().join("link.so");
        symlink(&file, &link).unwrap();
        check(&link, "it is a link");
        let fifo = dir.path().join("fifo.so");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string with an end.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        check(&fifo, "it is not a regular file");
        let folder = dir.path().join("folder.so");
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o755);
        check(&folder, "it is not a regular file");
        check(&dir.path().join("none.so"), "cannot open it");
        check(&dir.path().join("no/none.so"), "cannot open the folder");
        let text = dir.path().join("text.so");
        fs::write(&text, "#!/bin/sh\n").unwrap();
        set(&text, 0o644);
        check(&text, "it is not a shared object");
        let script = dir.path().join("a.py");
        fs::write(&script, "pass\n").unwrap();
        set(&script, 0o644);
        check(&script, "wholegrain_plugin.py is refused: cannot open it");
        // A link in the middle of the path is resolved before the check.
        let inner = dir.path().join("inner");
        symlink(dir.path(), &inner).unwrap();
        assert_eq!(open(&inner.join("a.so")).unwrap().path, dir.path().canonicalize().unwrap().join("a.so"));
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } == 0 {
            let owned = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
            owned(&file, 65534);
            check(&file, "belongs to the user 65534");
            owned(&file, 0);
            owned(dir.path(), 65534);
            check(&file, "belongs to the user 65534");
            owned(dir.path(), 0);
        }
    }
}
