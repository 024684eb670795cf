/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters of a record: a file names each by number, folder and digest, when the worker loads
 * it. */
#include <string.h>
#include "common/mem.h"
#include "engine/core/core_adapters.h"
#include "engine/replay/replay.h"

static FALLIBLE command(struct replay *r, enum ring_command what, uint32_t number, const char *dir,
                        struct q_err *e)
{
    ring_adapter(r->ring, what, number, dir);
    while (ring_commanding(r->ring)) {
        const enum q_code rc = replay_wait(r, e);
        if (rc)
            return rc;
    }
    return ring_command_result(r->ring, e);
}

/* False also for a folder that is not there. */
static bool has_files(const char *dir, const char *digest)
{
    char now[CORE_ADAPTER_FP];
    struct q_err ignored = Q_ERR_INIT;
    return !core_adapters_digest(now, dir, &ignored) && !strcmp(now, digest);
}

/* Files that moved are found among --lora-modules, whatever name they have there. */
static FALLIBLE find_folder(const struct replay *r, const struct record_item *item,
                            const char **dir, struct q_err *e)
{
    const struct adapter_settings *s = &r->config.adapters;
    if (has_files(*dir = item->dir, item->adapter.digest))
        return Q_OK;
    for (uint32_t i = 0; i < s->n; i++)
        if (has_files(*dir = s->modules[i].path, item->adapter.digest))
            return Q_OK;
    return q_fail(e, Q_MISMATCH,
                  "adapter %u of the record: the files in %.200s are missing or others (recorded "
                  "digest: %s); give the folder that has them with --lora-modules NAME=FOLDER",
                  item->adapter.number, item->dir, item->adapter.digest);
}

static void forget(struct replay *r, uint32_t number)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < r->n_adapter; i++)
        if (r->adapters[i] != number)
            r->adapters[n_kept++] = r->adapters[i];
    r->n_adapter = n_kept;
}

FALLIBLE replay_adapter(struct replay *r, const struct record_item *item, struct q_err *e)
{
    const uint32_t number = item->adapter.number;
    const char *dir;
    forget(r, number);
    if (item->adapter.is_dropped)
        return command(r, RING_DROP_ADAPTER, number, NULL, e);
    enum q_code rc = find_folder(r, item, &dir, e);
    if (!rc)
        rc = q_grow(&r->adapters, &r->adapters_cap, r->n_adapter + 1, sizeof *r->adapters,
                    RING_ADAPTERS_MAX, e);
    if (rc)
        return rc;
    if (command(r, RING_LOAD_ADAPTER, number, dir, e))
        return q_wrap(e, "adapter %u of the record", number);
    r->adapters[r->n_adapter++] = number;
    return Q_OK;
}

FALLIBLE replay_adapters_forget(struct replay *r, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (; r->n_adapter && !rc; r->n_adapter--)
        rc = command(r, RING_DROP_ADAPTER, r->adapters[r->n_adapter - 1], NULL, e);
    return rc;
}
