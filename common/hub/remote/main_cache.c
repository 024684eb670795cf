/* SPDX-License-Identifier: Apache-2.0 */
/* quire-cache ls|rm|verify: what is in the Hugging Face cache. */
#include <stdio.h>
#include <string.h>
#include "common/hub/remote/inventory.h"
#include "common/options.h"
#include "common/size_text.h"

enum { EXIT_BAD = 1, EXIT_USAGE = 2, EXIT_MODEL = 3 };

typedef int verb_fn(const struct inventory *v, const struct options *o);

static int fail(const struct q_err *e)
{
    fprintf(stderr, "quire cache: %s\n", e->message);
    return e->code == Q_INVALID ? EXIT_USAGE : e->code == Q_NOT_FOUND ? EXIT_MODEL : EXIT_BAD;
}

static void json_model(struct buf *out, const struct inventory_model *m)
{
    buf_add_str(out, "{\"model\":");
    buf_add_json_str(out, m->id, strlen(m->id));
    buf_add_str(out, ",\"path\":");
    buf_add_json_str(out, m->repo, strlen(m->repo));
    buf_printf(out, ",\"bytes\":%llu,\"incomplete_bytes\":%llu,\"revisions\":[",
               (unsigned long long)m->bytes, (unsigned long long)m->partial_bytes);
    for (size_t i = 0; i < m->n; i++) {
        const struct inventory_revision *r = &m->revisions[i];
        buf_printf(out, "%s{\"commit\":\"%s\",\"refs\":", i ? "," : "", r->commit);
        buf_add_json_str(out, buf_str(&r->refs), r->refs.len);
        buf_printf(out, ",\"files\":%u,\"bytes\":%llu}", r->n_file, (unsigned long long)r->bytes);
    }
    buf_add_str(out, "]}\n");
}

static void text_model(struct buf *out, const struct inventory_model *m)
{
    char size[SIZE_TEXT_MAX];
    buf_printf(out, "%-48s %9s", m->id, size_text(size, (double)m->bytes));
    if (m->partial_bytes)
        buf_printf(out, "  (%s of them incomplete)", size_text(size, (double)m->partial_bytes));
    buf_add_char(out, '\n');
    for (size_t i = 0; i < m->n; i++) {
        const struct inventory_revision *r = &m->revisions[i];
        buf_printf(out, "  %-46s %9s  %u files  %s\n", r->commit, size_text(size, (double)r->bytes),
                   r->n_file, buf_str(&r->refs));
    }
}

static int put(struct buf *out)
{
    struct q_err e = Q_ERR_INIT;
    const int code = buf_check(out, "the output", &e) ? fail(&e) : 0;
    if (!code)
        fwrite(buf_str(out), 1, out->len, stdout);
    buf_release(out);
    return code;
}

static int list(const struct inventory *v, const struct options *o)
{
    struct buf out = BUF_INIT;
    uint64_t bytes = 0;
    char size[SIZE_TEXT_MAX];
    for (size_t i = 0; i < v->n; i++) {
        bytes += v->models[i].bytes;
        if (o->json)
            json_model(&out, &v->models[i]);
        else
            text_model(&out, &v->models[i]);
    }
    if (!o->json)
        buf_printf(&out, "%s: %zu models, %s\n", v->cache, v->n, size_text(size, (double)bytes));
    return put(&out);
}

static int verify(const struct inventory *v, const struct options *o)
{
    struct q_err e = Q_ERR_INIT;
    int code = 0;
    for (size_t i = 0; i < v->n; i++) {
        const struct inventory_model *m = &v->models[i];
        struct inventory_check c = {0, 0, 0, BUF_INIT};
        struct buf out = BUF_INIT;
        if (inventory_verify(&c, m, &e))
            code = fail(&e);
        else if (c.n_bad)
            code = EXIT_BAD;
        if (o->json) {
            buf_add_str(&out, "{\"model\":");
            buf_add_json_str(&out, m->id, strlen(m->id));
            buf_printf(&out, ",\"verified\":%u,\"damaged\":%u,\"without_checksum\":%u,\"errors\":",
                       c.n_good, c.n_bad, c.n_unknown);
            buf_add_json_str(&out, buf_str(&c.bad), c.bad.len);
            buf_add_str(&out, "}\n");
        } else {
            buf_printf(&out, "%s: %u files verified, %u damaged, %u without checksum\n%s", m->id,
                       c.n_good, c.n_bad, c.n_unknown, buf_str(&c.bad));
            if (c.n_bad)
                buf_printf(&out,
                           "remove the model with `quire cache rm %s` and download it again\n",
                           m->id);
        }
        buf_release(&c.bad);
        const int wrote = put(&out);
        code = code ? code : wrote;
    }
    return code;
}

static int remove_model(const struct inventory *v, const struct options *o)
{
    struct q_err e = Q_ERR_INIT;
    const struct inventory_model *m = &v->models[0]; /* it was asked for by its id */
    if (inventory_remove(v, m, *o->revision ? o->revision : NULL, &e))
        return fail(&e);
    fprintf(stderr, "removed %s%s%s from %s\n", m->id, *o->revision ? " at " : "", o->revision,
            v->cache);
    return 0;
}

static const struct {
    const char *name;
    verb_fn *run;
    bool wants_id;
} verbs[] = {{"ls", list, false}, {"rm", remove_model, true}, {"verify", verify, false}};

int main(int argc, char **argv)
{
    static const struct program_info info = {
        .program = FOR_CACHE,
        .name = "quire cache",
        .usage = "ls|rm|verify [ORG/NAME] [options]",
        .about = "Lists, removes and checks the models of the Hugging Face cache.\n"
                 "ls\tmodels with their revisions and sizes\n"
                 "rm ORG/NAME\tremove a model, or with --revision one revision of it\n"
                 "verify\tcompare files with their checksums; exit code 1 if one is damaged\n",
        .positional_min = 1,
        .positional_max = 2,
    };
    static struct options o;
    struct inventory v = INVENTORY_INIT;
    struct q_err e = Q_ERR_INIT;
    size_t i = 0;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    while (i < sizeof verbs / sizeof *verbs && strcmp(verbs[i].name, o.positional[0]) != 0)
        i++;
    const char *id = o.n_positional > 1 ? o.positional[1] : NULL;
    if (i == sizeof verbs / sizeof *verbs)
        (void)q_fail(&e, Q_INVALID, "\"%s\" is unknown, expected ls, rm or verify",
                     o.positional[0]);
    else if (verbs[i].wants_id && !id)
        (void)q_fail(&e, Q_INVALID, "%s needs the id of a model; `quire cache ls` lists them",
                     verbs[i].name);
    code = e.code || inventory_read(&v, id, &e) ? fail(&e) : verbs[i].run(&v, &o);
    inventory_release(&v);
    options_release(&o);
    return code;
}
