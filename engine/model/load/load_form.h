/* SPDX-License-Identifier: Apache-2.0 */
/* load_form - what a matrix is packed in, and why: by what it is for, what its sources are, and
 * what was asked for. The rules, first match:
 *
 *     a router                              floats
 *     no quantization                       on the CPU codes, where the checkpoint has such
 *                                           (weight_codes.h); else floats of the dtype, in float32
 *                                           16-bit sources stay, and MXFP4 is bfloat16
 *     fp8       asked for                   e4m3 but for the logits' matrix
 *               of the checkpoint           e4m3 as stored, what is no e4m3 there stays floats;
 *                                           experts of a layer have one form
 *     int8      asked for                   int8
 *     4 bits    asked for                   groups of 128, 64 or 32 inputs; the logits' matrix int8
 *     integers  of the checkpoint           its own groups where the kernels have them, else int8;
 *                                           on a device what it left as floats stays so
 *
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_LOAD_FORM_H
#define QUIRE_ENGINE_MODEL_LOAD_LOAD_FORM_H
#include "engine/model/load/load_options.h"
#include "engine/model/load/weight_source.h"

/* what a destination is for; all but the first three are matrices */
enum load_role {
    ROLE_EMBEDDING,
    ROLE_ROWS, /* another table of as many rows as the embedding's: it stays in the file too */
    ROLE_VECTOR,
    ROLE_LAYER,
    ROLE_LOGITS,
    ROLE_ROUTER,
    ROLE_EXPERT, /* one of a layer's experts */
    ROLE_SHARED, /* gate and up of the expert that all rows use */
    ROLE_FLOATS  /* a plugin's that is not to be quantized */
};

enum load_why {
#define WHY(name, text) WHY_##name,
#include "engine/model/load/load_whys.def"
    WHY_COUNT
};
const char *load_why_text(enum load_why why);

struct load_form {
    enum dtype dtype;
    uint32_t group;            /* above 0: 4 bits, so many inputs share a scale */
    bool blocks;               /* e4m3 with the checkpoint's scales of blocks */
    float x_scale;             /* e4m3: as packed.x_scale */
    struct packed_codes codes; /* the checkpoint's own 4 or 8 bits */
    bool ordered;              /* act-order: its inputs have an order of their own */
    enum load_why why;
};

struct load_case { /* a matrix to be; all borrowed */
    const struct load_options *options;
    const struct model_config *config;
    enum load_role role;
    const struct weight_source *parts; /* [n] one matrix, one after the other or interleaved */
    uint32_t n;
    bool interleaved;
    bool is_table; /* its packed floats are read as the embedding's too */
};

/* The element type, layout and reason of the matrix that the case describes. */
struct load_form load_form_of(const struct load_case *c);
/* The form of several matrices of which a device knows one: `one` joins `all`. */
void load_form_join(struct load_form *all, const struct load_form *one, bool first);
/* The floats that a matrix of these parts is packed in when it is not quantized. */
enum dtype load_form_floats(const struct load_options *o, const struct weight_source *parts,
                            uint32_t n);
/* What there is of a source, as which it goes to a device into a matrix like w. */
enum load_travel {
    TRAVEL_FLOATS, /* the checkpoint's */
    TRAVEL_MADE,   /* f32 that is made of it */
    TRAVEL_BYTES,  /* int8 or e4m3, with a scale for each output */
    TRAVEL_BLOCKS, /* e4m3 with scales of blocks */
    TRAVEL_INT4    /* 4-bit integers with their scales and zeros */
};
enum load_travel load_form_travel(const struct packed *w, const struct weight_source *s);
/* Do these sources travel in the same form? Then a device can have them interleaved. */
bool load_form_alike(const struct packed *w, const struct weight_source *parts, uint32_t n);
/* Packed, padding and scales included; as `device` packs when it is not NULL. */
size_t load_form_bytes(const struct packed *w, const struct device_link *device);

#endif
