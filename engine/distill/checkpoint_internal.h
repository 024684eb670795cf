/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_internal - the parts of checkpoint.h: which tensors there are and who writes what
 * (checkpoint_layout.c), files and folders (checkpoint_files.c), the bytes of tensors
 * (checkpoint_write.c), the text and the checksums of a state (checkpoint_state.c). Threads: as
 * checkpoint.h. */
#ifndef QUIRE_ENGINE_DISTILL_CHECKPOINT_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_CHECKPOINT_INTERNAL_H
#include <limits.h>
#include "common/buf.h"
#include "common/hub/safetensors_write.h"
#include "engine/distill/checkpoint.h"

/* ---- tensors and parts ---- */

struct whole_tensor { /* of the student, on whichever ranks */
    char name[ARCH_NAME_MAX];
    uint32_t n_dim, rows, cols; /* as it is stored */
    bool training_only;         /* params.h: not in models */
};

struct own_part { /* of a tensor, on this rank */
    const struct param *param;
    const struct param_tensor *tensor;
    uint32_t whole; /* index into tensor_table.all */
    bool writes;    /* no rank before this one has it */
};

struct tensor_table {         /* the same on all ranks, but for `own` */
    struct whole_tensor *all; /* [n] by name; those of models first */
    uint32_t n, n_model;
    struct own_part *own; /* [n_own] */
    uint32_t n_own;
};
/* All ranks tell each other their parts. Errors: Q_MISMATCH (sizes differ, parts are missing),
 * those of the transport, Q_NO_MEMORY. */
FALLIBLE tensor_table_make(struct tensor_table *out, const struct params *p, struct transport *t,
                           struct q_err *e);
void tensor_table_release(struct tensor_table *t);

/* ---- files ---- */

enum checkpoint_array { CHECKPOINT_W, CHECKPOINT_G, CHECKPOINT_M, CHECKPOINT_V };

struct layout_item { /* a tensor of a file */
    uint32_t whole;
    enum checkpoint_array array;
    uint32_t i_file;
    uint64_t at; /* of its data */
};
#define LAYOUT_NAME_MAX 48u
struct layout_file {
    char name[LAYOUT_NAME_MAX]; /* in the folder */
    struct buf header;
    uint64_t n_bytes;
};
struct layout {
    enum dtype dtype;
    struct layout_item *items; /* [n_item] of each array the first n_tensor tensors of the table */
    struct layout_file *files; /* [n_file] */
    uint32_t n_tensor, n_item, n_file;
    uint64_t n_bytes;       /* of all files */
    uint64_t n_data;        /* of tensors alone */
    const char *index_name; /* of the file that lists shards; NULL: there is one file */
};
struct layout_ask {
    enum dtype dtype;
    enum checkpoint_array arrays[3]; /* [n_array] */
    uint32_t n_array;
    bool is_model;        /* without what is of training only */
    bool prefixed;        /* names are w.NAME, m.NAME, v.NAME */
    const char *name;     /* "model": model.safetensors, or model-00001-of-00002.safetensors */
    uint64_t shard_bytes; /* 0: one file */
};
FALLIBLE layout_make(struct layout *out, const struct tensor_table *t, const struct layout_ask *ask,
                     struct q_err *e);
void layout_release(struct layout *l);
/* "w.NAME" */
void layout_item_name(char out[ARCH_NAME_MAX + 2], const struct tensor_table *t,
                      const struct layout_item *item, bool prefixed);

/* This rank's parts into the files of `dir`, which exist, and a sync. */
struct write_parts {
    const struct layout *layout;
    const struct tensor_table *table;
    const struct params *params;
    const char *dir;
};
FALLIBLE write_parts(const struct write_parts *w, struct q_err *e);

/* ---- folders ---- */

/* Errors: Q_IO: "needs … bytes, … are free". */
FALLIBLE check_room(const char *dir, uint64_t need, struct q_err *e);
/* A file with its first bytes and its whole size, its room reserved where the file system can. */
FALLIBLE create_file(const char *path, const struct buf *first, uint64_t n_bytes, struct q_err *e);
FALLIBLE sync_path(const char *path, struct q_err *e); /* file or folder */
/* A file, or a folder with all in it; nothing there: Q_OK. Errors: Q_IO. */
FALLIBLE remove_all(const char *path, struct q_err *e);
/* `from` gets the name `to`, in one step; what had the name is removed then. */
FALLIBLE replace_path(const char *from, const char *to, struct q_err *e);
/* The files of a model folder besides weights; *n_bytes: how many they have. to NULL: count only.
 * dtype: what config.json says then. */
FALLIBLE copy_model_files(const char *from, const char *to, enum dtype dtype, uint64_t *n_bytes,
                          struct q_err *e);
/* Numbers N of the complete names prefix + N + suffix in a folder, ascending; the caller frees. */
FALLIBLE list_steps(uint64_t **steps, size_t *n, const char *dir, const char *prefix,
                    struct q_err *e);
/* Remove what has the name of a checkpoint and ".tmp" behind it. */
FALLIBLE remove_leftovers(const char *dir, struct q_err *e);

/* ---- the text of a state ---- */

#define STATE_ROOM    65536u /* bytes of state.json at most, for the check of room */
#define STATE_TEXT    "state.json"
#define STATE_TENSORS "state.safetensors"
#define STATE_BAD     ".bad" /* behind the name of a state that cannot be read */

struct state_text {
    const char *dir;
    uint64_t step;
    const struct checkpoint_run *run;
    const double *numbers; /* [CHECKPOINT_NUMBERS] */
};
/* One rank, when the file of tensors is complete. */
FALLIBLE state_write(const struct state_text *s, struct q_err *e);

struct state_read {
    const char *dir;
    uint64_t step; /* of the folder's name */
    const struct checkpoint_run *run;
    double *numbers;    /* [CHECKPOINT_NUMBERS] */
    bool check_tensors; /* also the checksum of their file: one rank */
};
/* Errors: Q_CORRUPT, Q_NOT_FOUND (a file of it), Q_MISMATCH (another run), Q_IO, Q_NO_MEMORY. */
FALLIBLE state_read(const struct state_read *s, struct q_err *e);

/* ---- a rank's checkpoints ---- */

struct checkpoint {
    struct checkpoint_options o;
    char output[PATH_MAX], student[PATH_MAX];
    struct params *params;
    struct tensor_table table;
    struct layout model, gradients, state;
    uint64_t files_bytes; /* of the student's other files */
    int lock;             /* the locked output of the first rank; -1: none */
};

static inline bool checkpoint_is_first(const struct checkpoint *c)
{
    return transport_rank(c->o.transport) == 0;
}
/* All ranks' code and message become those of the first one that failed. */
FALLIBLE checkpoint_agree(struct transport *t, enum q_code rc, struct q_err *e);

#endif
