/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial_verdict.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "common/file.h"
#include "common/parse.h"

#define FIRST_LINE "quire-trials 1"
#define HEAD_LINES 5u
#define LINE_BYTES 256u

const char *const trial_names[TRIALS] = {
    [TRIAL_ATTENTION] = "attention",
    [TRIAL_LINEAR + LINEAR_BF16] = "bf16",
    [TRIAL_LINEAR + LINEAR_F16] = "f16",
    [TRIAL_LINEAR + LINEAR_I8] = "int8",
    [TRIAL_LINEAR + LINEAR_FP8] = "fp8",
    [TRIAL_GROUPED + LINEAR_BF16] = "grouped-bf16",
    [TRIAL_GROUPED + LINEAR_F16] = "grouped-f16",
    [TRIAL_GROUPED + LINEAR_I8] = "grouped-int8",
    [TRIAL_GROUPED + LINEAR_FP8] = "grouped-fp8",
    [TRIAL_OVERLAP] = "overlap",
};

/* ---- text ---- */
static void print_head(struct buf *out, const struct card *card,
                       const struct trial_library *library)
{
    buf_add_str(out, FIRST_LINE "\n");
    card_file_head(out, card);
    buf_printf(out, "library %" PRIu64 " %" PRIu64 "\n", library->bytes, library->mtime_ns);
}

static void print_reason(struct buf *out, const char *why)
{
    for (const char *p = why; *p; p++)
        buf_add_char(out, iscntrl((unsigned char)*p) ? ' ' : *p);
}

void trial_verdict_print(struct buf *out, const struct trial_verdict *v, const struct card *card,
                         const struct trial_library *library)
{
    const size_t from = out->len;
    print_head(out, card, library);
    for (int i = 0; i < TRIALS; i++) {
        const struct trial_row *r = &v->rows[i];
        if (r->state == TRIAL_NOT_RUN)
            continue;
        buf_printf(out, "%s ", trial_names[i]);
        if (r->state == TRIAL_COMPARED) {
            buf_printf(out, "compared %u %u %.17g", r->result.n, r->result.n_differ,
                       r->result.worst);
        } else {
            buf_add_str(out, "failed ");
            print_reason(out, r->why);
        }
        buf_add_char(out, '\n');
    }
    card_file_sum(out, from);
}

static bool read_result(struct trial_result *r, struct words *w)
{
    uint64_t n, n_differ;
    struct q_err e = Q_ERR_INIT;
    if (!words_number(w, &n, 10, UINT32_MAX) || !words_number(w, &n_differ, 10, n))
        return false;
    r->n = (uint32_t)n;
    r->n_differ = (uint32_t)n_differ;
    if (strcmp(w->at, "inf") == 0)
        r->worst = INFINITY;
    else if (parse_f64(&r->worst, w->at, 0, 1e300, "difference", &e))
        return false;
    return true;
}

static bool read_row(struct trial_verdict *v, const char *line)
{
    struct words w = {line};
    char word[32];
    int i = 0;
    if (!words_next(&w, word, sizeof word))
        return false;
    while (i < TRIALS && strcmp(trial_names[i], word) != 0)
        i++;
    if (i == TRIALS || v->rows[i].state != TRIAL_NOT_RUN || !words_next(&w, word, sizeof word))
        return false;
    struct trial_row *r = &v->rows[i];
    if (strcmp(word, "failed") == 0) {
        r->state = TRIAL_FAILED;
        snprintf(r->why, sizeof r->why, "%.*s", (int)sizeof r->why - 1, w.at);
        return true;
    }
    r->state = TRIAL_COMPARED;
    return strcmp(word, "compared") == 0 && read_result(&r->result, &w);
}

static FALLIBLE read_rows(struct trial_verdict *v, const char *text, size_t n, struct q_err *e)
{
    uint32_t number = HEAD_LINES + 1;
    for (size_t at = 0; at < n; number++) {
        char line[LINE_BYTES];
        enum q_code rc = card_file_line(line, sizeof line, &at, text, n, number, e);
        if (rc)
            return rc;
        if (!read_row(v, line))
            return q_fail(e, Q_CORRUPT, "line %u is malformed: \"%.60s\"", number, line);
    }
    return Q_OK;
}

FALLIBLE trial_verdict_parse(struct trial_verdict *v, const struct card *card,
                             const struct trial_library *library, const char *text, size_t n,
                             struct q_err *e)
{
    struct buf head = BUF_INIT;
    size_t begin = 0, end = 0;
    *v = (struct trial_verdict){0};
    print_head(&head, card, library);
    enum q_code rc = buf_check(&head, "trials file", e);
    if (!rc && !(rc = card_file_check(&begin, &end, &head, text, n, e)))
        rc = read_rows(v, text + begin, end - begin, e);
    if (rc)
        *v = (struct trial_verdict){0};
    buf_release(&head);
    return rc;
}

/* ---- files ---- */
FALLIBLE trial_verdict_path(char out[PATH_MAX], const struct card *card, const char *dir,
                            struct q_err *e)
{
    return card_file_path(out, dir, card, ".trials", e);
}

FALLIBLE trial_verdict_load(struct trial_verdict *v, const struct card *card,
                            const struct trial_library *library, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc = trial_verdict_path(path, card, dir, e);
    *v = (struct trial_verdict){0};
    if (!rc && !(rc = file_read(&text, path, TRIAL_FILE_MAX, e)) &&
        (rc = trial_verdict_parse(v, card, library, buf_str(&text), text.len, e)))
        q_wrap(e, "%.100s", path);
    buf_release(&text);
    return rc;
}

FALLIBLE trial_verdict_save(const struct trial_verdict *v, const struct card *card,
                            const struct trial_library *library, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc;
    if ((rc = trial_verdict_path(path, card, dir, e)) || (rc = card_file_make_dirs(dir, e)))
        return rc;
    trial_verdict_print(&text, v, card, library);
    if (!(rc = buf_check(&text, path, e)))
        rc = file_write(path, text.data, text.len, 0666, e);
    buf_release(&text);
    return rc;
}
