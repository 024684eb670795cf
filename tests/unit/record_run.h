/* SPDX-License-Identifier: Apache-2.0 */
/* record_run - engines that record their steps into a folder of the test, and replays of the files.
 * Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_RECORD_RUN_H
#define QUIRE_TESTS_UNIT_RECORD_RUN_H
#include "core_run.h"
#include "common/file.h"
#include "engine/replay/replay.h"
#include "folder.h"

static struct folder record_folder;

/* config, with --record NAME in the test's folder. */
static inline struct core_config record_config(struct core_config c, const char *name,
                                               uint64_t file_bytes)
{
    static char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    assert_ok(path_join(path, sizeof path, record_folder.path, name, &e), &e);
    c.record = (struct recorder_options){path, file_bytes, 1000, NULL, NULL, 0};
    c.prefix_cache = true;
    c.worker_program = program_beside("/bin/quire-worker");
    return c;
}

struct replayed {
    uint64_t n_step, n_filled;
    bool is_incomplete;
    struct replay_difference difference;
};

/* The bytes of a file, computed again. */
static inline struct replayed replay_bytes(const struct core_config *c, const void *data, size_t n)
{
    static struct replay r;
    struct q_err e = Q_ERR_INIT;
    r = (struct replay)REPLAY_INIT;
    r.config = *c;
    assert_ok(record_open(&r.file, data, n, &e), &e);
    assert_ok(replay_open(&r, &e), &e);
    assert_ok(replay_run(&r, &e), &e);
    assert_string_equal(r.fingerprint, r.file.head.fingerprint);
    const struct replayed out = {r.n_step, r.n_filled, r.file.is_incomplete, r.difference};
    replay_release(&r);
    return out;
}

static inline struct replayed replay_path(const struct core_config *c, const char *path)
{
    struct mapping m = MAPPING_INIT;
    struct q_err e = Q_ERR_INIT;
    assert_ok(mapping_open(&m, path, &e), &e);
    const struct replayed out = replay_bytes(c, m.data, m.size);
    mapping_release(&m);
    return out;
}

/* All files of a record; returns how many steps they have together. */
static inline uint64_t replay_all(const struct core_config *c, uint32_t *n_file, uint64_t *n_filled)
{
    char path[PATH_MAX];
    uint64_t n_step = 0;
    *n_file = 0;
    *n_filled = 0;
    for (uint32_t i = 0;; i++) {
        snprintf(path, sizeof path, i ? "%s.%u" : "%s", c->record.path, i);
        if (!file_exists(path))
            return n_step;
        const struct replayed r = replay_path(c, path);
        if (r.difference.step)
            fail_msg("%s: step %llu differs in %s (slot %u, position %u)", path,
                     (unsigned long long)r.difference.step, r.difference.what,
                     r.difference.recorded.slot, r.difference.recorded.position);
        assert_false(r.is_incomplete);
        n_step += r.n_step;
        *n_filled += r.n_filled;
        ++*n_file;
    }
}

#endif
