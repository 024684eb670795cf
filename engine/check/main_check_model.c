/* SPDX-License-Identifier: Apache-2.0 */
/* quire-check-model MODEL: checks that the model can be served with the given options and prints
 * its properties. */
#include <limits.h>
#include <stdio.h>
#include "common/buf.h"
#include "common/hub/archs.h"
#include "common/hub/config_source.h"
#include "common/hub/hub.h"
#include "common/options.h"
#include "engine/core/engine_options.h"
#include "engine/model/model_show.h"
#include "engine/model/plugins.h"

enum { EXIT_USAGE = 2, EXIT_MODEL = 3 };

typedef FALLIBLE section_fn(struct buf *out, const struct model_options *o,
                            const struct model_show *how, struct q_err *e);

/* The sections of the output, in order; a summary where none is asked for. */
static const struct section {
    size_t wanted; /* offset of a bool in struct options */
    section_fn *show;
} sections[] = {
    {offsetof(struct options, program), model_show_program},
    {offsetof(struct options, show_weights), model_show_weights},
};

static enum q_code model_options_of(struct model_options *m, const struct options *o,
                                    struct q_err *e)
{
    enum q_code rc;
    *m = (struct model_options){
        .max_model_len = o->max_model_len > 0 ? (uint32_t)o->max_model_len : 0,
    };
    if ((rc = engine_format_parse(&m->format, o->load_format, e)) ||
        (rc = engine_dtype_parse(&m->dtype_auto, &m->dtype, o->dtype, e)))
        return rc;
    return engine_kv_dtype_parse(&m->kv_given, &m->kv_dtype, o->kv_cache_dtype, e);
}

static enum q_code show_sections(struct buf *out, const struct options *o,
                                 const struct model_options *m, struct q_err *e)
{
    const struct model_show how = {
        .json = o->json,
        .n_token = (uint32_t)o->max_num_batched_tokens,
        .n_seq = (uint32_t)o->max_num_seqs,
    };
    bool any = false;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (!*(const bool *)((const char *)o + sections[i].wanted))
            continue;
        enum q_code rc = sections[i].show(out, m, &how, e);
        if (rc)
            return rc;
        any = true;
    }
    if (!any) {
        const enum q_code rc = model_show_summary(out, m, &how, e);
        if (rc)
            return rc;
    }
    return buf_check(out, "what is shown", e);
}

/* The folder is found, its plugins are loaded. */
static enum q_code open_folder(char dir[PATH_MAX], const struct options *o, enum load_format format,
                               struct q_err *e)
{
    static struct plugins_config plugins;
    static struct config_source source;
    const char *revision = *o->revision ? o->revision : NULL;
    enum q_code rc =
        format == LOAD_DUMMY /* weights are not needed */
            ? hub_resolve_files(dir, o->positional[0], revision, e)
            : hub_resolve_format(dir, o->positional[0], revision, load_format_files(format), e);
    if (rc || (rc = config_source_options(&source, dir, o, e)) ||
        (rc = plugins_config_set(&plugins, o->plugin.items, o->plugin.n, o->plugin_path, e)))
        return rc;
    return plugins_open(&plugins, dir, e);
}

static FALLIBLE read_pooling(struct pooling *out, const char *dir, const struct options *o,
                             struct q_err *e)
{
    static struct model_config config;
    const struct pooling_options po = {o->runner, o->convert, o->pooler_config};
    const enum q_code rc = model_config_load(&config, NULL, dir, e);
    return rc ? rc : pooling_read(out, &config, dir, &po, e);
}

static int print_error(const char *message, int code)
{
    fprintf(stderr, "quire check-model: %s\n", message);
    return code;
}

/* With the model types, which messages are too short for. */
static const char *about_text(void)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "Checks that a model can be served with these options, from its config.json and the "
             "headers of its weights, and says what it is: family, sizes, files, forms of the "
             "weights, memory. Weights are not read.\n"
             "The model types that are served, others by plugins (--plugin): %s.\n",
             archs_all_types());
    return text;
}

int main(int argc, char **argv)
{
    const struct program_info info = {
        .program = FOR_CHECK,
        .name = "quire check-model",
        .usage = "MODEL [options]",
        .about = about_text(),
        .positional_min = 1,
        .positional_max = 1,
    };
    static struct options o;
    struct model_options m;
    struct pooling pooling = POOLING_INIT;
    struct q_err e = Q_ERR_INIT;
    struct buf out = BUF_INIT;
    char dir[PATH_MAX];
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (model_options_of(&m, &o, &e))
        return print_error(e.message, EXIT_USAGE);
    m.dir = dir;
    m.generates = true;
    m.pooling = &pooling;
    if (open_folder(dir, &o, m.format, &e))
        return print_error(e.message, EXIT_MODEL);
    if (engine_quantization_option(&m.quantization, o.quantization, dir, &e))
        return print_error(e.message, e.code == Q_INVALID ? EXIT_USAGE : EXIT_MODEL);
    code = read_pooling(&pooling, dir, &o, &e) || model_check(&m, false, &e) ||
                   show_sections(&out, &o, &m, &e)
               ? print_error(e.message, EXIT_MODEL)
               : 0;
    if (!code && fwrite(buf_str(&out), 1, out.len, stdout) < out.len)
        code = print_error("cannot write to standard output", EXIT_MODEL);
    buf_release(&out);
    pooling_release(&pooling);
    options_release(&o);
    return code;
}
