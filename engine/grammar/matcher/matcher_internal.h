/* SPDX-License-Identifier: Apache-2.0 */
/* matcher_internal - the types that matcher.c (texts) and matcher_mask.c (tokens) share. Private
 * to engine/grammar. Threads: as the matcher. */
#ifndef QUIRE_ENGINE_GRAMMAR_MATCHER_MATCHER_INTERNAL_H
#define QUIRE_ENGINE_GRAMMAR_MATCHER_MATCHER_INTERNAL_H
#include "common/mem.h"
#include "engine/grammar/matcher/counted_table.h"
#include "engine/grammar/matcher/matcher.h"
#include "engine/grammar/automaton/program.h"
#include "engine/grammar/matcher/shared.h"

#define FRAME_END     0u /* below it the text ends */
#define FRAME_UNKNOWN 1u /* below it a local does not look */
#define FRAME_NONE    UINT32_MAX
#define SEEN_SIZE     32768u /* a power of two above twice MATCHER_PAIRS_MAX */
#define MASKS_KEPT    32u    /* whole masks remembered by one matcher */

/* config.flags */
enum {
    CONFIG_END = 1, /* the text may end here */
    CONFIG_OUT = 2  /* a local has ended its rule */
};
#define CONFIG_SELF (1ull << 62)
struct frame {
    uint32_t jump;      /* of the program */
    uint32_t low, high; /* COUNT: how often more it must, and may (EXPR_INF: for ever) */
    uint32_t below;
    uint32_t depth;
    matcher_config back; /* + 1: what follows when it is popped; 0 = not known yet */
};
struct pair {
    uint32_t state, frame;
};
struct config {
    uint32_t pair, n_pair, flags;
    uint32_t mask;  /* + 1: among the masks kept, perhaps */
    uint64_t loops; /* classes (trie.h) of which every byte leads back here … */
    uint64_t asked; /* … of those that are known; CONFIG_SELF: some byte does */
    uint32_t *next; /* [256] config + 1, 0 = not known yet; NULL = none is */
};
struct matcher_index {
    uint32_t *slots; /* [size] */
    size_t size;
};
struct local { /* the tokens of a pair as far as its rule */
    struct pair pair;
    uint32_t n_id;         /* UINT32_MAX: bits */
    uint32_t *ids;         /* [n_id], or bits [trie_words] */
    uint32_t n_out, *outs; /* places in the trie where the rule has ended */
};
#define COUNTED_LOOPS_MAX (TRIE_TOKEN_MAX + 2) /* rounds of a loop that one token can tell apart */
struct counted_loop {
    uint32_t state, jump;
    struct counted_loop_table *table; /* one reference; NULL: there is none, it has to be walked */
};
struct kept_mask {
    matcher_config of;
    uint32_t *bits; /* [trie_words] */
};

struct matcher {
    uint32_t *words; /* [n_word] owned */
    size_t n_word;
    struct program p; /* of words */
    const struct trie *trie;
    struct arena arena; /* tables of next */
    struct frame *frames;
    struct config *configs;
    struct pair *pairs;
    uint32_t n_frame, n_config;
    size_t n_pair, frame_cap, config_cap, pair_cap;
    struct matcher_index frame_index, config_index;
    uint32_t generation;
    bool stuck;
    uint64_t work, work_max;
    /* a closure being made */
    struct {
        uint32_t epoch, i;
    } seen[SEEN_SIZE];
    uint32_t seen_epoch, n_seen, n_found;
    struct pair queue[MATCHER_PAIRS_MAX], found[MATCHER_PAIRS_MAX];
    /* matcher_mask.c */
    struct local *locals;
    uint32_t n_local;
    size_t local_cap;
    struct matcher_index local_index;
    uint32_t *outs; /* of the local being made */
    size_t n_out, out_cap;
    struct kept_mask kept[MASKS_KEPT];
    uint32_t kept_next;
    struct counted_loop *counted; /* [n_counted] */
    uint32_t n_counted_loop;
    size_t counted_loop_cap;
    size_t mask_bytes;
    matcher_config path[TRIE_TOKEN_MAX + 1];
    struct matcher_stats stats;
};

/* As matcher_next of a byte that c has not seen yet: computed, and remembered in c. */
matcher_config matcher_next_made(struct matcher *m, matcher_config c, uint8_t byte);
/* What the byte makes of c, remembered. */
static inline matcher_config matcher_next(struct matcher *m, matcher_config c, uint8_t byte)
{
    const uint32_t *next = m->configs[c].next;
    return next && next[byte] ? next[byte] - 1 : matcher_next_made(m, c, byte);
}
/* Every text of these classes may come in c, and it changes nothing, as inside of most strings. */
bool matcher_loops(struct matcher *m, matcher_config c, uint64_t classes);
/* The same behind one character that begins with this byte. */
bool matcher_opens_text(struct matcher *m, matcher_config c, uint8_t byte);
matcher_config matcher_single(struct matcher *m, struct pair p); /* the config of one pair */
/* The config where a local that begins in this state stands. */
matcher_config matcher_enter(struct matcher *m, uint32_t state);
/* What follows when the frame is popped; 0 for a bottom. */
matcher_config matcher_after(struct matcher *m, uint32_t frame);
uint32_t matcher_push(struct matcher *m, struct frame f);
void matcher_forget_masks(struct matcher *m);
/* What walk_local gives for a pair whose frame is a counted loop's over the unknown: bits and
 * m->outs; false: it has to be walked. */
bool counted_loop_tokens(struct matcher *m, struct pair p, uint32_t *bits);
void counted_loop_forget(struct matcher *m);

#endif
