/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trials.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/child.h"
#include "common/file.h"
#include "common/parse.h"
#include "kernels/cuda/device_internal.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/trial_attention.h"
#include "kernels/cuda/trial_linear.h"

#define OFF_VARIABLE     "QUIRE_CUDA_OFF"
#define SECONDS_VARIABLE "QUIRE_CUDA_TRIAL_SECONDS"
#define SECONDS_DEFAULT  60
#define SECONDS_MAX      3600
#define LARGE_UNITS      32u /* multiprocessors; fewer are those of tests without a card */

struct trial_board {
    uint32_t index;    /* of the card */
    uint32_t orders;   /* bits of the trials to run */
    int limit_ms;      /* of each */
    enum cuda_trial i; /* the one that runs */
    struct trial_row rows[TRIALS];
};

/* ---- switches ---- */
static const struct {
    const char *word;
    uint32_t off;
} off_words[] = {
    {"attention", OFF_ATTENTION}, {"bf16", OFF_BF16},
    {"int8", OFF_INT8},           {"fp8", OFF_FP8},
    {"grouped", OFF_GROUPED},     {"wgmma", OFF_WGMMA},
    {"overlap", OFF_OVERLAP},     {"cublaslt", OFF_CUBLASLT},
};

FALLIBLE trials_off_parse(uint32_t *off, const char *text, struct q_err *e)
{
    const size_t n_word = sizeof off_words / sizeof *off_words;
    *off = 0;
    for (const char *p = text ? text : ""; *p; p += *p == ',') {
        const size_t n = strcspn(p, ",");
        size_t i = 0;
        while (i < n_word &&
               (strlen(off_words[i].word) != n || strncmp(off_words[i].word, p, n) != 0))
            i++;
        if (i == n_word && n)
            return q_fail(e, Q_INVALID,
                          OFF_VARIABLE ": \"%.*s\" is none of attention, bf16, int8, fp8, grouped, "
                                       "wgmma, overlap, cublaslt",
                          (int)(n < 40 ? n : 40), p);
        *off |= n ? off_words[i].off : 0;
        p += n;
    }
    return Q_OK;
}

static int limit_ms(void)
{
    int64_t seconds = SECONDS_DEFAULT;
    struct q_err e = Q_ERR_INIT;
    const char *text = getenv(SECONDS_VARIABLE);
    if (text && parse_i64(&seconds, text, 1, SECONDS_MAX, SECONDS_VARIABLE, &e))
        seconds = SECONDS_DEFAULT;
    return (int)seconds * 1000;
}

static const uint32_t linear_offs[LINEAR_TYPES] = {OFF_BF16, OFF_BF16, OFF_INT8, OFF_FP8};

static uint32_t off_of(int trial)
{
    if (trial == TRIAL_ATTENTION)
        return OFF_ATTENTION;
    if (trial < TRIAL_GROUPED)
        return linear_offs[trial - TRIAL_LINEAR];
    return trial < TRIAL_OVERLAP ? OFF_GROUPED | linear_offs[trial - TRIAL_GROUPED] : OFF_OVERLAP;
}

/* The kernels that require a trial; 0: that of overlapping streams. */
static uint32_t cap_of(int trial)
{
    static const uint32_t linear[LINEAR_TYPES] = {CAP_SM90A_LINEAR, CAP_SM90A_LINEAR, CAP_SM90A_I8,
                                                  CAP_SM90A_E4M3};
    static const uint32_t grouped[LINEAR_TYPES] = {CAP_SM90A_GROUPED, CAP_SM90A_GROUPED,
                                                   CAP_SM90A_I8_GROUPED, CAP_SM90A_E4M3_GROUPED};
    if (trial == TRIAL_ATTENTION)
        return CAP_SM90A;
    if (trial < TRIAL_GROUPED)
        return linear[trial - TRIAL_LINEAR];
    return trial < TRIAL_OVERLAP ? grouped[trial - TRIAL_GROUPED] : 0;
}

