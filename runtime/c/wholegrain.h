/*
 * Wholegrain for applications and runtimes on a node: say what the code does, read the newest values of the own job.
 *
 * Marks (wg_begin, wg_end, wg_value) never block, never fail and may be called from any thread. Where no agent listens they
 * do next to nothing. Reading (wg_open and what takes a wg_reader) waits for the agent's answer, at most as long as was said.
 * The protocol is in PROTOCOL.md.
 *
 * Licence: Apache-2.0.
 */
#ifndef WHOLEGRAIN_H
#define WHOLEGRAIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest name of a region or a value, in bytes. */
#define WG_NAME_BYTES_MAX 128
/* The most regions of different names that are open in a process at a time. */
#define WG_OPEN_MAX 64
/* The most selections of a reader. */
#define WG_WATCHES_MAX 16

/* ---- Marks ------------------------------------------------------------------------------------------------------------ */

/* A region of the code begins, or ends. Regions may be nested, in themselves too. Those open when the process ends are ended. */
void wg_begin(const char *region);
void wg_end(const char *region);

/* A value of the application's own. `unit` is a UCUM code such as "s", "By" or "1"; NULL for that of the first time, or "1".
 * A value that is not finite is stored as a gap. */
void wg_value(const char *name, double value, const char *unit);

/* What has become of the marks of this process. */
typedef struct wg_counts {
    uint64_t sent;    /* handed to the agent, which may still refuse or drop them: `job` in the protocol tells */
    uint64_t dropped; /* no agent, no room, or a name with white space in it or over WG_NAME_BYTES_MAX */
    int connected;    /* an agent listens */
} wg_counts;
wg_counts wg_count(void);

/* Ends the regions that this process has open and the connection. Not needed; the next mark begins anew. */
void wg_close(void);

/* The statement or block after it is a region. Must not be left by break, goto, return or longjmp. */
#define WG_REGION(name) \
    for (int wg_once_ = (wg_begin(name), 1); wg_once_; wg_once_ = (wg_end(name), 0))

/* ---- Reading ---------------------------------------------------------------------------------------------------------- */

/* One reading. */
typedef struct wg_reading {
    int64_t time_ns; /* ns since the Unix epoch; 0 when there is none */
    double value;    /* in the sensor's unit; NAN when there is none or it is a gap */
} wg_reading;

/* A connection to the agent. For one thread at a time. */
typedef struct wg_reader wg_reader;

/* Connects to the agent; each wait for it lasts `timeout_ms` at most. `socket` may be NULL: $WHOLEGRAIN_SOCKET, or
 * /run/wholegrain/jobs.sock. NULL when there is no memory; when there is no agent, each call tries again. */
wg_reader *wg_open(const char *socket, int timeout_ms);
void wg_free(wg_reader *reader);

/* Why the last call failed. */
const char *wg_error(const wg_reader *reader);

/* Chooses sensors by patterns with spaces between them, such as "@/cpu/usage @/io/read_bytes", where "@/" is the own job.
 * A handle for the calls below, or -1. */
int wg_watch(wg_reader *reader, const char *patterns);

/* How many sensors the selection has. More may come; each keeps its place, also when the agent is started anew. */
int wg_size(const wg_reader *reader, int handle);
const char *wg_path(const wg_reader *reader, int handle, int place);
const char *wg_unit(const wg_reader *reader, int handle, int place);

/* The newest readings of the first `max` sensors of the selection, each at its place. How many were written, or -1: then
 * nothing was, and the next call tries to connect anew. With the -1 of a wg_watch that failed, wg_error still says why it did. */
int wg_get(wg_reader *reader, int handle, wg_reading *readings, int max);

/* Any request of the protocol, without the new line; the first line of its answer, or NULL. Good until the next call. */
const char *wg_ask(wg_reader *reader, const char *request);
/* The next line of the answer. The caller knows from the first one how many there are. */
const char *wg_line(wg_reader *reader);

#ifdef __cplusplus
}

namespace wholegrain {
/* A region that lasts as long as the object does. */
class region {
    const char *name_;
    region(const region &);
    region &operator=(const region &);

public:
    explicit region(const char *name) : name_(name) { wg_begin(name_); }
    ~region() { wg_end(name_); }
};
} /* namespace wholegrain */
#endif

#endif
