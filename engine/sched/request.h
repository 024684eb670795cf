/* SPDX-License-Identifier: Apache-2.0 */
/* request - the requests of one engine: tokens, state and lookup.
 *
 * A fixed table of entries, an index by (frontend_id, req_id) and lists through the entries. A
 * request owns one allocation with its tokens and arrays. Positions count prompt and output from 0:
 *
 *     0 ……………… n_prompt ……………… n_token ……………… n_token + n_sampling ……………… n_max
 *       prompt      output known     sampled by steps        room
 *                   here             in flight
 *     0 …………………………… n_planned      rows computed, or that will be after the steps in flight
 *
 * Threads: the scheduler's loop only. Only request_add allocates. */
#ifndef QUIRE_ENGINE_SCHED_REQUEST_H
#define QUIRE_ENGINE_SCHED_REQUEST_H
#include <stdbool.h>
#include <stdint.h>
#include "engine/sched/kv.h"
#include "engine/sched/programs.h"
#include "engine/sched/swap.h"
#include "proto/items.h"
#include "proto/proto.h"
#include "proto/sampling.h"

#define REQUEST_NONE UINT32_MAX
#define REQUESTS_MAX (1u << 21) /* entries of a table */

enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_RUNNING };

struct request {
    enum request_state state;
    uint32_t frontend_id;
    uint64_t req_id;
    uint64_t arrival;       /* submission number: first come, first served */
    uint64_t admission_seq; /* number of the first admission; 0 = not admitted yet */
    int32_t priority;       /* lower = earlier; 0 unless the policy is by priority */
    uint32_t tenant;        /* entry of the backlog */
    uint32_t adapter;       /* number of its LoRA adapter; 0 = none */
    uint32_t use;     /* number of requests that used this entry; identifies the owner of a row in
                    * flight */
    uint32_t slot;    /* in the worker, while running */
    void *memory;     /* owned: tokens, hashes and the arrays of params */
    uint32_t *tokens; /* [n_token], room for n_max */
    uint32_t n_prompt, n_token, n_max;
    uint32_t n_planned; /* rows */
    uint32_t
        n_sampling; /* steps in flight that sample a token for it, 0 … SCHEDULER_IN_FLIGHT_MAX */
    uint32_t prompt_next; /* next prompt position to request logprobs for; n_prompt = none left */
    uint32_t prompt_settled; /* next prompt position whose logprobs are sent */
    uint32_t n_counted;      /* prompt tokens already counted in the statistics */
    bool started;            /* has been in a step; queue_us is set */
    uint32_t n_lost;         /* deaths of the worker in steps with it; 0 again when it makes
                              * progress */
    uint32_t n_since_lost;   /* tokens settled since the last crash */
    /* Prefix cache (cache.c). Keys of the full blocks of tokens, [0] for no block: [1 + n_max /
     * 16], the first 1 + n_hash are known; NULL: the request does not use the cache. */
    struct kv_hash *hashes;
    uint32_t n_hash;
    uint32_t n_public;     /* number of first blocks of the prompt that are public, independent of
                            * the salt */
    struct kv_hash salted; /* with n_public: input of the key of the next block */
    uint32_t n_shared;     /* cached blocks of its table at admission; never written for this
                            * request */
    uint32_t publish_at;   /* number of rows and tokens that complete the next block to publish;
                          * UINT32_MAX: none */
    uint32_t n_cached;     /* prompt tokens found at the first admission */
    int64_t submit_us;
    int64_t deadline_us; /* INT64_MAX = none */
    uint64_t queue_us;
    struct sample_params params;
    /* [n_item] items of the prompt, in the item store at item_offset; borrowed until the request
     * ends */
    const struct step_item *items;
    uint64_t item_offset;
    uint32_t n_item;
    struct kv_table table; /* blocks, while running */
    /* Of a model with states (states.h): its row while it runs, or while it waits with blocks in
     * host memory; STATE_NONE. */
    uint32_t state_row;
    uint32_t state_from;             /* at its admission, as step_admit.state_from */
    uint32_t pending, pending_block; /* a snapshot that no block has yet, and whose it will be */
    uint32_t rolling, rolling_block; /* the snapshot of its newest block of output, and that */
    /* Numbers of blocks that snapshots are taken behind while its prompt is computed: the last one
     * that another request had too, and the last one of its history. 0: none. */
    uint32_t snapshot_at[2];
    uint32_t n_history;    /* tokens at its admission: rows from here on are of output */
    struct swap_held held; /* blocks in host memory while it waits after a preemption */
    uint32_t n_restored;   /* positions swapped in at its admission */
    uint32_t prev, next;   /* in the list of its state */
};

struct request_list {
    uint32_t first, last, n;
};
struct request_table {
    struct request *items; /* [n_item] */
    uint32_t n_item;
    uint32_t *index;     /* [index_size] entry number + 1, 0 = empty; linear probing */
    uint32_t index_size; /* a power of two, at least twice n_item */
    struct request_list free;
    uint64_t n_arrival;
    bool hashing;             /* requests have room for hashes unless they disable the cache */
    struct programs programs; /* grammars of the requests in the table */
};
/* clang-format off */
#define REQUEST_LIST_INIT {REQUEST_NONE, REQUEST_NONE, 0}
#define REQUEST_TABLE_INIT {NULL, 0, NULL, 0, REQUEST_LIST_INIT, 0, false, {NULL, 0}}
/* clang-format on */

/* Errors: Q_NO_MEMORY. */
FALLIBLE request_table_init(struct request_table *t, uint32_t n_item, struct q_err *e);
void request_table_release(struct request_table *t);

/* Allocate an entry for m, whose values the caller has checked; n_max as above. The entry is in no
 * list and has state WAITING.
 * Errors: Q_NO_SPACE (table full, programs.h), Q_NO_MEMORY. */
FALLIBLE request_add(struct request_table *t, uint32_t *i_request, uint32_t frontend_id,
                     const struct msg_submit *m, uint32_t n_max, struct q_err *e);
/* Free an entry that is in no list. */
void request_remove(struct request_table *t, uint32_t i_request);
uint32_t request_find(const struct request_table *t, uint32_t frontend_id, uint64_t req_id);
void request_table_check(const struct request_table *t);
/* Order of admitted requests: better priority, then earlier admission. The last in this order is
 * preempted first. */
static inline bool request_before(const struct request *a, const struct request *b)
{
    return a->priority != b->priority ? a->priority < b->priority
                                      : a->admission_seq < b->admission_seq;
}

/* Each O(1); a request is in at most one list. */
void request_list_append(struct request_table *t, struct request_list *l, uint32_t i_request);
void request_list_prepend(struct request_table *t, struct request_list *l, uint32_t i_request);
/* Behind `before`; REQUEST_NONE = at the head. */
void request_list_insert(struct request_table *t, struct request_list *l, uint32_t before,
                         uint32_t i_request);
void request_list_remove(struct request_table *t, struct request_list *l, uint32_t i_request);

#endif
