/* An application that tests run as a job's process: app threads | app loop | app flood COUNT | app fork |
 * app choose PATTERNS. */
#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "wholegrain.h"

static void pause_ms(long ms) {
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

static void print_counts(const char *what) {
    wg_counts counts = wg_count();
    printf("%s sent %llu dropped %llu connected %d\n", what, (unsigned long long)counts.sent,
           (unsigned long long)counts.dropped, counts.connected);
    fflush(stdout);
}

static void *thread(void *name) {
    int i;
    for (i = 0; i < 10; i++) {
        wg_begin(name);
        wg_begin("shared");
        wg_value("progress", i / 10.0, "1");
        wg_end("shared");
        wg_end(name);
    }
    return NULL;
}

/* Two threads, nested regions, names of all kinds. */
static void threads(void) {
    pthread_t one, two;
    char name[WG_NAME_BYTES_MAX + 2];

    WG_REGION("main") {
        pthread_create(&one, NULL, thread, (void *)"one");
        pthread_create(&two, NULL, thread, (void *)"two");
        pthread_join(one, NULL);
        pthread_join(two, NULL);
    }
    wg_begin("h\xc3\xb6he/a.b:c@0");
    wg_end("h\xc3\xb6he/a.b:c@0");
    print_counts("good");
    /* None of these is valid in a request. */
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    wg_begin(name);
    wg_begin("a b");
    wg_begin("a\nbegin b");
    wg_begin("");
    wg_begin(NULL);
    wg_end("never begun");
    wg_value("u", 1, "a b");
    print_counts("bad");
    /* The agent refuses these. */
    wg_value("a//b", 1, NULL);
    wg_value("a/../b", 1, NULL);
    wg_value("progress", 1, "s");
}

/* A region around values, until standard input ends. */
static void loop(void) {
    struct pollfd input;
    double step = 0;

    input.fd = 0;
    input.events = POLLIN;
    wg_begin("long");
    while (poll(&input, 1, 20) == 0)
        wg_value("step", ++step, NULL);
    print_counts("loop");
    wg_end("long");
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void flood(long count) {
    double start = now(), longest = 0;
    long i;

    for (i = 0; i < count; i++) {
        double before = now(), took;
        wg_value("noise", (double)i, NULL);
        took = now() - before;
        longest = took > longest ? took : longest;
    }
    printf("a mark took %.2f us, the longest %.0f us\n", (now() - start) / (double)count * 1e6, longest * 1e6);
    print_counts("flood");
}

/* A child has its own marks. */
static void forked(void) {
    pid_t child;

    wg_begin("parent");
    child = fork();
    if (child == 0) {
        wg_end("parent");
        WG_REGION("child") {
            pause_ms(10);
        }
        print_counts("child");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    wg_value("after", 1, NULL);
    print_counts("parent");
    wg_end("parent");
    wg_close();
}

/* Continues to read after a failed selection; each read reports why the selection failed. */
static void choose(const char *patterns) {
    wg_reader *reader = wg_open(NULL, 5000);
    wg_reading reading;
    int handle = wg_watch(reader, patterns);

    printf("%d %s\n", handle, wg_error(reader));
    printf("%d %s\n", wg_get(reader, handle, &reading, 1), wg_error(reader));
    printf("%d %s\n", wg_get(reader, 7, &reading, 1), wg_error(reader));
    wg_free(reader);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";

    if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "loop") == 0)
        loop();
    else if (strcmp(what, "flood") == 0)
        flood(atol(words[2]));
    else if (strcmp(what, "fork") == 0)
        forked();
    else if (strcmp(what, "choose") == 0)
        choose(words[2]);
    else
        return 2;
    return 0;
}
