//! The settings of `[sources.filesystems]`.

use std::path::PathBuf;

use wholegrain_model::Interval;
use wholegrain_model::pattern::{Filter, Pattern};

use super::mounts::Mount;

/// File systems of the kernel and of containers, which have no size or that of another one: the default of node_exporter.
const TYPES_EXCLUDED: [&str; 27] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "erofs",
    "fusectl",
    "hugetlbfs",
    "iso9660",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "procfs",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tracefs",
    "efivarfs",
];

/// Mount points of the system and of containers, each with everything below it: the default of node_exporter.
const POINTS_EXCLUDED: [&str; 6] =
    ["/dev/**", "/proc/**", "/sys/**", "/run/credentials/**", "/var/lib/docker/**", "/var/lib/containers/storage/**"];

/// The keys of the source's table besides those of the group.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesystemsKeys {
    /// Filters by the mount point.
    pub mounts: Filter,
    pub types: Filter,
    /// Whether to sample FUSE file systems of users other than root.
    pub user_mounts: bool,
    /// Put before each mount point.
    pub root: PathBuf,
    pub timeout: Interval,
    #[serde(deserialize_with = "at_least_one")]
    pub threads_max: usize,
    pub mounts_max: usize,
}

impl Default for FilesystemsKeys {
    fn default() -> Self {
        Self {
            mounts: excluding(&POINTS_EXCLUDED),
            types: excluding(&TYPES_EXCLUDED),
            user_mounts: false,
            root: PathBuf::new(),
            timeout: Interval::from_ms(500),
            threads_max: 16,
            mounts_max: 256,
        }
    }
}

impl FilesystemsKeys {
    /// Whether the settings keep a mount.
    pub fn keeps(&self, mount: &Mount) -> bool {
        (self.user_mounts || !mount.is_of_user)
            && self.types.keeps(&mount.kind)
            && self.mounts.keeps(&String::from_utf8_lossy(&mount.point))
    }
}

fn excluding(patterns: &[&str]) -> Filter {
    Filter { include: Vec::new(), exclude: patterns.iter().filter_map(|text| Pattern::new(*text).ok()).collect() }
}

fn at_least_one<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let number = <usize as serde::Deserialize>::deserialize(deserializer)?;
    if number == 0 {
        return Err(serde::de::Error::custom("0 threads; expected at least 1"));
    }
    Ok(number)
}
