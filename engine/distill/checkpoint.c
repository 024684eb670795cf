/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint in three steps, each of which all ranks end with the same code:
 *     rank 0: room, the folder NAME.tmp, its small files, the files of tensors with header and size
 *     all:    their parts, synced
 *     rank 0: NAME.tmp gets its name; older checkpoints are removed
 * After an error rank 0 removes NAME.tmp; nothing that was there before is touched until the
 * rename. */
#include "engine/distill/checkpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/distill/checkpoint_internal.h"

/* ---- agreement ---- */

enum q_code checkpoint_agree(struct transport *t, enum q_code rc, struct q_err *e)
{
    const struct transport_group all = transport_all(t);
    struct q_err mine = Q_ERR_INIT, own = Q_ERR_INIT;
    uint64_t any = rc;
    enum q_code failed = transport_max(t, &all, &any, &own);
    if (failed)
        return rc ? rc : q_fail(e, failed, "%s", own.message);
    if (!any)
        return Q_OK;
    struct q_err *each = q_calloc(all.n, sizeof *each);
    uint64_t no_memory = !each;
    failed = transport_max(t, &all, &no_memory, &own);
    mine.code = rc;
    if (rc)
        snprintf(mine.message, sizeof mine.message, "%s", e->message);
    if (failed || no_memory || !each) {
        q_free(each);
        return rc ? rc : q_fail(e, (enum q_code)any, "another rank failed");
    }
    failed = transport_gather(t, &all, &mine, sizeof mine, each, &own);
    for (uint32_t i = 0; i < all.n && !failed; i++)
        if (each[i].code) {
            rc = all.n > 1 ? q_fail(e, each[i].code, "rank %u: %s", all.ranks[i], each[i].message)
                           : each[i].code;
            break;
        }
    q_free(each);
    return rc ? rc : q_fail(e, (enum q_code)any, "another rank failed");
}

/* ---- opening ---- */

static enum q_code make_layouts(struct checkpoint *c, struct q_err *e)
{
    const struct layout_ask model = {
        .dtype = c->o.dtype,
        .arrays = {CHECKPOINT_W},
        .n_array = 1,
        .is_model = true,
        .name = "model",
        .shard_bytes = c->o.shard_bytes ? c->o.shard_bytes : CHECKPOINT_SHARD_BYTES,
    };
    const struct layout_ask gradients = {
        .dtype = DT_F32,
        .arrays = {CHECKPOINT_G},
        .n_array = 1,
        .name = "gradients",
    };
    const struct layout_ask state = {
        .dtype = DT_F32,
        .arrays = {CHECKPOINT_W, CHECKPOINT_M, CHECKPOINT_V},
        .n_array = 3,
        .prefixed = true,
        .name = "state",
    };
    enum q_code rc;
    if ((rc = layout_make(&c->model, &c->table, &model, e)) ||
        (rc = layout_make(&c->gradients, &c->table, &gradients, e)))
        return rc;
    return layout_make(&c->state, &c->table, &state, e);
}

