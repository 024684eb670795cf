/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/report_file.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/json_read.h"

#define FILE_MAX ((size_t)4 << 30)

/* The step of a line; false: it is no line of a run. */
static bool line_step(const char *line, size_t n, uint64_t *step)
{
    json_t *root = json_read_bytes(line, n, 0, NULL);
    const json_t *value = json_object_get(root, "step");
    const bool is_one = json_is_integer(value) && json_integer_value(value) >= 0;
    if (is_one)
        *step = (uint64_t)json_integer_value(value);
    json_decref(root);
    return is_one;
}

/* Bytes of the lines up to first_step. */
static FALLIBLE find_end(const struct report_file *f, const struct buf *text, uint64_t first_step,
                         size_t *end, struct q_err *e)
{
    for (*end = 0; *end < text->len;) {
        const char *line = text->data + *end;
        const char *newline = memchr(line, '\n', text->len - *end);
        uint64_t step = 0;
        if (!newline && *end)
            return Q_OK; /* the last line is not complete: the run was killed */
        if (!newline || !line_step(line, (size_t)(newline - line), &step))
            return q_fail(e, Q_CORRUPT,
                          "--metrics %s: the line at byte %zu is none of a run, so the file is not "
                          "written to; choose another file",
                          f->path, *end);
        if (step > first_step)
            return Q_OK;
        *end += (size_t)(newline - line) + 1;
    }
    return Q_OK;
}

FALLIBLE report_file_open(struct report_file *f, const char *path, uint64_t first_step,
                          struct q_err *e)
{
    struct buf text = BUF_INIT_MAX(FILE_MAX);
    size_t end = 0;
    enum q_code rc = Q_OK;
    struct stat st;
    const bool is_device = stat(path, &st) == 0 && S_ISCHR(st.st_mode); /* has no earlier lines */
    *f = (struct report_file){.fd = -1, .path = path};
    if (!is_device && file_exists(path) &&
        ((rc = file_read(&text, path, FILE_MAX, e)) ||
         (rc = find_end(f, &text, first_step, &end, e))))
        goto out;
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f->fd < 0 || (!is_device && ftruncate(f->fd, (off_t)end)))
        rc = q_fail(e, Q_IO, "--metrics %s: %s", path, strerror(errno));
out:
    buf_release(&text);
    return rc;
}

void report_file_close(struct report_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

FALLIBLE report_file_add(struct report_file *f, const struct buf *line, struct q_err *e)
{
    enum q_code rc = buf_check(line, "a line of metrics", e);
    if (rc)
        return rc;
    const ssize_t n = write(f->fd, line->data, line->len);
    if (n == (ssize_t)line->len)
        return Q_OK;
    return q_fail(e, Q_IO, "--metrics %s: cannot write: %s", f->path,
                  n < 0 ? strerror(errno) : "the disk is full");
}
