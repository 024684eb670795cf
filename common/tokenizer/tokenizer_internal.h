/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_internal - the types that the files of this folder share: the loaded tokenizer, its
 * parts, and the working memory of one encoding.
 *
 * tokenizer.json describes a pipeline; each slot of it (normalizer, pre_tokenizer, post_processor,
 * decoder) becomes a flat chain of parts; a Sequence is a part of that chain. A part is an entry
 * of tok_kinds.def: its operations and the state that `load` made from its JSON object.
 *
 *   text ─ added tokens cut out ─ norm chain ─ pre chain ─▶ spans ─ model ─ post chain ─▶ ids
 *
 * Threads: struct tokenizer is read-only after load; struct tok_work has one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_TOKENIZER_INTERNAL_H
#define QUIRE_COMMON_TOKENIZER_TOKENIZER_INTERNAL_H
#include <jansson.h>
#include "common/tokenizer/added.h"
#include "common/tokenizer/chars.h"
#include "common/tokenizer/json.h"
#include "common/tokenizer/limits.h"
#include "common/tokenizer/components/post.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/scan.h"
#include "common/tokenizer/source/written.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/vocab.h"

#define TOK_PARTS_MAX 32 /* parts in one chain */
#define TOK_DEPTH_MAX 8  /* Sequence inside Sequence */

enum tok_slot { TOK_NORM, TOK_PRE, TOK_POST, TOK_DECODE, TOK_SLOTS };

struct tok_span {        /* one piece of the text being encoded */
    uint32_t start, end; /* byte offsets into tok_work.text */
};

/* Working memory of one tokenizer_encode. A pre-tokenizer reads text and spans and replaces spans
 * (and text, if it rewrites it) through tok_span_add and tok_spans_done. */
struct tok_work {
    const char *text; /* borrowed from the caller or from one of the bufs */
    size_t n;
    const char *whole;             /* the caller's */
    struct tok_span *spans, *next; /* [n_span], [n_next] */
    size_t n_span, n_next, span_cap, next_cap;
    struct buf bufs[2]; /* text is in one of them once it was rewritten; the other is free */
    uint32_t i_free;    /* which one */
    size_t at;          /* where the piece between added tokens begins in the caller's text */
    bool in_buf;        /* text is in the other one */
    bool at_start;      /* the text's first character is the first of the caller's text */
    bool cut_start;     /* a normalizer took characters off the start: what is first now was not */
    bool last; /* ByteLevel may leave bytes as they are: it is the last of its chain and the model
                  takes bytes */
    bool keep_empty; /* tok_span_add keeps spans of no bytes: they are places to insert something */
    struct tok_regex_run regex;
    void *model;                     /* the model's own memory, made by its begin() */
    const struct ranges *content;    /* of the caller's text: the request's own; NULL: no matter */
    const struct token_marks *marks; /* places to find, or NULL */
    size_t i_mark, i_from;           /* the next one; ids in the list before the text */
};

/* What every kind has. `spec` is its JSON object, `at` where it stands (for messages). A kind
 * without state leaves load NULL; drop is called on whatever load made. */
struct tok_ops {
    FALLIBLE (*load)(void **self, const json_t *spec, const char *at, struct q_err *e);
    void (*drop)(void *self);
};

struct norm_ops { /* rewrites w->text; there are no spans yet */
    struct tok_ops base;
    FALLIBLE (*run)(const void *self, struct tok_work *w, struct q_err *e);
};
struct pre_ops { /* cuts w->spans further; may rewrite w->text */
    struct tok_ops base;
    FALLIBLE (*run)(const void *self, struct tok_work *w, struct q_err *e);
};
struct post_ops {
    struct tok_ops base;
    /* NULL: changes no ids. at: where it stands. */
    FALLIBLE (*apply)(const void *self, struct post_rows *rows, const char *at, struct q_err *e);
    size_t (*n_special)(const void *self); /* ids it adds to one text by itself; NULL: none */
};
/* One decoder at work on one stream. Text goes on through dec_emit; bufs keep the first failure. */
struct dec_stage {
    const struct dec_ops *ops;
    const void *self;       /* the part's state */
    struct dec_stage *next; /* NULL: this is the last one, writing to out */
    struct buf *out;
    struct buf token; /* for a decoder that builds its token before it hands it on, or holds one */
    unsigned char pending[8]; /* bytes of an unfinished UTF-8 sequence */
    uint32_t n_pending;
    uint32_t n_cut; /* characters taken off the start */
    bool started;   /* something was pushed */
    bool bad_run;   /* the bytes being collected are not UTF-8 */
    bool fused;     /* what comes in are pieces of one text, no longer tokens */
    bool eager;     /* a stream: hand on as early as possible */
};
enum dec_needs {
    DEC_ANY,
    DEC_TOKENS /* must see whole tokens, so nothing before it may fuse them */
};
/* Decoders work token by token, so that a whole text and a stream are the same code. */
struct dec_ops {
    struct tok_ops base;
    void (*push)(struct dec_stage *s, const char *token, size_t n);
    void (*flush)(struct dec_stage *s); /* give what is held; NULL = nothing ever is */
    /* The bytes one token stands for, without what a stream would make of them; NULL = its text. */
    void (*bytes)(const void *self, const char *token, size_t n, struct buf *out);
    enum dec_needs needs;
    bool fuses; /* its output is one text */
};

