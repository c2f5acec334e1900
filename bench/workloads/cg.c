/* The CG (conjugate gradient) kernel of the NAS parallel benchmarks, written from its specification (D. Bailey et al., The NAS Parallel
 * Benchmarks, RNR-94-007, section 2.5): the smallest eigenvalue of a large sparse symmetric matrix of random pattern by inverse
 * power iteration, each step of which solves a system by 25 steps of conjugate gradients. Irregular memory access; the ranks meet
 * three times in each of those steps.
 *
 * Arguments: class (S, W, A or B), [times it is done, default 1]. Prints "seconds" (without making the matrix), "verified" (zeta within
 * 1e-10 of the specification's), figures.
 *
 * Ranks have rows of the matrix, and gather the whole direction vector before each product: simpler than the specification's sample
 * codes, which divide columns too; any number of ranks will do. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t FACTOR = 1220703125u, MASK = (UINT64_C(1) << 46) - 1;
#ifdef BROKEN
static const uint64_t SEED = 314159269u;
#else
static const uint64_t SEED = 314159265u;
#endif
static const double CONDITION = 0.1; /* the reciprocal of the condition number */
enum { INNER_STEPS = 25, NONZERO_MAX = 16 };

typedef struct {
    char name;
    int rows, nonzero, steps;
    double shift, zeta;
} class_of;

static const class_of CLASSES[] = {
    {'S', 1400, 7, 15, 10.0, 8.5971775078648},
    {'W', 7000, 8, 15, 12.0, 10.362595087124},
    {'A', 14000, 11, 15, 20.0, 17.130235054029},
    {'B', 75000, 13, 75, 60.0, 22.712745482631},
};

/* A rank's rows, compressed: the entries of row r are begin[r] .. begin[r + 1]. */
typedef struct {
    int first, rows;
    size_t *begin;
    int *column;
    double *value;
} matrix;

typedef struct {
    int column;
    double value;
} entry;

static double draw(uint64_t *state)
{
    *state = *state * FACTOR & MASK;
    return (double)*state * 0x1p-46;
}

