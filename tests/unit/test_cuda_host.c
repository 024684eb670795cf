/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_host: kernels/cuda/device.c and trials.c, as they are, on a CUDA runtime without a card
 * (tests/cuda/fake_cuda.h): streams, events, copies, graphs and trials, with the n-th call that
 * fails, with the k-th kernel that ruins the device, crashes or hangs, and with work done at once
 * or as late as may be. The last tests show that the runtime finds what is not legal. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "common/file.h"
#include "fake_cuda.h"
#include "folder.h"
#include "kernels/device.h"

__attribute__((visibility("default"))) const struct device_table *quire_device_7(void);

#define ROWS 3u
#define COLS 64u
#define N    (ROWS * COLS)

static float ms; /* of two events of the last run */

struct run { /* what one run of all functions has and leaves */
    const struct device_table *t;
    struct device *d;
    struct device_stream *s, *other;
    struct device_event *v, *w;
    struct device_graph *g;
    void *host, *card;
    float *out; /* [N], of host */
};

static void launch_norm(const struct run *r, struct device_stream *s)
{
    float *x = r->card;
    const struct norm_rows_args norm = {
        .y = x + 2 * N,
        .y_dtype = DT_F32,
        .x = x,
        .w = x + N,
        .n_row = ROWS,
        .n_col = COLS,
        .x_stride = COLS,
        .y_stride = COLS,
        .eps = 1e-5f,
    };
    r->t->kern(r->d)->norm_rows(&norm, &(struct kern_exec){.nth = 1, .stream = s});
}

static FALLIBLE open_all(struct run *r, struct q_err *e)
{
    const struct device_options o = {.deterministic = true};
    uint64_t left, all;
    enum q_code rc;
    if ((rc = r->t->open(&r->d, &o, e)) || (rc = r->t->memory(r->d, &left, &all, e)) ||
        (rc = r->t->stream_new(r->d, &r->s, e)) || (rc = r->t->stream_new(r->d, &r->other, e)) ||
        (rc = r->t->event_new(r->d, &r->v, e)) || (rc = r->t->event_new(r->d, &r->w, e)) ||
        (rc = r->t->host_alloc(r->d, &r->host, 3 * N * sizeof(float), "a test", e)))
        return rc;
    return r->t->alloc(r->d, &r->card, 4 * N * sizeof(float), "a test", e);
}

/* x and weights to the card by one stream; norms by the other, twice by a graph; and back. */
static FALLIBLE work(struct run *r, struct q_err *e)
{
    const struct device_table *t = r->t;
    float *host = r->host, *card = r->card;
    enum q_code rc;
    for (uint32_t i = 0; i < 2 * N; i++)
        host[i] = (float)(i % 37) / 8 - 2;
    t->event_record(r->v, r->s);
    t->copy(r->s, card, host, N * sizeof(float));
    t->copy_rows(r->s, &(struct device_rows){card + N, host + N, COLS * 4, COLS * 4, COLS * 4, 1});
    t->fill(r->s, card + 3 * N, 0, N * sizeof(float));
    t->event_record(r->w, r->s);
    t->stream_wait(r->other, r->w);
    if ((rc = t->graph_begin(r->other, e)))
        return rc;
    launch_norm(r, r->other);
    t->copy(r->other, card, card + 2 * N, N * sizeof(float));
    if ((rc = t->graph_end(r->other, &r->g, e)))
        return rc;
    t->graph_launch(r->g, r->other);
    t->graph_launch(r->g, r->other);
    launch_norm(r, r->other);
    t->copy(r->other, host + 2 * N, card + 2 * N, N * sizeof(float));
    t->event_record(r->w, r->other);
    if ((rc = t->check(r->d, e)))
        return rc;
    for (uint32_t i = 0; i < 100 && !t->event_done(r->w); i++)
        assert_true(i < 99);
    if ((rc = t->event_wait(r->w, e)) || (rc = t->sync(r->s, e)) || (rc = t->sync(r->other, e)))
        return rc;
    ms = t->event_ms(r->v, r->w);
    return t->check(r->d, e);
}

static void close_all(struct run *r)
{
    const struct device_table *t = r->t;
    if (!r->d)
        return;
    t->graph_free(r->g);
    t->event_free(r->v);
    t->event_free(r->w);
    t->stream_free(r->s);
    t->stream_free(r->other);
    if (r->card)
        t->release(r->d, r->card);
    if (r->host)
        t->host_free(r->d, r->host);
    t->close(r->d);
}

