/* Marks and newest readings from a shell. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wholegrain.h"

/* How long the agent may take: 2 s. */
#define TIMEOUT_MS 2000

static const char usage[] =
    "usage: wholegrain-mark [--job ID] begin REGION\n"
    "       wholegrain-mark [--job ID] end REGION\n"
    "       wholegrain-mark [--job ID] value NAME NUMBER [UNIT]\n"
    "       wholegrain-mark [--job ID] run REGION COMMAND [ARGUMENT...]\n"
    "       wholegrain-mark [--job ID] newest PATTERN...\n"
    "       wholegrain-mark [--job ID] sensors [PATTERN...]\n"
    "       wholegrain-mark [--job ID] job\n"
    "\n"
    "Tells the agent of this node that a region of the job's code begins or ends, or a value of its own; prints the newest\n"
    "readings of the job. A region that was begun stays open until it is ended or the job ends; `run` is a region for as long\n"
    "as COMMAND runs, and ends as COMMAND does, with or without an agent. A PATTERN that begins with @/ is below the own job.\n"
    "The socket is /run/wholegrain/jobs.sock, or $WHOLEGRAIN_SOCKET. Exit status: 0, 1 when the agent refuses, 2 for a wrong\n"
    "command line, 3 when there is no agent.\n";

/* The words with spaces between them; NULL when they are too long or have such characters in them as end a request. */
static const char *line(const char *verb, char **words) {
    static char text[4096];
    size_t used = strlen(strcpy(text, verb));

    for (; *words; words++) {
        size_t length = strlen(*words);
        if (used + length + 2 > sizeof text || strpbrk(*words, " \t\r\n") || length == 0)
            return NULL;
        text[used++] = ' ';
        memcpy(text + used, *words, length + 1);
        used += length;
    }
    return text;
}

static int complain(const wg_reader *reader) {
    fprintf(stderr, "wholegrain-mark: %s\n", wg_error(reader));
    return 3;
}

/* Asks; prints what is printed; the exit status. */
static int ask(wg_reader *reader, const char *request) {
    const char *answer = request ? wg_ask(reader, request) : NULL;
    long count = 0;

    if (!request) {
        fprintf(stderr, "wholegrain-mark: a name, a number or a pattern is empty, too long, or has white space in it\n");
        return 2;
    }
    if (!answer)
        return complain(reader);
    if (strncmp(answer, "error ", 6) == 0 || strncmp(answer, "dropped ", 8) == 0) {
        fprintf(stderr, "wholegrain-mark: %s\n", answer);
        return 1;
    }
    if (strncmp(answer, "job ", 4) == 0)
        puts(answer);
    if (sscanf(answer, "readings %ld", &count) == 1 || sscanf(answer, "sensors %ld", &count) == 1)
        for (; count > 0; count--) {
            answer = wg_line(reader);
            if (!answer)
                return complain(reader);
            puts(answer);
        }
    return 0;
}

/* The command as a region. What the agent says changes nothing of it. */
static int run(const char *job, char **words) {
    wg_reader *reader = wg_open(NULL, TIMEOUT_MS);
    char *region[] = {words[0], NULL};
    pid_t child;
    int status = 0;

    if (reader && job) {
        char *id[] = {(char *)job, NULL};
        ask(reader, line("job", id));
    }
    if (reader)
        ask(reader, line("begin?", region));
    child = fork();
    if (child == 0) {
        execvp(words[1], words + 1);
        fprintf(stderr, "wholegrain-mark: %s: %s\n", words[1], strerror(errno));
        _exit(127);
    }
    if (child < 0) {
        fprintf(stderr, "wholegrain-mark: cannot start %s: %s\n", words[1], strerror(errno));
        return 126;
    }
    /* A Ctrl-C is the command's. */
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (reader)
        ask(reader, line("end?", region));
    wg_free(reader);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int count, char **words) {
    const char *job = NULL, *verb;
    wg_reader *reader;
    int status;

    words++, count--;
    if (count >= 2 && strcmp(words[0], "--job") == 0) {
        job = words[1];
        words += 2, count -= 2;
    }
    verb = count > 0 ? *words++ : "";
    count--;
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (strcmp(verb, "run") == 0 && count >= 2)
        return run(job, words);
    if (!((count == 1 && (strcmp(verb, "begin") == 0 || strcmp(verb, "end") == 0)) ||
          ((count == 2 || count == 3) && strcmp(verb, "value") == 0) || (count >= 1 && strcmp(verb, "newest") == 0) ||
          (count >= 0 && strcmp(verb, "sensors") == 0) || (count == 0 && strcmp(verb, "job") == 0))) {
        fputs(usage, stderr);
        return 2;
    }
    if (strcmp(verb, "begin") == 0)
        verb = "begin?";
    else if (strcmp(verb, "end") == 0)
        verb = "end?";
    else if (strcmp(verb, "value") == 0)
        verb = "value?";
    reader = wg_open(NULL, TIMEOUT_MS);
    if (!reader)
        return 3;
    status = 0;
    if (job) {
        char *id[] = {(char *)job, NULL};
        const char *request = line("job", id);
        const char *answer = request ? wg_ask(reader, request) : NULL;
        if (!answer)
            status = request ? complain(reader) : 2;
        else if (strncmp(answer, "job ", 4) != 0)
            status = (fprintf(stderr, "wholegrain-mark: %s\n", answer), 1);
    }
    /* What is begun here outlives this process. */
    if (status == 0 && !wg_ask(reader, "keep"))
        status = complain(reader);
    if (status == 0)
        status = ask(reader, line(verb, words));
    wg_free(reader);
    return status;
}
