/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of the log that stands still: the program does not, and says later what was lost. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/log.h"

static int saved = -1, reader = -1;

static void begin(bool is_socket)
{
    int fds[2];
    assert_int_equal(is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds), 0);
    saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fds[1], STDERR_FILENO) >= 0);
    close(fds[1]);
    reader = fds[0];
    assert_int_equal(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
}

static void end(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(reader);
}

/* All that was written, in `out`. */
static size_t read_all(char *out, size_t size)
{
    size_t n = 0;
    ssize_t got;
    while (n < size - 1 && (got = read(reader, out + n, size - 1 - n)) > 0)
        n += (size_t)got;
    out[n] = '\0';
    return n;
}

static void a_stalled_reader_loses_lines(bool is_socket)
{
    static char text[4 << 20];
    unsigned long long n_dropped = 0;
    unsigned n_line = 0;
    begin(is_socket);
    for (unsigned i = 0; i < 20000; i++) /* more than any pipe or socket holds */
        log_info("line %u of many, with some words that take room", i);
    read_all(text, sizeof text);
    for (const char *at = text; (at = strstr(at, "line ")); at++)
        n_line++;
    assert_in_range(n_line, 100, 19999);
    assert_int_equal(text[strlen(text) - 1], '\n'); /* lines are whole */
    log_info("the reader is back");
    read_all(text, sizeof text);
    end();
    const char *said = strstr(text, "WARNING test: ");
    assert_non_null(said);
    assert_int_equal(sscanf(said, "WARNING test: %llu log lines were dropped", &n_dropped), 1);
    assert_int_equal(n_dropped, 20000 - n_line);
    assert_non_null(strstr(said, "the reader is back"));
}

static void a_stalled_pipe(void **state)
{
    (void)state;
    log_setup("test", LOG_INFO, false);
    a_stalled_reader_loses_lines(false);
}

static void a_stalled_socket(void **state)
{
    (void)state;
    log_setup("test", LOG_INFO, false);
    a_stalled_reader_loses_lines(true);
}

static void a_line_of_json_is_whole(void **state)
{
    (void)state;
    static char text[1 << 16];
    char quotes[4096];
    memset(quotes, '"', sizeof quotes - 1);
    quotes[sizeof quotes - 1] = '\0';
    log_setup("test", LOG_INFO, true);
    begin(false);
    log_info("%s", quotes);
    const size_t n = read_all(text, sizeof text);
    end();
    assert_in_range(n, 1000, PIPE_BUF);
    assert_string_equal(text + n - 3, "\"}\n");
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stalled_pipe),
        cmocka_unit_test(a_stalled_socket),
        cmocka_unit_test(a_line_of_json_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
