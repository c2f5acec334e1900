//! Checks the owners and modes of the directories on a path: another user must not be able to redirect a write of this process.
//!
//! - In: a path that is about to be written. Out: nothing, or an error that names the directory, its owner and the remedy.
//! - Never: an error because a directory is missing or cannot be read: the write itself then reports the reason.
//!
//! For root, an error is returned if any other user could replace a directory on the path. Other users risk only their own files, and often
//! can write only to the directory of a project, which belongs to another user: for them, an error is returned if every user of the machine
//! could replace a directory.

use std::ffi::OsString;
use std::fs::{Metadata, metadata, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The most links that are followed on one path, as in the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// The users that this process can see (user_namespaces(7)).
const UID_MAP: &str = "/proc/self/uid_map";

/// Returns an error if another user could replace the directory, or can create links or files in it. A missing directory is accepted if
/// the directories above it are.
pub fn check_directory(dir: &Path) -> Result<(), String> {
    check_directory_owner(dir)?;
    check_above(dir)
}

/// Returns an error if another user can create links or files in the directory: it belongs to a user other than root and the user of this
/// process, or others may write to it. A missing directory is accepted. A link is followed if it belongs to this user or root. The
/// directories above are not checked: see [`check_directory`].
pub fn check_directory_owner(dir: &Path) -> Result<(), String> {
    let caller = ProcessUser::of_this_process();
    // Without a slash at its end, which would name the target of a link.
    let dir = &dir.components().collect::<PathBuf>();
    let Ok(link) = symlink_metadata(dir) else { return Ok(()) };
    let meta = metadata(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let uids = [link.uid(), meta.uid()];
    if let Some(uid) = uids.into_iter().find(|uid| !caller.trusts(*uid)) {
        return Err(belongs_to(&dir.display().to_string(), uid));
    }
    match caller.written_by(&meta) {
        Some(writers) if meta.is_dir() => {
            let mode = meta.mode() & 0o7777;
            Err(format!(
                "{} can be written by {writers} (mode {mode:04o}), who could redirect what is written there; name a directory in it, or \
                 remove the permission (chmod go-w)",
                dir.display()
            ))
        }
        _ => Ok(()),
    }
}

/// Returns an error if another user could replace a directory above the last part of the path, or owns a link there.
pub fn check_above(path: &Path) -> Result<(), String> {
    ProcessUser::of_this_process().check_above(path)
}

/// [`check_above`] for root; other users may write anywhere.
pub fn check_above_as_root(path: &Path) -> Result<(), String> {
    let caller = ProcessUser::of_this_process();
    if caller.is_root { caller.check_above(path) } else { Ok(()) }
}

/// [`check_directory`] for root; other users may write anywhere.
pub fn check_directory_as_root(dir: &Path) -> Result<(), String> {
    if ProcessUser::of_this_process().is_root { check_directory(dir) } else { Ok(()) }
}

fn belongs_to(what: &str, uid: u32) -> String {
    format!(
        "{what} belongs to another user (uid {uid}), who could redirect what is written there; name a directory of your own, or run \
         the command as that user"
    )
}

/// The user of this process.
struct ProcessUser {
    uid: u32,
    /// Whether it is root and there are other users. If only root has a number, as below `unshare -r`, root has an ordinary user's rights.
    is_root: bool,
    /// First number and count of the users that have a number in this namespace.
    mapped: Vec<(u32, u32)>,
}

impl ProcessUser {
    fn of_this_process() -> Self {
        // SAFETY: the call has no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        Self::new(uid, &std::fs::read_to_string(UID_MAP).unwrap_or_default())
    }

    /// `uid_map` has lines of three numbers: the first user here, the same user outside, how many.
    fn new(uid: u32, uid_map: &str) -> Self {
        let line = |line: &str| {
            let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
            Some((numbers.next()?, numbers.nth(1)?))
        };
        let mut mapped: Vec<(u32, u32)> = uid_map.lines().filter_map(line).collect();
        if mapped.is_empty() {
            mapped.push((0, u32::MAX));
        }
        let is_alone = mapped.iter().map(|(_, count)| u64::from(*count)).sum::<u64>() <= 1;
        Self { uid, is_root: uid == 0 && !is_alone, mapped }
    }

    /// Whether directories of this user are trusted. This process cannot protect itself from a user without a number in its namespace, such as
    /// the machine's root seen from a container.
    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || !self.mapped.iter().any(|(first, count)| uid >= *first && uid - first < *count)
    }

    /// The others that may create and remove entries of a directory; its owner is not checked.
    fn written_by(&self, meta: &Metadata) -> Option<String> {
        if meta.mode() & 0o002 != 0 {
            return Some("every user".to_owned());
        }
        // Members of root's group are administrators.
        let by_group = self.is_root && meta.mode() & 0o020 != 0 && meta.gid() != 0;
        by_group.then(|| format!("a group (gid {})", meta.gid()))
    }

    /// Returns an error if an entry of a directory above the path can be replaced by another user.
    fn check_entry_of(&self, at: &Path, meta: &Metadata, path: &Path) -> Result<(), String> {
        let named = || format!("{}, which contains {},", at.display(), path.display());
        let is_own = self.trusts(meta.uid());
        if self.is_root && !is_own {
            return Err(belongs_to(&named(), meta.uid()));
        }
        // In a sticky directory others create files, but only its owner can remove or rename the files of others.
        let is_sticky = meta.mode() & 0o1000 != 0;
        match self.written_by(meta) {
            Some(who) if !(is_sticky && is_own) => Err(format!(
                "{} can be written by {who} (mode {:04o}, owner {}), who could redirect what is written there; name another \
                 directory, or remove the permission (chmod go-w {})",
                named(),
                meta.mode() & 0o7777,
                meta.uid(),
                at.display()
            )),
            _ => Ok(()),
        }
    }

    fn check_above(&self, path: &Path) -> Result<(), String> {
        let whole = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut at = PathBuf::from("/");
        let mut rest = parts(&whole);
        let mut links = 0;
        while let Some(part) = rest.pop() {
            // The caller creates a missing directory, and gets the error for one that cannot be read.
            let Ok(above) = symlink_metadata(&at) else { return Ok(()) };
            self.check_entry_of(&at, &above, path)?;
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(part);
            let Ok(meta) = symlink_metadata(&next) else { return Ok(()) };
            if !meta.is_symlink() {
                at = next;
                continue;
            }
            if self.is_root && !self.trusts(meta.uid()) {
                return Err(belongs_to(
                    &format!("the link {}, which leads to {},", next.display(), path.display()),
                    meta.uid(),
                ));
            }
            links += 1;
            let Ok(target) = std::fs::read_link(&next) else { return Ok(()) };
            if links > LINKS_MAX {
                return Err(format!("{}: too many links on the way", path.display()));
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(parts(&target));
        }
        Ok(())
    }
}

/// The names of a path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: Component| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().rev().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir_all, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// The users of a machine, as processes outside of containers see them.
    const EVERYBODY: &str = "         0          0 4294967295\n";
    const ALICE: u32 = 54_321;
    const BOB: u32 = 54_322;

    fn mode(dir: &Path, mode: u32) {
        set_permissions(dir, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_above_are_root_s_or_one_s_own_and_closed_or_sticky() {
        // SAFETY: the call has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("NOT TESTED: only root can give a directory to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().join("above");
        let path = above.join("made/file");
        create_dir_all(path.parent().unwrap()).unwrap();
        // The owner, group and mode of the directory; whether root may write below it, and whether Alice may.
        for (uid, gid, bits, root, alice) in [
            (0, 0, 0o755, true, true),
            (0, 0, 0o1777, true, true),
            (0, 0, 0o777, false, false),
            (0, 0, 0o775, true, true),
            (0, ALICE, 0o775, false, true),
            (0, ALICE, 0o1775, true, true),
            (ALICE, ALICE, 0o700, false, true),
            (ALICE, ALICE, 0o1777, false, true),
            (BOB, BOB, 0o755, false, true),
            (BOB, BOB, 0o2775, false, true),
            (BOB, BOB, 0o1777, false, false),
        ] {
            chown(&above, Some(uid), Some(gid)).unwrap();
            mode(&above, bits);
            for (caller, expected) in [(0, root), (ALICE, alice)] {
                let found = ProcessUser::new(caller, EVERYBODY).check_above(&path);
                assert_eq!(found.is_ok(), expected, "{caller} below {uid}:{gid} {bits:o}: {found:?}");
                if let Err(why) = found {
                    assert!(why.starts_with(&format!("{}, which contains ", above.display())), "{why}");
                    assert!(why.contains(&format!("uid {uid}")) || why.contains(&format!("owner {uid}")), "{why}");
                }
            }
        }
        // What is missing is looked at from where it would be made.
        assert!(check_directory(&above.join("new/deep")).is_err());
        assert!(check_above_as_root(&above.join("file")).is_err());
        chown(&above, Some(0), Some(0)).unwrap();
        check_directory(&above.join("new/deep")).unwrap();
    }

    #[test]
    fn links_on_the_way_are_followed_and_must_be_root_s_or_one_s_own() {
        // SAFETY: the call has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("NOT TESTED: only root can give a directory to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        create_dir_all(at("theirs/inner")).unwrap();
        create_dir_all(at("real")).unwrap();
        symlink("../real", at("theirs/out")).unwrap();
        symlink("theirs/inner", at("in")).unwrap();
        symlink("../real/../real", at("real/around")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let root = |name: &str| ProcessUser::new(0, EVERYBODY).check_above(&at(name));
        root("in/file").unwrap();
        root("real/around/file").unwrap();
        root("theirs/out/file").unwrap();
        assert!(root("loop/file").unwrap_err().contains("too many links"));
        // A link of one's own to what is another's, and the way over another's directory to what is one's own.
        chown(at("theirs"), Some(ALICE), None).unwrap();
        for name in ["in/file", "theirs/out/file", "real/../theirs/out/file"] {
            assert!(root(name).unwrap_err().contains("theirs, which contains "), "{name}");
        }
        chown(at("theirs"), Some(0), None).unwrap();
        lchown(at("real/around"), Some(ALICE), None).unwrap();
        assert!(root("real/around/file").unwrap_err().contains("the link "));
        ProcessUser::new(BOB, EVERYBODY).check_above(&at("real/around/file")).unwrap();
    }

    /// In a container without other users the machine's root and all others are nobody (65534).
    #[test]
    fn users_without_a_number_here_are_accepted() {
        let alone = ProcessUser::new(0, "0 1000 1\n");
        assert!(!alone.is_root && alone.trusts(65_534));
        let container = ProcessUser::new(0, "0 1000 1\n1 100000 65536\n");
        assert!(container.is_root && !container.trusts(65_534) && !container.trusts(1) && container.trusts(70_000));
        let machine = ProcessUser::new(0, EVERYBODY);
        assert!(machine.is_root && !machine.trusts(65_534));
        assert!(ProcessUser::new(0, "").is_root);
    }
}
