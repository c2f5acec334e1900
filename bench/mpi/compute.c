/* A compute-bound program: Gaussian deviates by the polar method, counted by annulus, as NAS' EP does; the ranks meet after each
 * block, so that what delays one delays all. Arguments: blocks. Prints the seconds between the first and the last meeting. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIRS = 200000, ANNULI = 10 };

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53 * 2.0 - 1.0;
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
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
    if (rank == 0)
        printf("seconds %.6f check %.0f\n", seconds, all[0]);
    MPI_Finalize();
    return 0;
}
