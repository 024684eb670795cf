/* SPDX-License-Identifier: Apache-2.0 */
/* A shard of a teacher's log-probabilities of arbitrary bytes: refused, or every row has ascending
 * ids of the student. Tried as it is; with the right checksums, sizes and the key of a sequence
 * that is asked for, so that the fuzzer gets past them; and as a shard that a writer goes on with,
 * whose folder is read afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/teacher_file.h"
#include "engine/distill/teacher_writer.h"

#define FILE_MAX ((size_t)1 << 14)
#define STUDENT  64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[64], path[PATH_MAX], beside[PATH_MAX];
static const uint32_t ids[] = {3, 1, 2, 0};
static const int32_t labels[] = {1, -1, 0, -1};
static const struct train_segment segment = {0, 4};
static const struct micro_batch batch = {
    .n_row = 4,
    .n_segment = 1,
    .ids = ids,
    .segments = &segment,
    .labels = labels,
    .n_counted = 2,
};

static void remove_dir(void)
{
    unlink(path);
    unlink(beside);
    rmdir(dir);
}

static void make_dir(void)
{
    struct q_err e = Q_ERR_INIT;
    snprintf(dir, sizeof dir, "/dev/shm/quire-fuzz-XXXXXX"); /* no disk to wait for */
    if (!mkdtemp(dir)) {
        snprintf(dir, sizeof dir, "/tmp/quire-fuzz-XXXXXX");
        Q_ASSERT(mkdtemp(dir));
    }
    Q_ASSERT(!teacher_shard_path(path, dir, 0, false, &e));
    Q_ASSERT(!teacher_shard_path(beside, dir, 0, true, &e));
    log_setup("fuzz", LOG_ERROR, false);
    atexit(remove_dir);
}

static void put(const char *to, const void *data, size_t n)
{
    FILE *f = fopen(to, "wb");
    Q_ASSERT(f && fwrite(data, 1, n, f) == n);
    Q_ASSERT(fclose(f) == 0);
}

static void check_rows(struct teacher_file *f, uint32_t top_k)
{
    static const uint32_t rows[] = {0, 2};
    struct q_err e = Q_ERR_INIT;
    struct teacher_source source;
    struct teacher_rows got;
    if (teacher_file_source(f, top_k, STUDENT, &source, &e) ||
        source.rows(source.ctx, &batch, rows, 2, &got, &e))
        return;
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < got.n_col; k++) {
            const size_t at = i * got.stride + k;
            Q_ASSERT(got.ids[at] < STUDENT && got.z[at] <= 0);
            Q_ASSERT(k == 0 || got.ids[at] > got.ids[at - 1]);
        }
}

static void check_folder(void)
{
    struct q_err e = Q_ERR_INIT;
    struct teacher_file *f;
    if (teacher_file_open(&f, dir, &e)) {
        Q_ASSERT(*e.message);
        return;
    }
    q_err_reset(&e);
    const bool is_there = !teacher_file_check(f, &batch, &e);
    if (is_there) {
        check_rows(f, 0);
        check_rows(f, 1);
    }
    teacher_file_close(f);
}

/* What the file says of itself becomes right where it can. */
static void make_right(unsigned char *file, size_t n)
{
    struct teacher_shard_head head;
    struct teacher_entry x;
    memcpy(&head, file, sizeof head);
    const uint64_t room = (n - sizeof head) / sizeof x;
    head.top_k = head.top_k % 8 + 1;
    head.n_vocab = head.n_vocab % 2 * 64;
    head.n_entry = room ? head.n_entry % room : 0;
    head.file_bytes = n;
    head.index_at = n - head.n_entry * sizeof x;
    head.teacher[sizeof head.teacher - 1] = 0;
    for (uint64_t i = 0; i < head.n_entry; i++) {
        unsigned char *at = file + head.index_at + i * sizeof x;
        memcpy(&x, at, sizeof x);
        if (i == 0) {
            x.key = teacher_key_of(ids, labels, 4);
            x.n_row = 4;
            x.n_counted = 2;
            x.at = sizeof head + sizeof x + x.at % 64 * 8;
        }
        const uint64_t bytes = x.n_counted < 64 ? teacher_entry_bytes(&x, head.top_k) : n;
        if (x.at <= n && bytes <= n - x.at)
            x.sum = teacher_entry_sum(file + x.at, bytes);
        memcpy(at, &x, sizeof x);
    }
    head.index_sum = XXH3_64bits(file + head.index_at, (size_t)(head.n_entry * sizeof x));
    teacher_shard_seal(&head);
    memcpy(file, &head, sizeof head);
}

static void go_on(const unsigned char *file, size_t n)
{
    static const uint32_t top[] = {1, 5};
    static const float logprobs[] = {-1, -2};
    struct q_err e = Q_ERR_INIT;
    struct teacher_shard_head head;
    struct teacher_writer *w;
    memcpy(&head, file, sizeof head);
    const struct teacher_writer_options o = {
        .dir = dir,
        .top_k = head.top_k,
        .n_vocab = head.n_vocab,
        .teacher = head.teacher,
    };
    const struct teacher_sequence s = {teacher_key_of(ids, labels, 4), 4, 2, top, logprobs};
    put(beside, file, n);
    if (teacher_writer_open(&w, &o, &e))
        return;
    if (head.top_k == 1 && !teacher_writer_has(w, &s.key))
        Q_ASSERT(!teacher_writer_add(w, &s, &e));
    Q_ASSERT(!teacher_writer_finish(w, &e));
    teacher_writer_close(w);
    check_folder();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static unsigned char file[FILE_MAX];
    if (!*dir)
        make_dir();
    if (n > FILE_MAX)
        return 0;
    put(path, data, n);
    check_folder();
    if (n >= sizeof(struct teacher_shard_head)) {
        memcpy(file, data, n);
        make_right(file, n);
        put(path, file, n);
        check_folder();
        unlink(path);
        go_on(file, n);
    }
    unlink(path);
    unlink(beside);
    return 0;
}
