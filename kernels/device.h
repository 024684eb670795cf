/* SPDX-License-Identifier: Apache-2.0 */
/* device - an accelerator: its memory, its streams and its kernels, as one table of C functions.
 *
 * A library such as libquire-cuda.so exports the table by one symbol whose name has the version
 * (DEVICE_SYMBOL); device_library_open gets it by dlopen, so that one build runs with and without
 * the accelerator's libraries. Behind the table everything is the library's own: what a handle
 * points to, how a packed matrix and a KV block lie in memory, which kernel serves a shape. The
 * callers (engine/model, engine/worker) know sizes only, and launch by the same `struct kern_table`
 * as on the CPU, with arrays that are on the device and kern_exec.stream set.
 *
 * Work on a stream runs in the order it was given, later; the call returns at once. Host memory
 * that work reads or writes must come from host_alloc and stay as it is until an event behind the
 * work has happened. Kernels and copies report nothing when they are launched: check() tells what
 * went wrong since it was last asked, and is asked once a step.
 *
 * Graphs. Between graph_begin and graph_end a stream records what it is given instead of running
 * it, arguments by value; graph_launch runs it all again. So a graph's pointers and counts are
 * those of the recording, and what differs from step to step lies in device memory that the host
 * has written before.
 *
 * Threads: one thread drives a device. Allocation functions are for start-up and its like only. */
#ifndef QUIRE_KERNELS_DEVICE_H
#define QUIRE_KERNELS_DEVICE_H
#include <stdbool.h>
#include "common/err.h"
#include "kernels/kern.h"

#define DEVICE_ABI      5
#define DEVICE_SYMBOL   "quire_device_5" /* const struct device_table *quire_device_5(void) */
#define DEVICE_NAME_MAX 96u
#define DEVICE_NOTE_MAX 600u

struct device;        /* an open device */
struct device_stream; /* work in order; kern_exec.stream */
struct device_event;  /* a point in a stream */
struct device_graph;  /* recorded work */

struct device_options {
    uint32_t index;     /* which of those there are */
    bool deterministic; /* a row's bits do not depend on the rows beside it (DESIGN section 6) */
    /* Where choices of algorithms are kept, by shape and card; borrowed while the device is open.
     * NULL: nowhere. */
    const char *tune_dir;
};

struct device_props {
    char name[DEVICE_NAME_MAX]; /* "NVIDIA H100 80GB HBM3" */
    uint32_t major, minor;      /* compute capability */
    uint32_t n_unit;            /* multiprocessors */
    uint32_t driver, runtime;   /* versions: 13000 is 13.0 */
    uint64_t total_bytes, l2_bytes;
    char note[DEVICE_NOTE_MAX]; /* which kernels it was given and why, for a log; "": as always */
};

/* What bounds the arguments of every launch: sizes of workspace and plan come from it. */
struct device_limits {
    uint32_t n_row_max;   /* of one step */
    uint32_t n_seq_max;   /* of one step */
    uint32_t n_logit_max; /* rows of logits */
    uint32_t context_max; /* tokens of one sequence */
    uint32_t n_head, n_kv_head, head_dim, hidden_size, intermediate_size, vocab_size;
    enum dtype kv_dtype;
};

struct device_rows { /* of copy_rows */
    void *dst;
    const void *src;
    size_t dst_step, src_step, n, n_row;
};

struct device_product { /* one that steps have: y = x W + bias (onto y) */
    const struct packed *w;
    enum dtype x_dtype, y_dtype;
    bool has_bias, accumulate;
    uint32_t n_row_max;
};
struct device_tuning {
    const struct device_product *products; /* [n] */
    uint32_t n;
    const struct kern_exec *x; /* stream and workspace, of limits that have n_row_max */
};
struct device_tuned {
    uint32_t n_kept;    /* choices that were on disk */
    uint32_t n_made;    /* choices made now */
    uint32_t n_library; /* of both, those for the library and not for a kernel of ours */
    uint32_t n_wrong;   /* algorithms whose numbers were not those of our kernel */
    char
        note[DEVICE_NOTE_MAX]; /* why there is nothing to choose, what is wrong with the file; "" */
};

/* Who releases what: x_new is undone by x_free, which takes NULL. FALLIBLE functions fail with
 * Q_NO_MEMORY (the message has what was asked for, what is free and what there is), Q_IO (the
 * device's own words) or as said. */
struct device_table {
    uint32_t abi;        /* DEVICE_ABI */
    uint32_t kern_bytes; /* sizeof(struct kern_table): those of one build only fit each other */
    const char *name;    /* "cuda" */
    bool row_major;      /* a packed matrix of floats is its rows one after the other */

