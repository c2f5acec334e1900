/* Lower and upper sweeps of a symmetric successive over-relaxation through a grid with five unknowns a point, plane by plane, with
 * the ranks' waiting for each other that NAS LU is known for: columns of the grid are divided over a rectangle of ranks, and a rank
 * can begin a plane only with the edges that its neighbours to the west and north have just finished (in the upper sweep: east and
 * south). What holds up one rank for microseconds holds up all ranks after it.
 *
 * Arguments: points an edge, steps, [sweeps over the block of a point (work, default 1)], [known sum in hex, 0 for none].
 * Prints: "seconds" of the steps between the first and the last meeting, "verified", figures.
 *
 * Every point is computed from the same operands in the same order however the grid is divided, so the 64-bit sum over the bits of
 * the results does not depend on the ranks. It is compared with the known sum; without one, rank 0 does all the work again alone.
 * Compile with -ffp-contract=off: a fused multiply-add rounds differently. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWNS = 5 };

/* Over-relaxation, weight of a neighbour, weight of a point itself: the sum of six neighbours' stays below the point's. */
static const double RELAXATION = 1.2, NEIGHBOUR = 0.15, COUPLING = 0.01;

typedef struct {
    int edge, work;             /* points an edge of the whole grid; sweeps over a point's block */
    int x0, y0, nx, ny;         /* the rank's columns */
    int west, east, north, south; /* neighbours; MPI_PROC_NULL at the rim */
    MPI_Comm comm;              /* MPI_COMM_NULL when one rank has it all */
    double *u, *v;              /* the solution, and what a step changes it by; [plane][x][y][unknown] with a rim of zeros */
    double *out, *in;           /* edges on their way */
    double wait;                /* s in receives; rank's own */
} grid;

static size_t at(const grid *g, int k, int x, int y)
{
    return (((size_t)k * (size_t)(g->nx + 2) + (size_t)x) * (size_t)(g->ny + 2) + (size_t)y) * UNKNOWNS;
}

static double source(const grid *g, int step, int k, int x, int y, int m)
{
    int where = (g->x0 + x) * 7 + (g->y0 + y) * 5 + k * 3 + m + step % 11;
#ifdef BROKEN
    where += g->x0 + x == 1 && g->y0 + y == 1 && k == 1 && step == 1;
#endif
    return (double)(where % 13 - 6) * 0.125;
}

/* t -= B v, where B is the block by which a neighbour acts: its weight on the diagonal, and COUPLING * u[c] * (r - c) in row r and
 * column c, so that it depends on the solution there as a flux does. */
static inline void subtract(double *t, const double *u, const double *v)
{
    double flux = 0.0, moment = 0.0;
    for (int c = 0; c < UNKNOWNS; c++) {
        double part = COUPLING * u[c] * v[c];
        flux += part;
        moment += part * (double)c;
    }
    for (int r = 0; r < UNKNOWNS; r++)
        t[r] -= flux * (double)r - moment - NEIGHBOUR * v[r];
}

/* Solves the block of the point itself, which is diagonally dominant, by sweeps over its unknowns. */
static inline void solve(double *v, const double *t, const double *u, int work)
{
    memcpy(v, t, UNKNOWNS * sizeof(double));
    for (int sweep = 0; sweep < work; sweep++)
        for (int r = 0; r < UNKNOWNS; r++) {
            double sum = t[r];
            for (int c = 0; c < UNKNOWNS; c++)
                if (c != r)
                    sum -= COUPLING * (u[r] + u[c]) * v[c];
            v[r] = sum / (1.0 + u[r] * u[r] * COUPLING);
        }
}

/* Sends or receives the edge of one plane at x (all y), or at y (all x). */
static void pass_edge(grid *g, double *field, int k, int along_y, int place, int other, int sending)
{
    if (other == MPI_PROC_NULL)
        return;
    int points = along_y ? g->ny : g->nx, count = points * UNKNOWNS;
    double *buffer = sending ? g->out : g->in;
    if (!sending) {
        double start = MPI_Wtime();
        MPI_Recv(buffer, count, MPI_DOUBLE, other, k, g->comm, MPI_STATUS_IGNORE);
        g->wait += MPI_Wtime() - start;
    }
    for (int n = 1; n <= points; n++) {
        double *point = field + (along_y ? at(g, k, place, n) : at(g, k, n, place));
        double *packed = buffer + (size_t)(n - 1) * UNKNOWNS;
        memcpy(sending ? packed : point, sending ? point : packed, UNKNOWNS * sizeof(double));
    }
    if (sending)
        MPI_Send(buffer, count, MPI_DOUBLE, other, k, g->comm);
}

