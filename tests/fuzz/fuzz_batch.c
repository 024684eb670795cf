/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a batch file and lines of an output file that an earlier run may have left. */
#include <stddef.h>
#include <stdint.h>
#include "common/mem.h"
#include "frontend/cli/batch_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    struct batch_line line;
    struct batch_done done;
    const struct batch_form form = {
        .n_line = size,
        .chats = size & 1,
        .raw = (size & 2) && !(size & 1),
    };
    if (batch_line_read(&line, &form, (const char *)data, size, &e) == Q_OK)
        Q_ASSERT(line.custom_id && line.body.len >= 2);
    if (line.custom_id) { /* what we write of it, we read again */
        struct buf out = BUF_INIT;
        const struct batch_error error = {"invalid_line", e.message, 1};
        batch_error_line(&out, line.custom_id, &error);
        q_err_reset(&e);
        Q_ASSERT(batch_done_read(&done, out.data, out.len - 1, &e) == Q_OK && done.custom_id);
        q_free(done.custom_id);
        buf_release(&out);
    }
    batch_line_release(&line);
    q_err_reset(&e);
    if (batch_done_read(&done, (const char *)data, size, &e) != Q_OK)
        Q_ASSERT(e.code);
    q_free(done.custom_id);
    return 0;
}
