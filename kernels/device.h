/* SPDX-License-Identifier: Apache-2.0 */
/* device - an accelerator: its memory, its streams and its kernels, as one table of C functions.
 *
 * A library such as libquire-cuda.so exports the table as one symbol, whose name contains the
 * version (DEVICE_SYMBOL); device_library_open loads it with dlopen, so that one build runs with
 * and without the accelerator's libraries. The contents of handles, the memory layout of packed
 * matrices and KV blocks, and the choice of kernels are internal to the library. The callers
 * (engine/model, engine/worker) know sizes only, and launch by the same `struct kern_table` as on
 * the CPU, with arrays in device memory and kern_exec.stream set.
 *
 * Work on a stream runs asynchronously in launch order; the call returns at once. Host memory that
 * work reads or writes must come from host_alloc and must not change until an event recorded after
 * the work has happened. Kernels and copies report no errors at launch: check() returns the first
 * error since its previous call, and is called once per step.
 *
 * Graphs. Between graph_begin and graph_end a stream records work instead of running it, with
 * arguments by value; graph_launch runs the recorded work. So a graph's pointers and counts are
 * those of the recording; values that differ from step to step are in device memory, written before
 * the launch.
 *
 * Threads: one thread drives a device. Allocation functions are for start-up and similar phases,
 * not for steps. */
#ifndef QUIRE_KERNELS_DEVICE_H
#define QUIRE_KERNELS_DEVICE_H
#include <stdbool.h>
#include "common/err.h"
#include "kernels/kern.h"

#define DEVICE_ABI      7
#define DEVICE_SYMBOL   "quire_device_7" /* const struct device_table *quire_device_7(void) */
#define DEVICE_NAME_MAX 96u
#define DEVICE_NOTE_MAX 600u

struct device;        /* an open device */
struct device_stream; /* work in order; kern_exec.stream */
struct device_event;  /* a point in a stream */
struct device_graph;  /* recorded work */

struct device_options {
    uint32_t index;     /* number of the device */
    bool deterministic; /* a row's bits do not depend on the rows beside it (DESIGN section 6) */
    /* Folder for what was measured on a card: results of trials, the tuner's choices of algorithms
     * by shape; borrowed while the device is open. NULL: not saved. */
    const char *tune_dir;
};

struct device_props {
    char name[DEVICE_NAME_MAX]; /* "NVIDIA H100 80GB HBM3" */
    uint32_t major, minor;      /* compute capability */
    uint32_t n_unit;            /* multiprocessors */
    uint32_t driver, runtime;   /* versions: 13000 is 13.0 */
    uint64_t total_bytes, l2_bytes;
    char note[DEVICE_NOTE_MAX]; /* chosen kernels and the reason, for a log; "": the usual ones */
};

/* Upper limits of the arguments of every launch; they determine the sizes of workspace and plan. */
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

struct device_product { /* a product that steps compute: y = x W + bias (onto y) */
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
    uint32_t n_kept;            /* choices read from disk */
    uint32_t n_made;            /* choices made now */
    uint32_t n_library;         /* of both, choices of the vendor's library instead of our kernel */
    uint32_t n_wrong;           /* algorithms whose results differed from our kernel's */
    char note[DEVICE_NOTE_MAX]; /* why nothing was tuned, or what is wrong with the file; "" */
};

/* Ownership: x_free releases the result of x_new and takes NULL. Functions that return a code fail
 * with Q_NO_MEMORY (the message has the requested, free and total bytes), Q_IO (the device's
 * message) or as documented. */
struct device_table {
    uint32_t abi;        /* DEVICE_ABI */
    uint32_t kern_bytes; /* sizeof(struct kern_table): engine and library must be of the same
                          * build */
    const char *name;    /* "cuda" */
    bool row_major;      /* a packed matrix of floats is row-major */

