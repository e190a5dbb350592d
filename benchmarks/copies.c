/* Counts what a process copies: for `copies.py`, loaded into a server with LD_PRELOAD.

   Copies in memory of at least LEAST bytes, and reads and writes of as many, each with the CPU time of its thread, by
   the functions that asked for it. SIGUSR2 writes them to the file that COPIES_FILE names and the number of the process,
   one line for each place, and begins anew. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEAST = 8192, CALLERS = 3, PLACES = 512 };

static struct place {
    const char *kind;
    void *callers[CALLERS];
    long count, bytes;
    double microseconds;
} places[PLACES];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int is_busy; /* in here: what the notes themselves copy is not counted */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void note(const char *kind, size_t size, double since) {
    double took = now() - since;
    void *stack[CALLERS + 2];
    if (is_busy) return;
    is_busy = 1;
    int depth = backtrace(stack, CALLERS + 2);
    pthread_mutex_lock(&lock);
    struct place *found = places;
    for (; found < places + used; found++)
        if (found->kind == kind && depth == CALLERS + 2 && !memcmp(found->callers, stack + 2, sizeof found->callers))
            break;
    if (found == places + used && used < PLACES && depth == CALLERS + 2) {
        used++;
        found->kind = kind;
        for (int at = 0; at < CALLERS; at++) found->callers[at] = stack[at + 2];
    }
    if (found < places + used) {
        found->count++;
        found->bytes += size;
        found->microseconds += took;
    }
    pthread_mutex_unlock(&lock);
    is_busy = 0;
}

#define REAL(result, name, ...)                                            \
    static result (*real)(__VA_ARGS__);                                    \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);

void *memcpy(void *to, const void *from, size_t size) {
    REAL(void *, memcpy, void *, const void *, size_t)
    if (size < LEAST || is_busy) return real(to, from, size);
    double since = now();
    real(to, from, size);
    note("copy", size, since);
    return to;
}

void *memmove(void *to, const void *from, size_t size) {
    REAL(void *, memmove, void *, const void *, size_t)
    if (size < LEAST || is_busy) return real(to, from, size);
    double since = now();
    real(to, from, size);
    note("copy", size, since);
    return to;
}

static ssize_t noted(const char *kind, ssize_t size, double since) {
    if (size >= LEAST) note(kind, size, since);
    return size;
}

ssize_t read(int file, void *to, size_t size) {
    REAL(ssize_t, read, int, void *, size_t)
    double since = now();
    return noted("read", real(file, to, size), since);
}

ssize_t write(int file, const void *from, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t)
    double since = now();
    return noted("write", real(file, from, size), since);
}

ssize_t writev(int file, const struct iovec *from, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int)
    double since = now();
    return noted("write", real(file, from, count), since);
}

static void tell(int signal) {
    (void)signal;
    is_busy = 1;
    char path[4096], unfinished[4128];
    snprintf(path, sizeof path, "%s.%d", getenv("COPIES_FILE"), getpid());
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", path);
    FILE *file = fopen(unfinished, "w");
    for (struct place *each = places; file && each < places + used; each++) {
        fprintf(file, "%s %ld %ld %.0f", each->kind, each->count, each->bytes, each->microseconds);
        for (int at = 0; at < CALLERS; at++) {
            Dl_info about;
            int is_known = dladdr(each->callers[at], &about) && about.dli_fname;
            const char *name = is_known ? strrchr(about.dli_fname, '/') : NULL;
            fprintf(file, " %s:%s", name ? name + 1 : "?", is_known && about.dli_sname ? about.dli_sname : "?");
        }
        fputc('\n', file);
        each->count = each->bytes = 0;
        each->microseconds = 0;
    }
    if (file && !fclose(file)) rename(unfinished, path);
    is_busy = 0;
}

__attribute__((constructor)) static void begin(void) {
    void *stack[1];
    backtrace(stack, 1); /* loads what it needs now, and not within a copy */
    if (getenv("COPIES_FILE")) signal(SIGUSR2, tell);
}