/* The rim of the solution from all four neighbours, all planes: once a step. */
static void exchange(grid *g)
{
    if (g->comm == MPI_COMM_NULL)
        return;
    const int to[4] = {g->east, g->west, g->south, g->north}, from[4] = {g->west, g->east, g->north, g->south};
    const int give[4] = {g->nx, 1, g->ny, 1}, take[4] = {0, g->nx + 1, 0, g->ny + 1};
    for (int way = 0; way < 4; way++) {
        int along_y = way < 2, points = along_y ? g->ny : g->nx, count = g->edge * points * UNKNOWNS;
        for (int unpacking = 0; unpacking < 2; unpacking++) {
            if (unpacking)
                MPI_Sendrecv(g->out, to[way] == MPI_PROC_NULL ? 0 : count, MPI_DOUBLE, to[way], 0, g->in, count, MPI_DOUBLE,
                             from[way], 0, g->comm, MPI_STATUS_IGNORE);
            if (unpacking && from[way] == MPI_PROC_NULL)
                continue;
            int place = unpacking ? take[way] : give[way];
            for (int k = 1; k <= g->edge; k++)
                for (int n = 1; n <= points; n++) {
                    double *point = g->u + (along_y ? at(g, k, place, n) : at(g, k, n, place));
                    double *packed = (unpacking ? g->in : g->out) + ((size_t)(k - 1) * (size_t)points + (size_t)(n - 1)) * UNKNOWNS;
                    memcpy(unpacking ? point : packed, unpacking ? packed : point, UNKNOWNS * sizeof(double));
                }
        }
    }
}

/* What is left over of the equations: source less the operator on the solution. Into v, which the sweeps begin with. */
static void residual(grid *g, int step)
{
    for (int k = 1; k <= g->edge; k++)
        for (int x = 1; x <= g->nx; x++)
            for (int y = 1; y <= g->ny; y++) {
                const double *u = g->u;
                size_t here = at(g, k, x, y);
                for (int m = 0; m < UNKNOWNS; m++) {
                    double around = u[at(g, k, x - 1, y) + (size_t)m] + u[at(g, k, x + 1, y) + (size_t)m] +
                                    u[at(g, k, x, y - 1) + (size_t)m] + u[at(g, k, x, y + 1) + (size_t)m] +
                                    u[at(g, k - 1, x, y) + (size_t)m] + u[at(g, k + 1, x, y) + (size_t)m];
                    g->v[here + (size_t)m] = source(g, step, k, x, y, m) - u[here + (size_t)m] + NEIGHBOUR * around;
                }
            }
}

/* One plane of a sweep: `back` is -1 where what was done before lies below, west and north, and +1 for the way back. */
static void plane(grid *g, int k, int back)
{
    int x0 = back < 0 ? 1 : g->nx, y0 = back < 0 ? 1 : g->ny;
    for (int i = 0, x = x0; i < g->nx; i++, x -= back)
        for (int j = 0, y = y0; j < g->ny; j++, y -= back) {
            size_t here = at(g, k, x, y), below = at(g, k + back, x, y), west = at(g, k, x + back, y),
                   north = at(g, k, x, y + back);
            double t[UNKNOWNS];
            memcpy(t, g->v + here, sizeof t);
            subtract(t, g->u + below, g->v + below);
            subtract(t, g->u + west, g->v + west);
            subtract(t, g->u + north, g->v + north);
            solve(g->v + here, t, g->u + here, g->work);
        }
}

static void sweep(grid *g, int back)
{
    int before_x = back < 0 ? 0 : g->nx + 1, before_y = back < 0 ? 0 : g->ny + 1, last_x = back < 0 ? g->nx : 1,
        last_y = back < 0 ? g->ny : 1;
    for (int n = 1; n <= g->edge; n++) {
        int k = back < 0 ? n : g->edge + 1 - n;
        pass_edge(g, g->v, k, 1, before_x, back < 0 ? g->west : g->east, 0);
        pass_edge(g, g->v, k, 0, before_y, back < 0 ? g->north : g->south, 0);
        plane(g, k, back);
        pass_edge(g, g->v, k, 1, last_x, back < 0 ? g->east : g->west, 1);
        pass_edge(g, g->v, k, 0, last_y, back < 0 ? g->south : g->north, 1);
    }
}

/* The rank's part of the sum: of one plane a step, so that no step goes unlooked at, and of all in the end. */
static uint64_t sum_of(const grid *g, int k)
{
    uint64_t sum = 0;
    for (int x = 1; x <= g->nx; x++)
        for (int y = 1; y <= g->ny; y++)
            for (int m = 0; m < UNKNOWNS; m++) {
                uint64_t bits, place = (((uint64_t)k << 20 | (uint64_t)(g->x0 + x)) << 20 | (uint64_t)(g->y0 + y)) * 8 + (uint64_t)m;
                memcpy(&bits, g->u + at(g, k, x, y) + m, sizeof bits);
                sum += (bits ^ bits >> 29) * (place * 0x9e3779b97f4a7c15u | 1);
            }
    return sum;
}

