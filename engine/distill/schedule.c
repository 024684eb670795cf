/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence of forward items and one of backward items hold for all ranks; ranks differ in how
 * many forward items lie before the first backward item (the lead), after which the two alternate:
 *
 *     F(0) … F(lead - 1)  F(lead) B(0)  F(lead + 1) B(1)  …  B(last)
 *
 * Plain 1F1B: F(k) and B(k) are micro batch k; lead = P - 1 - p, so that rank p keeps P - p micro
 * batches. Interleaved: groups of P micro batches go through virtual stage 0, then 1, …; B in the
 * opposite order of stages; lead = 2 (P - 1 - p) + (v - 1) P, the order of Megatron-LM. On the last
 * rank that is (v - 1) P, so the forward item of the last stage comes right before its backward
 * item.
 *
 * A last group that is not whole keeps its places, and the micro batches that it lacks are left
 * out: what remains has the order of a schedule without circular waits, and no other rule.
 *
 * The teacher's items make forward items longer, which keeps the bubble: stage i of a rank lies
 * right before the student's stage i there, on the last rank the last one beside the loss; a rank
 * in front of the student's has the same order. With fewer ranks than the student the teacher's way
 * back to its first rank is the shorter one, and items wait; with more it is the longer one, and
 * ranks wait. A teacher of one stage a rank lies before the student's last stage; with virtual
 * stages its whole pipeline is then filled and emptied beside the student's, v times as long as a
 * forward item. */
#include "engine/distill/schedule.h"
#include "common/mem.h"
#include "engine/distill/schedule_internal.h"
#include "engine/distill/transport.h"

#define ITEMS_MAX (1u << 26) /* of a rank */
#define NO_SLOT   UINT32_MAX

bool schedule_divides_teacher(uint32_t n_rank, uint32_t n_teacher_rank)
{
    return (uint64_t)n_teacher_rank * TRANSPORT_SENDS >= n_rank;
}

FALLIBLE schedule_check(const struct schedule_options *o, struct q_err *e)
{
    if (!o->n_rank || !o->n_virtual || !o->n_micro)
        return q_fail(e, Q_INVALID,
                      "schedule: %u pipeline ranks, %u virtual stages, %u micro batches; each has "
                      "to be 1 or more",
                      o->n_rank, o->n_virtual, o->n_micro);
    if (o->n_virtual > 1 && o->n_rank == 1)
        return q_fail(e, Q_INVALID,
                      "schedule: %u virtual stages on 1 pipeline rank; virtual stages need 2 "
                      "pipeline ranks or more",
                      o->n_virtual);
    const uint32_t n_teacher = o->n_teacher_virtual;
    if (n_teacher > 1 &&
        (n_teacher != o->n_virtual || !schedule_divides_teacher(o->n_rank, o->n_teacher_rank)))
        return q_fail(e, Q_INVALID,
                      "schedule: %u virtual stages of the teacher on %u pipeline ranks; expected "
                      "1, or the %u of the student on half of its %u ranks or more",
                      n_teacher, o->n_teacher_rank, o->n_virtual, o->n_rank);
    /* three kinds of items, and a last group that is filled up */
    if (((uint64_t)o->n_micro + o->n_rank) * o->n_virtual > ITEMS_MAX / 3)
        return q_fail(e, Q_INVALID,
                      "schedule: %u micro batches of %u stages a rank are more than %u items",
                      o->n_micro, o->n_virtual, ITEMS_MAX);
    return Q_OK;
}

struct writer {
    const struct schedule_options *o;
    struct schedule *out;
    bool has_teacher;
    uint32_t *slots; /* [n_virtual][n_slot_max]: the micro batch in it, NO_SLOT: free */
    uint32_t n_slot_max;
};

static void add_item(struct writer *w, struct schedule_item item)
{
    w->out->items[w->out->n++] = item;
}

/* The slot of a stage that holds `micro` (NO_SLOT: the first free one). */
static uint32_t find_slot(const struct writer *w, uint32_t stage, uint32_t micro)
{
    const uint32_t *slots = w->slots + (size_t)stage * w->n_slot_max;
    uint32_t i = 0;
    while (i < w->n_slot_max && slots[i] != micro)
        i++;
    Q_ASSERT(i < w->n_slot_max);
    return i;
}

/* Items of a pass, with those of a last group that is filled up. */
static uint32_t items_of_pass(const struct schedule_options *o)
{
    return (o->n_micro + o->n_rank - 1) / o->n_rank * o->n_rank * o->n_virtual;
}

