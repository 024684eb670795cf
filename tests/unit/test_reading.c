/* SPDX-License-Identifier: Apache-2.0 */
/* reading: processors have the row of their table, others are measured once and remembered, files
 * of the cache folder are not trusted, and no product depends on the choice. */
#include "check.h"
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/file.h"
#include "kernels/bench/reading.h"
#include "kernels/kern.h"

static const struct kern_processor other = {"Unheard-of", 7, 3};

static struct kern_table kern;
static char folder[] = "/tmp/quire-reading-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    kern_table_cpu(&kern, CAP_AVX2 & kern_caps_machine());
    return mkdtemp(folder) && !setenv("XDG_CACHE_HOME", folder, 1) ? 0 : -1;
}

static void kept_at(char out[PATH_MAX], uint32_t n_thread)
{
    snprintf(out, PATH_MAX, "%s/quire/tune/reading-Unheard-of-7-3-%x-%u", folder, kern.caps,
             n_thread);
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const below[] = {"/quire/tune", "/quire", ""};
    char path[PATH_MAX];
    for (uint32_t n = 1; n <= 2; n++) {
        kept_at(path, n);
        unlink(path);
    }
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        snprintf(path, sizeof path, "%s%s", folder, below[i]);
        if (rmdir(path))
            return -1;
    }
    return 0;
}

static struct team *team_of(uint32_t n)
{
    struct team *t = NULL;
    struct q_err e = Q_ERR_INIT;
    assert_ok(team_new(&t, n, false, &e), &e);
    return t;
}

/* Never written: all of it is one page of zeros. */
static struct reading_memory large_memory(void)
{
    const size_t bytes = READING_PROBE_BYTES;
    void *p = mmap(NULL, bytes + 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return (struct reading_memory){p, bytes};
}

static const struct kern_reading *taken(enum kern_product of)
{
    return kern_readings_taken().of[of];
}

static void take(int of_all)
{
    struct kern_readings r;
    for (int k = 0; k < KERN_PRODUCTS; k++)
        r.of[k] = &kern_readings[of_all];
    r.has_far_slices = of_all % 2 == 0;
    kern_read_by(&r);
    assert_int_equal(kern_readings_taken().has_far_slices, of_all % 2 == 0);
}

static void processors_have_rows(void **state)
{
    (void)state;
    static const struct {
        struct kern_processor p;
        int floats, int8; /* -1: none */
    } rows[] = {
        {{"AuthenticAMD", 0x19, 0x01}, KERN_READING_k1, KERN_READING_k2},
        {{"AuthenticAMD", 0x19, 0x21}, KERN_READING_k1, KERN_READING_k2},
        {{"AuthenticAMD", 0x19, 0x11}, KERN_READING_none, KERN_READING_none}, /* Zen 4 */
        {{"AuthenticAMD", 0x19, 0x61}, KERN_READING_none, KERN_READING_none},
        {{"AuthenticAMD", 0x19, 0x80}, -1, -1},
        {{"AuthenticAMD", 0x1a, 0x02}, KERN_READING_k2, KERN_READING_k2},
        {{"GenuineIntel", 0x19, 0x01}, -1, -1},
        {{"", 0, 0}, -1, -1},
    };
    struct kern_readings r;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool is_known = kern_readings_known(&r, &rows[i].p);
        assert_int_equal(is_known, rows[i].floats >= 0);
        for (int k = 0; k < KERN_PRODUCTS; k++) {
            const int of = k == KERN_PRODUCT_FLOATS ? rows[i].floats : rows[i].int8;
            assert_ptr_equal(r.of[k], is_known ? &kern_readings[of] : KERN_READING_DEFAULT);
        }
        assert_int_equal(r.has_far_slices, rows[i].floats == KERN_READING_none);
    }
    struct kern_processor here;
    struct kern_table k;
    kern_processor(&here);
    kern_table_cpu(&k, CAP_NONE);
    (void)kern_readings_known(&r, &here);
    for (int i = 0; i < KERN_PRODUCTS; i++)
        assert_ptr_equal(taken((enum kern_product)i), r.of[i]);
    take(KERN_READING_k4);
    kern_table_cpu(&k, CAP_NONE); /* another table leaves the choice */
    assert_ptr_equal(taken(KERN_PRODUCT_INT8), &kern_readings[KERN_READING_k4]);
}

static void a_known_processor_is_not_measured(void **state)
{
    (void)state;
    const struct kern_processor known = {"AuthenticAMD", 0x19, 0x01};
    const struct reading_memory none = {NULL, 0};
    struct team *t = team_of(1);
    assert_int_equal(reading_choose(t, &kern, &none, &known), READING_OF_TABLE);
    assert_ptr_equal(taken(KERN_PRODUCT_FLOATS), &kern_readings[KERN_READING_k1]);
    assert_int_equal(reading_choose(t, &kern, &none, &other), READING_OF_NO_PROBE);
    assert_ptr_equal(taken(KERN_PRODUCT_FLOATS), KERN_READING_DEFAULT);
    team_free(t);
}

