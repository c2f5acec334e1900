/*
 * Marks: one connection for the process, a small buffer, and what is open.
 *
 * What a region's depth is (`depth`) and what the agent was told (`told`) are kept apart: each call sends what is between them.
 * So a call without an agent costs a look at the clock, and a new connection begins with what is open.
 */
#define _POSIX_C_SOURCE 200809L

#include "wholegrain.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

/* Bytes that wait for room in the socket. */
#define BUFFER_BYTES 4096
/* How long after a try to connect the next one is made. */
#define RETRY_NS NS

struct open_region {
    char name[WG_NAME_BYTES_MAX + 1];
    long depth;
    long told;
};

static struct {
    pthread_mutex_t lock;
    int fd;
    int64_t retry_at; /* monotonic */
    char buffer[BUFFER_BYTES];
    size_t used;
    unsigned lines; /* in the buffer, the first one perhaps in part */
    struct open_region open[WG_OPEN_MAX];
    unsigned regions;
    uint64_t sent;
    uint64_t dropped;
} marks = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain;

static void before_fork(void) {
    pthread_mutex_lock(&marks.lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&marks.lock);
}

/* The connection and what is open are the parent's. */
static void in_child(void) {
    if (marks.fd >= 0)
        close(marks.fd);
    marks.fd = -1;
    marks.retry_at = 0;
    marks.used = marks.lines = marks.regions = 0;
    marks.sent = marks.dropped = 0;
    pthread_mutex_unlock(&marks.lock);
}

static void prepare(void) {
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    pthread_atfork(before_fork, in_parent, in_child);
}

int64_t wg_clock_(clockid_t id) {
    struct timespec now;
    return clock_gettime(id, &now) == 0 ? now.tv_sec * NS + now.tv_nsec : 0;
}

locale_t wg_plain_numbers_(void) {
    pthread_once(&once, prepare);
    /* Without one, uselocale changes nothing. */
    return uselocale(plain);
}

void wg_own_numbers_(locale_t before) {
    uselocale(before);
}

int wg_connect_(const char *path) {
    struct sockaddr_un address;
    int fd, flags;

    if (!path)
        path = getenv("WHOLEGRAIN_SOCKET");
    if (!path || !*path)
        path = SOCKET_PATH;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
        connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    flags = errno;
    close(fd);
    errno = flags;
    return -1;
}

static void disconnect(int64_t now) {
    unsigned i, kept = 0;

    close(marks.fd);
    marks.fd = -1;
    marks.retry_at = now + RETRY_NS;
    marks.sent -= marks.lines;
    marks.dropped += marks.lines;
    marks.used = marks.lines = 0;
    for (i = 0; i < marks.regions; i++) {
        marks.open[i].told = 0;
        if (marks.open[i].depth != 0)
            marks.open[kept++] = marks.open[i];
    }
    marks.regions = kept;
}

/* Sends what the socket takes. */
static void flush(int64_t now) {
    while (marks.fd >= 0 && marks.used > 0) {
        ssize_t count = send(marks.fd, marks.buffer, marks.used, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) {
            marks.used -= (size_t)count;
            memmove(marks.buffer, marks.buffer + count, marks.used);
            if (marks.used == 0)
                marks.lines = 0;
        } else if (count < 0 && errno == EINTR) {
            continue;
        } else {
            if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
                disconnect(now);
            return;
        }
    }
}

/* Puts a line into the buffer; 0 when there is no room. */
static int put(const char *line, size_t length) {
    if (marks.used + length > BUFFER_BYTES)
        return 0;
    memcpy(marks.buffer + marks.used, line, length);
    marks.used += length;
    marks.lines++;
    marks.sent++;
    return 1;
}

/* Connects if it is time to, and makes room in the buffer. */
static int is_connected(int64_t now) {
    if (marks.fd < 0 && now >= marks.retry_at) {
        marks.fd = wg_connect_(NULL);
        marks.retry_at = now + RETRY_NS;
    }
    flush(now);
    return marks.fd >= 0;
}