    /* Errors: Q_NOT_FOUND (no driver or no such device: how many there are), Q_UNSUPPORTED (driver
     * or device too old: what it has, what is needed). */
    enum q_code (*open)(struct device **out, const struct device_options *o, struct q_err *e);
    void (*close)(struct device *d); /* after all that was made of it is freed; takes NULL */
    const struct device_props *(*props)(const struct device *d);
    /* The operations of kernels.def that the library has; the others are NULL. caps: of its own. */
    const struct kern_table *(*kern)(const struct device *d);
    /* Bytes free and in all, of the whole card: others use it too. */
    enum q_code (*memory)(struct device *d, uint64_t *free_bytes, uint64_t *total_bytes,
                          struct q_err *e);
    /* The first failure of work since the last call. */
    enum q_code (*check)(struct device *d, struct q_err *e);

    /* Device memory, aligned to 256 bytes, not set to anything. what: for the message. */
    enum q_code (*alloc)(struct device *d, void **out, size_t n, const char *what, struct q_err *e);
    void (*release)(struct device *d, void *p);
    /* Host memory that the device copies from and to directly. */
    enum q_code (*host_alloc)(struct device *d, void **out, size_t n, const char *what,
                              struct q_err *e);
    void (*host_free)(struct device *d, void *p);

    enum q_code (*stream_new)(struct device *d, struct device_stream **out, struct q_err *e);
    void (*stream_free)(struct device_stream *s);
    /* n bytes between host and device, either way, or within the device. */
    void (*copy)(struct device_stream *s, void *dst, const void *src, size_t n);
    /* n_row pieces of n bytes, `dst_step` and `src_step` bytes apart. */
    void (*copy_rows)(struct device_stream *s, const struct device_rows *r);
    void (*fill)(struct device_stream *s, void *dst, int byte, size_t n);
    enum q_code (*sync)(struct device_stream *s, struct q_err *e); /* until all of it is done */

    enum q_code (*event_new)(struct device *d, struct device_event **out, struct q_err *e);
    void (*event_free)(struct device_event *v);
    void (*event_record)(struct device_event *v, struct device_stream *s);
    void (*stream_wait)(struct device_stream *s, struct device_event *v); /* later work waits */
    enum q_code (*event_wait)(struct device_event *v, struct q_err *e);   /* the caller waits */
    /* It has happened, or what event_wait and check would say is known already. */
    bool (*event_done)(struct device_event *v);
    /* Between two events that have happened, milliseconds of the device's clock. */
    float (*event_ms)(struct device_event *from, struct device_event *to);

    enum q_code (*graph_begin)(struct device_stream *s, struct q_err *e);
    /* Also after a failure, which it reports; out is then NULL and the stream runs work again. */
    enum q_code (*graph_end)(struct device_stream *s, struct device_graph **out, struct q_err *e);
    void (*graph_launch)(struct device_graph *g, struct device_stream *s);
    void (*graph_free)(struct device_graph *g);

    /* Bytes of w packed in the library's layout, w->data not looked at. What `pack`, `pack_int8`
     * and `pack_int4` of kern() write and its products read. */
    size_t (*matrix_bytes)(const struct packed *w);
    /* K (or V) of one block of one layer; blocks lie one after the other. */
    size_t (*kv_block_bytes)(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim);
    /* What any operation needs at kern_exec.scratch (device memory, one for each stream). */
    size_t (*workspace_bytes)(const struct device *d, const struct device_limits *l);
    /* Attention's division of labour for one step: which piece of which sequence, from
     * lengths alone. plan() writes to host memory and returns how many bytes, at most plan_bytes();
     * they travel to the device with the rest of the step, and their address there is
     * attention_args.plan: a launcher never sees them, so a recorded launch serves every plan.
     * seqs: in host memory, blocks not looked at; n_query may be 0 (a row that pads a graph). */
    size_t (*plan_bytes)(const struct device *d, const struct device_limits *l);
    size_t (*plan)(const struct device *d, void *out, const struct device_limits *l,
                   const struct attention_seq *seqs, uint32_t n_seq);
    /* Choose who computes these products, for every number of rows: kernels of the library's own
     * or those of a library beneath it. Once, at start, before graphs are recorded; what it
     * allocates is gone when it returns. Who has not been chosen for is served all the same. NULL:
     * there is nothing to choose. Errors: Q_NO_MEMORY, Q_IO (the device failed). */
    enum q_code (*tune)(struct device *d, const struct device_tuning *t, struct device_tuned *out,
                        struct q_err *e);
};

/* What those who compute on a device are given; borrowed. */
struct device_link {
    const struct device_table *t;
    struct device *d;
    struct device_stream *s; /* of the steps */
};

/* The table of `path`, or of libquire-cuda.so beside the executable, in its ../lib, or where the
 * system looks, when path is NULL. It stays for the life of the process.
 * Errors: Q_NOT_FOUND (the loader's words), Q_MISMATCH (of another build). */
FALLIBLE device_library_open(const struct device_table **out, const char *path, struct q_err *e);

#endif
