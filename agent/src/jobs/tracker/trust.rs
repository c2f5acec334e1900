//! Checks the owners of the directories on a path: a name proves nothing where an ordinary user can create it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The allowed owner of one directory. Root and the agent's user are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedOwner {
    Root,
    /// This user too: a manager's account, or the user whose own systemd manager the path leads through.
    Or(u32),
    /// Anybody, because the parent is root's: nothing below a directory of another user counts.
    Anyone,
}

/// The allowed owner of each directory on a path, from the hierarchy's root on.
pub type AllowedOwners = Vec<AllowedOwner>;

/// Owner and mode of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    /// A directory, and not a link to one.
    pub is_dir: bool,
}

impl Ownership {
    /// Of a path; a link at its last level is not followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        std::fs::symlink_metadata(path).map(|meta| Self::from(&meta))
    }

    /// Of a hierarchy's root, which the configuration names and which may be a link.
    pub fn of_root(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(|meta| Self::from(&meta))
    }
}

impl From<&std::fs::Metadata> for Ownership {
    fn from(meta: &std::fs::Metadata) -> Self {
        Self { uid: meta.uid(), gid: meta.gid(), mode: meta.mode(), is_dir: meta.is_dir() }
    }
}

/// The user that the agent trusts besides root: its own. Whoever runs the agent can send the server anything anyway, and an agent of an ordinary user
/// works on that user's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedUser {
    pub uid: u32,
    pub gid: u32,
}

impl TrustedUser {
    pub fn of_process() -> Self {
        // SAFETY: these take no argument and cannot fail.
        unsafe { Self { uid: libc::geteuid(), gid: libc::getegid() } }
    }

    /// Whether a user is root or the agent's own.
    pub fn has(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid
    }

    /// Whether the owner of a directory is allowed, and only the owner can write to it.
    pub fn allows(&self, may: AllowedOwner, owned: &Ownership) -> bool {
        let known = match may {
            AllowedOwner::Root => self.has(owned.uid),
            AllowedOwner::Or(uid) => uid == owned.uid || self.has(owned.uid),
            AllowedOwner::Anyone if !self.has(owned.uid) => return owned.is_dir,
            AllowedOwner::Anyone => true,
        };
        let group = owned.mode & 0o020 == 0 || owned.gid == 0 || owned.gid == self.gid;
        known && owned.is_dir && group && owned.mode & 0o002 == 0
    }

    /// The first directory of a path whose owner is not allowed.
    pub fn refuses(&self, may: &[AllowedOwner], owned: &[Ownership]) -> Option<usize> {
        let known = may.iter().zip(owned).position(|(may, owned)| !self.allows(*may, owned));
        known.or_else(|| (may.len() != owned.len()).then_some(may.len().min(owned.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: TrustedUser = TrustedUser { uid: 500, gid: 500 };

    fn dir(uid: u32, gid: u32, mode: u32) -> Ownership {
        Ownership { uid, gid, mode: 0o040_000 | mode, is_dir: true }
    }

    #[test]
    fn owners_and_permissions() {
        for (may, owned, expected) in [
            (AllowedOwner::Root, dir(0, 0, 0o755), true),
            (AllowedOwner::Root, dir(500, 500, 0o755), true),
            (AllowedOwner::Root, dir(1000, 0, 0o755), false),
            (AllowedOwner::Root, dir(0, 0, 0o757), false),
            (AllowedOwner::Root, dir(0, 0, 0o775), true),
            (AllowedOwner::Root, dir(0, 500, 0o775), true),
            (AllowedOwner::Root, dir(0, 100, 0o775), false),
            (AllowedOwner::Or(982), dir(982, 982, 0o755), true),
            (AllowedOwner::Or(982), dir(0, 0, 0o755), true),
            (AllowedOwner::Or(982), dir(983, 0, 0o755), false),
            (AllowedOwner::Or(982), dir(982, 100, 0o775), false),
            (AllowedOwner::Anyone, dir(1000, 1000, 0o777), true),
            (AllowedOwner::Anyone, dir(0, 0, 0o777), false),
            (AllowedOwner::Anyone, Ownership { is_dir: false, ..dir(1000, 0, 0o755) }, false),
            (AllowedOwner::Root, Ownership { is_dir: false, ..dir(0, 0, 0o755) }, false),
        ] {
            assert_eq!(AGENT.allows(may, &owned), expected, "{may:?} {owned:?}");
        }
        let may = [AllowedOwner::Root, AllowedOwner::Or(7), AllowedOwner::Anyone];
        assert_eq!(AGENT.refuses(&may, &[dir(0, 0, 0o755), dir(7, 7, 0o755), dir(9, 9, 0o755)]), None);
        assert_eq!(AGENT.refuses(&may, &[dir(0, 0, 0o755), dir(8, 7, 0o755), dir(9, 9, 0o755)]), Some(1));
        assert_eq!(AGENT.refuses(&may, &[dir(0, 0, 0o755)]), Some(1), "what was not looked at is refused");
    }

    #[test]
    fn a_link_is_no_directory() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", folder.path().join("link")).unwrap();
        assert!(Ownership::of(&folder.path().join("real")).unwrap().is_dir);
        assert!(!Ownership::of(&folder.path().join("link")).unwrap().is_dir);
        assert!(Ownership::of_root(&folder.path().join("link")).unwrap().is_dir);
    }
}
