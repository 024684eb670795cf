/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/request_record.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/queue.h"

#define QUEUE_MAX   4096 /* lines */
#define WAIT_MS     1000
#define HASH_BYTES  32
#define DROPPED_MS  10000 /* between two lines of the log about dropped ones */
#define KEPT_DIGITS 52    /* bits of a hash: an integer that a double holds */

/* Parameters of a body that are written if they are numbers or booleans. */
static const char *const kept[] = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "best_of",
    "repetition_penalty",
    "min_tokens",
    "thinking_token_budget",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "use_beam_search",
    "length_penalty",
    "top_n_sigma",
    "no_repeat_ngram_size",
    "priority",
    "skip_special_tokens",
};

struct request_record {
    char path[PATH_MAX - 16];
    uint64_t file_bytes;
    uint32_t n_file;
    unsigned char key[HASH_BYTES]; /* of the hashes; of this process alone */
    struct queue lines;            /* of struct buf */
    pthread_t thread;
    int64_t begun_us, begun_unix_ms; /* times are counted from here: a clock may be set back */
    int64_t dropped_ms;              /* the log's last line about it */
    uint64_t n_dropped;
    int fd; /* the thread's */
};

/* ---- the line ---- */

/* The hash of a block of tokens and all before it, in place of that of the block before. */
static bool chain(const struct request_record *r, unsigned char hash[HASH_BYTES],
                  const uint32_t *ids)
{
    struct {
        unsigned char key[HASH_BYTES], parent[HASH_BYTES];
        uint32_t ids[REQUEST_RECORD_BLOCK];
    } input;
    memcpy(input.key, r->key, sizeof input.key);
    memcpy(input.parent, hash, sizeof input.parent);
    memcpy(input.ids, ids, sizeof input.ids);
    return EVP_Digest(&input, sizeof input, hash, NULL, EVP_sha256(), NULL) == 1;
}

static void add_hashes(const struct request_record *r, const struct recorded_request *q,
                       struct buf *out)
{
    unsigned char hash[HASH_BYTES] = {0};
    uint64_t number;
    buf_add_str(out, ", \"hash_ids\": [");
    for (size_t at = 0; at + REQUEST_RECORD_BLOCK <= q->n_id; at += REQUEST_RECORD_BLOCK) {
        if (!chain(r, hash, q->ids + at))
            break;
        memcpy(&number, hash, sizeof number);
        buf_printf(out, "%s%llu", at ? ", " : "",
                   (unsigned long long)(number >> (64 - KEPT_DIGITS)));
    }
    buf_add_char(out, ']');
}

static void add_parameters(const json_t *body, struct buf *out)
{
    char number[64];
    bool any = false;
    buf_add_str(out, ", \"request\": {");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        const json_t *v = json_object_get(body, kept[i]);
        if (!json_is_number(v) && !json_is_boolean(v))
            continue;
        if (json_is_integer(v))
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
        else if (json_is_real(v))
            snprintf(number, sizeof number, "%.17g", json_real_value(v));
        else
            snprintf(number, sizeof number, "%s", json_is_true(v) ? "true" : "false");
        buf_printf(out, "%s\"%s\": %s", any ? ", " : "", kept[i], number);
        any = true;
    }
    buf_add_char(out, '}');
}

static const char *word_of(bool yes)
{
    return yes ? "true" : "false";
}

static void make_line(const struct request_record *r, const struct recorded_request *q,
                      struct buf *out)
{
    const int64_t ms = (clock_us() - q->arrived_us) / 1000,
                  at_ms = r->begun_unix_ms + (q->arrived_us - r->begun_us) / 1000;
    buf_printf(out,
               "{\"timestamp\": %lld, \"input_length\": %zu, \"output_length\": %u, \"finish\": "
               "\"%s\"",
               (long long)at_ms, q->n_id, q->n_output, q->finish ? q->finish : "abort");
    add_hashes(r, q, out);
    add_parameters(q->body, out);
    buf_printf(out,
               ", \"endpoint\": \"%s\", \"stream\": %s, \"tools\": %zu, \"grammar\": %s, "
               "\"items\": %s, \"ms\": %lld}\n",
               q->is_chat ? "chat" : "completions", word_of(q->is_stream), q->n_tool,
               word_of(q->has_grammar), word_of(q->has_items), (long long)ms);
}

void request_record_add(struct request_record *r, const struct recorded_request *q)
{
    struct q_err e = Q_ERR_INIT;
    struct buf line = BUF_INIT;
    make_line(r, q, &line);
    if (!buf_check(&line, "a line", &e) && !queue_push(&r->lines, &line, &e))
        return;
    buf_release(&line);
    if (!log_ratelimit(&r->dropped_ms, &r->n_dropped, DROPPED_MS))
        return;
    log_warning("--record-requests: a line was dropped: %s (%llu before)", e.message,
                (unsigned long long)r->n_dropped);
    r->n_dropped = 0;
}

