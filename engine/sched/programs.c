/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/programs.h"
#include <string.h>
#include "common/mem.h"

struct held_program {
    struct held_program *next;
    size_t n_byte;
    uint64_t hash;
    uint32_t n_ref;
    uint32_t words[]; /* [n_byte], up to a whole word */
};

static uint64_t hash_of(const unsigned char *data, size_t n_byte)
{
    uint64_t h = n_byte, word;
    for (size_t i = 0; i + sizeof word <= n_byte; i += sizeof word) {
        memcpy(&word, data + i, sizeof word);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

void programs_release(struct programs *p)
{
    struct held_program *next;
    for (struct held_program *x = p->first; x; x = next) {
        next = x->next;
        q_free(x);
    }
    *p = (struct programs){.first = NULL};
}

FALLIBLE programs_take(struct programs *p, const void **out, const void *data, size_t n_byte,
                       struct q_err *e)
{
    uint64_t hash = hash_of(data, n_byte);
    for (struct held_program *x = p->first; x; x = x->next)
        if (x->hash == hash && x->n_byte == n_byte && !memcmp(x->words, data, n_byte)) {
            x->n_ref++;
            *out = x->words;
            return Q_OK;
        }
    if (p->first && p->bytes + n_byte > PROGRAMS_BYTES)
        return q_fail(e, Q_NO_SPACE,
                      "the compiled grammars of the open requests take %zu MB, the limit is %zu "
                      "MB; retry later",
                      p->bytes >> 20, PROGRAMS_BYTES >> 20);
    struct held_program *x = q_alloc(sizeof *x + n_byte);
    if (!x)
        return q_fail(e, Q_NO_MEMORY, "request: out of memory for a grammar of %zu bytes", n_byte);
    *x = (struct held_program){.next = p->first, .n_byte = n_byte, .hash = hash, .n_ref = 1};
    memcpy(x->words, data, n_byte);
    p->first = x;
    p->bytes += n_byte;
    *out = x->words;
    return Q_OK;
}

void programs_drop(struct programs *p, const void *held)
{
    struct held_program **at = &p->first;
    if (!held)
        return;
    while (*at && (*at)->words != held)
        at = &(*at)->next;
    struct held_program *x = *at;
    if (!x || --x->n_ref)
        return;
    *at = x->next;
    p->bytes -= x->n_byte;
    q_free(x);
}