/* ---- one trial, in a process of its own ---- */
static FALLIBLE run_overlap(struct trial_result *out, struct device *d, struct q_err *e)
{
    const struct overlap_size size =
        d->props.n_unit < LARGE_UNITS ? (struct overlap_size){3, 2} : (struct overlap_size){24, 8};
    struct device_link apart = {quire_device_7(), d, NULL}, early = apart;
    enum q_code rc;
    if (!cuda_code_waits())
        return q_fail(e, Q_IO, "the code was compiled for an older card, without waits");
    d->overlaps = false;
    if ((rc = apart.t->stream_new(d, &apart.s, e)))
        return rc;
    d->overlaps = true;
    if (!(rc = early.t->stream_new(d, &early.s, e)))
        rc = overlap_trial_run(out, &apart, &early, size, e);
    apart.t->stream_free(apart.s);
    early.t->stream_free(early.s);
    return rc;
}

static FALLIBLE run_kernels(struct trial_result *out, struct device *d, enum cuda_trial i,
                            struct q_err *e)
{
    struct device_link on = {quire_device_7(), d, NULL};
    struct kern_table tried = d->kern;
    const enum trial_size size = d->props.n_unit < LARGE_UNITS ? TRIAL_SMALL : TRIAL_LARGE;
    const bool grouped = i >= TRIAL_GROUPED;
    enum q_code rc = on.t->stream_new(d, &on.s, e);
    if (rc)
        return rc;
    linear_trial_table(&tried);
    if (i == TRIAL_ATTENTION)
        rc = attention_trial_run(out, &on, d->kern.attention, attention_sm90a_trial, size, e);
    else
        rc = linear_trial_run(out, &on, &d->kern, &tried,
                              (enum linear_type)(i - (grouped ? TRIAL_GROUPED : TRIAL_LINEAR)),
                              grouped, size, e);
    on.t->stream_free(on.s);
    return rc;
}

static void run_trial(void *ctx)
{
    struct trial_board *board = ctx;
    struct trial_row *row = &board->rows[board->i];
    struct device d;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = device_find(&d, board->index, &e);
    if (!rc)
        rc = device_enter(&d, &e);
    const bool was_open = !rc;
    if (!rc) {
        kern_table_cuda(&d.kern, d.kern.caps & ~(uint32_t)CAP_SM90A_ALL);
        rc = board->i == TRIAL_OVERLAP ? run_overlap(&row->result, &d, &e)
                                       : run_kernels(&row->result, &d, board->i, &e);
    }
    snprintf(row->why, sizeof row->why, "%.*s", (int)sizeof row->why - 1, rc ? e.message : "");
    if (!rc)
        row->state = TRIAL_COMPARED;
    else if (was_open && rc == Q_IO) /* anything else may be otherwise at the next start */
        row->state = TRIAL_FAILED;
}

/* ---- the helper ---- */
static __attribute__((format(printf, 2, 3))) void fail_row(struct trial_row *row, const char *fmt,
                                                           ...)
{
    va_list args;
    row->state = TRIAL_FAILED;
    va_start(args, fmt);
    vsnprintf(row->why, sizeof row->why, fmt, args);
    va_end(args);
}

static void run_orders(struct trial_board *b)
{
    for (int i = 0; i < TRIALS; i++) {
        struct trial_row *row = &b->rows[i];
        if (!(b->orders >> i & 1))
            continue;
        b->i = (enum cuda_trial)i;
        const struct child_result r = child_run(run_trial, b, b->limit_ms);
        switch (r.end) {
        case CHILD_DONE:
            break;
        case CHILD_KILLED:
            fail_row(row, "killed by signal %d (%s)", r.number, strsignal(r.number));
            break;
        case CHILD_EXITED:
            fail_row(row, "the process exited with status %d", r.number);
            break;
        case CHILD_HUNG:
            fail_row(row, "no end after %d s", b->limit_ms / 1000);
            break;
        case CHILD_NONE:
            snprintf(row->why, sizeof row->why, "no process could be started");
            break;
        }
    }
}

