/* A loop of fixed work, again and again, and how long each turn took: what is above the shortest is time that something else
 * took from the core. After PSNAP, as LDMS' paper uses it (SC 2014, section V, figures 5 and 8). The ranks do not wait for each
 * other; run one a core, bound to it.
 *
 *   noise calibrate QUANTUM_NS            prints the units of work that take so long, on a machine that does nothing else
 *   noise run UNITS TURNS [BIN_NS]        prints "seconds" of the slowest rank, figures, and "bin LOWER_EDGE_NS COUNT" lines
 *
 * The units are an argument and not calibrated at each run, so that a run beside a monitor does the same work as one without.
 * With -DUSE_MPI the ranks' turns are added up by rank 0; without, each process prints its own. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef USE_MPI
#include <mpi.h>
#endif

/* Bins are of one width up to LINEAR of them; each doubling above that is divided into STEPS. */
enum { LINEAR = 16384, STEPS = 32, DOUBLINGS = 30, BINS = LINEAR + STEPS * DOUBLINGS + 1 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A chain of multiplications, each of which needs the one before: no memory, nothing for the core to reorder. */
static uint64_t work(uint64_t units, uint64_t state)
{
    for (uint64_t unit = 0; unit < units; unit++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(state));
    }
    return state;
}

/* What `work` comes to, by squaring: the map of n units is x * a^n + c * (a^n - 1) / (a - 1). */
static uint64_t expected(uint64_t units, uint64_t state)
{
    uint64_t factor = 6364136223846793005u, addend = 1442695040888963407u, whole_factor = 1, whole_addend = 0;
    for (; units; units >>= 1) {
        if (units & 1) {
            whole_addend = whole_addend * factor + addend;
            whole_factor *= factor;
        }
        addend = addend * factor + addend;
        factor *= factor;
    }
    return state * whole_factor + whole_addend;
}

static size_t bin_of(uint64_t ns, uint64_t width)
{
    uint64_t n = ns / width;
    if (n < LINEAR)
        return n;
    int doubling = 63 - __builtin_clzll(n / LINEAR);
    uint64_t within = (n - ((uint64_t)LINEAR << doubling)) * STEPS / ((uint64_t)LINEAR << doubling);
    size_t bin = LINEAR + (size_t)doubling * STEPS + within;
    return bin < BINS ? bin : BINS - 1;
}

static uint64_t edge_of(size_t bin, uint64_t width)
{
    if (bin < LINEAR)
        return bin * width;
    size_t doubling = (bin - LINEAR) / STEPS, within = (bin - LINEAR) % STEPS;
    return width * (((uint64_t)LINEAR << doubling) + within * (((uint64_t)LINEAR << doubling) / STEPS));
}

/* The lower edge of the bin below which so large a share of the turns lies. */
static uint64_t quantile(const uint64_t *bins, uint64_t turns, double share, uint64_t width)
{
    uint64_t below = 0;
    for (size_t bin = 0; bin < BINS; bin++) {
        below += bins[bin];
        if ((double)below >= share * (double)turns)
            return edge_of(bin, width);
    }
    return 0;
}

static int calibrate(uint64_t quantum_ns)
{
    const uint64_t units = 20000;
    uint64_t state = 1, shortest = UINT64_MAX, until = now_ns() + 500000000u;
    /* The shortest of many short stretches: whatever disturbs only lengthens. */
    while (now_ns() < until) {
        uint64_t start = now_ns();
        state = work(units, state);
        uint64_t took = now_ns() - start;
        shortest = took < shortest ? took : shortest;
    }
    fprintf(stderr, "%.3f ns a unit (check %llx)\n", (double)shortest / (double)units, (unsigned long long)state);
    printf("units %.0f\n", (double)quantum_ns * (double)units / (double)shortest);
    return 0;
}

typedef struct {
    uint64_t shortest, longest, total, wrong;
} times;

static times turn(uint64_t units, uint64_t turns, uint64_t width, uint64_t *bins)
{
    times t = {UINT64_MAX, 0, 0, 0};
    uint64_t state = 1, first = now_ns(), before = first;
    for (uint64_t n = 0; n < turns; n++) {
        state = work(units, state);
        uint64_t now = now_ns(), took = now - before;
        before = now;
        bins[bin_of(took, width)]++;
        t.shortest = took < t.shortest ? took : t.shortest;
        t.longest = took > t.longest ? took : t.longest;
    }
    t.total = before - first;
#ifdef BROKEN
    state++;
#endif
    t.wrong = state != expected(units * turns, 1);
    return t;
}

static void print(const times *t, uint64_t slowest, const uint64_t *bins, uint64_t turns, uint64_t width)
{
    uint64_t median = quantile(bins, turns, 0.5, width);
    double total = (double)t->total, count = (double)turns;
    printf("seconds %.9f\nverified %s\n", (double)slowest * 1e-9, t->wrong ? "no" : "yes");
    printf("figure quanta %.0f\nfigure minimum_ns %llu\nfigure median_ns %llu\nfigure maximum_ns %llu\n", count,
           (unsigned long long)t->shortest, (unsigned long long)median, (unsigned long long)t->longest);
    printf("figure p99_ns %llu\nfigure mean_ns %.1f\n", (unsigned long long)quantile(bins, turns, 0.99, width), total / count);
    printf("figure noise_share %.9f\n", 1.0 - count * (double)t->shortest / total);
    printf("figure noise_over_median_share %.9f\n", 1.0 - count * (double)median / total);
    for (size_t bin = 0; bin < BINS; bin++)
        if (bins[bin])
            printf("bin %llu %llu\n", (unsigned long long)edge_of(bin, width), (unsigned long long)bins[bin]);
}

static int measure(uint64_t units, uint64_t turns, uint64_t width)
{
    /* Static, and touched before the first turn: no page is faulted in while the clock runs. */
    static uint64_t bins[BINS];
    memset(bins, 1, sizeof bins);
    memset(bins, 0, sizeof bins);
    work(units * 100, 1);
#ifdef USE_MPI
    static uint64_t all[BINS];
    int ranks = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    times own = turn(units, turns, width, bins), of_all = own;
    uint64_t slowest = 0;
    MPI_Reduce(bins, all, BINS, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own.shortest, &of_all.shortest, 1, MPI_UINT64_T, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own.longest, &of_all.longest, 1, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own.total, &of_all.total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own.wrong, &of_all.wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own.total, &slowest, 1, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        print(&of_all, slowest, all, turns * (uint64_t)ranks, width);
#else
    times own = turn(units, turns, width, bins);
    print(&own, own.total, bins, turns, width);
#endif
    return 0;
}

int main(int count, char **arguments)
{
#ifdef USE_MPI
    MPI_Init(&count, &arguments);
#endif
    int result = 2;
    if (count == 3 && strcmp(arguments[1], "calibrate") == 0 && atoll(arguments[2]) > 0)
        result = calibrate(strtoull(arguments[2], NULL, 10));
    else if (count >= 4 && strcmp(arguments[1], "run") == 0 && atoll(arguments[2]) > 0 && atoll(arguments[3]) > 0)
        result = measure(strtoull(arguments[2], NULL, 10), strtoull(arguments[3], NULL, 10),
                         count > 4 && atoll(arguments[4]) > 0 ? strtoull(arguments[4], NULL, 10) : 100);
    else
        fprintf(stderr, "noise calibrate QUANTUM_NS | noise run UNITS TURNS [BIN_NS]\n");
#ifdef USE_MPI
    MPI_Finalize();
#endif
    return result;
}
