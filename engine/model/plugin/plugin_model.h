/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_model - what a plugin's callbacks are given of a model: config.json with the rules
 * applied, and the weights where they are loaded; and the engine's functions (struct quire_host).
 *
 * Callbacks are called between plugin_begin and plugin_end, which say for this thread which plugin
 * a line of log is of and where its work memory lies.
 * Threads: made by one; then read by any. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_PLUGIN_MODEL_H
#define QUIRE_ENGINE_MODEL_PLUGIN_PLUGIN_MODEL_H
#include "engine/model/plugin/plugin_arch.h"
#include "engine/model/plugin/trial.h"

struct model;
struct quire_model {
    const struct plugin_arch *arch;
    struct model_config config;
    json_t *root; /* config.json, rules applied */
    char path[PATH_MAX];
    const struct model *model;           /* NULL: the weights are not loaded in this process */
    uint32_t buffers[QUIRE_BUFFERS_MAX]; /* columns of quire_architecture.buffers; 0 ends them */
};

/* Of the model folder; *out NULL: no plugin serves its architecture. Errors: as
 * model_config_load. */
FALLIBLE plugin_model_open(struct quire_model **out, const char *dir, struct q_err *e);
void plugin_model_free(struct quire_model *m); /* NULL is fine */
/* quire_architecture.check, where there is one. Errors: Q_UNSUPPORTED with the plugin's message. */
FALLIBLE plugin_model_check(const struct quire_model *m, struct q_err *e);

/* The engine's functions; those on rows are in host_rows.c. */
extern const struct quire_host plugin_host;
/* Bytes that a product of the model's own tensors needs beside its rows: plugin_work.rows. */
size_t plugin_rows_bytes(const struct quire_model *m);

struct plugin_work { /* of a call: what host->scratch gives, and the engine's own */
    void *scratch;
    unsigned char *rows; /* a product's inputs in its type; NULL: no products */
    size_t rows_bytes;
};
void plugin_begin(const struct quire_model *m, const struct plugin_work *work);
void plugin_end(void);
const struct plugin_work *plugin_work_now(void);  /* NULL: none */
const struct quire_model *plugin_model_now(void); /* NULL: in no callback */
/* run(ctx), which calls a callback that runs while a model is opened: tried in a process of its own
 * first, then here. Errors: Q_UNAVAILABLE (it crashed, ended the process or hung). */
FALLIBLE plugin_call(const struct quire_model *m, const char *callback, void (*run)(void *ctx),
                     void *ctx, struct q_err *e);
/* The same of any code that calls a plugin; it calls plugin_begin and plugin_end itself. */
FALLIBLE plugin_try(const struct trial *t, struct q_err *e);
/* Is a callback run again that came to its end in its trial? Its lines of log are written. */
bool plugin_repeats(void);

/* The message of a callback that failed, or that it gave none. Errors: `code`. */
FALLIBLE plugin_failed(const struct quire_model *m, const char *callback,
                       struct quire_plugin_error *error, enum q_code code, struct q_err *e);

#endif
