/* SPDX-License-Identifier: Apache-2.0 */
/* One row is multiplied with pieces of the memory, by the readings in turn, so that another program
 * which slows the machine slows all of them; each has the median of its rounds. What the memory
 * holds does not matter: x is 0, and nobody reads the product. */
#include "kernels/bench/reading.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/mem.h"

#define N_IN       4096u
#define N_OUT      256u /* of a thread: 2 MiB of bf16 */
#define GROUP      128u /* of 4-bit weights */
#define ROUNDS_MAX 32
#define GAIN       0.95 /* of the default's time, at most: more is noise */
#define FILE_BYTES 64

struct probe {
    const struct kern_table *kern;
    struct packed w;
    float *y;
    char *zeros; /* x, and its sums */
    char *scratch;
    size_t scratch_bytes; /* of a thread */
};

static struct kern_exec exec_of(const struct probe *p, uint32_t ith, uint32_t nth)
{
    return (struct kern_exec){
        .ith = ith,
        .nth = nth,
        .scratch = p->scratch + ith * p->scratch_bytes,
        .scratch_bytes = p->scratch_bytes,
    };
}

static void run_floats(void *arg, uint32_t ith, uint32_t nth)
{
    const struct probe *p = arg;
    const struct kern_exec x = exec_of(p, ith, nth);
    const struct linear_args a = {
        .y = p->y,
        .x = p->zeros,
        .x_dtype = DT_BF16,
        .w = p->w,
        .n_row = 1,
        .x_stride = N_IN,
        .y_stride = p->w.n_out,
    };
    p->kern->linear(&a, &x);
}

static void run_ints(void *arg, uint32_t ith, uint32_t nth)
{
    const struct probe *p = arg;
    const struct quant_row row = {1, 0};
    const struct kern_exec x = exec_of(p, ith, nth);
    struct linear_w4a8_args a = {.sums = (const int16_t *)p->zeros};
    a.by = (struct linear_int8_args){
        .y = p->y,
        .x = (const int8_t *)p->zeros,
        .rows = &row,
        .w = p->w,
        .n_row = 1,
        .x_stride = N_IN,
        .y_stride = p->w.n_out,
    };
    if (p->w.group)
        p->kern->linear_w4a8(&a, &x);
    else
        p->kern->linear_int8(&a.by, &x);
}

static const struct {
    team_fn *run;
    enum dtype dtype;
    uint32_t group;
} products[KERN_PRODUCTS] = {
    [KERN_PRODUCT_FLOATS] = {run_floats, DT_BF16, 0},
    [KERN_PRODUCT_INT8] = {run_ints, DT_I8, 0},
    [KERN_PRODUCT_INT4] = {run_ints, DT_I8, GROUP},
};

static size_t bytes_of(enum kern_product of, uint32_t n_out)
{
    return of == KERN_PRODUCT_FLOATS ? packed_bytes(DT_BF16, n_out, N_IN)
           : of == KERN_PRODUCT_INT8 ? packed_int8_bytes(n_out, N_IN)
                                     : packed_int4_bytes(n_out, N_IN, GROUP);
}

static int compare_f64(const void *p, const void *q)
{
    const double a = *(const double *)p, b = *(const double *)q;
    return (a > b) - (a < b);
}

/* The fastest reading; the default unless another is faster by a twentieth. */
static const struct kern_reading *fastest(double ratio[KERN_READINGS][ROUNDS_MAX], int n)
{
    const struct kern_reading *best = KERN_READING_DEFAULT;
    double least = GAIN;
    for (int i = 0; i < KERN_READINGS && n; i++) {
        qsort(ratio[i], (size_t)n, sizeof *ratio[i], compare_f64);
        if (ratio[i][n / 2] < least) {
            least = ratio[i][n / 2];
            best = &kern_readings[i];
        }
    }
    return best;
}

static const struct kern_reading *probe_product(struct team *team, struct probe *p,
                                                const struct reading_memory *m,
                                                enum kern_product of)
{
    double ratio[KERN_READINGS][ROUNDS_MAX];
    const size_t piece = bytes_of(of, p->w.n_out);
    const int64_t start = clock_us();
    struct kern_readings by = kern_readings_taken();
    int n = 0;
    p->w.dtype = products[of].dtype;
    p->w.group = products[of].group;
    for (size_t at = 0; n < ROUNDS_MAX && clock_us() - start < READING_PROBE_US / KERN_PRODUCTS &&
                        at + piece * KERN_READINGS <= m->bytes;
         n++) {
        double us[KERN_READINGS];
        for (int i = 0; i < KERN_READINGS; i++, at += piece) {
            p->w.data = m->data + at;
            by.of[of] = &kern_readings[i];
            kern_read_by(&by);
            us[i] = bench_once_us(team, products[of].run, p);
        }
        for (int i = 0; i < KERN_READINGS; i++)
            ratio[i][n] = us[i] / us[KERN_READING_DEFAULT - kern_readings];
    }
    return fastest(ratio, n);
}

