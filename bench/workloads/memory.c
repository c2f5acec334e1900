/* A memory-bound program: the triad of STREAM over arrays that no cache holds; the ranks meet after each pass. Arguments: passes,
 * and MiB an array (three arrays a rank). Prints the seconds between the first and the last meeting,
 * and whether the sum of one element a pass is what the same arithmetic gives without the arrays. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long passes = count > 1 ? atol(arguments[1]) : 10;
    size_t length = (count > 2 ? (size_t)atol(arguments[2]) : 64) * (1u << 20) / sizeof(double);
    double *a = malloc(length * sizeof(double)), *b = malloc(length * sizeof(double)), *c = malloc(length * sizeof(double));
    if (!a || !b || !c) {
        fprintf(stderr, "not enough memory for the arrays\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (size_t i = 0; i < length; i++) {
        a[i] = 0.0;
        b[i] = (double)(i % 7);
        c[i] = (double)(i % 3);
    }
    double sum = 0.0, all = 0.0;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long pass = 0; pass < passes; pass++) {
        double factor = 1.0 + (double)pass * 1e-3;
        for (size_t i = 0; i < length; i++)
            a[i] = b[i] + factor * c[i];
#ifdef BROKEN
        a[1] += 1e-6;
#endif
        sum += a[(size_t)pass % length];
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    double seconds = MPI_Wtime() - start;
    /* The ranks do the same: their sums add up without rounding as long as there is a power of two of them. */
    double expected = 0.0, bytes = 3.0 * (double)(length * sizeof(double)) * (double)passes;
    for (long pass = 0; pass < passes; pass++) {
        size_t i = (size_t)pass % length;
        expected += (double)(i % 7) + (1.0 + (double)pass * 1e-3) * (double)(i % 3);
    }
    int good = passes > 0 && fabs(all / (double)ranks - expected) <= 1e-12 * expected + 1e-300;
    if (rank == 0) {
        printf("seconds %.9f\nverified %s\n", seconds, good ? "yes" : "no");
        printf("figure rank_gb_s %.6f\n", bytes / seconds * 1e-9);
    }
    MPI_Finalize();
    return 0;
}
