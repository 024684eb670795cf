/* SPDX-License-Identifier: Apache-2.0 */
/* region: aligned, zeroed, in any pages of the system; their kind is reported. */
#include "check.h"
#include "common/team.h"
#include "engine/model/region.h"

#define MIB ((size_t)1 << 20)

static void all_zero_then_written(const struct region *r)
{
    assert_int_equal((uintptr_t)r->data % (2 * MIB), 0);
    for (size_t i = 0; i < r->size; i += 4096) {
        assert_int_equal(r->data[i], 0);
        r->data[i] = 1;
    }
}

static void what_is_written_is_resident(void **state)
{
    (void)state;
    struct region r = REGION_INIT;
    struct region_pages p;
    struct q_err e = Q_ERR_INIT;
    char text[REGION_TEXT_MAX];
    assert_ok(region_init(&r, 6 * MIB + 5, "numbers", &e), &e);
    all_zero_then_written(&r);
    region_pages(&p, &r);
    assert_true(p.resident >= r.size);
    assert_true(p.transparent <= p.resident && p.hugetlb == 0 && p.file_huge == 0);
    region_describe(text, &r);
    assert_ptr_equal(strstr(text, "6.0 MiB, "), text);
    assert_non_null(strstr(text, "in huge pages"));
    region_release(&r);
    region_pages(&p, &r); /* of nothing */
    assert_int_equal(p.resident, 0);
}

/* With pages of hugetlbfs or, as on most machines, without any. */
static void streamed_memory_is_the_same_in_any_pages(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct team *team;
    assert_ok(team_new(&team, 2, false, &e), &e);
    for (int with_team = 0; with_team < 2; with_team++) {
        struct region r = REGION_INIT;
        assert_ok(region_init_streamed(&r, 4 * MIB + 1, "numbers", with_team ? team : NULL, &e),
                  &e);
        all_zero_then_written(&r);
        region_release(&r);
        assert_null(r.data);
    }
    struct region small = REGION_INIT;
    assert_ok(region_init_streamed(&small, 100, "numbers", team, &e), &e);
    assert_false(small.is_hugetlb);
    region_release(&small);
    team_free(team);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    struct region r = REGION_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_fails(region_init(&r, SIZE_MAX - 5, "numbers", &e), Q_NO_MEMORY, "numbers", &e);
    assert_fails(region_init_streamed(&r, SIZE_MAX - 5, "numbers", NULL, &e), Q_NO_MEMORY,
                 "overflows", &e);
    region_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_resident),
        cmocka_unit_test(streamed_memory_is_the_same_in_any_pages),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
