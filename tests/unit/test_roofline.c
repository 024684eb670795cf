/* SPDX-License-Identifier: Apache-2.0 */
/* roofline: every way to read and every instruction the machine has gives a rate; the fastest are
 * the ceilings; the machine's description is JSON. No figure is judged. */
#include "check.h"
#include <jansson.h>
#include <stdlib.h>
#include "kernels/bench/machine.h"
#include "kernels/kern.h"

static struct team *team_of(uint32_t n)
{
    struct team *t = NULL;
    struct q_err e = Q_ERR_INIT;
    assert_ok(team_new(&t, n, false, &e), &e);
    return t;
}

static void every_way_to_read_is_timed(void **state)
{
    (void)state;
    const size_t bytes = (size_t)1 << 20;
    char *data = aligned_alloc(4096, bytes + 4096); /* what is prefetched may lie past the end */
    assert_non_null(data);
    memset(data, 1, bytes);
    for (uint32_t n = 1; n <= 3; n++) {
        struct team *t = team_of(n);
        for (int how = 0; how < READ_COUNT; how++) {
            const struct roofline_memory m = {data, bytes};
            struct bench_seconds s = roofline_read_time(t, &m, (enum roofline_read)how,
                                                        &kern_readings[how % KERN_READINGS], 1);
            assert_true(s.best > 0 && s.median >= s.best);
        }
        team_free(t);
    }
    free(data);
}

static void peaks_are_those_of_the_machine(void **state)
{
    (void)state;
    struct team *t = team_of(1);
    uint32_t caps = kern_caps_machine();
    double peak[PEAK_COUNT];
    for (int i = 0; i < PEAK_COUNT; i++) {
        struct roofline_row row = roofline_peak_row(t, (enum roofline_peak)i, 1);
        assert_string_equal(row.unit, "GOP/s");
        assert_true(row.best >= row.median && row.median >= 0);
        peak[i] = row.best;
    }
    assert_int_equal(peak[PEAK_F32_8] > 0, (caps & CAP_AVX2) != 0);
    assert_int_equal(peak[PEAK_I8_AVX2] > 0, (caps & CAP_AVX2) != 0);
    assert_int_equal(peak[PEAK_F32_16] > 0, (caps & CAP_AVX512) != 0);
    assert_int_equal(peak[PEAK_BF16_32] > 0, (caps & CAP_AVX512_BF16) != 0);
    assert_int_equal(peak[PEAK_BF16_AMX] > 0, (caps & CAP_AMX_BF16) != 0);
    assert_int_equal(peak[PEAK_I8_AMX] > 0, (caps & CAP_AMX_INT8) != 0);
    team_free(t);
}

static void the_machine_is_an_object(void **state)
{
    (void)state;
    struct machine m;
    struct buf b = BUF_INIT;
    const struct roofline r = {
        .read_gb_s = 40.25,
        .fp32_gop_s = 100,
        .bf16_gop_s = 200,
        .int8_gop_s = 400,
        .barrier_us = 0.5,
    };
    machine_describe(&m);
    assert_true(m.n_core > 0 && m.memory_gb > 0 && *m.cpu && *m.isa && *m.system);
    snprintf(m.cpu, sizeof m.cpu, "a \"quoted\" CPU");
    m.n_thread = 3;
    for (int with = 0; with < 2; with++) {
        buf_reset(&b);
        machine_json(&b, &m, with ? &r : NULL);
        json_t *j = json_loadb(b.data, b.len, 0, NULL);
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "cpu")), "a \"quoted\" CPU");
        assert_int_equal(json_integer_value(json_object_get(j, "threads")), 3);
        json_t *read = json_object_get(j, "read_gb_s");
        assert_int_equal(read != NULL, with);
        if (with)
            assert_true(json_real_value(read) > 40 && json_real_value(read) < 41);
        if (with)
            assert_true(json_real_value(json_object_get(j, "barrier_us")) == 0.5);
        json_decref(j);
    }
    buf_release(&b);
    m.load = 0.1;
    assert_false(machine_is_busy(&m));
    m.load = 1;
    assert_true(machine_is_busy(&m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_read_is_timed),
        cmocka_unit_test(peaks_are_those_of_the_machine),
        cmocka_unit_test(the_machine_is_an_object),
    };
    return cmocka_run_group_tests_name("roofline", tests, NULL, NULL);
}
