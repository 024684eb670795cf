/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/file_sum.h"
#include <xxhash.h>
#include "common/mem.h"

#define BUFFER ((size_t)1 << 20)

enum q_code file_sum(uint64_t *sum, const struct file_open *f, uint64_t at, uint64_t end,
                     struct q_err *e)
{
    enum q_code rc = Q_OK;
    XXH3_state_t *state = XXH3_createState();
    unsigned char *data = q_alloc(BUFFER);
    if (!state || !data || XXH3_64bits_reset(state) != XXH_OK)
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory for its checksum", f->path);
    while (!rc && at < end) {
        const size_t n = end - at < BUFFER ? (size_t)(end - at) : BUFFER;
        if (!(rc = file_read_at(f, data, n, at, e)) && XXH3_64bits_update(state, data, n) != XXH_OK)
            rc = q_fail(e, Q_INTERNAL, "%s: the checksum failed", f->path);
        at += n;
    }
    if (!rc)
        *sum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    q_free(data);
    return rc;
}