/* ---- the file ---- */

static FALLIBLE open_file(struct request_record *r, struct q_err *e)
{
    r->fd =
        open(r->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat st;
    if (r->fd < 0 || fstat(r->fd, &st))
        return q_fail(e, Q_IO, "--record-requests %s: %s", r->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return q_fail(e, Q_IO, "--record-requests %s: not a regular file", r->path);
    return Q_OK;
}

static void shift_files(const struct request_record *r)
{
    char from[PATH_MAX], to[PATH_MAX];
    for (uint32_t i = r->n_file - 1; i > 0; i--) {
        snprintf(to, sizeof to, "%s.%u", r->path, i);
        snprintf(from, sizeof from, i > 1 ? "%s.%u" : "%s", r->path, i - 1);
        if (rename(from, to) && errno != ENOENT)
            log_warning("--record-requests: %s cannot become %s: %s", from, to, strerror(errno));
    }
    if (r->n_file == 1)
        unlink(r->path);
}

/* Is the file that is open not the one of the path any more: did another frontend shift it? */
static bool was_shifted(const struct request_record *r)
{
    struct stat own, now;
    return fstat(r->fd, &own) || stat(r->path, &now) || own.st_ino != now.st_ino ||
           own.st_dev != now.st_dev;
}

/* The file is full: one of the frontends shifts it, under its lock. */
static void next_file(struct request_record *r)
{
    struct q_err e = Q_ERR_INIT;
    const int full = r->fd;
    while (flock(full, LOCK_EX) && errno == EINTR)
        continue;
    if (!was_shifted(r))
        shift_files(r);
    if (open_file(r, &e))
        log_error("%s: recording of requests stopped", e.message);
    close(full); /* and unlock it */
}

static void write_line(struct request_record *r, const struct buf *line)
{
    struct stat st;
    if (r->fd >= 0 && !fstat(r->fd, &st) && (uint64_t)st.st_size >= r->file_bytes)
        next_file(r);
    if (r->fd < 0)
        return;
    const ssize_t n = write(r->fd, line->data, line->len); /* one write: lines do not mix */
    if (n == (ssize_t)line->len)
        return;
    log_error("--record-requests %s: %s: recording of requests stopped", r->path,
              strerror(n < 0 ? errno : ENOSPC));
    close(r->fd);
    r->fd = -1;
}

static void *thread_main(void *arg)
{
    struct request_record *r = arg;
    struct buf line;
    while (!queue_closed(&r->lines))
        if (queue_pop(&r->lines, &line, WAIT_MS)) {
            write_line(r, &line);
            buf_release(&line);
        }
    return NULL;
}

FALLIBLE request_record_new(struct request_record **out, const struct options *o, struct q_err *e)
{
    enum q_code rc;
    *out = NULL;
    if (!*o->record_requests)
        return Q_OK;
    struct request_record *r = q_calloc(1, sizeof *r);
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "--record-requests: out of memory");
    r->fd = -1;
    r->begun_us = clock_us();
    r->begun_unix_ms = clock_unix() * 1000;
    r->file_bytes = o->record_size;
    r->n_file = (uint32_t)o->record_files;
    if (snprintf(r->path, sizeof r->path, "%s", o->record_requests) >= (int)sizeof r->path)
        rc = q_fail(e, Q_INVALID, "--record-requests: the path has more than %zu bytes",
                    sizeof r->path - 1);
    else if (RAND_bytes(r->key, sizeof r->key) != 1)
        rc = q_fail(e, Q_INTERNAL, "--record-requests: no random bytes for the hashes");
    else if (!(rc = open_file(r, e)))
        rc = queue_init(&r->lines, sizeof(struct buf), QUEUE_MAX, false, e);
    const int failed = rc ? 0 : pthread_create(&r->thread, NULL, thread_main, r);
    if (failed)
        rc = q_fail(e, Q_IO, "--record-requests: cannot start a thread: %s", strerror(failed));
    if (!rc) {
        *out = r;
        return Q_OK;
    }
    if (r->fd >= 0)
        close(r->fd);
    queue_release(&r->lines);
    q_free(r);
    return rc;
}

void request_record_free(struct request_record *r)
{
    if (!r)
        return;
    queue_close(&r->lines);
    pthread_join(r->thread, NULL);
    if (r->fd >= 0)
        close(r->fd);
    queue_release(&r->lines);
    q_free(r);
}
