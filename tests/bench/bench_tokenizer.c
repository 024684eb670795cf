/* SPDX-License-Identifier: Apache-2.0 */
/* bench_tokenizer FOLDER TEXTFILE [once]: load, encode and decode on one core. Prints the best of
 * five rounds, whole and in prompts of about 2000 bytes; `once`: one round of the whole text, and
 * no more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/tokenizer/stream.h"
#include "common/utf8.h"

#define ROUNDS      5
#define PROMPT_SIZE 2000 /* bytes */

static struct q_err err;

/* CPU time of this thread: other programs on the machine do not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(enum q_code rc)
{
    if (rc == Q_OK)
        return;
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

/* Seconds of the best round of n; step 0 = the whole text at once. */
static double encode(const struct tokenizer *t, const struct buf *text, size_t step, int n_round,
                     struct token_list *ids)
{
    double best = 1e9;
    for (int round = 0; round < n_round; round++) {
        ids->n = 0;
        double start = cpu_s();
        for (size_t i = 0; i < text->len;) {
            size_t n = step && step < text->len - i ? step : text->len - i;
            n = utf8_complete_prefix(text->data + i, n);
            check(tokenizer_encode(t, text->data + i, n, false, ids, &err));
            i += n;
        }
        double s = cpu_s() - start;
        best = s < best ? s : best;
    }
    return best;
}

static double stream(const struct tokenizer *t, const struct token_list *ids, struct buf *out)
{
    struct detok *d = NULL;
    double start = cpu_s();
    check(detok_new(&d, t, false, &err));
    for (size_t i = 0; i < ids->n; i++)
        check(detok_push(d, ids->ids[i], out, &err));
    check(detok_flush(d, out, &err));
    detok_free(d);
    return cpu_s() - start;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct buf text = BUF_INIT;
    struct buf back = BUF_INIT;
    struct token_list ids = TOKEN_LIST_INIT;
    bool once = argc == 4 && strcmp(argv[3], "once") == 0;
    if (argc != 3 && !once) {
        fprintf(stderr, "usage: bench_tokenizer FOLDER TEXTFILE [once]\n");
        return 2;
    }
    double start = cpu_s();
    check(tokenizer_open(&t, argv[1], &err));
    printf("load           %8.1f ms  (%u ids)\n", (cpu_s() - start) * 1e3, tokenizer_vocab_size(t));
    check(file_read(&text, argv[2], TOKENIZER_TEXT_MAX, &err));
    double mb = (double)text.len / 1e6;
    double whole = encode(t, &text, 0, once ? 1 : ROUNDS, &ids);
    printf("encode whole   %8.2f MB/s  (%zu tokens, %.2f bytes each)\n", mb / whole, ids.n,
           (double)text.len / (double)ids.n);
    if (!once) {
        double streamed = stream(t, &ids, &back);
        bool same = back.len == text.len && !memcmp(back.data, text.data, text.len);
        printf("stream decode  %8.2f M tokens/s%s\n", (double)ids.n / streamed / 1e6,
               same ? "" : "  (text changed)");
        printf("encode prompts %8.2f MB/s\n", mb / encode(t, &text, PROMPT_SIZE, ROUNDS, &ids));
    }
    token_list_release(&ids);
    buf_release(&text);
    buf_release(&back);
    tokenizer_free(t);
    return 0;
}
