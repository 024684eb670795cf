/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gguf/gguf_file.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "common/download.h"

#define DIGITS   5u /* of each number in a name */
#define TAIL     (sizeof "-00001-of-00002.gguf" - 1)
#define TAIL_OF  "-of-"
#define TAIL_END ".gguf"

enum q_code gguf_file_open(struct gguf_file *f, const char *path, struct q_err *e)
{
    enum q_code rc = mapping_open(&f->map, path, e);
    if (!rc)
        rc = download_check(f->map.data, f->map.size, path, e);
    return rc ? rc : gguf_read(&f->g, f->map.data, f->map.size, path, e);
}

void gguf_file_release(struct gguf_file *f)
{
    gguf_release(&f->g);
    mapping_release(&f->map);
}

bool gguf_file_is(const char *path)
{
    char head[4];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool yes = fd >= 0 && read(fd, head, sizeof head) == sizeof head && gguf_is(head, 4);
    if (fd >= 0)
        close(fd);
    return yes;
}

bool gguf_file_is_named(const char *name)
{
    const size_t n = strlen(name), n_end = strlen(TAIL_END);
    return n > n_end && strcasecmp(name + n - n_end, TAIL_END) == 0;
}

static bool read_digits(uint32_t *out, const char *p)
{
    *out = 0;
    for (uint32_t i = 0; i < DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

bool gguf_file_split(uint32_t *number, uint32_t *count, const char *path)
{
    const size_t n = strlen(path);
    const char *tail = n > TAIL ? path + n - TAIL : NULL;
    uint32_t k = 0, of = 0;
    if (!tail || tail[0] != '-' || !read_digits(&k, tail + 1) ||
        strncmp(tail + 1 + DIGITS, TAIL_OF, strlen(TAIL_OF)) != 0 ||
        !read_digits(&of, tail + 1 + DIGITS + strlen(TAIL_OF)) || !gguf_file_is_named(path) ||
        k < 1 || k > of)
        return false;
    *number = k;
    *count = of;
    return true;
}

enum q_code gguf_file_split_path(char out[PATH_MAX], const char *path, uint32_t number,
                                 struct q_err *e)
{
    uint32_t ignored, count = 0;
    const bool is_split = gguf_file_split(&ignored, &count, path);
    const size_t n = strlen(path);
    int length = -1;
    Q_ASSERT(is_split);
    if (n < PATH_MAX)
        length = snprintf(out, PATH_MAX, "%.*s-%05u" TAIL_OF "%05u%s", (int)(n - TAIL), path,
                          number, count, path + n - strlen(TAIL_END));
    return length > 0 && length < PATH_MAX
               ? Q_OK
               : q_fail(e, Q_TOO_LARGE, "%s: the path is too long", path);
}