/* out: [N] or NULL. */
static FALLIBLE run_all(float *out, struct q_err *e)
{
    struct run r = {.t = quire_device_7()};
    enum q_code rc = open_all(&r, e);
    if (!rc)
        rc = work(&r, e);
    if (!rc && out)
        memcpy(out, (float *)r.host + 2 * N, N * sizeof *out);
    close_all(&r);
    return rc;
}

static void begin(int major)
{
    fake_cuda_begin();
    fake_cuda.major = major;
}

static void results_do_not_depend_on_time(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    float late[N], early[N];
    begin(8);
    assert_ok(run_all(late, &e), &e);
    assert_int_equal(fake_cuda.n_kernel, 3);
    assert_int_equal(fake_cuda.n_graph_launch, 2);
    begin(8);
    fake_cuda.early = true;
    assert_ok(run_all(early, &e), &e);
    assert_memory_equal(late, early, sizeof late);
    assert_true(late[5] != late[6] && late[5] - late[5] == 0);
}

/* A failed call of these changes nothing that a caller reads. */
static bool is_release(const char *call)
{
    static const char *const names[] = {
        "cudaFree",         "cudaFreeHost",         "cudaStreamDestroy",   "cudaEventDestroy",
        "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaEventElapsedTime"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(call, names[i]))
            return true;
    return false;
}

/* Every call fails once: the failure is returned, with its reason, and nothing is left behind. */
static void every_call_may_fail(void **state)
{
    (void)state;
    uint32_t n = 0, n_failed = 0;
    do {
        struct q_err e = Q_ERR_INIT;
        begin(8);
        fake_cuda.fail_at = ++n;
        const enum q_code rc = run_all(NULL, &e);
        if (!fake_cuda.failed)
            assert_ok(rc, &e);
        else if (is_release(fake_cuda.failed))
            assert_true(!rc || strstr(e.message, "CUDA"));
        else if (!rc)
            fail_msg("call %u, %s: its failure is lost", n, fake_cuda.failed);
        else
            assert_non_null(strstr(e.message, "CUDA: "));
        assert_int_equal(fake_cuda_n_object(), 0);
        n_failed += rc != Q_OK;
    } while (fake_cuda.failed);
    assert_in_range(n_failed, 25, n);
}

/* A kernel that ruins the device: its error is returned, also by all that follows. */
static void every_kernel_may_ruin_the_device(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 3; k++) {
        struct q_err e = Q_ERR_INIT;
        begin(8);
        fake_cuda.fault_at = k;
        assert_true(run_all(NULL, &e) == Q_IO);
        assert_non_null(strstr(e.message, "unspecified launch failure"));
        assert_int_equal(fake_cuda_n_object(), 0);
    }
}

static void a_machine_without_a_card(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    begin(8);
    fake_cuda.n_device = 0;
    assert_true(run_all(NULL, &e) == Q_NOT_FOUND);
    begin(7);
    assert_true(run_all(NULL, &e) == Q_UNSUPPORTED);
    assert_non_null(strstr(e.message, "compute capability 7.0; 8.0 or newer"));
    begin(8);
    fake_cuda.total_bytes = 1000;
    assert_true(run_all(NULL, &e) == Q_NO_MEMORY);
    assert_int_equal(fake_cuda_n_object(), 0);
}

/* ---- trials ---- */

/* Open and close a card; note: what it says about its trials, of DEVICE_NOTE_MAX bytes. */
static FALLIBLE open_once(char *note, const char *dir, bool deterministic, struct q_err *e)
{
    const struct device_options o = {.deterministic = deterministic, .tune_dir = dir};
    struct run r = {.t = quire_device_7()};
    enum q_code rc = r.t->open(&r.d, &o, e);
    *note = '\0';
    if (!rc)
        snprintf(note, DEVICE_NOTE_MAX, "%s", r.t->props(r.d)->note);
    close_all(&r);
    assert_int_equal(fake_cuda_n_object(), 0);
    return rc;
}

static void assert_note(const char *dir, bool deterministic, const char *part)
{
    struct q_err e = Q_ERR_INIT;
    char note[DEVICE_NOTE_MAX];
    assert_ok(open_once(note, dir, deterministic, &e), &e);
    if (!strstr(note, part))
        fail_msg("\"%s\" lacks \"%s\"", note, part);
    assert_int_equal(fake_cuda.n_kernel, 0); /* this process ran none */
}

#define ALL_WGMMA                                                                       \
    "wgmma: attention, bf16, f16, int8, fp8, grouped-bf16, grouped-f16, grouped-int8, " \
    "grouped-fp8"

