/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_arch - a loaded plugin and an architecture of it, for engine/model: registry.c loads,
 * verify.c holds a plugin to the rules of engine/plugin.h, settings.c reads settings in words,
 * sizes.c sizes, apply.c changes a config.
 * Threads: made by one; then only read. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_PLUGIN_ARCH_H
#define QUIRE_ENGINE_MODEL_PLUGIN_PLUGIN_ARCH_H
#include "common/hub/archs.h"
#include "common/hub/config.h"
#include "engine/model/arch.h"
#include "engine/model/plugins.h"
#include "engine/plugin.h"

#define PLUGIN_MODALITIES_MAX 8u /* of an architecture */

struct plugin { /* a loaded one; all but the strings are copies */
    struct quire_plugin p;
    const struct quire_plugin *from; /* what the entry gave: the same for the same file */
    char text[PLUGIN_TEXT_MAX];      /* "terra 1.0" */
    char path[PATH_MAX];
    struct quire_operation *operations; /* [p.n_operation] */
    const struct plugin *next;
};

struct plugin_arch {
    struct archs_added added; /* first: what common/hub knows of it */
    const struct plugin *plugin;
    struct quire_architecture a;
    struct quire_modality modalities[PLUGIN_MODALITIES_MAX]; /* [a.n_modality] */
    struct arch arch;                                        /* of the base, with what differs */
};

/* NULL: no plugin serves it. */
const struct plugin_arch *plugin_arch_find(const char *name);
/* "": it has none. */
const char *plugin_arch_text(const struct plugin_arch *a);

/* ---- verify.c ---- */
/* Copy a struct that begins with its size. Errors: Q_INVALID (smaller than this version's),
 * Q_UNSUPPORTED (larger, with something in what this engine does not know). */
FALLIBLE plugin_take(void *to, size_t size, const void *from, const char *what, struct q_err *e);
/* The parts of a plugin, each with what it points to. */
FALLIBLE plugin_check(const struct quire_plugin *p, struct q_err *e);
FALLIBLE plugin_check_operation(const struct quire_operation *o, struct q_err *e);
FALLIBLE plugin_check_architecture(const struct quire_architecture *a, struct q_err *e);
FALLIBLE plugin_check_modality(const struct quire_modality *m, struct q_err *e);

/* ---- settings.c ---- */
/* Errors: Q_INVALID (a key or a value that there is not, with those there are). */
FALLIBLE plugin_settings(struct arch_layer *l, const struct quire_setting *s, uint32_t n,
                         struct q_err *e);

/* ---- sizes.c ---- */
struct plugin_sizes { /* where the keys of a size are looked up */
    const json_t *root;
    const char *path;                  /* of config.json, for messages */
    const struct model_config *config; /* for keys that the base has values for; NULL: none */
};
/* Is the text a size? what: "tensor spatio: rows". Errors: Q_INVALID. */
FALLIBLE plugin_size_check(const char *text, const char *what, struct q_err *e);
/* 1 … most. Errors: Q_CORRUPT (a key that is missing or no whole number; out of range). */
FALLIBLE plugin_size(uint32_t *out, const struct plugin_sizes *s, const char *text, uint32_t most,
                     const char *what, struct q_err *e);
/* What the base has for a key that config.json may leave out; false: it has nothing. */
bool plugin_size_derived(uint32_t *out, const struct plugin_sizes *s, const char *key);
/* The value of a key, "a.b" of the object a; NULL: none, or null. */
const json_t *plugin_key(const json_t *root, const char *key);

/* ---- apply.c ---- */
/* archs_added.apply and .resolve of a plugin's architecture. */
FALLIBLE plugin_apply(const struct archs_added *a, struct model_config *c, json_t *root,
                      const char *path, struct q_err *e);
FALLIBLE plugin_resolve(const struct archs_added *a, struct model_config *c, json_t *root,
                        const char *path, struct q_err *e);

#endif
