/* SPDX-License-Identifier: Apache-2.0 */
/* transport: messages of all sizes both ways, tags, at most two under way, sums with the bits of
 * the order of ranks, the death and the failure of a rank; the same over mpirun where it is
 * installed. */
#include "check.h"
#include <errno.h>
#include <sys/mman.h>
#include "common/mem.h"
#include "ranks_run.h"

/* Element i of what rank sends; sums of it depend on their order. */
static float element(uint32_t rank, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + rank * 40503u;
    return (float)((int32_t)(x ^ x >> 15) % 10007) * (rank % 2 ? 1e-4f : 1e3f) / 7;
}

/* ---- messages ---- */

static void fill(unsigned char *to, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)(i * 31 + seed * 7 + (i >> 12));
}

static void run_both_ways(struct transport *t, void *arg)
{
    static const size_t sizes[] = {0, 1, 2048, 2049, 65536, 65537, 8u << 20, 3u << 20, 12u << 20};
    const uint32_t me = transport_rank(t), peer = 1 - me, n = TRANSPORT_LANES * TRANSPORT_SENDS;
    unsigned char *out = q_alloc(12u << 20), *in = q_alloc(12u << 20);
    struct q_err e = Q_ERR_INIT;
    (void)arg;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t k = 0; k < n; k++) { /* both lanes full before either receives */
            struct transport_message m = {peer, 5 + k % 2 * TRANSPORT_LANE_TAGS + k, sizes[i]};
            fill(out, sizes[i], me + 2 * k);
            rank_ok(transport_send(t, &m, out, &e), &e);
            memset(out, 0, sizes[i]); /* the data are the caller's again */
        }
        for (uint32_t k = n; k-- > 0;) { /* in the other order of tags */
            struct transport_message m = {peer, 5 + k % 2 * TRANSPORT_LANE_TAGS + k, sizes[i]};
            rank_ok(transport_receive(t, &m, in, &e), &e);
            fill(out, sizes[i], peer + 2 * k);
            rank_check(memcmp(in, out, sizes[i]) == 0);
        }
    }
    rank_ok(transport_flush(t, &e), &e);
    q_free(out);
    q_free(in);
    transport_close(t);
}

static void test_both_ways(void **state)
{
    (void)state;
    ranks_run_well(2, run_both_ways, NULL);
}

/* Messages of one tag arrive in order; all ranks to all, many times. */
static void run_many(struct transport *t, void *arg)
{
    const uint32_t me = transport_rank(t), n = transport_size(t);
    struct q_err e = Q_ERR_INIT;
    static uint32_t data[3000];
    (void)arg;
    for (uint32_t round = 0; round < 200; round++) {
        const size_t bytes = round % 3 ? 4 * (1 + round) : sizeof data;
        for (uint32_t to = 0; to < n; to++) {
            data[0] = round * 100 + me * 10 + to;
            rank_ok(transport_send(t, &(struct transport_message){to, 3, bytes}, data, &e), &e);
        }
        for (uint32_t from = 0; from < n; from++) {
            struct transport_message m = {from, 3, bytes};
            rank_ok(transport_receive(t, &m, data, &e), &e);
            rank_check(data[0] == round * 100 + from * 10 + me);
        }
    }
    rank_check(transport_waited(t) >= 0);
    rank_check(transport_waited(t) == 0); /* since the last call */
    transport_close(t);
}

static void test_many(void **state)
{
    (void)state;
    ranks_run_well(3, run_many, NULL);
    ranks_run_well(6, run_many, NULL);
}

/* Rank 0 counts the sends that have returned; rank 1 takes none until two have, and looks a while
 * later whether the third one has returned as well. */
static void run_two_under_way(struct transport *t, void *arg)
{
    _Atomic uint32_t *n_returned = arg;
    struct q_err e = Q_ERR_INIT;
    char data[5000] = {0};
    struct transport_message m = {1 - transport_rank(t), 1, sizeof data};
    for (uint32_t i = 0; transport_rank(t) == 0 && i < 4; i++) {
        rank_ok(transport_send(t, &m, data, &e), &e);
        ++*n_returned;
    }
    for (uint32_t i = 0; transport_rank(t) == 1 && i < 4; i++) {
        while (i == 0 && *n_returned < TRANSPORT_SENDS)
            usleep(1000);
        usleep(20000);
        rank_check(*n_returned <= i + TRANSPORT_SENDS);
        rank_ok(transport_receive(t, &m, data, &e), &e);
    }
    rank_ok(transport_flush(t, &e), &e);
    transport_close(t);
}

static void test_two_under_way(void **state)
{
    (void)state;
    _Atomic uint32_t *n_returned =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(n_returned, MAP_FAILED);
    ranks_run_well(2, run_two_under_way, (void *)n_returned);
    assert_int_equal(*n_returned, 4);
    munmap((void *)n_returned, 4096);
}

