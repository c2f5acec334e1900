//! /proc/net/rpc/nfs and nfsd: counts of requests by kind and procedure (net/sunrpc/stats.c, fs/nfsd/stats.c), and the pools of the server's threads
//! (/proc/fs/nfsd/pool_stats, Documentation/filesystems/nfs/knfsd-stats.rst).

use wholegrain_model::SensorDef;

use crate::keyed::{KeyedFormat, TakeValue, ValueKey, each_line, whole_int, words};

/// The procedures of version 2 (RFC 1094), of version 3 (RFC 1813), of version 4 as the client counts them (include/linux/nfs4.h), and the operations of
/// version 4 by their numbers (RFC 8881, RFC 7862, RFC 8276).
const PROCEDURES_2: &str = "null getattr setattr root lookup readlink read wrcache write create remove rename link symlink mkdir rmdir readdir statfs";
const PROCEDURES_3: &str = "null getattr setattr lookup access readlink read write create mkdir symlink mknod remove rmdir rename link readdir \
    readdirplus fsstat fsinfo pathconf commit";
const PROCEDURES_4: &str = "null read write commit open open_confirm open_noattr open_downgrade close setattr fsinfo renew setclientid \
    setclientid_confirm lock lockt locku access getattr lookup lookup_root remove rename link symlink create pathconf statfs readlink readdir \
    server_caps delegreturn getacl setacl fs_locations release_lockowner secinfo fsid_present exchange_id create_session destroy_session sequence \
    get_lease_time reclaim_complete layoutget getdeviceinfo layoutcommit layoutreturn secinfo_no_name test_stateid free_stateid getdevicelist \
    bind_conn_to_session destroy_clientid seek allocate deallocate layoutstats clone copy offload_cancel lookupp layouterror copy_notify getxattr \
    setxattr listxattrs removexattr read_plus";
const OPERATIONS_4: &str = "- - - access close commit create delegpurge delegreturn getattr getfh link lock lockt locku lookup lookupp nverify open \
    openattr open_confirm open_downgrade putfh putpubfh putrootfh read readdir readlink remove rename renew restorefh savefh secinfo setattr \
    setclientid setclientid_confirm verify write release_lockowner backchannel_ctl bind_conn_to_session exchange_id create_session destroy_session \
    free_stateid get_dir_delegation getdeviceinfo getdevicelist layoutcommit layoutget layoutreturn secinfo_no_name sequence set_ssv test_stateid \
    want_delegation destroy_clientid reclaim_complete allocate copy copy_notify deallocate io_advise layouterror layoutstats offload_cancel \
    offload_status read_plus seek write_same clone getxattr setxattr listxattrs removexattr";

/// Kernels that count fewer procedures of version 4 on the client have another order (Linux before 3.13).
const PROCEDURES_4_MIN: i64 = 58;

/// A line of the files: its first word, and its columns with unit, whether they are counters, and descriptions.
type Columns = &'static [(&'static str, &'static str, bool, &'static str)];

const NET: Columns = &[
    ("packets", "1", true, "Packets received."),
    ("udp_packets", "1", true, "UDP packets received."),
    ("tcp_packets", "1", true, "TCP records received."),
    ("tcp_connections", "1", true, "TCP connections."),
];
const RPC_CLIENT: Columns = &[
    ("calls", "1", true, "RPC calls."),
    ("retransmissions", "1", true, "Repeated RPC calls."),
    ("refreshes", "1", true, "Renewals of credentials."),
];
const RPC_SERVER: Columns = &[
    ("calls", "1", true, "RPC calls received."),
    ("bad_calls", "1", true, "RPC calls refused: the sum of the next three."),
    ("bad_format", "1", true, "RPC calls with a bad format."),
    ("bad_authentication", "1", true, "RPC calls with bad authentication."),
    ("bad_client", "1", true, "RPC calls of clients without permission."),
];
const REPLY_CACHE: Columns = &[
    ("reply_cache/hits", "1", true, "Requests that were repeated, answered from the cache."),
    ("reply_cache/misses", "1", true, "Requests that were not in the cache."),
    ("reply_cache/uncached", "1", true, "Requests that need no cache."),
];
const FILE_HANDLES: Columns = &[("stale_handles", "1", true, "Requests with a file handle that is no longer valid.")];
const IO: Columns = &[
    ("bytes_read", "By", true, "Bytes that clients read."),
    ("bytes_written", "By", true, "Bytes that clients wrote."),
];
const THREADS: Columns = &[("threads", "1", false, "Threads of the server.")];

const POOL: Columns = &[
    ("packets", "1", true, "Packets that arrived."),
    ("enqueued", "1", true, "Times that a request waited for a thread."),
    ("woken", "1", true, "Times that a thread was woken for a request."),
    ("timed_out", "1", true, "Times that an idle thread ended its wait."),
];