/* The trials run once for a card, a driver and a build; what their results mean depends on how the
 * card is opened. */
static void trials_choose_the_kernels(void **state)
{
    struct folder f;
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    (void)state;
    folder_init(&f);
    begin(9);
    assert_note(f.path, false, "kernels begin early; " ALL_WGMMA);
    begin(9);
    fake_cuda.crash_at = 1; /* a trial would show it */
    assert_note(f.path, false, "kernels begin early; " ALL_WGMMA);
    assert_note(f.path, true, "wgmma: attention, int8, grouped-int8; mma.sync: bf16 (");
    assert_note(f.path, true, "; deterministic), f16 (");
    fake_cuda.driver = 13010;
    assert_note(f.path, false, "one after the other (CUDA: no device: initialization error");
    assert_ok(path_join(path, sizeof path, f.path, "emulated-9.0-driver13000.trials", &e), &e);
    assert_ok(file_read(&text, path, 1 << 16, &e), &e);
    assert_non_null(strstr(buf_str(&text), "\nattention compared "));
    assert_non_null(strstr(buf_str(&text), "\noverlap compared 4 0 0\n"));
    text.data[text.len - 30] ^= 1; /* a damaged file is as none: the trials run again */
    assert_ok(file_write(path, text.data, text.len, 0600, &e), &e);
    begin(9);
    fake_cuda.crash_at = 1;
    assert_note(f.path, false, "one after the other (killed by signal 11");
    begin(9); /* and so is the end of a trial remembered */
    assert_note(f.path, false, "mma.sync: attention (killed by signal 11");
    begin(8); /* no kernels that need a trial */
    assert_note(f.path, false, "");
    buf_release(&text);
    folder_release(&f);
}

/* A trial that the device, the process or time ends is a result; the other trials go on. */
static void trials_that_end_badly(void **state)
{
    (void)state;
    begin(9);
    fake_cuda.fault_at = 1;
    assert_note(NULL, false, "mma.sync: attention (CUDA: work of a stream: unspecified launch");
    setenv("QUIRE_CUDA_OFF", "attention,bf16,fp8,grouped", 1);
    begin(9);
    fake_cuda.crash_at = 50; /* a kernel that only the trial of overlapping ones has */
    assert_note(NULL, false,
                "kernels one after the other (killed by signal 11 (Segmentation fault)); "
                "wgmma: int8; ");
    setenv("QUIRE_CUDA_TRIAL_SECONDS", "1", 1);
    setenv("QUIRE_CUDA_OFF", "bf16,int8,fp8,overlap", 1);
    begin(9);
    fake_cuda.hang_at = 1;
    assert_note(NULL, false, "mma.sync: attention (no end after 1 s), bf16 (QUIRE_CUDA_OFF)");
    unsetenv("QUIRE_CUDA_TRIAL_SECONDS");
    unsetenv("QUIRE_CUDA_OFF");
}

/* No process can try kernels when its parent has used CUDA; what needs a trial is not used then,
 * and the next start may try. */
static void trials_after_cuda_was_used(void **state)
{
    struct folder f;
    (void)state;
    folder_init(&f);
    setenv("QUIRE_CUDA_OFF", "attention,bf16,fp8,overlap", 1);
    begin(9);
    assert_note(NULL, false, "wgmma: int8, grouped-int8; ");
    assert_note(f.path, false, "int8 (CUDA: no device: initialization error");
    begin(9);
    assert_note(f.path, false, "wgmma: int8, grouped-int8; ");
    unsetenv("QUIRE_CUDA_OFF");
    folder_release(&f);
}

static void trials_may_be_skipped(void **state)
{
    struct q_err e = Q_ERR_INIT;
    char note[DEVICE_NOTE_MAX];
    (void)state;
    setenv("QUIRE_CUDA_OFF", "wgmma,overlap", 1);
    begin(9);
    fake_cuda.crash_at = 1;
    assert_note(
        NULL, false,
        "kernels one after the other (QUIRE_CUDA_OFF); mma.sync: attention (QUIRE_CUDA_OFF)");
    setenv("QUIRE_CUDA_OFF", "attention,grouped,fp8,bf16", 1);
    begin(9);
    assert_note(NULL, false, "wgmma: int8; mma.sync: attention (QUIRE_CUDA_OFF), bf16");
    setenv("QUIRE_CUDA_OFF", "int4", 1);
    begin(9);
    assert_fails(open_once(note, NULL, false, &e), Q_INVALID,
                 "QUIRE_CUDA_OFF: \"int4\" is none of attention, bf16,", &e);
    unsetenv("QUIRE_CUDA_OFF");
}