/* One run at a time, as far as the file system knows locks. */
static enum q_code lock_output(struct checkpoint *c, struct q_err *e)
{
    c->lock = open(c->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->lock >= 0 && flock(c->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return q_fail(e, Q_INVALID,
                      "%s: another run is writing there; wait for its end, or choose another "
                      "--output",
                      c->output);
    return Q_OK;
}

static enum q_code make_output(struct checkpoint *c, struct q_err *e)
{
    enum q_code rc;
    if ((rc = checkpoint_check_output(c->output, e)))
        return rc;
    for (char *p = c->output + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        (void)mkdir(c->output, 0777);
    }
    if (mkdir(c->output, 0777) != 0 && errno != EEXIST)
        return q_fail(e, Q_IO, "%s: cannot create: %s", c->output, strerror(errno));
    if ((rc = lock_output(c, e)) || (rc = remove_leftovers(c->output, e)) ||
        (rc = copy_model_files(c->student, NULL, c->o.dtype, &c->files_bytes, e)))
        return rc;
    return check_room(c->output, c->model.n_bytes + c->files_bytes + c->state.n_bytes + STATE_ROOM,
                      e);
}

enum q_code checkpoint_open(struct checkpoint **out, const struct checkpoint_options *o,
                            struct params *params, struct q_err *e)
{
    struct checkpoint *c = q_calloc(1, sizeof *c);
    enum q_code rc = c ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for checkpoints");
    rc = checkpoint_agree(o->transport, rc, e);
    if (rc || !c) {
        q_free(c);
        return rc ? rc : Q_NO_MEMORY;
    }
    c->o = *o;
    c->params = params;
    c->lock = -1;
    if (snprintf(c->output, PATH_MAX, "%s", o->output) >= PATH_MAX ||
        snprintf(c->student, PATH_MAX, "%s", o->student_dir) >= PATH_MAX)
        rc = q_fail(e, Q_TOO_LARGE, "output: a path is longer than %d bytes", PATH_MAX);
    else if (o->dtype != DT_F32 && o->dtype != DT_BF16 && o->dtype != DT_F16)
        rc = q_fail(e, Q_INVALID, "a checkpoint's dtype is %s; accepted are F32, BF16 and F16",
                    dtype_name(o->dtype));
    if ((rc = checkpoint_agree(o->transport, rc, e)))
        goto out;
    rc = tensor_table_make(&c->table, params, o->transport, e);
    if (!rc)
        rc = make_layouts(c, e);
    if ((rc = checkpoint_agree(o->transport, rc, e)))
        goto out;
    if (checkpoint_is_first(c))
        rc = make_output(c, e);
    rc = checkpoint_agree(o->transport, rc, e);
out:
    if (rc)
        checkpoint_close(c);
    else
        *out = c;
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    tensor_table_release(&c->table);
    layout_release(&c->model);
    layout_release(&c->gradients);
    layout_release(&c->state);
    if (c->lock >= 0)
        close(c->lock);
    q_free(c);
}

/* ---- saving ---- */

struct save { /* one checkpoint that is written */
    const struct layout *layout;
    char final[PATH_MAX], beside[PATH_MAX + 8];
    bool is_folder;
    uint64_t step;
    const struct checkpoint_run *run; /* of a state */
    const double *numbers;
};

static enum q_code add_index(const struct checkpoint *c, const struct save *s, struct q_err *e)
{
    const struct layout *l = s->layout;
    struct buf b = BUF_INIT;
    char path[PATH_MAX];
    enum q_code rc;
    buf_printf(&b, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": {",
               (unsigned long long)l->n_data);
    for (uint32_t i = 0; i < l->n_item; i++) {
        const char *name = c->table.all[l->items[i].whole].name;
        buf_add_str(&b, i ? ",\n" : "\n");
        buf_add_json_str(&b, name, strlen(name));
        buf_printf(&b, ": \"%s\"", l->files[l->items[i].i_file].name);
    }
    buf_add_str(&b, "\n}}\n");
    if (!(rc = buf_check(&b, "the index of a checkpoint", e)) &&
        !(rc = path_join(path, sizeof path, s->beside, l->index_name, e)))
        rc = file_write(path, b.data, b.len, 0644, e);
    buf_release(&b);
    return rc;
}

static enum q_code begin_folder(struct checkpoint *c, const struct save *s, struct q_err *e)
{
    uint64_t n_bytes;
    enum q_code rc = Q_OK;
    if (mkdir(s->beside, 0777) != 0)
        return q_fail(e, Q_IO, "%s: cannot create: %s", s->beside, strerror(errno));
    if (s->run)
        return Q_OK;
    if ((rc = copy_model_files(c->student, s->beside, s->layout->dtype, &n_bytes, e)))
        return rc;
    return s->layout->index_name ? add_index(c, s, e) : Q_OK;
}

/* Rank 0: what an earlier save has left is removed before. */
static enum q_code make_room(struct checkpoint *c, const struct save *s, struct q_err *e)
{
    const uint64_t others = s->run ? STATE_ROOM : s->is_folder ? c->files_bytes : 0;
    const enum q_code rc = remove_all(s->beside, e);
    return rc ? rc : check_room(c->output, s->layout->n_bytes + others, e);
}

/* Rank 0: all but the tensors' data. */
static enum q_code begin(struct checkpoint *c, const struct save *s, struct q_err *e)
{
    const struct layout *l = s->layout;
    char path[PATH_MAX];
    enum q_code rc;
    if (!s->is_folder)
        return create_file(s->beside, &l->files[0].header, l->files[0].n_bytes, e);
    rc = begin_folder(c, s, e);
    for (uint32_t i = 0; i < l->n_file && !rc; i++)
        if (!(rc = path_join(path, sizeof path, s->beside, l->files[i].name, e)))
            rc = create_file(path, &l->files[i].header, l->files[i].n_bytes, e);
    return rc ? rc : sync_path(s->beside, e);
}

/* What a full disk means, in numbers. */
static enum q_code say_room(const struct checkpoint *c, const struct save *s, enum q_code rc,
                            struct q_err *e)
{
    struct q_err room = Q_ERR_INIT;
    if (rc == Q_IO && check_room(c->output, s->layout->n_bytes, &room))
        return q_wrap(e, "%s", room.message);
    return rc == Q_IO
               ? q_wrap(e, "a checkpoint of %llu bytes", (unsigned long long)s->layout->n_bytes)
               : rc;
}

/* Rank 0, when all have written: the checkpoint's name. */
static enum q_code finish(const struct checkpoint *c, const struct save *s, struct q_err *e)
{
    const struct state_text text = {s->beside, s->step, s->run, s->numbers};
    const enum q_code rc = s->run ? state_write(&text, e) : Q_OK;
    return rc ? say_room(c, s, rc, e) : replace_path(s->beside, s->final, e);
}

static enum q_code save(struct checkpoint *c, const struct save *s, struct q_err *e)
{
    struct transport *t = c->o.transport;
    struct layout_file file = {.n_bytes = 0};
    struct layout one = *s->layout;
    struct write_parts w = {s->layout, &c->table, c->params, s->beside};
    enum q_code rc = Q_OK;
    if (checkpoint_is_first(c) && !(rc = make_room(c, s, e)) && (rc = begin(c, s, e)))
        rc = say_room(c, s, rc, e);
    if ((rc = checkpoint_agree(t, rc, e)))
        goto out;
    if (!s->is_folder) { /* one file, which is in the output folder itself */
        snprintf(file.name, sizeof file.name, "%s", strrchr(s->beside, '/') + 1);
        one.files = &file;
        w.layout = &one;
        w.dir = c->output;
    }
    rc = write_parts(&w, e);
    if ((rc = checkpoint_agree(t, rc ? say_room(c, s, rc, e) : rc, e)))
        goto out;
    if (checkpoint_is_first(c))
        rc = finish(c, s, e);
    rc = checkpoint_agree(t, rc, e);
out:
    if (rc && checkpoint_is_first(c)) {
        struct q_err ignored = Q_ERR_INIT;
        if (remove_all(s->beside, &ignored))
            log_warning("%s", ignored.message);
    }
    return rc;
}

static enum q_code name_save(struct save *s, const struct checkpoint *c, const char *prefix,
                             const char *suffix, struct q_err *e)
{
    if (snprintf(s->final, sizeof s->final, "%s/%s-%llu%s", c->output, prefix,
                 (unsigned long long)s->step, suffix) >= (int)sizeof s->final)
        return q_fail(e, Q_TOO_LARGE, "path longer than %d bytes: %s", PATH_MAX, c->output);
    snprintf(s->beside, sizeof s->beside, "%s.tmp", s->final);
    return Q_OK;
}

static bool stays(const struct checkpoint *c, uint64_t step)
{
    for (uint32_t i = 0; i < c->o.n_keep_step; i++)
        if (c->o.keep_steps[i] == step)
            return true;
    return false;
}

/* Rank 0: all but the last ones of PREFIX-N, which is no reason to end a run if it fails. A folder
 * loses its name before its files. */
static void remove_older(const struct checkpoint *c, const char *prefix, bool models)
{
    uint64_t *steps = NULL;
    size_t n = 0, n_kept = 0;
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = c->o.keep_last ? list_steps(&steps, &n, c->output, prefix, &e) : Q_OK;
    for (size_t i = n; i-- > 0 && !rc;) {
        char path[PATH_MAX], beside[PATH_MAX + 8];
        if (models && stays(c, steps[i]))
            continue;
        if (n_kept++ < c->o.keep_last)
            continue;
        if (snprintf(path, sizeof path, "%s/%s%llu", c->output, prefix,
                     (unsigned long long)steps[i]) >= (int)sizeof path)
            break;
        snprintf(beside, sizeof beside, "%s.tmp", path);
        if (rename(path, beside) != 0)
            rc = q_fail(&e, Q_IO, "%s: cannot remove: %s", path, strerror(errno));
        else
            rc = remove_all(beside, &e);
    }
    if (rc)
        log_warning("%s", e.message);
    q_free(steps);
}

enum q_code checkpoint_save_model(struct checkpoint *c, uint64_t step, struct q_err *e)
{
    struct save s = {.layout = &c->model, .is_folder = true, .step = step};
    enum q_code rc = name_save(&s, c, "step", "", e);
    if (rc || (rc = save(c, &s, e)))
        return rc;
    if (checkpoint_is_first(c))
        remove_older(c, "step-", true);
    return Q_OK;
}

enum q_code checkpoint_save_gradients(struct checkpoint *c, uint64_t step, struct q_err *e)
{
    struct save s = {.layout = &c->gradients, .step = step};
    const enum q_code rc = name_save(&s, c, "gradients", ".safetensors", e);
    return rc ? rc : save(c, &s, e);
}

enum q_code checkpoint_save_state(struct checkpoint *c, uint64_t step,
                                  const struct checkpoint_run *run, const double *numbers,
                                  struct q_err *e)
{
    struct save s = {
        .layout = &c->state,
        .is_folder = true,
        .step = step,
        .run = run,
        .numbers = numbers,
    };
    enum q_code rc = name_save(&s, c, "state", "", e);
    for (uint32_t i = 0; i < CHECKPOINT_NUMBERS && !rc; i++)
        if (!isfinite(numbers[i]))
            rc = q_fail(e, Q_INVALID, "the state's number %u is not finite", i);
    if ((rc = checkpoint_agree(c->o.transport, rc, e)) || (rc = save(c, &s, e)))
        return rc;
    if (checkpoint_is_first(c))
        remove_older(c, "state-", false);
    return Q_OK;
}