/* Measure all products; without memory for it the defaults stay. */
static void probe_all(struct kern_readings *out, struct team *team, const struct kern_table *kern,
                      const struct reading_memory *m)
{
    const uint32_t n_thread = team_size(team), n_out = N_OUT * n_thread;
    struct probe p = {.kern = kern, .w = {.n_out = n_out, .n_in = N_IN}};
    p.scratch_bytes = (kern_scratch_bytes(KERN_BLOCK, 1, 64) + 63) / 64 * 64;
    const size_t y_bytes = n_out * sizeof *p.y, x_bytes = N_IN * sizeof(uint16_t);
    const size_t bytes = x_bytes + y_bytes + n_thread * p.scratch_bytes;
    char *block = q_calloc(1, bytes + 64);
    if (!block)
        return;
    char *all = block + (64 - (uintptr_t)block % 64);
    p.zeros = all;
    p.y = (float *)(void *)(all + x_bytes);
    p.scratch = all + x_bytes + y_bytes;
    for (int k = 0; k < KERN_PRODUCTS; k++)
        out->of[k] = probe_product(team, &p, m, (enum kern_product)k);
    q_free(block);
}

struct kept { /* the file that keeps the choices for a processor, its kernels and their threads */
    char dir[PATH_MAX], path[PATH_MAX];
};

static bool place(struct kept *k, const struct kern_processor *p, uint32_t caps, uint32_t n_thread)
{
    char name[96];
    snprintf(name, sizeof name, "reading-%s-%x-%x-%x-%u", p->vendor, p->family, p->model, caps,
             n_thread);
    return *p->vendor && user_cache_dir(k->dir, "quire/tune") &&
           !path_join(k->path, sizeof k->path, k->dir, name, NULL);
}

/* "1024 2048 2048\n": bytes ahead of each product. */
static bool read_file(struct kern_readings *out, const char *path)
{
    struct buf text = BUF_INIT;
    int n = 0;
    bool is_whole = !file_read(&text, path, FILE_BYTES, NULL) && text.len;
    const char *at = is_whole ? buf_str(&text) : "";
    out->has_far_slices = false;
    for (; is_whole && n < KERN_PRODUCTS; n++) {
        char *end;
        const unsigned long bytes = strtoul(at, &end, 10);
        out->of[n] = NULL;
        for (int i = 0; i < KERN_READINGS; i++)
            if (kern_readings[i].ahead_bytes == bytes)
                out->of[n] = &kern_readings[i];
        is_whole = out->of[n] && end > at && *end == (n + 1 < KERN_PRODUCTS ? ' ' : '\n');
        at = end + 1;
    }
    is_whole = is_whole && !*at;
    buf_release(&text);
    return is_whole;
}

/* Without a word when it fails: the next start measures again. */
static void write_file(const struct kept *k, const struct kern_readings *r)
{
    char text[FILE_BYTES];
    int n = 0;
    for (int i = 0; i < KERN_PRODUCTS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%u%c", r->of[i]->ahead_bytes,
                      i + 1 < KERN_PRODUCTS ? ' ' : '\n');
    if (!dirs_make(k->dir, NULL))
        (void)!file_write(k->path, text, (size_t)n, 0644, NULL);
}

enum reading_source reading_choose(struct team *team, const struct kern_table *kern,
                                   const struct reading_memory *m, const struct kern_processor *p)
{
    struct kept kept;
    struct kern_readings r, found;
    enum reading_source from = READING_OF_TABLE;
    if (!kern_readings_known(&r, p)) {
        const bool is_kept = place(&kept, p, kern->caps, team_size(team));
        if (is_kept && read_file(&found, kept.path)) {
            from = READING_OF_FILE;
            r = found;
        } else if (m->bytes < READING_PROBE_BYTES) {
            from = READING_OF_NO_PROBE;
        } else {
            from = READING_OF_PROBE;
            probe_all(&r, team, kern, m);
            if (is_kept)
                write_file(&kept, &r);
        }
    }
    kern_read_by(&r);
    return from;
}

const char *reading_source_text(enum reading_source s)
{
    static const char *const text[] = {
        [READING_OF_TABLE] = "the table's row for this processor",
        [READING_OF_FILE] = "measured before",
        [READING_OF_PROBE] = "measured now",
        [READING_OF_NO_PROBE] = "the default",
    };
    return text[s];
}

void reading_describe(char out[READING_TEXT_MAX])
{
    const struct kern_readings r = kern_readings_taken();
    size_t n = 0;
    *out = '\0';
    for (int k = 0; k < KERN_PRODUCTS && n < READING_TEXT_MAX; k++)
        n += (size_t)snprintf(out + n, READING_TEXT_MAX - n, "%s%s %s", k ? ", " : "",
                              kern_product_names[k], r.of[k]->name);
    if (r.has_far_slices && n < READING_TEXT_MAX)
        snprintf(out + n, READING_TEXT_MAX - n, ", slices in the second-level cache");
}
