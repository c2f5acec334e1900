//! The name of this host.

use wholegrain_model::name::sanitize_level;

/// This host's name as one level of a sensor path; `localhost` if the kernel has none.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" | "(none)" => "localhost".to_owned(),
        name => sanitize_level(name),
    }
}