/* ---- groups ---- */

static void check_sum(struct transport *t, const struct transport_group *g, size_t n)
{
    float *x = q_alloc(n * sizeof *x);
    double *y = q_alloc(n * sizeof *y);
    struct q_err e = Q_ERR_INIT;
    for (size_t i = 0; i < n; i++) {
        x[i] = element(transport_rank(t), i);
        y[i] = (double)element(transport_rank(t), i) / 3;
    }
    rank_ok(transport_sum_f32(t, g, x, n, &e), &e);
    rank_ok(transport_sum_f64(t, g, y, n, &e), &e);
    for (size_t i = 0; i < n; i++) {
        float want = element(g->ranks[0], i);
        double want_f64 = (double)element(g->ranks[0], i) / 3;
        for (uint32_t k = 1; k < g->n; k++) {
            want += element(g->ranks[k], i);
            want_f64 += (double)element(g->ranks[k], i) / 3;
        }
        rank_check(memcmp(&x[i], &want, sizeof want) == 0);
        rank_check(memcmp(&y[i], &want_f64, sizeof want_f64) == 0);
    }
    q_free(x);
    q_free(y);
}

static void check_gather(struct transport *t, const struct transport_group *g, size_t n)
{
    unsigned char *own = q_alloc(n + 1), *all = q_alloc(n * g->n + 1), *want = q_alloc(n + 1);
    struct q_err e = Q_ERR_INIT;
    fill(own, n, transport_rank(t));
    rank_ok(transport_gather(t, g, own, n, all, &e), &e);
    for (uint32_t i = 0; i < g->n; i++) {
        fill(want, n, g->ranks[i]);
        rank_check(memcmp(all + i * n, want, n) == 0);
    }
    rank_ok(transport_broadcast(t, g, g->n - 1, own, n, &e), &e);
    rank_check(memcmp(own, want, n) == 0);
    uint64_t most = transport_rank(t) * 10;
    rank_ok(transport_max(t, g, &most, &e), &e);
    rank_check(most == g->ranks[g->n - 1] * 10);
    q_free(own);
    q_free(all);
    q_free(want);
}

static void run_groups(struct transport *t, void *arg)
{
    static const size_t sizes[] = {0, 1, 7, 1000, 4096, 4097, 131072, 600011};
    static const uint32_t ends[] = {0, 2};
    const struct transport_group all = transport_all(t);
    (void)arg;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_sum(t, &all, sizes[i]);
        check_gather(t, &all, sizes[i]);
        if (transport_size(t) > 2 && transport_rank(t) % 2 == 0 && transport_rank(t) <= 2)
            check_sum(t, &(struct transport_group){ends, 2}, sizes[i]);
    }
    transport_close(t);
}

static void test_groups(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 5; n++)
        ranks_run_well(n, run_groups, NULL);
}

static void run_wrong_groups(struct transport *t, void *arg)
{
    static const uint32_t without[] = {1, 2}, wrong[] = {1, 0};
    struct q_err e = Q_ERR_INIT;
    float x = 0;
    (void)arg;
    if (transport_rank(t) == 0)
        rank_check(transport_sum_f32(t, &(struct transport_group){without, 2}, &x, 1, &e) ==
                   Q_INVALID);
    rank_check(transport_sum_f32(t, &(struct transport_group){wrong, 2}, &x, 1, &e) == Q_INVALID);
    struct transport_message m = {9, 0, 1};
    rank_check(transport_send(t, &m, &x, &e) == Q_INVALID);
    transport_close(t);
}

static void test_wrong_groups(void **state)
{
    (void)state;
    ranks_run_well(2, run_wrong_groups, NULL);
}

/* ---- ends ---- */

static void expect_error(enum q_code rc, enum q_code want, const char *part, const struct q_err *e)
{
    if (rc == want && strstr(e->message, part))
        return;
    fprintf(stderr, "got %s \"%s\", wanted %s with \"%s\"\n", q_code_name(rc), e->message,
            q_code_name(want), part);
    _exit(RANK_WRONG);
}

/* Rank 1 dies after its first message; rank 0 waits for it, rank 2 for rank 0. */
static void run_death(struct transport *t, void *arg)
{
    static unsigned char data[100000];
    struct q_err e = Q_ERR_INIT;
    const uint32_t me = transport_rank(t);
    struct transport_message m = {me == 2 ? 0 : 1, 0, sizeof data};
    const char *cause = arg;
    if (me == 1) {
        m.peer = 0;
        rank_ok(transport_send(t, &m, data, &e), &e);
        rank_ok(transport_flush(t, &e), &e);
        if (!cause)
            kill(getpid(), SIGKILL);
        transport_fail(t, cause);
        return;
    }
    if (me == 0)
        rank_ok(transport_receive(t, &m, data, &e), &e);
    enum q_code rc = transport_receive(t, &m, data, &e);
    expect_error(rc, Q_IO, "rank 1 has", &e);
    expect_error(rc, Q_IO, cause ? cause : "died", &e);
    rank_check(transport_peer_failed(t));
    q_err_reset(&e);
    m.peer = 2 - me; /* nothing goes on */
    expect_error(transport_send(t, &m, data, &e), Q_IO, "rank 1 has", &e);
    float x = 1;
    struct transport_group all = transport_all(t);
    expect_error(transport_sum_f32(t, &all, &x, 1, &e), Q_IO, "rank 1 has", &e);
    transport_fail(t, e.message);
}

