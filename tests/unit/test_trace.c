/* SPDX-License-Identifier: Apache-2.0 */
/* The file of --trace is written while steps come, not only when there are many or none. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "engine/core/trace.h"

#define LOT_BYTES 65536 /* WRITE_BYTES */

static off_t size_of(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    return s.st_size;
}

static void few_steps_are_written_soon(void **state)
{
    (void)state;
    char dir[] = "/tmp/quire-trace-XXXXXX", path[sizeof dir + 8];
    struct q_err e = Q_ERR_INIT;
    struct trace *t;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/trace", dir);
    assert_ok(trace_new(&t, path, &e), &e);
    for (uint64_t step = 1; size_of(path) < 2000; step++) { /* the names of rows are fewer bytes */
        const struct trace_step v = {.step = step, .parts[TRACE_PLAN] = {1, 2}};
        trace_add(t, &v);
        usleep(20000);
    }
    const off_t size = size_of(path);
    assert_true(size < LOT_BYTES);
    trace_free(t);
    assert_true(size_of(path) > size);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_steps_are_written_soon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
