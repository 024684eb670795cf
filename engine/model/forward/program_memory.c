/* SPDX-License-Identifier: Apache-2.0 */
/* Liveness: one pass over the operations from the last to the first, as a compiler does for
 * registers. There are few buffers, so a set of them is one word. */
#include "engine/model/forward/program_memory.h"
#include <string.h>

static uint64_t bit(struct program_ref r)
{
    return r.buffer == PROGRAM_B_NONE ? 0 : (uint64_t)1 << r.buffer;
}

/* Does nothing of what the buffer had remain? */
static bool replaces(const struct layer_program *p, const struct program_op *op)
{
    return !op->onto && !op->in_place && op->out.n_col == p->buffers[op->out.buffer].n_col;
}

static uint64_t touched(const struct program_op *op)
{
    return bit(op->in[0]) | bit(op->in[1]) | bit(op->out);
}

/* What is alive before the operation, of what is alive behind it. */
static uint64_t before(const struct layer_program *p, const struct program_op *op, uint64_t behind)
{
    const uint64_t kept = replaces(p, op) ? behind & ~bit(op->out) : behind;
    const uint64_t changed = op->onto || op->in_place ? bit(op->out) : 0;
    return kept | bit(op->in[0]) | bit(op->in[1]) | changed;
}

static bool is_of_places(const struct layer_program *p, uint32_t stage)
{
    const struct program_stage *s = &p->stages[stage];
    return p->buffers[p->ops[s->first + s->n - 1].out.buffer].rows == PROGRAM_ROWS_PLACES;
}

uint32_t program_repeated(const struct layer_program *p, uint32_t stage)
{
    uint32_t end = stage;
    while (end + 1 < p->n_stage && is_of_places(p, end))
        end++;
    return end + 1 - stage; /* with the sum, which writes no places */
}

static void add_conflicts(uint64_t conflicts[PROGRAM_BUFFERS_MAX], uint64_t set)
{
    for (uint32_t i = 0; i < PROGRAM_BUFFERS_MAX; i++)
        if (set >> i & 1)
            conflicts[i] |= set;
}

void program_conflicts(const struct layer_program *p, uint64_t conflicts[PROGRAM_BUFFERS_MAX])
{
    uint64_t alive = (uint64_t)1 << PROGRAM_B_LOGITS;
    memset(conflicts, 0, PROGRAM_BUFFERS_MAX * sizeof *conflicts);
    for (uint32_t end = p->n_stage; end > 0;) {
        uint32_t begin = end - 1;
        while (begin > 0 && is_of_places(p, begin - 1))
            begin--;
        const uint32_t first = p->stages[begin].first;
        uint64_t set = alive;
        for (uint32_t i = p->stages[end - 1].first + p->stages[end - 1].n; i > first; i--) {
            set |= touched(&p->ops[i - 1]);
            alive = before(p, &p->ops[i - 1], alive);
        }
        add_conflicts(conflicts, set | alive);
        end = begin;
    }
}

/* The lowest offset, 0 or behind a buffer that is placed, where `of` overlaps none it conflicts
 * with. */
static size_t lowest(const size_t offsets[], const size_t sizes[], uint64_t others, uint32_t n,
                     size_t size)
{
    size_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < n; i++) {
            if (!(others >> i & 1) || at >= offsets[i] + sizes[i] || at + size <= offsets[i])
                continue;
            at = offsets[i] + sizes[i];
            moved = true;
        }
    }
    return at;
}

size_t program_place(size_t offsets[], const size_t sizes[],
                     const uint64_t conflicts[PROGRAM_BUFFERS_MAX], uint32_t n)
{
    uint64_t placed = 0;
    size_t end = 0;
    for (;;) {
        uint32_t next = n;
        for (uint32_t i = 0; i < n; i++)
            if (sizes[i] && !(placed >> i & 1) && (next == n || sizes[i] > sizes[next]))
                next = i;
        if (next == n)
            return end;
        offsets[next] = lowest(offsets, sizes, conflicts[next] & placed, n, sizes[next]);
        placed |= (uint64_t)1 << next;
        if (offsets[next] + sizes[next] > end)
            end = offsets[next] + sizes[next];
    }
}

void program_memory_place(struct program_memory *m, const struct layer_program *p,
                          const uint64_t *apart)
{
    uint64_t conflicts[PROGRAM_BUFFERS_MAX];
    program_conflicts(p, conflicts);
    for (uint32_t i = 0; apart && i < p->n_buffer; i++)
        conflicts[i] |= apart[i];
    m->n_bytes = program_place(m->offsets, m->sizes, conflicts, p->n_buffer);
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        m->overlaps[i] = (uint64_t)1 << i;
        for (uint32_t j = 0; j < p->n_buffer; j++)
            if (m->sizes[i] && m->sizes[j] && m->offsets[i] < m->offsets[j] + m->sizes[j] &&
                m->offsets[j] < m->offsets[i] + m->sizes[i])
                m->overlaps[i] |= (uint64_t)1 << j;
    }
}