static void test_death(void **state)
{
    (void)state;
    int statuses[RANKS_RUN_MAX];
    ranks_run(3, run_death, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_true(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL);
    assert_int_equal(statuses[2], 0);
    ranks_run_well(3, run_death, "no space left on the disk");
}

/* A rank that ends while others still need it, sizes and calls that differ. */
static void run_mistakes(struct transport *t, void *arg)
{
    const uint32_t me = transport_rank(t), which = *(uint32_t *)arg;
    struct transport_group all = transport_all(t);
    struct transport_message m = {1 - me, 0, 4 + me};
    struct q_err e = Q_ERR_INIT;
    char data[8] = {0};
    float x = 0;
    uint64_t y = 0;
    if (which == 0 && me == 1) {
        expect_error(transport_receive(t, &m, data, &e), Q_IO, "rank 0 has ended its run", &e);
    } else if (which == 1) {
        rank_ok(transport_send(t, &m, data, &e), &e);
        m.n = 4 + me;
        expect_error(transport_receive(t, &m, data, &e), Q_MISMATCH,
                     me ? "has sent 4 bytes with tag 0, rank 1 expects 5" : "has sent 5 bytes", &e);
    } else if (which == 2) {
        enum q_code rc =
            me ? transport_max(t, &all, &y, &e) : transport_sum_f32(t, &all, &x, 1, &e);
        expect_error(rc, Q_MISMATCH, "another function of a group", &e);
    }
    if (which == 0)
        transport_close(t);
    else /* when the other one has seen its own mistake */
        (void)usleep(200000), transport_fail(t, "a mistake");
}

static void test_mistakes(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 3; which++)
        ranks_run_well(2, run_mistakes, &which);
}

/* ---- one rank, and environments that no launcher makes ---- */

static void test_alone(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct transport *t;
    float x[3] = {1, 2, 3}, back[3];
    assert_ok(transport_open(&t, &e), &e);
    assert_int_equal(transport_size(t), 1);
    struct transport_group all = transport_all(t);
    assert_ok(transport_sum_f32(t, &all, x, 3, &e), &e);
    assert_true(x[0] == 1 && x[2] == 3);
    struct transport_message a = {0, 1, sizeof x}, b = {0, 2, 4};
    assert_ok(transport_send(t, &a, x, &e), &e);
    assert_ok(transport_send(t, &b, x + 1, &e), &e);
    assert_ok(transport_receive(t, &b, back, &e), &e);
    assert_true(back[0] == 2);
    assert_ok(transport_receive(t, &a, back, &e), &e);
    assert_memory_equal(back, x, sizeof x);
    assert_ok(transport_flush(t, &e), &e);
    assert_fails(transport_receive(t, &a, back, &e), Q_INVALID, "a message of its own", &e);
    transport_close(t);
    transport_close(NULL);
    assert_ok(transport_open(&t, &e), &e);
    for (uint32_t i = 0; i < TRANSPORT_SENDS; i++)
        assert_ok(transport_send(t, &a, x, &e), &e);
    assert_fails(transport_send(t, &a, x, &e), Q_INVALID, "would wait for itself", &e);
    transport_close(t);
}

static void test_environment(void **state)
{
    (void)state;
    static const struct {
        const char *size, *rank, *sockets, *error;
    } wrong[] = {
        {"", "0", "-", TRANSPORT_SIZE},     {"0", "0", "-", TRANSPORT_SIZE},
        {"65", "0", "-", TRANSPORT_SIZE},   {"2", "2", "-,-", TRANSPORT_RANK},
        {"2", NULL, "-,-", TRANSPORT_RANK}, {"2", "0", NULL, TRANSPORT_SOCKETS},
        {"2", "0", "-", TRANSPORT_SOCKETS}, {"2", "0", "-,x", TRANSPORT_SOCKETS},
        {"2", "1", "-,-", "SOCKETS"},       {"2", "0", "-,999", "no open socket"},
        {"2", "0", "-,0,0", "socket"},      {"1", "0", "3", "to itself"},
        {"1", "0", "-,3", "more than 1"},
    };
    struct q_err e = Q_ERR_INIT;
    struct transport *t;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv(TRANSPORT_SIZE, wrong[i].size, 1);
        unsetenv(TRANSPORT_RANK);
        unsetenv(TRANSPORT_SOCKETS);
        if (wrong[i].rank)
            setenv(TRANSPORT_RANK, wrong[i].rank, 1);
        if (wrong[i].sockets)
            setenv(TRANSPORT_SOCKETS, wrong[i].sockets, 1);
        assert_fails(transport_open(&t, &e), Q_INVALID, wrong[i].error, &e);
        assert_null(t);
    }
    unsetenv(TRANSPORT_SIZE);
    unsetenv(TRANSPORT_RANK);
    unsetenv(TRANSPORT_SOCKETS);
}