static void *room(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        fprintf(stderr, "cg: not enough memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* A sparse random vector: so many different places, drawn from the power of two at or above the rows, and 0.5 at its own place. */
static int make_vector(const class_of *class, int own, uint64_t *state, entry *vector)
{
    int places = 1, used = 0, has_own = 0;
    while (places < class->rows)
        places *= 2;
    while (used < class->nonzero) {
        double value = draw(state);
        int column = (int)(draw(state) * (double)places), known = column >= class->rows;
        for (int n = 0; n < used && !known; n++)
            known = vector[n].column == column;
        if (!known)
            vector[used++] = (entry){column, value};
    }
    for (int n = 0; n < used; n++)
        if (vector[n].column == own) {
            vector[n].value = 0.5;
            has_own = 1;
        }
    if (!has_own)
        vector[used++] = (entry){own, 0.5};
    return used;
}

static int by_column(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    return (a->column > b->column) - (a->column < b->column);
}

/* The weighted sum of the vectors' outer products, with `CONDITION - shift` on the diagonal; the rank's rows of it. */
static matrix make(const class_of *class, int first, int rows)
{
    int n = class->rows;
    uint64_t state = SEED;
    draw(&state);
    entry(*vectors)[NONZERO_MAX] = room((size_t)n, sizeof *vectors);
    int *used = room((size_t)n, sizeof *used);
    matrix m = {first, rows, room((size_t)rows + 1, sizeof(size_t)), NULL, NULL};
    for (int i = 0; i < n; i++) {
        used[i] = make_vector(class, i, &state, vectors[i]);
        for (int k = 0; k < used[i]; k++) {
            int row = vectors[i][k].column - first;
            if (row >= 0 && row < rows)
                m.begin[row + 1] += (size_t)used[i];
        }
    }
    for (int row = 0; row < rows; row++)
        m.begin[row + 1] += m.begin[row];
    entry *entries = room(m.begin[rows], sizeof *entries);
    size_t *end = room((size_t)rows, sizeof *end);
    for (int row = 0; row < rows; row++)
        end[row] = m.begin[row];
    double weight = 1.0, ratio = pow(CONDITION, 1.0 / (double)n);
    for (int i = 0; i < n; i++, weight *= ratio)
        for (int k = 0; k < used[i]; k++) {
            int row = vectors[i][k].column - first;
            if (row < 0 || row >= rows)
                continue;
            for (int l = 0; l < used[i]; l++) {
                int column = vectors[i][l].column, diagonal = row + first == i && column == i;
                double value = weight * vectors[i][k].value * vectors[i][l].value + (diagonal ? CONDITION - class->shift : 0.0);
                entries[end[row]++] = (entry){column, value};
            }
        }
    m.column = room(m.begin[rows], sizeof *m.column);
    m.value = room(m.begin[rows], sizeof *m.value);
    size_t kept = 0;
    for (int row = 0; row < rows; row++) {
        size_t from = m.begin[row];
        qsort(entries + from, end[row] - from, sizeof *entries, by_column);
        m.begin[row] = kept;
        for (size_t e = from; e < end[row]; e++) {
            if (kept > m.begin[row] && m.column[kept - 1] == entries[e].column) {
                m.value[kept - 1] += entries[e].value;
                continue;
            }
            m.column[kept] = entries[e].column;
            m.value[kept++] = entries[e].value;
        }
    }
    m.begin[rows] = kept;
    free(vectors);
    free(used);
    free(entries);
    free(end);
    return m;
}

typedef struct {
    const matrix *m;
    int *counts, *firsts;    /* rows of each rank */
    double *whole;           /* a vector of all rows */
    double *z, *r, *p, *q;   /* of the rank's rows */
} solver;

static double dot(const solver *s, const double *a, const double *b)
{
    double own = 0.0, all = 0.0;
    for (int i = 0; i < s->m->rows; i++)
        own += a[i] * b[i];
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void multiply(solver *s, const double *vector, double *result)
{
    const matrix *m = s->m;
    MPI_Allgatherv(vector, m->rows, MPI_DOUBLE, s->whole, s->counts, s->firsts, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int row = 0; row < m->rows; row++) {
        double sum = 0.0;
        for (size_t e = m->begin[row]; e < m->begin[row + 1]; e++)
            sum += m->value[e] * s->whole[m->column[e]];
        result[row] = sum;
    }
}

/* Solves A z = x nearly; what remains of x - A z, as a norm. */
static double solve(solver *s, const double *x)
{
    int rows = s->m->rows;
    for (int i = 0; i < rows; i++) {
        s->z[i] = 0.0;
        s->r[i] = s->p[i] = x[i];
    }
    double rho = dot(s, s->r, s->r);
    for (int step = 0; step < INNER_STEPS; step++) {
        multiply(s, s->p, s->q);
        double alpha = rho / dot(s, s->p, s->q), before = rho;
        for (int i = 0; i < rows; i++) {
            s->z[i] += alpha * s->p[i];
            s->r[i] -= alpha * s->q[i];
        }
        rho = dot(s, s->r, s->r);
        for (int i = 0; i < rows; i++)
            s->p[i] = s->r[i] + rho / before * s->p[i];
    }
    multiply(s, s->z, s->r);
    for (int i = 0; i < rows; i++)
        s->r[i] = x[i] - s->r[i];
    return sqrt(dot(s, s->r, s->r));
}

/* The estimate of the eigenvalue after so many steps; `norm` gets what the last system left over. */
static double iterate(solver *s, double *x, const class_of *class, int steps, double *norm)
{
    double zeta = 0.0;
    for (int i = 0; i < s->m->rows; i++)
        x[i] = 1.0;
    for (int step = 0; step < steps; step++) {
        *norm = solve(s, x);
        zeta = class->shift + 1.0 / dot(s, x, s->z);
        double scale = 1.0 / sqrt(dot(s, s->z, s->z));
        for (int i = 0; i < s->m->rows; i++)
            x[i] = scale * s->z[i];
    }
    return zeta;
}

static int begin_of(int rows, int ranks, int rank)
{
    return (int)((int64_t)rows * rank / ranks);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    const class_of *class = NULL;
    for (size_t n = 0; n < sizeof CLASSES / sizeof *CLASSES; n++)
        if (count > 1 && arguments[1][0] == CLASSES[n].name && arguments[1][1] == 0)
            class = &CLASSES[n];
    long times = count > 2 ? atol(arguments[2]) : 1;
    if (!class || times < 1) {
        fprintf(stderr, "cg: class S, W, A or B, and how many times\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    int ranks = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int first = begin_of(class->rows, ranks, rank), rows = begin_of(class->rows, ranks, rank + 1) - first;
    matrix m = make(class, first, rows);
    solver s = {.m = &m,
                .counts = room((size_t)ranks, sizeof(int)),
                .firsts = room((size_t)ranks, sizeof(int)),
                .whole = room((size_t)class->rows, sizeof(double)),
                .z = room((size_t)rows, sizeof(double)),
                .r = room((size_t)rows, sizeof(double)),
                .p = room((size_t)rows, sizeof(double)),
                .q = room((size_t)rows, sizeof(double))};
    for (int n = 0; n < ranks; n++) {
        s.firsts[n] = begin_of(class->rows, ranks, n);
        s.counts[n] = begin_of(class->rows, ranks, n + 1) - s.firsts[n];
    }
    double *x = room((size_t)rows, sizeof(double)), norm = 0.0, zeta = 0.0;
    /* Once for caches and pages, as the specification has it. */
    iterate(&s, x, class, 1, &norm);
    int good = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long time = 0; time < times; time++) {
        zeta = iterate(&s, x, class, class->steps, &norm);
        good = good && fabs((zeta - class->zeta) / class->zeta) <= 1e-10;
    }
    double seconds = MPI_Wtime() - start;
    if (rank == 0) {
        printf("seconds %.9f\nverified %s\nzeta %.13f\nresidual %.3e\n", seconds, good ? "yes" : "no", zeta, norm);
        printf("figure solve_ms %.6f\n", seconds / (double)times / (double)class->steps * 1e3);
    }
    MPI_Finalize();
    return 0;
}