/* ---- what is not legal ---- */

static void pageable_copy(struct run *r)
{
    static float x[4];
    r->t->copy(r->s, r->card, x, sizeof x);
}

static void copy_beyond_the_end(struct run *r)
{
    r->t->copy(r->s, (float *)r->card + 3 * N, r->host, N * sizeof(float) + 1);
}

static void allocation_in_a_capture(struct run *r)
{
    struct q_err e = Q_ERR_INIT;
    void *p = NULL;
    assert_ok(r->t->graph_begin(r->s, &e), &e);
    (void)r->t->alloc(r->d, &p, 64, "a test", &e);
}

static void waiting_in_a_capture(struct run *r)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(r->t->graph_begin(r->s, &e), &e);
    (void)r->t->sync(r->other, &e);
}

static void an_event_in_a_capture(struct run *r)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(r->t->graph_begin(r->s, &e), &e);
    r->t->event_record(r->v, r->s);
}

static void a_capture_in_a_capture(struct run *r)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(r->t->graph_begin(r->s, &e), &e);
    (void)r->t->graph_begin(r->other, &e);
}

static void a_graph_of_freed_memory(struct run *r)
{
    struct q_err e = Q_ERR_INIT;
    assert_ok(r->t->graph_begin(r->s, &e), &e);
    r->t->copy(r->s, r->card, r->host, 64);
    assert_ok(r->t->graph_end(r->s, &r->g, &e), &e);
    r->t->release(r->d, r->card);
    r->t->graph_launch(r->g, r->s);
    (void)r->t->sync(r->s, &e);
}

static void memory_freed_twice(struct run *r)
{
    r->t->release(r->d, r->card);
    r->t->release(r->d, r->card);
}

static void time_of_an_event_to_come(struct run *r)
{
    r->t->event_record(r->v, r->s);
    r->t->event_record(r->w, r->s);
    (void)r->t->event_ms(r->v, r->w);
}

static void device_memory_read_by_the_host(struct run *r)
{
    r->t->fill(r->s, r->card, 0, 64);
    _exit(*(volatile char *)r->card); /* SIGSEGV */
}

/* In a process of its own, which ends; out: what it writes. */
static int misuse(void (*fn)(struct run *), char *out, size_t n)
{
    int fds[2], status = 0;
    assert_int_equal(pipe(fds), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct run r = {.t = quire_device_7()};
        struct q_err e = Q_ERR_INIT;
        dup2(fds[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); /* not the test library's */
        if (open_all(&r, &e))
            _exit(3);
        fn(&r);
        _exit(0);
    }
    close(fds[1]);
    ssize_t got = 0, more;
    while ((more = read(fds[0], out + got, n - 1 - (size_t)got)) > 0)
        got += more;
    out[got] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void what_is_not_legal_is_found(void **state)
{
    static const struct {
        void (*fn)(struct run *);
        const char *text;
    } cases[] = {
        {pageable_copy, "a copy from memory that is neither the card's nor pinned"},
        {copy_beyond_the_end, "a copy to memory"},
        {allocation_in_a_capture, "cudaMalloc in the thread of a capture"},
        {waiting_in_a_capture, "cudaStreamSynchronize in the thread of a capture"},
        {an_event_in_a_capture, "cudaEventRecord in a capture"},
        {a_capture_in_a_capture, "cudaStreamBeginCapture within a capture"},
        {a_graph_of_freed_memory, "has ended; when it is done"},
        {memory_freed_twice, "cudaFree of memory that does not exist"},
        {time_of_an_event_to_come, "before both events have happened"},
    };
    char said[400];
    (void)state;
    begin(8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int status = misuse(cases[i].fn, said, sizeof said);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 134 || !strstr(said, cases[i].text))
            fail_msg("case %zu: status %d, %s", i, status, said);
    }
    const int status = misuse(device_memory_read_by_the_host, said, sizeof said);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_time),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(every_kernel_may_ruin_the_device),
        cmocka_unit_test(a_machine_without_a_card),
        cmocka_unit_test(trials_choose_the_kernels),
        cmocka_unit_test(trials_that_end_badly),
        cmocka_unit_test(trials_after_cuda_was_used),
        cmocka_unit_test(trials_may_be_skipped),
        cmocka_unit_test(what_is_not_legal_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
