//! /proc/self/mountstats: each NFS mount with its events, bytes, transports and operations (fs/nfs/super.c, nfs_show_stats;
//! net/sunrpc/stats.c, rpc_clnt_show_stats).

use std::collections::BTreeSet;

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::config::NfsConfig;
use crate::filesystems::{mount_level, unescape};
use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};
use crate::scan;

/// The columns of `events:` (include/linux/nfs_iostat.h, enum nfs_stat_eventcounters).
const EVENTS: [(&str, &str); 27] = [
    ("inode_revalidates", "Times that cached attributes of an inode were checked again."),
    ("dentry_revalidates", "Times that a cached directory entry was checked again."),
    ("data_invalidates", "Times that the cached data of a file was discarded."),
    ("attribute_invalidates", "Times that the cached attributes of an inode were discarded."),
    ("vfs_open", "Opened files and directories."),
    ("vfs_lookup", "Lookups of a name in a directory."),
    ("vfs_access", "Checks of permissions."),
    ("vfs_update_page", "Updates of a page, and writes of parts of a page."),
    ("vfs_read_page", "Reads of a page."),
    ("vfs_read_pages", "Reads of several pages."),
    ("vfs_write_page", "Writes of a page."),
    ("vfs_write_pages", "Writes of several pages."),
    ("vfs_getdents", "Reads of entries of a directory."),
    ("vfs_setattr", "Changes of attributes."),
    ("vfs_flush", "Flushes at the close of a file."),
    ("vfs_fsync", "Calls of fsync."),
    ("vfs_lock", "Locks of files."),
    ("vfs_file_release", "Closed files."),
    ("congestion_waits", "Waits for the write-back of pages."),
    ("setattr_truncates", "Truncated files."),
    ("write_extensions", "Writes beyond the end of a file."),
    ("silly_renames", "Removed files that were still open."),
    ("short_reads", "Reads for which the server gave less than requested."),
    ("short_writes", "Writes of which the server took less than sent."),
    ("delays", "Answers of the server that asked to try again later."),
    ("pnfs_reads", "Reads from a data server."),
    ("pnfs_writes", "Writes to a data server."),
];

/// The columns of `bytes:`; the last two count pages.
const BYTES: [(&str, &str, &str); 8] = [
    ("read", "By", "Bytes that programs read."),
    ("written", "By", "Bytes that programs wrote."),
    ("direct_read", "By", "Bytes that programs read with O_DIRECT."),
    ("direct_written", "By", "Bytes that programs wrote with O_DIRECT."),
    ("server_read", "By", "Bytes read from the server."),
    ("server_written", "By", "Bytes written to the server."),
    ("pages_read", "1", "Pages read."),
    ("pages_written", "1", "Pages written."),
];

/// The columns of an operation. Linux before 5.3 has eight.
const OPERATION: [(&str, &str, f64, &str); 9] = [
    ("requests", "1", 1.0, "Requests."),
    ("transmissions", "1", 1.0, "Transmissions of requests, more than requests if some were repeated."),
    ("timeouts", "1", 1.0, "Requests without an answer in time (major timeouts)."),
    ("sent", "By", 1.0, "Bytes sent."),
    ("received", "By", 1.0, "Bytes received."),
    ("queue_time", "s", 1e-3, "Time that requests waited before they were sent, summed over requests."),
    ("response_time", "s", 1e-3, "Time from sending to the answer, summed over requests."),
    ("time", "s", 1e-3, "Time from the request of the file system to its completion, summed over requests."),
    ("errors", "1", 1.0, "Requests that ended with an error."),
];

/// The columns of a transport (net/sunrpc/xprtsock.c, xs_tcp_print_stats; xprtrdma/transport.c) from the number of binds on.
const TRANSPORT: [(&str, &str, bool, &str); 9] = [
    ("binds", "1", true, "Requests for the server's port."),
    ("connects", "1", true, "Connections to the server."),
    ("connect_time", "s", true, "Time that connections took."),
    ("idle_time", "s", false, "Time since the last request."),
    ("sends", "1", true, "Requests sent."),
    ("receives", "1", true, "Answers received."),
    ("bad_xids", "1", true, "Answers to no known request."),
    ("requests_sum", "1", true, "Requests in progress, summed at each request."),
    ("backlog_sum", "1", true, "Requests that wait for a free slot, summed at each request."),
];

/// The mounts that have sensors: those of NFS which the settings keep.
pub struct MountStats {
    /// Mount points as they are in the file.
    points: BTreeSet<Vec<u8>>,
    /// Otherwise an operation has sensors from its first request on: its line then has a name that the discovery does not know.
    all_operations: bool,
}

