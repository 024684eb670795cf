/* SPDX-License-Identifier: Apache-2.0 */
/* state.json of a training run, which may have been changed on its disk: as it is, and with the
 * checksum made right, so that the fuzzer gets past it. It is refused with a reason, or its numbers
 * are finite; what it says of learning rates is judged. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "engine/distill/checkpoint_internal.h"
#include "engine/distill/trainer_internal.h"

#define STEP 7u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[] = "/tmp/quire-fuzz-XXXXXX";
static char text_path[sizeof dir + 16], tensors_path[sizeof dir + 24];

static void clean(void)
{
    unlink(text_path);
    unlink(tensors_path);
    rmdir(dir);
}

static void begin(void)
{
    struct q_err e = Q_ERR_INIT;
    Q_ASSERT(mkdtemp(dir));
    snprintf(text_path, sizeof text_path, "%s/" STATE_TEXT, dir);
    snprintf(tensors_path, sizeof tensors_path, "%s/" STATE_TENSORS, dir);
    const enum q_code rc = file_write(tensors_path, "tensors", 7, 0600, &e);
    Q_ASSERT(rc == Q_OK);
    atexit(clean);
}

static void check(const struct buf *text)
{
    struct optimizer_options now = {.lr = 0.001, .n_step = 20, .warmup_steps = 2};
    double numbers[CHECKPOINT_NUMBERS] = {0};
    const struct checkpoint_run run = {
        .text = "{\"seed\": 7}",
        .judged = "learning_rates",
        .judge = trainer_rates_judge,
        .ctx = &now,
    };
    const struct state_read s = {dir, STEP, &run, numbers, true};
    struct q_err e = Q_ERR_INIT;
    FILE *f = fopen(text_path, "wb");
    Q_ASSERT(f && fwrite(buf_str(text), 1, text->len, f) == text->len && fclose(f) == 0);
    const enum q_code rc = state_read(&s, &e);
    Q_ASSERT(rc == e.code && (rc == Q_OK || rc == Q_CORRUPT || rc == Q_MISMATCH));
    Q_ASSERT(!rc || *e.message);
    for (uint32_t i = 0; i < CHECKPOINT_NUMBERS; i++)
        Q_ASSERT(isfinite(numbers[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf text = BUF_INIT;
    if (!*text_path)
        begin();
    buf_add(&text, data, n);
    check(&text);
    buf_printf(&text, ",\n\"sum\": \"%016llx\"}\n", (unsigned long long)XXH3_64bits(data, n));
    check(&text);
    buf_release(&text);
    return 0;
}
