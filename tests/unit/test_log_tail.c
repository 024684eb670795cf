/* SPDX-License-Identifier: Apache-2.0 */
/* log_tail: the last lines of what a pipe was given, however much that was. */
#include "check.h"
#include <stdlib.h>
#include <unistd.h>
#include "frontend/cli/log_tail.h"

#define LINE_BYTES 11 /* "line 12345\n" */

static int open_tail(struct log_tail *t)
{
    struct q_err e = Q_ERR_INIT;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_ok(log_tail_start(t, ends[0], &e), &e);
    return ends[1];
}

static void write_lines(int fd, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(dprintf(fd, "line %05u\n", i), LINE_BYTES);
}

static void the_last_whole_lines_are_kept(void **state)
{
    (void)state;
    static const unsigned n_lines[] = {0, 1, 1489, 1490, 20000}; /* 1489 lines of 11 bytes fit */
    for (size_t i = 0; i < sizeof n_lines / sizeof *n_lines; i++) {
        static struct log_tail t;
        struct buf out = BUF_INIT;
        int fd = open_tail(&t);
        write_lines(fd, n_lines[i]);
        close(fd);
        log_tail_end(&t, 10000, &out);
        unsigned kept = n_lines[i] < 1489 ? n_lines[i] : 1489, at = n_lines[i] - kept;
        assert_int_equal(out.len, kept * LINE_BYTES);
        for (unsigned k = 0; k < kept; k++, at++) {
            char line[LINE_BYTES + 1];
            snprintf(line, sizeof line, "line %05u\n", at);
            assert_memory_equal(out.data + (size_t)k * LINE_BYTES, line, LINE_BYTES);
        }
        buf_release(&out);
    }
}

static void a_writer_that_stays_is_not_waited_for(void **state)
{
    (void)state;
    static struct log_tail t;
    struct buf out = BUF_INIT;
    int fd = open_tail(&t);
    log_tail_end(&t, 0, &out);
    assert_int_equal(out.len, 0);
    log_tail_end(&t, 0, &out); /* none runs */
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_whole_lines_are_kept),
        cmocka_unit_test(a_writer_that_stays_is_not_waited_for),
    };
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