struct tok_part {
    const struct tok_ops *ops; /* the first member of the slot's own ops struct */
    void *self;                /* owned */
};
struct tok_chain {
    struct tok_part parts[TOK_PARTS_MAX];
    uint32_t n_part;
};

struct tok_texts {
    struct tok_str json, config;   /* tokenizer.json; tokenizer_config.json, which may be empty */
    const struct tok_extra *extra; /* NULL with a tokenizer.json */
};
/* Errors: those of tokenizer_open. */
FALLIBLE tok_from_texts(struct tokenizer **out, const struct tok_texts *in, struct q_err *e);

struct model_src {                 /* the model of tokenizer.json */
    const json_t *spec;            /* without the values of vocab and merges */
    struct tok_big big;            /* those, as JSON text; empty where the file has none */
    const struct tok_extra *extra; /* what came with another kind of file, or NULL */
};
struct model_ops {
    /* Also fills `v` with the model's vocabulary. *raw: words could be bytes instead of the
     * byte-level alphabet; the model clears it if it cannot take them so. */
    FALLIBLE(*load)
    (void **self, const struct model_src *src, struct tok_vocab *v, bool *raw, struct q_err *e);
    void (*drop)(void *self);
    /* Memory for encoding words, one owner; end() takes NULL. */
    FALLIBLE (*begin)(void **scratch, const void *self, size_t n_text, struct q_err *e);
    void (*end)(void *scratch);
    FALLIBLE(*encode)
    (void *scratch, const char *word, size_t n, struct token_list *out, struct q_err *e);
};

struct tok_added { /* an entry of added_tokens */
    char *content,
        *pattern; /* [n_content], [n_pattern]; pattern is content, normalized if `normalized` */
    size_t n_content, n_pattern;
    uint32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
    bool control; /* origin.h */
};

struct tokenizer {
    struct tok_chain chain[TOK_SLOTS];
    struct post_wrap wrap; /* what chain[TOK_POST] comes down to; pair: the same for two texts */
    struct post_pair pair;
    struct tok_limits limits;
    const struct model_ops *model;
    void *model_self;
    bool raw;                /* words are bytes: see tok_work.last */
    struct tok_vocab vocab;  /* the model's tokens */
    struct tok_added *added; /* [n_added] */
    size_t n_added, added_cap;
    struct tok_vocab added_index;     /* content -> index into added */
    uint32_t next_id;                 /* for the next added token that the model does not know */
    struct tok_matcher plain, normed; /* patterns looked for before and after normalization */
    struct tok_matcher control;       /* contents of control tokens, see origin.h */
    size_t control_max;               /* bytes of the longest, 0: there are none */
    bool control_normalized;          /* one of them is looked for in normalized text */
    const char **text_of; /* [n_id] NUL-terminated token text that decoding starts from, or NULL */
    uint32_t *text_len;   /* [n_id] its bytes */
    uint8_t *flags;       /* [n_id] TOK_F_* */
    uint32_t n_id;
    bool no_decoder; /* "decoder": null joins tokens with spaces */
};
#define TOK_F_SPECIAL 1u /* the token is marked special */
#define TOK_F_CONTROL 8u /* a control token of origin.h */
#define TOK_F_SKIP    4u /* left out by skip_special: its text is the content of a special token */
#define TOK_F_ADDED   2u /* text is its own, in the byte-level alphabet only if normalized so */

/* model_word.c: model.vocab, an object of token to id. Errors: Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE tok_load_vocab(struct tok_vocab *v, const struct tok_big *big, struct q_err *e);
/* Always fails: Q_CORRUPT, model.key is not what was wanted, or is broken at s. */
FALLIBLE tok_bad_value(const struct tok_scan *s, struct tok_str value, const char *key,
                       const char *want, struct q_err *e);

/* spans.c: empty ones are dropped. */
FALLIBLE tok_span_add(struct tok_work *w, size_t start, size_t end, struct q_err *e);
void tok_spans_done(struct tok_work *w);     /* next becomes spans */
struct buf *tok_rewrite(struct tok_work *w); /* an empty buf to write a new text to */
/* That buf becomes w->text (spans are the caller's to correct). */
FALLIBLE tok_rewrite_done(struct tok_work *w, struct q_err *e);
void tok_work_release(struct tok_work *w);

/* decode.c */
void dec_emit(struct dec_stage *s, const char *text, size_t n);
void dec_emit_token(struct dec_stage *s); /* s->token, as one token; a failure of it moves to out */

#endif
