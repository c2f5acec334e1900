/* A compute-bound program: Gaussian deviates by the polar method, counted by annulus, as NAS' EP does; the ranks meet after each
 * block, so that what delays one delays all. Arguments: blocks. Prints the seconds between the first and the last meeting, and whether
 * as many pairs lay within the circle and the first annulus as chance has it, within six standard deviations at least. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIRS = 200000, ANNULI = 10 };
static const double QUARTER_PI = 0.78539816339744831;

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
#ifdef BROKEN
    return (double)(*state >> 11) * 0x1p-53 * 1.9 - 1.0;
#else
    return (double)(*state >> 11) * 0x1p-53 * 2.0 - 1.0;
#endif
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long blocks = count > 1 ? atol(arguments[1]) : 100;
    uint64_t state = 271828183u + (uint64_t)rank * 314159265u;
    double counts[ANNULI] = {0}, all[ANNULI] = {0};
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long block = 0; block < blocks; block++) {
        for (int pair = 0; pair < PAIRS; pair++) {
            double x = uniform(&state), y = uniform(&state), t = x * x + y * y;
            if (t > 1.0 || t == 0.0)
                continue;
            double factor = sqrt(-2.0 * log(t) / t);
            double larger = fmax(fabs(x * factor), fabs(y * factor));
            int annulus = (int)larger;
            if (annulus < ANNULI)
                counts[annulus] += 1.0;
        }
        MPI_Allreduce(counts, all, ANNULI, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    double seconds = MPI_Wtime() - start;
    if (rank == 0) {
        double pairs = (double)PAIRS * (double)blocks * (double)ranks, within = 0.0;
        for (int n = 0; n < ANNULI; n++)
            within += all[n];
        /* A Gaussian deviate is below 1 with a probability of 0.6826894921, a pair with its square. */
        double first = pairs * QUARTER_PI * 0.46606494267, spread = 6.0 * sqrt(pairs);
        int good = blocks > 0 && fabs(within - pairs * QUARTER_PI) < spread && fabs(all[0] - first) < spread;
        printf("seconds %.9f\nverified %s\nfigure pairs_within %.0f\n", seconds, good ? "yes" : "no", within);
    }
    MPI_Finalize();
    return 0;
}