static void another_is_measured_once(void **state)
{
    (void)state;
    struct reading_memory m = large_memory();
    char path[PATH_MAX];
    for (uint32_t n = 1; n <= 2; n++) {
        struct team *t = team_of(n);
        kept_at(path, n);
        assert_false(file_exists(path));
        assert_int_equal(reading_choose(t, &kern, &m, &other), READING_OF_PROBE);
        assert_true(file_exists(path));
        const struct kern_readings found = kern_readings_taken();
        take((int)(found.of[0] - kern_readings + 1) % KERN_READINGS);
        const struct reading_memory none = {NULL, 0};
        assert_int_equal(reading_choose(t, &kern, &none, &other), READING_OF_FILE);
        for (int k = 0; k < KERN_PRODUCTS; k++)
            assert_ptr_equal(taken((enum kern_product)k), found.of[k]);
        team_free(t);
    }
    assert_int_equal(munmap((void *)(uintptr_t)m.data, m.bytes + 8192), 0);
}

static void a_file_is_not_trusted(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "1024 1024 1024",
        "1024 1024\n",
        "1024 77 1024\n",
        "1024 1024 1024 \n",
        "1024  1024\n",
        "x\n",
        "1024 1024 1024\n1024 1024 1024\n1024 1024 1024\n1024 1024 1024\n1024\n",
    };
    const struct reading_memory none = {NULL, 0};
    struct team *t = team_of(1);
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    kept_at(path, 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_ok(file_write(path, texts[i], strlen(texts[i]), 0600, &e), &e);
        assert_int_equal(reading_choose(t, &kern, &none, &other), READING_OF_NO_PROBE);
    }
    assert_ok(file_write(path, "0 1024 4096\n", 12, 0600, &e), &e);
    assert_int_equal(reading_choose(t, &kern, &none, &other), READING_OF_FILE);
    assert_ptr_equal(taken(KERN_PRODUCT_FLOATS), &kern_readings[KERN_READING_none]);
    assert_ptr_equal(taken(KERN_PRODUCT_INT4), &kern_readings[KERN_READING_k4]);
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1); /* cannot be written: measured at each start */
    struct reading_memory m = large_memory();
    assert_int_equal(reading_choose(t, &kern, &m, &other), READING_OF_PROBE);
    assert_int_equal(reading_choose(t, &kern, &m, &other), READING_OF_PROBE);
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_int_equal(munmap((void *)(uintptr_t)m.data, m.bytes + 8192), 0);
    team_free(t);
}

#define N_IN  1536u /* two slices and more in either cache */
#define N_OUT 192u
#define N_ROW 20u /* the largest: four tiles */

static void no_product_depends_on_it(void **state)
{
    (void)state;
    static float x[N_ROW * N_IN], y[2][N_ROW * N_OUT];
    static const uint32_t rows[] = {1, 7, N_ROW};
    const size_t bytes = packed_bytes(DT_BF16, N_OUT, N_IN);
    struct kern_table k;
    kern_table_cpu(&k, kern_caps_machine());
    uint16_t *w = aligned_alloc(64, bytes);
    void *scratch = aligned_alloc(64, (size_t)1 << 20);
    assert_true(w && scratch);
    for (size_t i = 0; i < bytes / 2; i++)
        w[i] = (uint16_t)(0x3f00 + i * 37 % 256); /* bf16 of 0.5 and more */
    for (uint32_t i = 0; i < N_ROW * N_IN; i++)
        x[i] = (float)(i % 11) - 5;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows) * KERN_READINGS; i++) {
        const int is_later = i % KERN_READINGS > 0;
        const struct linear_args a = {
            .y = y[is_later],
            .x = x,
            .w = {.data = w, .n_out = N_OUT, .n_in = N_IN, .dtype = DT_BF16},
            .n_row = rows[i / KERN_READINGS],
            .x_stride = N_IN,
            .y_stride = N_OUT,
        };
        const struct kern_exec exec = {
            .nth = 1,
            .scratch = scratch,
            .scratch_bytes = (size_t)1 << 20,
        };
        take(i % KERN_READINGS);
        k.linear(&a, &exec);
        if (is_later)
            assert_memory_equal(y[1], y[0], a.n_row * N_OUT * sizeof y[0][0]);
    }
    assert_true(y[0][0] != 0);
    free(w);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_have_rows),
        cmocka_unit_test(a_known_processor_is_not_measured),
        cmocka_unit_test(another_is_measured_once),
        cmocka_unit_test(a_file_is_not_trusted),
        cmocka_unit_test(no_product_depends_on_it),
    };
    return cmocka_run_group_tests_name("reading", tests, make_folder, remove_folder);
}