/// The counts of the client or of the server.
pub struct RpcStats {
    folder: &'static str,
    lines: &'static [(&'static [u8], Columns)],
    /// First words of lines with a count of procedures, and the names of these.
    procedures: Vec<(&'static [u8], &'static str, Vec<&'static str>)>,
}

impl RpcStats {
    /// The format of /proc/net/rpc/nfs.
    pub fn client() -> Self {
        Self {
            folder: "nfs/client",
            lines: &[(b"net", NET), (b"rpc", RPC_CLIENT)],
            procedures: named([
                (b"proc2", "v2", PROCEDURES_2),
                (b"proc3", "v3", PROCEDURES_3),
                (b"proc4", "v4", PROCEDURES_4),
            ]),
        }
    }

    /// The format of /proc/net/rpc/nfsd.
    pub fn server() -> Self {
        Self {
            folder: "nfs/server",
            lines: &[
                (b"rc", REPLY_CACHE),
                (b"fh", FILE_HANDLES),
                (b"io", IO),
                (b"th", THREADS),
                (b"net", NET),
                (b"rpc", RPC_SERVER),
            ],
            procedures: named([
                (b"proc2", "v2", PROCEDURES_2),
                (b"proc3", "v3", PROCEDURES_3),
                (b"proc4ops", "v4", OPERATIONS_4),
            ]),
        }
    }

    fn is_client(&self) -> bool {
        self.folder == "nfs/client"
    }
}

fn named(
    lines: [(&'static [u8], &'static str, &'static str); 3],
) -> Vec<(&'static [u8], &'static str, Vec<&'static str>)> {
    lines.map(|(word, version, names)| (word, version, names.split_ascii_whitespace().collect())).to_vec()
}

impl KeyedFormat for RpcStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            let mut words = words(line);
            let Some(name) = words.next() else { return Some(()) };
            let columns = if let Some((_, columns)) = self.lines.iter().find(|(word, _)| *word == name) {
                columns.len()
            } else if let Some((.., names)) = self.procedures.iter().find(|(word, ..)| *word == name) {
                let count = whole_int(words.next()?)?;
                if name == b"proc4" && self.is_client() && count < PROCEDURES_4_MIN {
                    return Some(());
                }
                names.len()
            } else {
                return Some(());
            };
            for (column, word) in words.take(columns).enumerate() {
                take(ValueKey { object: b"", name, column }, whole_int(word)?);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        if let Some((_, columns)) = self.lines.iter().find(|(word, _)| *word == key.name) {
            return column_sensor(self.folder, columns, key.column);
        }
        let (_, version, names) = self.procedures.iter().find(|(word, ..)| *word == key.name)?;
        let name = names.get(key.column).filter(|name| **name != "-")?;
        let text = format!("Requests {} of NFS {version}.", name.to_uppercase());
        Some(SensorDef::counter(format!("{}/{version}/{name}", self.folder), "1", &text))
    }
}

fn column_sensor(folder: &str, columns: Columns, column: usize) -> Option<SensorDef> {
    let (name, unit, is_counter, text) = columns.get(column)?;
    let name = format!("{folder}/{name}");
    Some(if *is_counter { SensorDef::counter(name, unit, text) } else { SensorDef::gauge(name, unit, text) })
}

/// The pools of the server's threads: a line with the number of the pool and its counts.
pub struct PoolStats;

impl KeyedFormat for PoolStats {
    fn walk(&self, text: &[u8], take: TakeValue<'_>) -> Option<u32> {
        each_line(text, |line| {
            if line.starts_with(b"#") {
                return Some(());
            }
            let mut words = words(line);
            let object = words.next()?;
            whole_int(object)?;
            for (column, word) in words.take(POOL.len()).enumerate() {
                take(ValueKey { object, name: b"pool", column }, whole_int(word)?);
            }
            Some(())
        })
    }

    fn sensor(&self, key: ValueKey<'_>, _value: i64) -> Option<SensorDef> {
        column_sensor(&format!("nfs/pools/{}", String::from_utf8_lossy(key.object)), POOL, key.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::checks::check_any_input;

    #[test]
    fn any_input() {
        let client = include_bytes!("../../fixtures/handmade/proc/net/rpc/nfs");
        check_any_input(client, || Box::new(RpcStats::client()));
        let server = include_bytes!("../../fixtures/handmade/proc/net/rpc/nfsd");
        check_any_input(server, || Box::new(RpcStats::server()));
        let pools = include_bytes!("../../fixtures/handmade/proc/fs/nfsd/pool_stats");
        check_any_input(pools, || Box::new(PoolStats));
    }
}
