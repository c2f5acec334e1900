/* A plug-in for the tests of the agent: it works, or misbehaves as its settings say. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "wholegrain_source.h"

#ifndef ABI
#define ABI WHOLEGRAIN_SOURCE_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(wholegrain_source)
#endif

static char table[4096];
static int64_t reads;
static int discoveries;

static int is(const char *mode) {
    char text[100];
    snprintf(text, sizeof text, "mode = \"%s\"", mode);
    return strstr(table, text) != NULL;
}

static void crash(void) {
    volatile int *nowhere = NULL;
    *nowhere = 1;
}

static void hang(void) {
    for (;;) sleep(1000);
}

/* A process that is never at the place where it was seen: it forks and ends, again and again, for at most 30 s. */
static void comet(void) {
    char name[16];
    const char *text = strstr(table, "comet = ");
    snprintf(name, sizeof name, "c%d", text ? atoi(text + 8) : 0);
    if (fork() != 0) return;
    prctl(PR_SET_NAME, name);
    time_t end = time(NULL) + 30;
    while (time(NULL) < end) {
        if (fork() > 0) _exit(0);
    }
    _exit(0);
}

/* Memory that no process has mapped, at most 400 MiB. */
static void hide(void) {
    static int files;
    static char block[1 << 20];
    if (++files > 50) return;
    memset(block, 1, sizeof block);
    int file = memfd_create("hidden", MFD_CLOEXEC);
    for (int n = 0; n < 8; n++) {
        if (write(file, block, sizeof block) < 0) abort();
    }
}

static int32_t configure(const wholegrain_settings *settings, void **source) {
    uint64_t length = settings->table.length < sizeof table ? settings->table.length : sizeof table - 1;
    memcpy(table, settings->table.data ? settings->table.data : "", length);
    table[length] = 0;
    if (is("crash in configure")) crash();
    if (is("hang in configure")) hang();
    if (is("refuse")) {
        uint64_t line = 1;
        for (const char *at = table; at < strstr(table, "mode"); at++) line += *at == '\n';
        settings->fail(settings, line, wholegrain_text_of("mode"), wholegrain_text_of("\"refuse\" is no mode"));
        return 1;
    }
    if (is("fail without a word")) return 7;
    if (is("credentials")) {
        char name[4200];
        snprintf(name, sizeof name, "%.*s/credentials", (int)settings->config_dir.length, settings->config_dir.data);
        if (access(name, R_OK) != 0) {
            settings->fail(settings, 0, wholegrain_text_of("credentials"), wholegrain_text_of("cannot open the file"));
            return 1;
        }
    }
    *source = table;
    return 0;
}

static int32_t discover(void *source, wholegrain_discovery *discovery) {
    (void)source;
    discoveries++;
    if (is("crash in discover")) crash();
    if (is("hang in discover")) hang();
    wholegrain_group group = {.size = sizeof group, .name = WHOLEGRAIN_TEXT("plant"), .reader = &reads, .interval_ns = 20000000};
    wholegrain_sensor flow = {.size = sizeof flow, .name = WHOLEGRAIN_TEXT("plant/flow"), .unit = WHOLEGRAIN_TEXT("l/s"),
                              .description = WHOLEGRAIN_TEXT("Flow."), .value_type = WHOLEGRAIN_FLOAT};
    wholegrain_sensor count = {.size = sizeof count, .name = WHOLEGRAIN_TEXT("plant/count"), .kind = WHOLEGRAIN_COUNTER};
    wholegrain_sensor gap = {.size = sizeof gap, .name = WHOLEGRAIN_TEXT("plant/gap")};
    if (is("garbage")) {
        wholegrain_text none = {NULL, 1000};
        wholegrain_sensor bad = flow;
        discovery->add_sensor(discovery, &flow);
        discovery->add_sensor(discovery, NULL);
        discovery->report(discovery, none);
        group.name = none;
        discovery->add_group(discovery, &group);
        group.name = wholegrain_text_of("../plant");
        discovery->add_group(discovery, &group);
        group.size = 8;
        discovery->add_group(discovery, &group);
        group = (wholegrain_group){.size = (uint64_t)-1, .name = WHOLEGRAIN_TEXT("plant"), .reader = &reads};
        discovery->add_group(discovery, &group);
        bad.name.length = UINT64_MAX;
        discovery->add_sensor(discovery, &bad);
        bad = flow;
        bad.name = wholegrain_text_of("plant/\xff\xfe");
        discovery->add_sensor(discovery, &bad);
        bad = flow;
        bad.kind = 77;
        discovery->add_sensor(discovery, &bad);
        bad = flow;
        bad.size = 16;
        discovery->add_sensor(discovery, &bad);
        bad = flow;
        bad.scale = 0.0 / 0.0;
        discovery->add_sensor(discovery, &bad);
    } else {
        if (is("another group")) group.name = wholegrain_text_of("another");
        discovery->add_group(discovery, &group);
    }
    discovery->add_sensor(discovery, &flow);
    discovery->add_sensor(discovery, &count);
    discovery->add_sensor(discovery, &gap);
    if (is("more sensors") && discoveries > 1) {
        count.name = wholegrain_text_of("plant/more");
        discovery->add_sensor(discovery, &count);
    }
    return 0;
}

static int32_t read_group(void *reader, wholegrain_sample *sample) {
    int64_t number = ++*(int64_t *)reader;
    uint64_t first = is("garbage") ? 5 : 0;
    if (is("crash in read") && number > 3) crash();
    if (is("hang in read") && number > 3) hang();
    if (is("exit in read") && number > 3) _exit(3);
    if (is("leak")) {
        char *memory = malloc(8 << 20);
        if (memory == NULL) abort();
        memset(memory, 1, 8 << 20);
    }
    if (is("spin")) for (;;) {}
    if (is("comet") && number == 3) comet();
    if (is("hide")) hide();
    if (is("fork")) {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            if (fork() == 0) hang();
            hang();
        }
        wholegrain_set_float(sample, 0, child < 0 ? -1 : 1);
        return 0;
    }
    if (is("problem")) {
        sample->problem(sample, wholegrain_text_of("the pump is dry"));
        return 0;
    }
    if (is("more sensors") && discoveries < 2) sample->flags |= WHOLEGRAIN_LAYOUT_CHANGED;
    wholegrain_set_float(sample, first, 1.5);
    wholegrain_set_int(sample, first + 1, number);
    wholegrain_set_int(sample, first + 1000000, number);
    if (is("more sensors")) wholegrain_set_int(sample, 3, 33);
    if (is("old")) {
        sample->taken_at = 1700000000000000000 + number / 10;
    }
    return 0;
}

static void free_reader(void *reader) {
    (void)reader;
    if (is("crash in free")) crash();
}

static void free_source(void *source) {
    (void)source;
    if (is("crash in free")) crash();
}

static const wholegrain_source SOURCE = {
    .size = SIZE,
    .abi = ABI,
    .name = WHOLEGRAIN_TEXT("plant"),
    .summary = WHOLEGRAIN_TEXT("a plant"),
    .version = WHOLEGRAIN_TEXT("1.2"),
    .configure = configure,
    .discover = discover,
    .read = read_group,
    .free_reader = free_reader,
    .free_source = free_source,
};

const wholegrain_source *wholegrain_source_v1(void) { return &SOURCE; }
