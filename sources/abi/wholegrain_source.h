/* The interface between the Wholegrain agent and a source that is a shared object: version 1.
 *
 * A plug-in exports one function, wholegrain_source_v1, which returns a description of the source. The agent then calls
 *
 *   configure     once, with the plug-in's table of the configuration. It returns the source.
 *   discover      at start, every minute or so, and when a read asks for it. It names groups and their sensors.
 *   read          at each tick of a group. It fills one value for each sensor.
 *   free_reader   once for each reader that discover has given, when the agent needs it no longer.
 *   free_source   once, after the last reader was freed.
 *
 * Rules
 *
 *   - Layout: as a C compiler lays it out on a 64-bit machine; the comments name the offset of each field. Little surprises: no bit fields, no
 *     enumerations, no padding that is not named.
 *   - Versions: each structure begins with its size in bytes, as its maker knows it. Fields are only added, at the end. Who reads a structure
 *     reads no field behind that size and takes 0 for it: so a newer agent runs older plug-ins, and an older agent newer ones. Anything else would
 *     be version 2, with another name of the function.
 *   - Text: UTF-8 with its length, without a zero byte at the end. Each side copies what it is given before it returns; nothing is freed
 *     by the other side. NULL with length 0 is the empty text.
 *   - Zero is the default of each field, so that `= {0}` is a good beginning.
 *   - Threads: isolated (the default), a plug-in has a process with one thread that calls it. With `isolate = false` reads and discover come from
 *     different threads: at the same time if the plug-in sets WHOLEGRAIN_CONCURRENT, else one after the other. The same reader is never read by
 *     two threads at a time.
 *   - A function that returns an int32_t returns 0, or anything else for a failure.
 *   - The agent does not trust what it is given: it refuses names, units, counts and lengths over its bounds, and says so in its log.
 */
#ifndef WHOLEGRAIN_SOURCE_H
#define WHOLEGRAIN_SOURCE_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. */
#define WHOLEGRAIN_SOURCE_ABI 1u

/* Flags of a source: reads may run while discover runs. */
#define WHOLEGRAIN_CONCURRENT 1u

/* Kinds of sensors: a gauge goes up and down, a counter only up until it is reset. */
#define WHOLEGRAIN_GAUGE 0u
#define WHOLEGRAIN_COUNTER 1u

/* Types of values: a signed integer of 64 bits, or the bits of a double. */
#define WHOLEGRAIN_INT 0u
#define WHOLEGRAIN_FLOAT 1u

/* Flags of a sample. UNCHANGED: nothing new since the last read, take no sample. LAYOUT_CHANGED: call discover again. */
#define WHOLEGRAIN_UNCHANGED 1u
#define WHOLEGRAIN_LAYOUT_CHANGED 2u

/* The value of taken_at for "now". */
#define WHOLEGRAIN_NOW INT64_MIN

/* 16 bytes. */
typedef struct wholegrain_text {
    const char *data; /*  0 */
    uint64_t length;  /*  8: bytes */
} wholegrain_text;

/* What configure is given. 120 bytes. */
typedef struct wholegrain_settings {
    uint64_t size;              /*   0 */
    void *host;                 /*   8: the agent's own */
    wholegrain_text table;      /*  16: the plug-in's keys as TOML, at most 4 MiB */
    wholegrain_text file;       /*  32: the name of the configuration file, for messages */
    wholegrain_text config_dir; /*  48: its directory: relative paths begin there */
    wholegrain_text proc;       /*  64: where /proc is; tests have recorded trees */
    wholegrain_text sys;        /*  80: where /sys is */
    wholegrain_text cgroup;     /*  96: where the cgroup tree is */
    /* 112: reports an error in line `line` of `table`, from 1; 0 if the line is unknown. `key` may be empty. The agent shows file and line of its
     *      configuration file. Return a failure after it. */
    void (*fail)(const struct wholegrain_settings *settings, uint64_t line, wholegrain_text key, wholegrain_text message);
} wholegrain_settings;

/* One sensor. 80 bytes. */
typedef struct wholegrain_sensor {
    uint64_t size;               /*  0 */
    wholegrain_text name;        /*  8: below the agent's prefix, such as pdu/outlet3/power; unique in the agent */
    wholegrain_text unit;        /* 24: a UCUM code such as W, Cel, By, s, 1; at most 64 bytes */
    wholegrain_text description; /* 40: one sentence, at most 512 bytes */
    uint32_t kind;               /* 56: WHOLEGRAIN_GAUGE or WHOLEGRAIN_COUNTER */
    uint32_t value_type;         /* 60: WHOLEGRAIN_INT or WHOLEGRAIN_FLOAT */
    double scale;                /* 64: value times scale is the quantity in `unit`; 0 means 1 */
    uint64_t wraps_at;           /* 72: the first value that a counter cannot represent, such as 4294967296; 0 if it does not wrap */
} wholegrain_sensor;

