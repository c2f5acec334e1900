/* Reading: requests and answers over a connection of its own. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "wholegrain.h"

/* The longest line of an answer. */
#define LINE_BYTES_MAX 8192
/* Bytes of answers that are read at once. */
#define INPUT_BYTES (64 << 10)
/* The most sensors of a selection, over all that it was made anew. */
#define SENSORS_MAX 65536

struct sensor {
    char *path;
    char *unit;
};

struct watch {
    char *patterns;
    int remote; /* the agent's handle, -1 when it has none */
    struct sensor *sensors;
    int size;
    int *places; /* of the agent's sensors among `sensors` */
    int known;
};

struct wg_reader {
    char *socket;
    int timeout_ms;
    int fd;
    struct watch watches[WG_WATCHES_MAX];
    char error[512];
    char input[INPUT_BYTES + 1];
    size_t from, to;
};

static int fail(wg_reader *reader, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reader->error, sizeof reader->error, format, arguments);
    va_end(arguments);
    return -1;
}

/* The connection is of no more use. */
static int lose(wg_reader *reader, const char *why) {
    int i;

    if (reader->fd >= 0)
        close(reader->fd);
    reader->fd = -1;
    for (i = 0; i < WG_WATCHES_MAX; i++)
        reader->watches[i].remote = -1;
    return fail(reader, "the agent: %s", why);
}

/* Waits until the socket is ready; 0, or -1 with the connection lost. */
static int await(wg_reader *reader, short events, int64_t until) {
    struct pollfd ready;

    ready.fd = reader->fd;
    ready.events = events;
    for (;;) {
        int64_t left = (until - wg_clock_(CLOCK_MONOTONIC) + 999999) / 1000000;
        int count = left > 0 ? poll(&ready, 1, (int)left) : 0;
        if (count > 0)
            return 0;
        if (count == 0)
            return lose(reader, "no answer in time");
        if (errno != EINTR)
            return lose(reader, strerror(errno));
    }
}

static int64_t deadline(const wg_reader *reader) {
    return wg_clock_(CLOCK_MONOTONIC) + (int64_t)reader->timeout_ms * 1000000;
}

static int write_all(wg_reader *reader, const char *text, size_t length) {
    int64_t until = deadline(reader);

    while (length > 0) {
        ssize_t count = send(reader->fd, text, length, MSG_NOSIGNAL);
        if (count > 0) {
            text += count;
            length -= (size_t)count;
        } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (await(reader, POLLOUT, until) < 0)
                return -1;
        } else if (count == 0 || errno != EINTR) {
            return lose(reader, strerror(errno));
        }
    }
    return 0;
}

/* The next line without its new line, or NULL. */
static char *read_line(wg_reader *reader) {
    int64_t until = deadline(reader);

    if (reader->fd < 0) {
        fail(reader, "not connected");
        return NULL;
    }
    for (;;) {
        char *start = reader->input + reader->from;
        char *end = memchr(start, '\n', reader->to - reader->from);
        ssize_t count;
        if (end) {
            *end = 0;
            reader->from = (size_t)(end - reader->input) + 1;
            return start;
        }
        if (reader->to - reader->from > LINE_BYTES_MAX) {
            lose(reader, "a line that is too long");
            return NULL;
        }
        if (reader->from > 0) {
            memmove(reader->input, start, reader->to - reader->from);
            reader->to -= reader->from;
            reader->from = 0;
        }
        if (await(reader, POLLIN, until) < 0)
            return NULL;
        count = recv(reader->fd, reader->input + reader->to, INPUT_BYTES - reader->to, 0);
        if (count > 0) {
            reader->to += (size_t)count;
        } else if (count == 0) {
            lose(reader, "it closed the connection");
            return NULL;
        } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
            lose(reader, strerror(errno));
            return NULL;
        }
    }
}

