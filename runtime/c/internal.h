/* What the files of the library share. */
#ifndef WHOLEGRAIN_INTERNAL_H
#define WHOLEGRAIN_INTERNAL_H

#include <locale.h>
#include <stdint.h>
#include <time.h>

#define NS 1000000000LL

/* Where the agent listens unless somebody says otherwise. */
#define SOCKET_PATH "/run/wholegrain/jobs.sock"

/* A stream socket connected to `path` (NULL: where the agent listens), or -1 with errno. Never waits. */
int wg_connect_(const char *path);

/* A clock, ns. */
int64_t wg_clock_(clockid_t id);

/* Numbers are written and read as in the "C" locale whatever the application's is: the thread's locale is put in place for
 * the time between the two calls. */
locale_t wg_plain_numbers_(void);
void wg_own_numbers_(locale_t before);

#endif
