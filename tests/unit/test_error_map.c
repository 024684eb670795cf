/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of wrong elements that a failed check of a kernel prints. */
#include "error_map.h"
#include <string.h>
#include "check.h"

static void wrong_block_is_seen(void **state)
{
    (void)state;
    struct error_map m = {0};
    char text[1024];
    for (size_t r = 16; r < 24; r++)
        for (size_t c = 64; c < 128; c++)
            error_map_add(&m, r, c);
    error_map_add(&m, 3, 200);
    error_map_print(&m, 40, 256, text, sizeof text);
    assert_int_equal(m.n_wrong, 8 * 64 + 1);
    assert_string_equal(text, "  rows      0: ...1\n  rows     16: .#..\n");
}

/* A block at the edge is all wrong when what it has of the matrix is. */
static void edges(void **state)
{
    (void)state;
    struct error_map m = {0};
    char text[1024];
    for (size_t r = 8; r < 10; r++)
        for (size_t c = 64; c < 70; c++)
            error_map_add(&m, r, c);
    for (size_t r = 0; r < 8; r++)
        for (size_t c = 0; c < 32; c++)
            error_map_add(&m, r, c);
    error_map_print(&m, 10, 70, text, sizeof text);
    assert_string_equal(text, "  rows      0: 5.\n  rows      8: .#\n");
}

static void large_matrix_and_little_room(void **state)
{
    (void)state;
    struct error_map m = {0};
    char text[100];
    for (size_t r = 0; r < 4096; r += 4)
        error_map_add(&m, r, 100000);
    error_map_print(&m, 4096, 200000, text, sizeof text);
    assert_true(strlen(text) < sizeof text);
    assert_int_equal(strncmp(text, "  rows      0: ....", 19), 0);
    error_map_print(&m, 4096, 200000, text, 1);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_block_is_seen),
        cmocka_unit_test(edges),
        cmocka_unit_test(large_matrix_and_little_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
