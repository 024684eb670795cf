/* SPDX-License-Identifier: Apache-2.0 */
/* pool - requests for vectors: /v1/embeddings, /pooling, /classify, /score and /rerank.
 *
 * A request is read to a list of texts (pool_read.c: fields; pool_pairs.c: pairs of texts;
 * pool_chat.c: a conversation; pool_text.c: token ids), each of which becomes one generation on the
 * link that pools; a limited number of them is open at a time, so that a request of thousands of
 * texts leaves room for others. When all vectors are there, the answer is made of them
 * (pool_reply.c, pool_values.h). /score and /rerank compute pairs: a classifier with one class
 * takes both texts as one prompt, an embedding model embeds each text once and the score is the
 * cosine of the two vectors.
 *
 * Threads: the loop's; reading and encoding may run on another (task.h). */
#ifndef QUIRE_FRONTEND_API_POOL_H
#define QUIRE_FRONTEND_API_POOL_H
#include "frontend/api/app.h"
#include "frontend/api/pool_values.h"
#include "frontend/api/prompt.h"
#include "frontend/api/reply_id.h"
#include "frontend/api/task.h"
#include "frontend/api/tenant.h"
#include "frontend/api/unknown.h"

#define POOL_TEXTS_MAX  16384               /* of one request */
#define POOL_OPEN_MAX   64u                 /* generations of one request open at a time */
#define POOL_BYTES_MAX  ((size_t)512 << 20) /* vectors of one request */
#define POOL_PLACES_MAX 256u                /* texts in the header of an answer in bytes */

enum pool_form {
    POOL_NOT = 0, /* a route that generates text */
    POOL_EMBEDDINGS = 1,
    POOL_POOLING = 2,
    POOL_CLASSIFY = 4,
    POOL_SCORE = 8,
    POOL_RERANK = 16,
    POOL_ALL = 31
};
enum pool_field {
#define FIELD(name, type, forms) POOL_##name,
#include "frontend/api/pool_fields.def"
    POOL_FIELDS
};

struct pool_text {                  /* or two texts as one prompt */
    const char *text, *second_text; /* [n_text], [n_second_text] borrowed from the job; NULL: ids,
                                       no second one */
    size_t n_text, n_second_text;
    const struct ranges *content; /* of a rendered conversation: where the request's text is; NULL:
                                     control tokens are found in all of the text */
    struct tokenizer_insert *inserts; /* [n_insert] placeholders of its items, likewise */
    size_t n_insert;
    struct token_list ids;
    uint64_t n_expanded; /* rows that its items add to the ids, as the engine says */
    uint32_t second_at;  /* first id of type 1; 0: none */
    float *values;       /* [n_value] when it is computed; owned */
    uint32_t n_value;
};

struct pool_slot {                /* an open generation */
    struct generation generation; /* first: the link returns this pointer */
    struct pool_job *job;
    size_t i_text;
    bool is_open;
};

struct pool_job {
    struct task task; /* first */
    struct app *app;
    enum pool_form form;
    json_t *body;
    const json_t *fields[POOL_FIELDS]; /* borrowed from the body; NULL: absent or null */
    struct unknown unknown;
    char param[64];          /* the field of an error */
    struct pool_text *texts; /* [n_text] */
    size_t n_text;
    /* /score and /rerank: result i is of texts first_of[i] and second_of[i]; of a classifier of
     * text i alone. */
    size_t n_first, n_second;
    json_t *sides[2];             /* their strings; NULL: another route */
    struct turn turn;             /* of messages */
    struct prompts chat;          /* what they are rendered to */
    struct item_types item_types; /* what content parts may be, as it was at the start */
    struct item_wire items;       /* of the conversation */
    uint32_t *positions;          /* [turn.parts.list.n] of their placeholders; NULL: no items */
    struct pool_values values;
    bool is_paired, is_raw, is_left, is_plain;
    bool ended, too_long;
    uint32_t n_value;       /* values asked for; 0: all */
    int64_t truncate;       /* tokens; 0: not */
    uint32_t max_model_len; /* as it was at the start of the request */
    struct tenant tenant;
    uint32_t weight;
    struct pool_slot *slots;     /* [POOL_OPEN_MAX] */
    struct link_request request; /* of their generations */
    size_t n_next, n_done;       /* texts submitted, computed */
    uint64_t n_token, n_cached;
    char id[REPLY_ID_MAX];
    size_t n_id_prefix; /* of reply_id_make */
    int64_t created, arrived_us;
    const char *model;
    const char *prompt; /* put before each text; "": nothing. Of the served model */
};

/* Refuse the request when the served model does not do what the route needs: true, and the answer
 * is sent. */
bool pool_refuses(struct app *a, struct http_exchange *x, enum pool_form form);

/* pool_read.c: the body to fields and texts. Errors: Q_INVALID, Q_UNSUPPORTED, Q_NOT_FOUND (model),
 * Q_TOO_LARGE; j->param names the field. */
FALLIBLE pool_read(struct pool_job *j, struct q_err *e);
/* Of pool_read.c, for the other files: a field's name; the field of an error (returns rc); room for
 * n texts; a text of the body. */
const char *pool_field_name(enum pool_field field);
enum q_code pool_fail_at(struct pool_job *j, enum q_code rc, enum pool_field field);
enum q_code pool_make_texts(struct pool_job *j, size_t n, struct q_err *e);
enum q_code pool_take_text(struct pool_job *j, struct pool_text *t, const json_t *v,
                           struct q_err *e);
/* pool_pairs.c: the texts of /score and /rerank. */
FALLIBLE pool_read_pairs(struct pool_job *j, struct q_err *e);
/* pool_chat.c: a conversation, rendered to one text as the chat endpoint does. */
FALLIBLE pool_read_chat(struct pool_job *j, struct q_err *e);
/* pool_text.c: the texts to token ids, cut where the request wants it. */
FALLIBLE pool_encode(struct pool_job *j, struct q_err *e);
/* pool_chat.c: the items of the conversation, after pool_encode. */
FALLIBLE pool_take_items(struct pool_job *j, struct q_err *e);
/* Are all prompts short enough? Errors: Q_INVALID. */
FALLIBLE pool_check_lengths(struct pool_job *j, struct q_err *e);
/* pool_reply.c: the answer, of all vectors. */
void pool_reply(const struct pool_job *j, struct buf *out);
/* The header of encoding_format bytes: where in the body each vector is, as JSON. */
void pool_reply_metadata(const struct pool_job *j, struct buf *out);

#endif