/* The k-th micro batch and stage of the sequence of forward items; false: it does not exist. */
static bool forward_at(const struct schedule_options *o, uint32_t k, uint32_t *micro,
                       uint32_t *stage)
{
    *stage = k / o->n_rank % o->n_virtual;
    *micro = k / (o->n_rank * o->n_virtual) * o->n_rank + k % o->n_rank;
    return *micro < o->n_micro;
}

/* The k-th item of the sequence of forward items, or nothing where its micro batch does not
 * exist. */
static void add_forward(struct writer *w, uint32_t k)
{
    const struct schedule_options *o = w->o;
    uint32_t stage, micro;
    if (!forward_at(o, k, &micro, &stage))
        return;
    const bool divided = o->n_teacher_virtual > 1;
    if (w->has_teacher && (divided || stage == o->n_virtual - 1))
        add_item(w, (struct schedule_item){SCHEDULE_TEACHER, micro, divided ? stage : 0, 0});
    uint32_t slot = 0;
    if (!o->forward_only) {
        slot = find_slot(w, stage, NO_SLOT);
        w->slots[(size_t)stage * w->n_slot_max + slot] = micro;
    }
    if (slot >= w->out->n_slot)
        w->out->n_slot = slot + 1;
    add_item(w, (struct schedule_item){SCHEDULE_FORWARD, micro, stage, slot});
}

static void add_backward(struct writer *w, uint32_t k)
{
    const struct schedule_options *o = w->o;
    uint32_t stage = o->n_virtual - 1 - k / o->n_rank % o->n_virtual;
    uint32_t micro = k / (o->n_rank * o->n_virtual) * o->n_rank + k % o->n_rank;
    if (micro >= o->n_micro)
        return;
    uint32_t slot = find_slot(w, stage, micro);
    w->slots[(size_t)stage * w->n_slot_max + slot] = NO_SLOT;
    add_item(w, (struct schedule_item){SCHEDULE_BACKWARD, micro, stage, slot});
}

/* A rank in front of the student's: the teacher's items in the order in which the ranks behind it
 * take them. */
static void add_teacher(struct writer *w)
{
    const struct schedule_options *o = w->o;
    const bool divided = o->n_teacher_virtual > 1;
    const uint32_t n = items_of_pass(o);
    for (uint32_t k = 0, micro, stage; k < n; k++)
        if (forward_at(o, k, &micro, &stage) && (divided || stage == 0))
            add_item(w, (struct schedule_item){SCHEDULE_TEACHER, micro, stage, 0});
}

/* p: of the student's ranks. */
static void add_student(struct writer *w, uint32_t p)
{
    const struct schedule_options *o = w->o;
    Q_ASSERT(o->n_rank > 0); /* schedule_check */
    const uint32_t n = items_of_pass(o);
    uint32_t lead = o->n_rank - 1 - p;
    if (o->n_virtual > 1)
        lead = 2 * lead + (o->n_virtual - 1) * o->n_rank;
    for (uint32_t k = 0; k < n + lead; k++) {
        if (k < n)
            add_forward(w, k);
        if (k >= lead && !o->forward_only)
            add_backward(w, k - lead);
    }
}

FALLIBLE schedule_make(struct schedule *out, const struct schedule_options *o, uint32_t rank,
                       struct q_err *e)
{
    struct schedule_place place = schedule_place(o);
    enum q_code rc = schedule_check(o, e);
    *out = (struct schedule){0};
    if (rc)
        return rc;
    if (rank >= place.n)
        return q_fail(e, Q_INVALID, "schedule: rank %u of %u pipeline ranks", rank, place.n);
    struct writer w = {.o = o, .out = out, .has_teacher = rank >= place.teacher};
    /* a stage has at most the micro batches of the lead and one group under way */
    w.n_slot_max = o->n_virtual > 1 ? 4 * o->n_rank : o->n_rank;
    size_t n_slot = (size_t)w.n_slot_max * o->n_virtual;
    out->items = q_calloc((size_t)o->n_micro * 3 * o->n_virtual, sizeof *out->items);
    w.slots = q_calloc(n_slot, sizeof *w.slots);
    if (!out->items || !w.slots) {
        schedule_release(out);
        q_free(w.slots);
        return q_fail(e, Q_NO_MEMORY, "schedule: no memory for %u micro batches", o->n_micro);
    }
    for (size_t i = 0; i < n_slot; i++)
        w.slots[i] = NO_SLOT;
    if (rank >= place.student)
        add_student(&w, rank - place.student);
    else
        add_teacher(&w);
    q_free(w.slots);
    return Q_OK;
}

void schedule_release(struct schedule *s)
{
    q_free(s->items);
    *s = (struct schedule){0};
}