/* Sends a request and reads the first line of its answer; NULL when it is not of this kind. */
static char *request(wg_reader *reader, const char *kind, const char *format, ...) {
    char line[4096];
    va_list arguments;
    int length;
    char *answer;

    va_start(arguments, format);
    length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof line) {
        fail(reader, "a request of over %d bytes", (int)sizeof line - 1);
        return NULL;
    }
    if (write_all(reader, line, (size_t)length) < 0)
        return NULL;
    answer = read_line(reader);
    if (answer && kind && (strncmp(answer, kind, strlen(kind)) != 0 || answer[strlen(kind)] != ' ')) {
        fail(reader, "%s", strncmp(answer, "error ", 6) == 0 ? answer + 6 : answer);
        return NULL;
    }
    return answer;
}

/* Notes the sensor that the agent has at its next place. */
static int add(wg_reader *reader, struct watch *watch, char *line) {
    char *unit = strchr(line, ' ');
    struct sensor *sensors;
    int place, *places;

    if (!unit)
        return lose(reader, "a line that is no sensor");
    *unit++ = 0;
    for (place = 0; place < watch->size && strcmp(watch->sensors[place].path, line) != 0; place++)
        ;
    places = realloc(watch->places, ((size_t)watch->known + 1) * sizeof *places);
    if (!places)
        return lose(reader, "no memory here");
    watch->places = places;
    if (place == watch->size) {
        if (place == SENSORS_MAX)
            return lose(reader, "more sensors than a selection may have");
        sensors = realloc(watch->sensors, ((size_t)place + 1) * sizeof *sensors);
        if (!sensors)
            return lose(reader, "no memory here");
        watch->sensors = sensors;
        sensors[place].path = strdup(line);
        sensors[place].unit = strdup(unit);
        if (!sensors[place].path || !sensors[place].unit) {
            free(sensors[place].path);
            free(sensors[place].unit);
            return lose(reader, "no memory here");
        }
        watch->size++;
    }
    watch->places[watch->known++] = place;
    return 0;
}

/* Reads the sensors that the agent lists from the place `known` on. */
static int learn(wg_reader *reader, struct watch *watch, const char *head) {
    int remote, size;

    if (!head)
        return -1;
    if (sscanf(head, "watch %d %d", &remote, &size) != 2)
        return lose(reader, "an answer that is no list of sensors");
    watch->remote = remote;
    while (watch->known < size) {
        char *line = read_line(reader);
        if (!line || add(reader, watch, line) < 0)
            return -1;
    }
    return 0;
}

static int choose(wg_reader *reader, struct watch *watch) {
    watch->known = 0;
    return learn(reader, watch, request(reader, "watch", "watch %s\n", watch->patterns));
}

/* Connects and chooses anew what was chosen before. */
static int be_connected(wg_reader *reader) {
    int i;

    if (reader->fd < 0) {
        reader->fd = wg_connect_(reader->socket);
        if (reader->fd < 0)
            return fail(reader, "cannot connect to the agent: %s; does it run, and has it a [jobs] socket?", strerror(errno));
        reader->from = reader->to = 0;
    }
    for (i = 0; i < WG_WATCHES_MAX; i++) {
        struct watch *watch = &reader->watches[i];
        if (watch->patterns && watch->remote < 0 && choose(reader, watch) < 0)
            return -1;
    }
    return 0;
}

wg_reader *wg_open(const char *socket, int timeout_ms) {
    wg_reader *reader = calloc(1, sizeof *reader);
    int i;

    if (!reader)
        return NULL;
    reader->fd = -1;
    reader->timeout_ms = timeout_ms;
    for (i = 0; i < WG_WATCHES_MAX; i++)
        reader->watches[i].remote = -1;
    if (socket && !(reader->socket = strdup(socket))) {
        free(reader);
        return NULL;
    }
    be_connected(reader);
    return reader;
}

static void forget(struct watch *watch) {
    int i;

    for (i = 0; i < watch->size; i++) {
        free(watch->sensors[i].path);
        free(watch->sensors[i].unit);
    }
    free(watch->sensors);
    free(watch->places);
    free(watch->patterns);
    memset(watch, 0, sizeof *watch);
    watch->remote = -1;
}