    /* Errors: Q_NOT_FOUND (no driver or no such device; the message has their number),
     * Q_UNSUPPORTED (driver or device too old; the message has its version and the required
     * one). */
    enum q_code (*open)(struct device **out, const struct device_options *o, struct q_err *e);
    void (*close)(struct device *d); /* after all objects of the device are freed; takes NULL */
    const struct device_props *(*props)(const struct device *d);
    /* The operations of kernels.def that the library provides; the others are NULL. caps: the
     * library's own bits. */
    const struct kern_table *(*kern)(const struct device *d);
    /* Free and total bytes of the whole card, which other processes may use too. */
    enum q_code (*memory)(struct device *d, uint64_t *free_bytes, uint64_t *total_bytes,
                          struct q_err *e);
    /* The first failure of work since the last call. */
    enum q_code (*check)(struct device *d, struct q_err *e);

    /* Uninitialized device memory, aligned to 256 bytes. what: its purpose, for the message. */
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
    enum q_code (*sync)(struct device_stream *s, struct q_err *e); /* until all work of the
                                                                    * stream is done */

    enum q_code (*event_new)(struct device *d, struct device_event **out, struct q_err *e);
    void (*event_free)(struct device_event *v);
    void (*event_record)(struct device_event *v, struct device_stream *s);
    void (*stream_wait)(struct device_stream *s, struct device_event *v); /* later work waits */
    enum q_code (*event_wait)(struct device_event *v, struct q_err *e);   /* the caller waits */
    /* True if the event has happened or failed: event_wait would not block. */
    bool (*event_done)(struct device_event *v);
    /* Milliseconds between two events that have happened, by the device's clock. */
    float (*event_ms)(struct device_event *from, struct device_event *to);

    enum q_code (*graph_begin)(struct device_stream *s, struct q_err *e);
    /* Required also after a failed launch, whose error it returns; *out is then NULL and the stream
     * runs work again. */
    enum q_code (*graph_end)(struct device_stream *s, struct device_graph **out, struct q_err *e);
    void (*graph_launch)(struct device_graph *g, struct device_stream *s);
    void (*graph_free)(struct device_graph *g);

    /* Bytes of w packed in the library's layout, which `pack`, `pack_int8` and `pack_int4` of
     * kern() write and its products read. w->data is not read. */
    size_t (*matrix_bytes)(const struct packed *w);
    /* K (or V) of one block of one layer; blocks lie one after the other. */
    size_t (*kv_block_bytes)(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim);
    /* Bytes of kern_exec.scratch that suffice for every operation (device memory, one per
     * stream). */
    size_t (*workspace_bytes)(const struct device *d, const struct device_limits *l);
    /* The work plan of attention for one step: which blocks of threads compute which rows and
     * splits, from lengths only. plan() writes it to host memory and returns its size, at most
     * plan_bytes(). It is copied to the device with the step's arrays, and attention_args.plan is
     * its address there; a launcher reads plan_host alone, and without one a recorded launch serves
     * every plan. seqs: in host memory, blocks are not read; n_query may be 0 (a row that pads a
     * graph). */
    size_t (*plan_bytes)(const struct device *d, const struct device_limits *l);
    size_t (*plan)(const struct device *d, void *out, const struct device_limits *l,
                   const struct attention_seq *seqs, uint32_t n_seq);
    /* Choose the fastest implementation of these products for every number of rows: this library's
     * kernels or those of a vendor library. Called once at start, before graphs are recorded; it
     * releases all memory that it allocates. Products that were not tuned work too. NULL: there is
     * nothing to choose. Errors: Q_NO_MEMORY, Q_IO (the device failed). */
    enum q_code (*tune)(struct device *d, const struct device_tuning *t, struct device_tuned *out,
                        struct q_err *e);
};

/* An open device and the stream for steps; borrowed by the modules that compute on it. */
struct device_link {
    const struct device_table *t;
    struct device *d;
    struct device_stream *s; /* of the steps */
};

/* The table of the library at `path`; NULL: of libquire-cuda.so beside the executable, in its
 * ../lib, or in the system's library path. It is never unloaded. Errors: Q_NOT_FOUND (the message
 * of dlopen), Q_MISMATCH (the library is of another build). */
FALLIBLE device_library_open(const struct device_table **out, const char *path, struct q_err *e);

#endif