static uint64_t run(grid *g, int steps)
{
    size_t rim = (size_t)(g->nx + 2) * (size_t)(g->ny + 2) * UNKNOWNS, whole = rim * (size_t)(g->edge + 2);
    size_t longest = (size_t)(g->nx > g->ny ? g->nx : g->ny) * (size_t)g->edge * UNKNOWNS;
    g->u = calloc(whole, sizeof(double));
    g->v = calloc(whole, sizeof(double));
    g->out = calloc(longest, sizeof(double));
    g->in = calloc(longest, sizeof(double));
    if (!g->u || !g->v || !g->out || !g->in) {
        fprintf(stderr, "wavefront: not enough memory for %d points an edge\n", g->edge);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    uint64_t sum = 0;
    for (int step = 0; step < steps; step++) {
        exchange(g);
        residual(g, step);
        sweep(g, -1);
        /* What came in from the other side belongs to the sweep before this one. */
        sweep(g, 1);
        for (int k = 1; k <= g->edge; k++)
            for (int x = 1; x <= g->nx; x++)
                for (int y = 1; y <= g->ny; y++)
                    for (int m = 0; m < UNKNOWNS; m++)
                        g->u[at(g, k, x, y) + (size_t)m] += RELAXATION * 0.5 * g->v[at(g, k, x, y) + (size_t)m];
        sum = sum * 31 + sum_of(g, step % g->edge + 1);
    }
    for (int k = 1; k <= g->edge; k++)
        sum += sum_of(g, k);
    free(g->u);
    free(g->v);
    free(g->out);
    free(g->in);
    return sum;
}

/* Where part `n` of `parts` begins among `points`. */
static int begin(int points, int parts, int n)
{
    return (int)((long)points * n / parts);
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int edge = count > 1 ? atoi(arguments[1]) : 33, steps = count > 2 ? atoi(arguments[2]) : 300,
        work = count > 3 ? atoi(arguments[3]) : 1;
    uint64_t known = count > 4 ? strtoull(arguments[4], NULL, 16) : 0;
    int ranks = 0, rank = 0, shape[2] = {0, 0}, rim[2] = {0, 0}, place[2] = {0, 0};
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, shape);
    if (edge < shape[0] || edge > 1000 || steps < 1 || work < 1) {
        fprintf(stderr, "wavefront: points an edge (at most 1000, at least one a rank), steps and work must be positive\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    grid g = {.edge = edge, .work = work};
    MPI_Cart_create(MPI_COMM_WORLD, 2, shape, rim, 0, &g.comm);
    MPI_Comm_rank(g.comm, &rank);
    MPI_Cart_coords(g.comm, rank, 2, place);
    MPI_Cart_shift(g.comm, 0, 1, &g.west, &g.east);
    MPI_Cart_shift(g.comm, 1, 1, &g.north, &g.south);
    g.x0 = begin(edge, shape[0], place[0]);
    g.nx = begin(edge, shape[0], place[0] + 1) - g.x0;
    g.y0 = begin(edge, shape[1], place[1]);
    g.ny = begin(edge, shape[1], place[1] + 1) - g.y0;

    MPI_Barrier(g.comm);
    double start = MPI_Wtime();
    uint64_t own = run(&g, steps), sum = 0;
    MPI_Allreduce(&own, &sum, 1, MPI_UINT64_T, MPI_SUM, g.comm);
    double seconds = MPI_Wtime() - start, waited = 0.0;
    MPI_Reduce(&g.wait, &waited, 1, MPI_DOUBLE, MPI_SUM, 0, g.comm);
    if (rank == 0) {
        double planes = 2.0 * (double)steps * (double)edge;
        if (!known) {
            grid alone = {.edge = edge, .work = work, .nx = edge, .ny = edge, .west = MPI_PROC_NULL, .east = MPI_PROC_NULL,
                          .north = MPI_PROC_NULL, .south = MPI_PROC_NULL, .comm = MPI_COMM_NULL};
            known = run(&alone, steps);
        }
        printf("seconds %.9f\nverified %s\nsum %016llx\n", seconds, sum == known ? "yes" : "no", (unsigned long long)sum);
        printf("figure plane_us %.3f\n", seconds / planes * 1e6);
        printf("figure receive_share %.6f\n", waited / seconds / (double)ranks);
        printf("figure message_bytes %d\n", ranks > 1 ? g.ny * UNKNOWNS * 8 : 0);
    }
    MPI_Finalize();
    return 0;
}
