/* How long a read of newest values takes: latency PATTERNS [COUNT [PAUSE_US]]. Prints one line. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "wholegrain.h"

#define READINGS_MAX 1024

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    static wg_reading readings[READINGS_MAX];
    int i, handle, sensors = 0, times = count > 2 ? atoi(words[2]) : 2000, pause_us = count > 3 ? atoi(words[3]) : 1000;
    wg_reader *reader = wg_open(NULL, 5000);
    int64_t *took;

    if (count < 2 || times < 1 || !reader || !(took = malloc((size_t)times * sizeof *took)))
        return 2;
    handle = wg_watch(reader, words[1]);
    for (i = 0; i < times && handle >= 0; i++) {
        struct timespec pause;
        int64_t start;
        pause.tv_sec = 0;
        pause.tv_nsec = pause_us * 1000L;
        if (pause_us > 0)
            nanosleep(&pause, NULL);
        start = now();
        sensors = wg_get(reader, handle, readings, READINGS_MAX);
        took[i] = now() - start;
        if (sensors < 0)
            break;
    }
    if (handle < 0 || i < times) {
        fprintf(stderr, "latency: %s\n", wg_error(reader));
        return 1;
    }
    qsort(took, (size_t)times, sizeof *took, by_size);
    printf("C: %d reads of %d sensors, one each %d us: p50 %.1f us, p99 %.1f us, max %.1f us\n", times, sensors, pause_us,
           (double)took[times / 2] / 1e3, (double)took[times - 1 - times / 100] / 1e3, (double)took[times - 1] / 1e3);
    wg_free(reader);
    free(took);
    return 0;
}