static void run_no_memory(struct transport *t, void *arg)
{
    static char data[100000];
    struct transport_message m = {transport_rank(t), 1, sizeof data};
    struct q_err e = Q_ERR_INIT;
    (void)arg;
    mem_fail_after(0);
    expect_error(transport_send(t, &m, data, &e), Q_NO_MEMORY, "100000 bytes", &e);
    struct transport *other;
    expect_error(transport_open(&other, &e), Q_NO_MEMORY, "no memory", &e);
    mem_fail_after(1);
    expect_error(transport_open(&other, &e), Q_NO_MEMORY, "no memory", &e);
    mem_fail_after(-1);
    rank_check(other == NULL);
    transport_fail(t, "no memory");
}

static void test_no_memory(void **state)
{
    (void)state;
    ranks_run_well(2, run_no_memory, NULL);
}

/* ---- mpirun ---- */

/* This program as a rank of mpirun. */
static int run_mpi_rank(const char *what)
{
    struct q_err e = Q_ERR_INIT;
    struct transport *t;
    alarm(RANK_SECONDS);
    rank_ok(transport_open(&t, &e), &e);
    setenv(TRANSPORT_RANK, transport_rank(t) ? "1 or more" : "0", 1); /* for messages alone */
    if (strcmp(what, "both-ways") == 0) {
        rank_check(transport_size(t) == 2);
        run_both_ways(t, NULL);
    } else if (strcmp(what, "groups") == 0) {
        rank_check(transport_size(t) == 3);
        run_groups(t, NULL);
    } else if (strcmp(what, "many") == 0) {
        run_many(t, NULL);
    } else { /* rank 1 fails while the others wait for it */
        char data[4];
        struct transport_message m = {1, 0, sizeof data};
        if (transport_rank(t) == 1) {
            transport_fail(t, "a failure");
            return 7;
        }
        (void)!transport_receive(t, &m, data, &e);
        return 8;
    }
    return 0;
}

static int run_mpirun(const char *n, const char *what)
{
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = 0;
    const char *argv[] = {
        "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", n, self, "mpi-rank", what, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        alarm(RANK_SECONDS);
        setenv("OMPI_MCA_plm_rsh_agent", "/bin/false", 1); /* one machine needs no ssh */
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);       /* Open MPI frees little at its end */
        execvp("mpirun", (char *const *)(uintptr_t)argv);
        _exit(errno == ENOENT ? 127 : 126);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Libraries that are none, and that are not Open MPI. */
static void test_mpi_library(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct transport *t;
    setenv("PMIX_RANK", "0", 1);
    setenv("QUIRE_MPI_LIBRARY", "/no/libmpi.so", 1);
    assert_fails(transport_open(&t, &e), Q_UNSUPPORTED, "/no/libmpi.so: cannot open", &e);
    setenv("QUIRE_MPI_LIBRARY", "libm.so.6", 1);
    assert_fails(transport_open(&t, &e), Q_UNSUPPORTED,
                 "has no MPI_Init_thread: it is not Open MPI", &e);
    assert_null(t);
    unsetenv("QUIRE_MPI_LIBRARY");
    unsetenv("PMIX_RANK");
}

static void test_mpirun(void **state)
{
    (void)state;
    int code = run_mpirun("2", "both-ways");
    if (code == 127)
        skip_without("mpirun (Debian: openmpi-bin)");
    assert_int_equal(code, 0);
    assert_int_equal(run_mpirun("3", "groups"), 0);
    assert_int_equal(run_mpirun("4", "many"), 0);
    assert_int_equal(run_mpirun("3", "failure"), 7);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways),     cmocka_unit_test(test_many),
        cmocka_unit_test(test_two_under_way), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_wrong_groups),  cmocka_unit_test(test_death),
        cmocka_unit_test(test_mistakes),      cmocka_unit_test(test_alone),
        cmocka_unit_test(test_environment),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_mpi_library),   cmocka_unit_test(test_mpirun),
    };
    if (argc > 2 && strcmp(argv[1], "mpi-rank") == 0)
        return run_mpi_rank(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
