/* 100 sensors without any device: what is measured is the way to the agent. */
#include <stdio.h>

#include "wholegrain_source.h"

#define SENSORS 100

static int32_t configure(const wholegrain_settings *settings, void **source) {
    (void)settings;
    *source = NULL;
    return 0;
}

static int32_t discover(void *source, wholegrain_discovery *discovery) {
    (void)source;
    wholegrain_group group = {.size = sizeof group, .name = WHOLEGRAIN_TEXT("cost")};
    discovery->add_group(discovery, &group);
    for (int index = 0; index < SENSORS; index++) {
        char name[32];
        snprintf(name, sizeof name, "cost/%d", index);
        wholegrain_sensor sensor = {.size = sizeof sensor};
        sensor.name = wholegrain_text_of(name);
        discovery->add_sensor(discovery, &sensor);
    }
    return 0;
}

static int32_t read_group(void *reader, wholegrain_sample *sample) {
    static int64_t number;
    (void)reader;
    number++;
    for (uint64_t index = 0; index < SENSORS; index++) wholegrain_set_int(sample, index, number + (int64_t)index);
    return 0;
}

static const wholegrain_source SOURCE = {.size = sizeof SOURCE, .abi = WHOLEGRAIN_SOURCE_ABI, .flags = WHOLEGRAIN_CONCURRENT,
                                         .configure = configure, .discover = discover, .read = read_group};

const wholegrain_source *wholegrain_source_v1(void) { return &SOURCE; }
