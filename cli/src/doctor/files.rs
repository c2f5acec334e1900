//! Checks of files and directories: they exist, can be read, and are closed to others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::findings::Findings;

const CHECK: &str = "permissions";

/// Checks a file with a secret.
pub fn secret(findings: &mut Findings, what: &str, path: &Path) {
    let shown = path.display();
    let mode = match fs::metadata(path) {
        Ok(meta) => meta.permissions().mode() & 0o7777,
        Err(error) => {
            return findings.fail(CHECK, format!("{what} {shown}: {error}"), "make it, or name another file");
        }
    };
    if mode & 0o007 != 0 {
        let text = format!("{what} {shown} has the mode {mode:04o}: everybody on this machine can read or change it");
        return findings.fail(
            CHECK,
            text,
            format!("chmod o= {shown}, and replace the secret if others had accounts here"),
        );
    }
    if let Err(error) = fs::File::open(path) {
        let advice = "chgrp it to the service's group, or run this as the service's user or root";
        return findings.fail(CHECK, format!("{what} {shown}: {error}"), advice);
    }
    if mode & 0o020 != 0 {
        let text = format!("{what} {shown} has the mode {mode:04o}: its group can change it");
        return findings.warn(CHECK, text, format!("chmod g-w {shown}"));
    }
    findings.ok(CHECK, format!("{what} {shown} is private, mode {mode:04o}"));
}

/// Checks a directory with readings: only its owner and group may read it.
pub fn closed(findings: &mut Findings, what: &str, path: &Path) {
    let Ok(meta) = fs::metadata(path) else { return };
    let (shown, mode) = (path.display(), meta.permissions().mode() & 0o7777);
    if mode & 0o007 != 0 {
        let text =
            format!("{what} {shown} has the mode {mode:04o}: everybody on this machine can read the stored data");
        return findings.fail(
            CHECK,
            text,
            format!("chmod o= {shown}; a server that owns it does so at its next start"),
        );
    }
    if mode & 0o020 != 0 {
        let text = format!("{what} {shown} has the mode {mode:04o}: its group can change the stored data");
        return findings.warn(CHECK, text, format!("chmod g-w {shown}"));
    }
    findings.ok(CHECK, format!("{what} {shown} is closed to others, mode {mode:04o}"));
}
