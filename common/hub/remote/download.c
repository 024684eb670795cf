/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/download.h"
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/hub/remote/fetch.h"
#include "common/mem.h"

/* Files that programs look for and that a model need not have: noted in .no_exist, so that none of
 * them asks the hub again. */
static const char *const optional[] = {
    "tokenizer.json",      "tokenizer_config.json",    "special_tokens_map.json",
    "added_tokens.json",   "generation_config.json",   "chat_template.jinja",
    "chat_template.json",  "preprocessor_config.json", "processor_config.json",
    "adapter_config.json", "model.safetensors",        "model.safetensors.index.json",
};

/* ctx of one download */
struct plan {
    const struct download *d;
    struct fetch fetch;
    struct listing listing;
    bool *take, *taken; /* [listing.n] */
};

/* Fetch the files that are marked and were not fetched yet. */
static enum q_code fetch_taken(struct plan *p, struct q_err *e)
{
    const struct listing *l = &p->listing;
    size_t n = 0;
    const char **names = q_calloc(l->n + 1, sizeof *names);
    if (!names)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", p->d->id);
    for (size_t i = 0; i < l->n; i++)
        if (p->take[i] && !p->taken[i]) {
            p->taken[i] = true;
            names[n++] = l->names[i];
        }
    enum q_code rc = n ? fetch_files(&p->fetch, l->commit, names, n, e) : Q_OK;
    q_free(names);
    return rc;
}

/* Mark the shards of the index, which was fetched. */
static enum q_code take_shards(struct plan *p, const char *index, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    enum q_code rc = store_pointer(path, &p->fetch.store, p->listing.commit, index, e);
    if (!rc && !(rc = file_read(&text, path, HUB_JSON_FILE_MAX, e))) {
        const struct choose_index x = {index, buf_str(&text), text.len};
        rc = choose_shards(p->take, &p->listing, &p->d->rules, &x, e);
    }
    buf_release(&text);
    return rc;
}

/* A pattern that matches nothing is a mistake. */
static enum q_code check_patterns(const struct plan *p, struct q_err *e)
{
    const struct option_list *include = p->d->rules.include;
    for (uint32_t i = 0; i < include->n; i++) {
        bool found = false;
        for (size_t k = 0; k < p->listing.n && !found; k++)
            found = choose_matches(include->items[i], p->listing.names[k]);
        if (!found)
            return q_fail(e, Q_NOT_FOUND, "%s has no file that matches --include '%s'", p->d->id,
                          include->items[i]);
    }
    return Q_OK;
}

static enum q_code fetch_all(struct plan *p, struct q_err *e)
{
    const char *index = NULL;
    const struct choose_rules *r = &p->d->rules;
    const struct listing *l = &p->listing;
    enum q_code rc;
    if ((rc = check_patterns(p, e)) || (rc = choose_weights(p->take, &index, l, r, p->d->id, e)))
        return rc;
    choose_texts(p->take, l, r);
    if (index && ((rc = fetch_taken(p, e)) || (rc = take_shards(p, index, e))))
        return rc;
    if ((rc = fetch_taken(p, e)))
        return rc;
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        if (!listing_has(l, optional[i]))
            store_note_absent(&p->fetch.store, l->commit, optional[i]);
    return store_write_ref(&p->fetch.store, p->d->revision, l->commit, e);
}

static enum q_code read_listing(struct plan *p, struct q_err *e)
{
    struct buf text = BUF_INIT;
    enum q_code rc = fetch_listing(&p->fetch, &text, e);
    if (!rc)
        rc = listing_parse(&p->listing, buf_str(&text), text.len, p->d->id, e);
    buf_release(&text);
    if (rc)
        return rc;
    p->take = q_calloc(p->listing.n + 1, sizeof *p->take);
    p->taken = q_calloc(p->listing.n + 1, sizeof *p->taken);
    return p->take && p->taken ? Q_OK : q_fail(e, Q_NO_MEMORY, "%s: out of memory", p->d->id);
}

static enum q_code check_names(const struct download *d, struct q_err *e)
{
    if (!cache_is_id(d->id))
        return q_fail(e, Q_INVALID, "\"%s\" is no model id, expected ORG/NAME", d->id);
    if (!cache_is_revision(d->revision))
        return q_fail(e, Q_INVALID, "\"%s\" is not a revision (a branch, tag or commit hash)",
                      d->revision);
    return Q_OK;
}

enum q_code download_model(struct download_result *out, const struct download *d, struct q_err *e)
{
    struct plan p = {.d = d, .listing = LISTING_INIT};
    struct progress progress;
    struct endpoint *endpoint = q_calloc(1, sizeof *endpoint);
    enum q_code rc = check_names(d, e);
    progress_init(&progress, d->id, d->json);
    if (!rc && !endpoint)
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", d->id);
    if (rc || (rc = endpoint_init(endpoint, e)) ||
        (rc = fetch_init(&p.fetch, endpoint, d->id, d->revision, &progress, e)) ||
        (rc = read_listing(&p, e)) || (rc = fetch_all(&p, e)))
        goto out;
    memcpy(out->commit, p.listing.commit, sizeof out->commit);
    out->n_bytes = p.fetch.n_bytes;
    out->n_file = progress.n_done;
    rc = cache_join(out->dir, p.fetch.store.repo, "snapshots", out->commit, e);
out:
    progress_end(&progress);
    fetch_release(&p.fetch);
    listing_release(&p.listing);
    q_free(p.take);
    q_free(p.taken);
    q_free(endpoint);
    return rc;
}