static _Noreturn void be_helper(struct trial_board *board, int orders, int replies)
{
    char byte = 0;
    ssize_t n;
    while ((n = read(orders, &byte, 1)) < 0 && errno == EINTR)
        ;
    if (n == 1) {
        run_orders(board);
        (void)!write(replies, &byte, 1);
    }
    _exit(0);
}

void trials_prepare(struct trial_helper *h, uint32_t index)
{
    int orders[2], replies[2];
    *h = (struct trial_helper){.orders = -1, .replies = -1};
    void *p =
        mmap(NULL, sizeof *h->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return;
    h->board = p;
    *h->board = (struct trial_board){.index = index, .limit_ms = limit_ms()};
    if (pipe2(orders, O_CLOEXEC))
        return;
    if (pipe2(replies, O_CLOEXEC)) {
        close(orders[0]);
        close(orders[1]);
        return;
    }
    h->pid = fork();
    if (h->pid == 0) {
        close(orders[1]);
        close(replies[0]);
        be_helper(h->board, orders[0], replies[1]);
    }
    h->orders = orders[1];
    h->replies = replies[0];
    close(orders[0]);
    close(replies[1]);
}

void trials_end(struct trial_helper *h)
{
    if (h->orders >= 0)
        close(h->orders);
    if (h->replies >= 0)
        close(h->replies);
    while (h->pid > 0 && waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (h->board)
        munmap(h->board, sizeof *h->board);
    *h = (struct trial_helper){.orders = -1, .replies = -1};
}

/* Run these trials; v gets their rows. */
static void run_missing(struct trial_verdict *v, struct trial_helper *h, uint32_t orders)
{
    char byte = 0;
    ssize_t n = -1;
    if (h->pid > 0) {
        h->board->orders = orders;
        if (write(h->orders, &byte, 1) == 1)
            while ((n = read(h->replies, &byte, 1)) < 0 && errno == EINTR)
                ;
    }
    for (int i = 0; i < TRIALS; i++) {
        if (!(orders >> i & 1))
            continue;
        if (n == 1)
            v->rows[i] = h->board->rows[i];
        else
            snprintf(v->rows[i].why, sizeof v->rows[i].why, "no process for the trial");
    }
}

/* ---- verdict ---- */
/* The file that this code was loaded from. False: it is not known. */
static bool find_library(struct trial_library *out)
{
    const struct device_table *(*entry)(void) = quire_device_7;
    void *address;
    Dl_info info;
    struct stat st;
    memcpy(&address, &entry, sizeof address); /* ISO C has no cast for it */
    if (!dladdr(address, &info) || !info.dli_fname || stat(info.dli_fname, &st))
        return false;
    out->bytes = (uint64_t)st.st_size;
    out->mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    return true;
}

static uint32_t missing(const struct trial_verdict *v, uint32_t wanted)
{
    for (int i = 0; i < TRIALS; i++)
        if (v->rows[i].state != TRIAL_NOT_RUN)
            wanted &= ~(1u << i);
    return wanted;
}

/* Processes that open cards of one kind at once wait for the first one's trials. -1: no lock. */
static int lock_dir(const char *dir)
{
    char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    int fd, rc;
    if (card_file_make_dirs(dir, &e) || path_join(path, sizeof path, dir, "trials.lock", &e) ||
        (fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0)
        return -1;
    while ((rc = flock(fd, LOCK_EX)) < 0 && errno == EINTR)
        ;
    if (rc == 0)
        return fd;
    close(fd);
    return -1;
}

static void fill_verdict(struct trial_verdict *v, const struct device *d, struct trial_helper *h,
                         uint32_t wanted)
{
    struct q_err e = Q_ERR_INIT;
    struct card card = {
        .major = d->props.major,
        .minor = d->props.minor,
        .driver = d->props.driver,
    };
    struct trial_library library = {0};
    snprintf(card.name, sizeof card.name, "%s", d->props.name);
    const char *dir = find_library(&library) ? d->tune_dir : NULL;
    *v = (struct trial_verdict){0};
    if (dir && trial_verdict_load(v, &card, &library, dir, &e) == Q_OK && !missing(v, wanted))
        return;
    const int lock = dir ? lock_dir(dir) : -1;
    q_err_reset(&e);
    if (lock >= 0 && trial_verdict_load(v, &card, &library, dir, &e))
        q_err_reset(&e); /* as before: no file, or none that is of use */
    const uint32_t orders = missing(v, wanted);
    if (orders)
        run_missing(v, h, orders);
    if (orders && dir && trial_verdict_save(v, &card, &library, dir, &e))
        q_err_reset(&e); /* the next start runs the trials again */
    if (lock >= 0)
        close(lock);
}

static bool holds(const struct trial_row *row, int i, bool same_bits)
{
    const struct trial_result *r = &row->result;
    if (row->state != TRIAL_COMPARED)
        return false;
    if (i == TRIAL_ATTENTION)
        return attention_trial_holds(r, same_bits);
    if (i == TRIAL_OVERLAP)
        return r->n > 0 && r->n_differ == 0;
    return linear_trial_holds(
        r, (enum linear_type)(i - (i < TRIAL_GROUPED ? TRIAL_LINEAR : TRIAL_GROUPED)), same_bits);
}

static void explain(char *out, size_t n, const struct trial_row *row, bool is_off, bool same_bits)
{
    if (is_off)
        snprintf(out, n, "%s", OFF_VARIABLE);
    else if (row->state != TRIAL_COMPARED)
        snprintf(out, n, "%.60s", row->why);
    else
        snprintf(out, n, "%u of %u differ, by %.2g%s", row->result.n_differ, row->result.n,
                 row->result.worst, same_bits ? "; deterministic" : "");
}

static void print_note(struct device *d, const struct trial_verdict *v, uint32_t wanted,
                       uint32_t off, bool same_bits)
{
    struct buf used = BUF_INIT, unused = BUF_INIT;
    char why[TRIAL_WHY_MAX];
    for (int i = 0; i < TRIAL_OVERLAP; i++) {
        const struct trial_row *row = &v->rows[i];
        if (holds(row, i, same_bits) && wanted >> i & 1) {
            buf_printf(&used, "%s%s", used.len ? ", " : "wgmma: ", trial_names[i]);
            continue;
        }
        explain(why, sizeof why, row, off_of(i) & off, same_bits);
        buf_printf(&unused, "%s%s (%s)", unused.len ? ", " : "mma.sync: ", trial_names[i], why);
    }
    if (d->overlaps)
        snprintf(why, sizeof why, "begin early");
    else {
        char reason[TRIAL_WHY_MAX];
        explain(reason, sizeof reason, &v->rows[TRIAL_OVERLAP], off & OFF_OVERLAP, false);
        snprintf(why, sizeof why, "one after the other (%.70s)", reason);
    }
    snprintf(d->props.note, sizeof d->props.note, "by trial: kernels %s; %s%s%s", why,
             buf_str(&used), used.len && unused.len ? "; " : "", buf_str(&unused));
    buf_release(&used);
    buf_release(&unused);
}

void trials_decide(struct device *d, struct trial_helper *h, uint32_t off, bool same_bits)
{
    const uint32_t all = d->kern.caps;
    struct trial_verdict v;
    uint32_t wanted = 0, held = all & CAP_SM90A_ALL;
    if (!(all & CAP_SM90A_ALL))
        return;
    for (int i = 0; i < TRIALS; i++)
        if (!(off_of(i) & off))
            wanted |= 1u << i;
    fill_verdict(&v, d, h, wanted);
    for (int i = 0; i < TRIALS; i++)
        if (!(wanted >> i & 1) || !holds(&v.rows[i], i, same_bits))
            held &= ~cap_of(i);
    kern_table_cuda(&d->kern, (all & ~(uint32_t)CAP_SM90A_ALL) | held);
    d->overlaps =
        (wanted >> TRIAL_OVERLAP & 1) && holds(&v.rows[TRIAL_OVERLAP], TRIAL_OVERLAP, same_bits);
    print_note(d, &v, wanted, off, same_bits);
}