void wg_free(wg_reader *reader) {
    int i;

    if (!reader)
        return;
    if (reader->fd >= 0)
        close(reader->fd);
    for (i = 0; i < WG_WATCHES_MAX; i++)
        forget(&reader->watches[i]);
    free(reader->socket);
    free(reader);
}

const char *wg_error(const wg_reader *reader) {
    return reader->error;
}

int wg_watch(wg_reader *reader, const char *patterns) {
    int handle = 0;

    if (be_connected(reader) < 0)
        return -1;
    while (handle < WG_WATCHES_MAX && reader->watches[handle].patterns)
        handle++;
    if (handle == WG_WATCHES_MAX)
        return fail(reader, "%d selections are the most of a reader", WG_WATCHES_MAX);
    if (strchr(patterns, '\n'))
        return fail(reader, "a pattern has no new line in it");
    reader->watches[handle].patterns = strdup(patterns);
    if (!reader->watches[handle].patterns)
        return fail(reader, "no memory");
    if (choose(reader, &reader->watches[handle]) < 0) {
        forget(&reader->watches[handle]);
        return -1;
    }
    return handle;
}

static const struct watch *watch_of(const wg_reader *reader, int handle) {
    static const struct watch none;
    return handle >= 0 && handle < WG_WATCHES_MAX ? &reader->watches[handle] : &none;
}

int wg_size(const wg_reader *reader, int handle) {
    return watch_of(reader, handle)->size;
}

const char *wg_path(const wg_reader *reader, int handle, int place) {
    const struct watch *watch = watch_of(reader, handle);
    return place >= 0 && place < watch->size ? watch->sensors[place].path : NULL;
}

const char *wg_unit(const wg_reader *reader, int handle, int place) {
    const struct watch *watch = watch_of(reader, handle);
    return place >= 0 && place < watch->size ? watch->sensors[place].unit : NULL;
}

/* `TIME VALUE`, with `-` for what there is not. */
static wg_reading parse(const char *line) {
    wg_reading reading;
    char *end, *stop;

    reading.time_ns = strtoll(line, &end, 10);
    reading.value = strtod(end, &stop);
    if (stop == end || strcmp(end, " -") == 0)
        reading.value = NAN;
    return reading;
}

int wg_get(wg_reader *reader, int handle, wg_reading *readings, int max) {
    struct watch *watch = (struct watch *)watch_of(reader, handle);
    int i, count, written;
    locale_t own;
    char *line;

    /* What wg_watch gives when it fails: its reason stays. */
    if (handle < 0 && reader->error[0])
        return -1;
    if (!watch->patterns)
        return fail(reader, "%d is no selection", handle);
    if (be_connected(reader) < 0)
        return -1;
    line = request(reader, "values", "get %d\n", watch->remote);
    if (!line)
        return -1;
    if (sscanf(line, "values %d", &count) != 1)
        return lose(reader, "an answer that is no list of values");
    written = watch->size < max ? watch->size : max;
    for (i = 0; i < written; i++) {
        readings[i].time_ns = 0;
        readings[i].value = NAN;
    }
    own = wg_plain_numbers_();
    for (i = 0; i < count; i++) {
        line = read_line(reader);
        if (!line)
            break;
        if (i < watch->known && watch->places[i] < written)
            readings[watch->places[i]] = parse(line);
    }
    wg_own_numbers_(own);
    if (i < count)
        return -1;
    /* Their values come with the next call. */
    if (count > watch->known && learn(reader, watch, request(reader, "watch", "list %d %d\n", watch->remote, watch->known)) < 0)
        return -1;
    return written;
}

const char *wg_ask(wg_reader *reader, const char *asked) {
    if (strchr(asked, '\n')) {
        fail(reader, "a request has no new line in it");
        return NULL;
    }
    return be_connected(reader) < 0 ? NULL : request(reader, NULL, "%s\n", asked);
}

const char *wg_line(wg_reader *reader) {
    return read_line(reader);
}