impl MountStats {
    /// For the mounts in `text`, at most `mounts_max`.
    pub fn of(text: &[u8], config: &NfsConfig) -> Self {
        let points = scan::lines(text).filter_map(|line| nfs_mount(line).flatten());
        let points = points.filter(|point| config.points.keeps(&String::from_utf8_lossy(&unescape(point))));
        let points: BTreeSet<Vec<u8>> = points.map(<[u8]>::to_vec).collect();
        let points = points.into_iter().take(config.mounts_max).collect();
        Self { points, all_operations: config.all_operations }
    }
}

/// The mount point of a line that begins a mount: `Some(None)` for one that is not of NFS, `None` for another line.
fn nfs_mount(line: &[u8]) -> Option<Option<&[u8]>> {
    let rest = line.strip_prefix(b"device ")?;
    let mut words = words(rest).skip_while(|word| *word != b"mounted").skip(1);
    let point = words.nth(1);
    let kind = words.skip_while(|word| *word != b"fstype").nth(1);
    Some(point.filter(|_| kind.is_some_and(|kind| matches!(kind, b"nfs" | b"nfs4"))))
}

impl KeyedFormat for MountStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        let mut object: Option<&[u8]> = None;
        let (mut in_operations, mut transport) = (false, 0);
        each_line(text, |line| {
            if let Some(point) = nfs_mount(line) {
                object = point.filter(|point| self.points.contains(*point));
                (in_operations, transport) = (false, 0);
                return Some(());
            }
            let Some(object) = object else { return Some(()) };
            let mut words = words(line);
            let Some(first) = words.next() else { return Some(()) };
            match first {
                b"age:" => take(ValueKey { object, name: b"age:", column: 0 }, whole_int(words.next()?)?),
                b"events:" | b"bytes:" => take_numbers(object, first, 0, words, take)?,
                b"xprt:" => {
                    let kind = words.next()?;
                    // The port, which differs after each connection.
                    let kind = if kind == b"local" { kind } else { words.next().map(|_| kind)? };
                    let skipped = if kind == b"udp" { 100 } else { 0 };
                    take_numbers(object, b"xprt:", 1000 * transport + skipped, words.take(TRANSPORT.len()), take)?;
                    transport += 1;
                }
                b"per-op" => in_operations = true,
                _ if in_operations && first.ends_with(b":") => {
                    let is_used = self.all_operations || words.clone().next() != Some(b"0");
                    if is_used {
                        take_numbers(object, first, 0, words, take)?;
                    }
                }
                _ => {}
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        let folder = format!("nfs/mounts/{}", mount_level(&unescape(key.object)));
        match key.name {
            b"age:" => Some(SensorDef::gauge(format!("{folder}/age"), "s", "Time since the mount.")),
            b"events:" => {
                let (name, text) = EVENTS.get(key.column)?;
                Some(SensorDef::counter(format!("{folder}/events/{name}"), "1", text))
            }
            b"bytes:" => {
                let (name, unit, text) = BYTES.get(key.column)?;
                Some(SensorDef::counter(format!("{folder}/bytes/{name}"), unit, text))
            }
            b"xprt:" => transport_sensor(&folder, key.column),
            operation => {
                let name = String::from_utf8_lossy(operation.strip_suffix(b":")?).to_lowercase();
                let (column, unit, scale, text) = OPERATION.get(key.column)?;
                let name = format!("{folder}/operations/{}/{column}", sanitize_level(&name));
                Some(SensorDef::counter(name, unit, text).scaled(*scale))
            }
        }
    }
}

/// Hands the numbers of a line to `take`, with columns from `first` on.
fn take_numbers<'a>(
    object: &[u8],
    name: &[u8],
    first: usize,
    words: impl Iterator<Item = &'a [u8]>,
    take: TakeValue<'_>,
) -> Option<()> {
    for (column, word) in words.enumerate() {
        take(ValueKey { object, name, column: first + column }, whole_int(word)?);
    }
    Some(())
}

fn transport_sensor(folder: &str, column: usize) -> Option<SensorDef> {
    let (transport, column) = (column / 1000, column % 1000);
    // UDP has no connection, so that the number of binds is followed by that of requests sent.
    let column = match column {
        0..100 => column,
        100 => 0,
        udp => udp - 100 + 3,
    };
    let (name, unit, is_counter, text) = TRANSPORT.get(column)?;
    let name = format!("{folder}/transports/{transport}/{name}");
    Some(if *is_counter { SensorDef::counter(name, unit, text) } else { SensorDef::gauge(name, unit, text) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::checks::check_any_input;

    #[test]
    fn any_input() {
        let text = include_bytes!("../../fixtures/handmade/proc/self/mountstats");
        let config = NfsConfig { mounts_max: 8, ..NfsConfig::default() };
        check_any_input(text, || Box::new(MountStats::of(text, &config)));
    }
}
