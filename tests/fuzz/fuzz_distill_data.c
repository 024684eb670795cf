/* SPDX-License-Identifier: Apache-2.0 */
/* What a training run reads of its data: the first byte picks a line of JSON (for one of several
 * chat templates) or a file of tokenized sequences. A line is refused with a reason, or a sample
 * whose ids, labels and sizes are in range. A file is tried as it is, and with the checksums made
 * right, so that the fuzzer gets past them; each of its sequences is refused or in range. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/mem.h"
#include "engine/distill/sample.h"
#include "engine/distill/sequence_internal.h"

#define VOCAB   2560u /* of the bundled model */
#define SEQ_LEN 40u
#define FILES   0x80u /* of the first byte: a file, not a line */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const templates[] = {
    NULL, /* the bundled model's */
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}",
    "{% for m in messages %}{% if tools and loop.last %}[T]{% endif %}{% if m.role == 'assistant' "
    "%}{% generation %}{{ m.content }}{% endgeneration %}{% else %}[I]{{ m.content }}[/I]{% endif "
    "%}{% endfor %}",
    "{% for m in messages %}{% if tools and loop.revindex < 3 %}[T]{{ tools[0].function.name }}{% "
    "endif %}{{ m.role[:1] }} {{ (m.content or '') | trim }} {% endfor %}",
};
#define N_TEMPLATE (sizeof templates / sizeof *templates)

static struct tokenizer *tokenizer;
static struct chat *chats[N_TEMPLATE];

static void load(void)
{
    struct q_err e = Q_ERR_INIT;
    const char *dir = "deploy/model/quire-tiny";
    enum q_code rc = tokenizer_open(&tokenizer, dir, &e);
    for (size_t i = 0; i < N_TEMPLATE && !rc; i++)
        rc = templates[i]
                 ? chat_from_source(&chats[i], templates[i], strlen(templates[i]), NULL, &e)
                 : chat_open(&chats[i], dir, NULL, &e);
    Q_ASSERT(rc == Q_OK); /* it runs in the top folder */
}

static void check_line(const struct sample_source *source, const char *line, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    struct sample s;
    bool needs_tokenizer = false;
    uint32_t n_counted = 0;
    const enum q_code rc = sample_read(&s, source, line, n, &needs_tokenizer, &e);
    Q_ASSERT(rc == e.code && !needs_tokenizer);
    Q_ASSERT(rc ? !s.ids && !s.labels && *e.message : s.n > 0 && s.n <= SEQ_LEN);
    for (uint32_t i = 0; i < s.n && !rc; i++) {
        Q_ASSERT(s.ids[i] < VOCAB && s.labels[i] >= -1 && s.labels[i] < (int32_t)VOCAB);
        n_counted += i && s.labels[i] >= 0;
    }
    Q_ASSERT(rc || n_counted == s.n_counted);
    sample_release(&s);
}

static void check_file(const void *data, size_t n)
{
    struct q_err e = Q_ERR_INIT;
    struct sequence_file *f = NULL;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    Q_ASSERT(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    if (sequence_file_open(&f, fd, NULL, VOCAB, &e))
        return;
    const struct sequence_totals *t = sequence_file_totals(f);
    Q_ASSERT(strlen(sequence_file_notes(f)) <= SEQUENCE_NOTES_MAX);
    for (uint64_t i = 0; i <= t->n_sequence; i++) {
        struct sequence s;
        uint32_t row = 0;
        const enum q_code rc = sequence_file_read(f, i, &s, &e);
        Q_ASSERT(rc || i < t->n_sequence);
        for (uint32_t k = 0; !rc && k < s.n_segment; k++)
            row += s.n_rows[k];
        Q_ASSERT(rc || (row == s.n_row && row <= t->longest && s.n_counted < row));
        for (uint32_t k = 0; k < row; k++)
            Q_ASSERT(s.ids[k] < VOCAB && s.labels[k] >= -1 && s.labels[k] < (int32_t)VOCAB);
    }
    sequence_file_close(f);
}

static void check_with_sums(const uint8_t *data, size_t n)
{
    struct sequence_head head;
    if (n < SEQUENCE_FILE_HEAD)
        return;
    unsigned char *file = q_alloc(n);
    memcpy(file, data, n);
    memcpy(&head, file, sizeof head);
    memcpy(head.magic, SEQUENCE_MAGIC, sizeof head.magic);
    head.version = SEQUENCE_VERSION;
    head.head_bytes = sizeof head;
    head.file_bytes = n;
    head.body_sum = XXH3_64bits(file + SEQUENCE_FILE_HEAD, n - SEQUENCE_FILE_HEAD);
    head.head_sum = XXH3_64bits(&head, offsetof(struct sequence_head, head_sum));
    memcpy(file, &head, sizeof head);
    check_file(file, n);
    q_free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!tokenizer)
        load();
    if (n == 0)
        return 0;
    const struct sample_source source = {
        .seq_len = SEQ_LEN,
        .vocab_size = VOCAB,
        .tokenizer = tokenizer,
        .chat = chats[data[0] % N_TEMPLATE],
        .eos = 2,
    };
    if (data[0] & FILES) {
        check_file(data + 1, n - 1);
        check_with_sums(data + 1, n - 1);
    } else {
        check_line(&source, (const char *)data + 1, n - 1);
    }
    return 0;
}
