/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/fill.h"

static bool any_ordered(const struct load_plan *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n_row && !any; i++)
        any = p->rows[i].ordered;
    return any;
}

/* Is there a matrix whose numbers are made before they are packed? */
static bool any_made(const struct load_plan *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n_source && !any; i++)
        any = p->sources[i].present && !weight_source_has_rows(&p->sources[i]);
    return any;
}

enum q_code fill_init(struct filler *f, const struct load_plan *p, const struct load_options *o,
                      struct q_err *e)
{
    *f = (struct filler){
        .kern = o->kern,
        .team = o->team,
        .n_thread = o->team ? team_size(o->team) : 1,
        .progress = o->progress,
        .progress_ctx = o->progress_ctx,
    };
    if (!o->device) {
        f->part_bytes = any_made(p) ? (size_t)KERN_PANEL * p->n_in_max * sizeof(float) : 0;
        return f->part_bytes
                   ? region_init(&f->buffer, f->n_thread * f->part_bytes, "weights on their way", e)
                   : Q_OK;
    }
    f->way = FILL_UPLOAD;
    const enum q_code rc = upload_init(&f->upload, o->device, e);
    if (rc || !any_ordered(p))
        return rc;
    f->part_bytes = (size_t)FILL_ORDERED * p->n_in_max;
    return region_init(&f->buffer, (f->n_thread + 1) * f->part_bytes, "weights on their way", e);
}

FALLIBLE fill_run_host(const struct load_plan *p, const struct load_options *o, struct q_err *e)
{
    struct load_options here = *o;
    struct filler f;
    here.device = NULL;
    here.kern = o->host_kern;
    here.progress = NULL;
    enum q_code rc = fill_init(&f, p, &here, e);
    f.place = PLACE_HOST;
    if (!rc)
        fill_host(&f, p);
    fill_release(&f);
    return rc;
}

void fill_release(struct filler *f)
{
    upload_release(&f->upload);
    region_release(&f->buffer);
}

enum q_code fill_run(struct filler *f, const struct load_plan *p, struct q_err *e)
{
    switch (f->way) {
    case FILL_TAKEN:
    case FILL_OWN:
        fill_host(f, p);
        return Q_OK;
    case FILL_UPLOAD:
        fill_device(f, p);
        return upload_end(&f->upload, e);
    case FILL_FOUND:
        break;
    }
    return Q_OK;
}