/* One group: sensors that are read together. 56 bytes. */
typedef struct wholegrain_group {
    uint64_t size;         /*  0 */
    wholegrain_text name;  /*  8: unique in the agent, such as pdu/outlets */
    void *reader;          /* 24: what read is given */
    uint64_t interval_ns;  /* 32: 0 for the agent's default; at least 1000000 */
    uint64_t offset_ns;    /* 40: added to the multiples of the interval */
    uint32_t free_running; /* 48: 0: at multiples of the interval on the wall clock; 1: from the start on */
    uint32_t blocking;     /* 52: 1 if a read can wait for a device */
} wholegrain_group;

/* What discover fills. 48 bytes. */
typedef struct wholegrain_discovery {
    uint64_t size; /*  0 */
    void *host;    /*  8: the agent's own */
    /* 16: begins a group. From the call on the reader is the agent's, which frees it; after a failure at once. */
    int32_t (*add_group)(struct wholegrain_discovery *discovery, const wholegrain_group *group);
    /* 24: adds a sensor to the last group; its values are in this order. A sensor that the agent refuses keeps its place in the row, so that
     *     the places of the others do not depend on it. */
    int32_t (*add_sensor)(struct wholegrain_discovery *discovery, const wholegrain_sensor *sensor);
    /* 32: one line for the administrator about what is missing; each text is logged once. */
    void (*report)(struct wholegrain_discovery *discovery, wholegrain_text line);
    /* 40: a group that runs stays, though discovery could not look at it now. */
    void (*keep)(struct wholegrain_discovery *discovery, wholegrain_text group);
} wholegrain_discovery;

/* One sample while read fills it. 64 bytes. */
typedef struct wholegrain_sample {
    uint64_t size;    /*  0 */
    void *host;       /*  8: the agent's own */
    uint64_t *values; /* 16: a word for each sensor: an integer, or the bits of a double */
    uint64_t *gaps;   /* 24: a bit for each sensor, 64 in a word, the lowest first: 1 is a gap. All are 1 when read is called */
    uint64_t sensors; /* 32: how many */
    int64_t taken_at; /* 40: ns since 1970 for values that a device took earlier, WHOLEGRAIN_NOW as it comes */
    uint64_t flags;   /* 48: 0 as it comes; WHOLEGRAIN_UNCHANGED, WHOLEGRAIN_LAYOUT_CHANGED */
    /* 56: says why there are gaps, at most 200 bytes. The agent logs it once until a read succeeds. */
    void (*problem)(struct wholegrain_sample *sample, wholegrain_text text);
} wholegrain_sample;

/* The description of a source. It and its texts stay valid for ever. 104 bytes; the last two fields may be missing. */
typedef struct wholegrain_source {
    uint64_t size;           /*  0 */
    uint32_t abi;            /*  8: WHOLEGRAIN_SOURCE_ABI */
    uint32_t flags;          /* 12: WHOLEGRAIN_CONCURRENT */
    wholegrain_text name;    /* 16 */
    wholegrain_text summary; /* 32: one line for lists of sources */
    wholegrain_text version; /* 48: of the plug-in */
    int32_t (*configure)(const wholegrain_settings *settings, void **source); /* 64 */
    int32_t (*discover)(void *source, wholegrain_discovery *discovery);       /* 72 */
    int32_t (*read)(void *reader, wholegrain_sample *sample);                 /* 80 */
    void (*free_reader)(void *reader);                                        /* 88 */
    void (*free_source)(void *source);                                        /* 96 */
} wholegrain_source;

/* The one symbol of a plug-in. */
#ifndef __cplusplus
__attribute__((visibility("default")))
#endif
const wholegrain_source *wholegrain_source_v1(void);

/* A text of a string with a zero byte at its end. */
static inline wholegrain_text wholegrain_text_of(const char *string) {
    wholegrain_text text = {string, string ? (uint64_t)strlen(string) : 0};
    return text;
}

/* A text of a literal, also for constants. */
#define WHOLEGRAIN_TEXT(literal) {literal, sizeof(literal) - 1}

/* Sets sensor `index` to an integer; an index behind the last sensor is ignored. */
static inline void wholegrain_set_int(wholegrain_sample *sample, uint64_t index, int64_t value) {
    if (index < sample->sensors) {
        sample->values[index] = (uint64_t)value;
        sample->gaps[index / 64] &= ~((uint64_t)1 << (index % 64));
    }
}

/* Sets sensor `index` to a number of a sensor of type WHOLEGRAIN_FLOAT. */
static inline void wholegrain_set_float(wholegrain_sample *sample, uint64_t index, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    wholegrain_set_int(sample, index, (int64_t)bits);
}

#ifdef __cplusplus
}
#endif

#endif