/* Tells the agent of every region what it was not told yet, as far as there is room. */
static void tell(void) {
    char line[WG_NAME_BYTES_MAX + 64];
    int64_t time = wg_clock_(CLOCK_REALTIME);
    unsigned i, kept = 0;

    for (i = 0; i < marks.regions; i++) {
        struct open_region *region = &marks.open[i];
        while (region->told != region->depth) {
            int is_begin = region->told < region->depth;
            int length =
                snprintf(line, sizeof line, "%s %s %lld\n", is_begin ? "begin" : "end", region->name, (long long)time);
            if (!put(line, (size_t)length))
                break;
            region->told += is_begin ? 1 : -1;
        }
        if (region->told != 0 || region->depth != 0) {
            if (kept != i)
                marks.open[kept] = *region;
            kept++;
        }
    }
    marks.regions = kept;
}

/* Whether it can be a word of a request. */
static int is_word(const char *text, size_t bytes_max) {
    size_t length;

    if (!text)
        return 0;
    for (length = 0; text[length]; length++)
        if ((unsigned char)text[length] <= ' ' || text[length] == 0x7f || length >= bytes_max)
            return 0;
    return length > 0;
}

static struct open_region *find(const char *name, int may_add) {
    unsigned i;

    for (i = 0; i < marks.regions; i++)
        if (strcmp(marks.open[i].name, name) == 0)
            return &marks.open[i];
    if (!may_add || marks.regions == WG_OPEN_MAX)
        return NULL;
    strcpy(marks.open[marks.regions].name, name);
    marks.open[marks.regions].depth = marks.open[marks.regions].told = 0;
    return &marks.open[marks.regions++];
}

static void change(const char *name, int by) {
    struct open_region *region;
    int64_t now;
    uint64_t sent;

    pthread_once(&once, prepare);
    pthread_mutex_lock(&marks.lock);
    now = wg_clock_(CLOCK_MONOTONIC);
    region = is_word(name, WG_NAME_BYTES_MAX) ? find(name, by > 0) : NULL;
    if (!region || (by < 0 && region->depth == 0)) {
        marks.dropped++;
        pthread_mutex_unlock(&marks.lock);
        return;
    }
    region->depth += by;
    if (is_connected(now)) {
        sent = marks.sent;
        tell();
        marks.dropped += marks.sent == sent;
        flush(now);
    } else {
        marks.dropped++;
        if (region->depth == 0)
            *region = marks.open[--marks.regions];
    }
    pthread_mutex_unlock(&marks.lock);
}

void wg_begin(const char *region) {
    change(region, 1);
}

void wg_end(const char *region) {
    change(region, -1);
}

void wg_value(const char *name, double value, const char *unit) {
    char line[WG_NAME_BYTES_MAX + 192];
    locale_t own;
    int64_t now;
    int length;

    pthread_once(&once, prepare);
    pthread_mutex_lock(&marks.lock);
    now = wg_clock_(CLOCK_MONOTONIC);
    if (!is_word(name, WG_NAME_BYTES_MAX) || (unit && !is_word(unit, 64)) || !is_connected(now)) {
        marks.dropped++;
        pthread_mutex_unlock(&marks.lock);
        return;
    }
    own = wg_plain_numbers_();
    length = snprintf(line, sizeof line, "value %s %.17g %s %lld\n", name, value, unit ? unit : "-",
                      (long long)wg_clock_(CLOCK_REALTIME));
    wg_own_numbers_(own);
    tell();
    if (!put(line, (size_t)length))
        marks.dropped++;
    flush(now);
    pthread_mutex_unlock(&marks.lock);
}

wg_counts wg_count(void) {
    wg_counts counts;

    pthread_mutex_lock(&marks.lock);
    counts.sent = marks.sent;
    counts.dropped = marks.dropped;
    counts.connected = marks.fd >= 0;
    pthread_mutex_unlock(&marks.lock);
    return counts;
}

void wg_close(void) {
    unsigned i;

    pthread_once(&once, prepare);
    pthread_mutex_lock(&marks.lock);
    for (i = 0; i < marks.regions; i++)
        marks.open[i].depth = 0;
    if (marks.fd >= 0) {
        int64_t now = wg_clock_(CLOCK_MONOTONIC);
        tell();
        flush(now);
        if (marks.fd >= 0)
            disconnect(now);
    }
    marks.regions = 0;
    marks.retry_at = 0;
    pthread_mutex_unlock(&marks.lock);
}
