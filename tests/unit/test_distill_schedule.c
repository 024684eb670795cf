/* SPDX-License-Identifier: Apache-2.0 */
/* schedule and topology: every item once, in an order that no dependency contradicts, in slots that
 * do not overlap, without ranks that wait for each other, with the bubble of 1F1B; the best cut of
 * layers; ranks, groups and messages that fit each other. */
#include "check.h"
#include <math.h>
#include "common/mem.h"
#include "engine/distill/schedule_internal.h"
#include "engine/distill/topology.h"

#define RANKS_MAX 8u
#define MICRO_MAX 40u

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static const char *text_of(const struct schedule_options *o)
{
    static char text[128];
    snprintf(text, sizeof text, "student %u x %u, teacher %u x %u, %u micro batches%s", o->n_rank,
             o->n_virtual, o->n_teacher_rank, o->n_teacher_virtual, o->n_micro,
             o->forward_only ? ", forward only" : "");
    return text;
}

#define check_that(condition, o)                        \
    do {                                                \
        if (!(condition))                               \
            fail_msg("%s: %s", text_of(o), #condition); \
    } while (0)

/* ---- one rank ---- */

struct rank_check {
    const struct schedule_options *o;
    uint32_t rank;
    bool has_student, has_teacher, is_last;
    const struct schedule *s;
    uint8_t seen[3][RANKS_MAX * 4][MICRO_MAX]; /* [kind][stage][micro] times */
    uint32_t in_slot[RANKS_MAX][64];           /* 1 + micro batch; 0: free */
    uint32_t slot_of[RANKS_MAX][MICRO_MAX];
    uint32_t last_teacher;
};

static void check_forward(struct rank_check *c, const struct schedule_item *item)
{
    const struct schedule_options *o = c->o;
    check_that(item->slot < c->s->n_slot, o);
    if (item->stage > 0 && o->n_rank == 1)
        check_that(c->seen[SCHEDULE_FORWARD][item->stage - 1][item->micro], o);
    if (c->has_teacher && o->n_teacher_virtual > 1)
        check_that(c->seen[SCHEDULE_TEACHER][item->stage][item->micro], o);
    else if (c->has_teacher && item->stage == o->n_virtual - 1)
        check_that(c->seen[SCHEDULE_TEACHER][0][item->micro], o);
    if (o->forward_only)
        return;
    uint32_t *slot = &c->in_slot[item->stage][item->slot];
    check_that(*slot == 0, o);
    *slot = item->micro + 1;
}

static void check_backward(struct rank_check *c, const struct schedule_item *item,
                           const struct schedule_item *before)
{
    const struct schedule_options *o = c->o;
    uint32_t *slot = &c->in_slot[item->stage][item->slot];
    check_that(!o->forward_only, o);
    check_that(*slot == item->micro + 1, o);
    *slot = 0;
    if (!c->is_last || item->stage != o->n_virtual - 1)
        return;
    /* the loss: right behind the forward item, with the teacher's rows of the same micro batch */
    check_that(before && before->kind == SCHEDULE_FORWARD && before->micro == item->micro &&
                   before->stage == item->stage,
               o);
    check_that(!c->has_teacher || c->last_teacher == item->micro, o);
}

static void check_rank(struct rank_check *c)
{
    const struct schedule_options *o = c->o;
    for (uint32_t i = 0; i < c->s->n; i++) {
        const struct schedule_item *item = &c->s->items[i];
        check_that(item->micro < o->n_micro && item->stage < o->n_virtual, o);
        check_that(c->seen[item->kind][item->stage][item->micro]++ == 0, o);
        if (item->micro > 0) /* what a tag's order of messages needs */
            check_that(c->seen[item->kind][item->stage][item->micro - 1], o);
        if (item->kind == SCHEDULE_TEACHER && item->stage + 1 == o->n_teacher_virtual)
            c->last_teacher = item->micro;
        else if (item->kind == SCHEDULE_TEACHER)
            check_that(o->n_teacher_virtual > 1, o);
        else if (item->kind == SCHEDULE_FORWARD)
            check_forward(c, item);
        else
            check_backward(c, item, i ? item - 1 : NULL);
    }
    for (uint32_t micro = 0; micro < o->n_micro; micro++) {
        for (uint32_t stage = 0; stage < o->n_virtual; stage++) {
            check_that(c->seen[SCHEDULE_TEACHER][stage][micro] ==
                           (c->has_teacher && stage < o->n_teacher_virtual),
                       o);
            check_that(c->seen[SCHEDULE_FORWARD][stage][micro] == c->has_student, o);
            check_that(c->seen[SCHEDULE_BACKWARD][stage][micro] ==
                           (c->has_student && !o->forward_only),
                       o);
        }
    }
}

/* The most slots that a rank may have: 1F1B keeps the micro batches of the stages behind it;
 * interleaved, a stage has at most the lead of its own group and the next one. */
static uint32_t slots_max(const struct schedule_options *o, uint32_t p)
{
    if (o->forward_only)
        return 1;
    uint32_t behind = o->n_rank - p;
    if (o->n_virtual > 1)
        behind = 2 * o->n_rank;
    return behind < o->n_micro ? behind : o->n_micro;
}

static void check_schedule(const struct schedule_options *o)
{
    uint32_t n = larger(o->n_rank, o->n_teacher_rank);
    struct q_err e = Q_ERR_INIT;
    for (uint32_t rank = 0; rank < n; rank++) {
        struct schedule s;
        assert_ok(schedule_make(&s, o, rank, &e), &e);
        struct rank_check *c = q_calloc(1, sizeof *c);
        *c = (struct rank_check){.o = o, .rank = rank, .s = &s, .is_last = rank == n - 1};
        c->has_student = rank >= n - o->n_rank;
        c->has_teacher = rank >= n - o->n_teacher_rank;
        c->last_teacher = UINT32_MAX;
        check_rank(c);
        if (c->has_student)
            check_that(s.n_slot <= slots_max(o, rank - (n - o->n_rank)), o);
        else
            check_that(s.n_slot == 0, o);
        q_free(c);
        schedule_release(&s);
    }
    struct stage_cost costs[RANKS_MAX * 4];
    for (uint32_t i = 0; i < n * o->n_virtual; i++)
        costs[i] = (struct stage_cost){1 + i % 3, 2, 3 + i % 2};
    double bubble = -1;
    assert_ok(schedule_bubble(o, costs, &bubble, &e), &e);
    check_that(bubble >= 0 && bubble < 1, o);
}

static void test_all_sizes(void **state)
{
    (void)state;
    static const uint32_t micros[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 24, 31, 40};
    for (uint32_t p = 1; p <= RANKS_MAX; p++)
        for (uint32_t v = 1; v <= (p > 1 ? 4u : 1u); v++)
            for (uint32_t pt = 0; pt <= RANKS_MAX; pt++)
                for (size_t i = 0; i < sizeof micros / sizeof *micros; i++) {
                    check_schedule(&(struct schedule_options){p, v, pt, micros[i], false, 1});
                    check_schedule(&(struct schedule_options){p, v, pt, micros[i], true, 1});
                    if (2 * pt < p || v == 1)
                        continue;
                    check_schedule(&(struct schedule_options){p, v, pt, micros[i], false, v});
                    check_schedule(&(struct schedule_options){p, v, pt, micros[i], true, v});
                }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct schedule_options wrong[] = {
        {0, 1, 1, 1, false, 1}, {1, 0, 1, 1, false, 1},          {1, 1, 1, 0, false, 1},
        {1, 2, 1, 4, false, 1}, {2, 1, 2, UINT32_MAX, false, 1}, {2, 2, 2, 4, false, 3},
        {2, 1, 2, 4, false, 2}, {5, 2, 2, 4, false, 2},          {2, 2, 0, 4, false, 2},
    };
    struct q_err e = Q_ERR_INIT;
    struct schedule s;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(schedule_make(&s, &wrong[i], 0, &e), Q_INVALID, "schedule", &e);
    assert_fails(schedule_make(&s, &(struct schedule_options){2, 1, 3, 1, false, 1}, 3, &e),
                 Q_INVALID, "rank 3 of 3", &e);
    for (int64_t n = 0; n < 2; n++) {
        mem_fail_after(n);
        enum q_code rc = schedule_make(&s, &(struct schedule_options){2, 1, 2, 4, false, 1}, 0, &e);
        mem_fail_after(-1);
        assert_int_equal(rc, Q_NO_MEMORY);
        schedule_release(&s);
    }
}

/* ---- bubble ---- */

/* each: of a rank, over all its stages, which are equal. */
static double bubble_of(const struct schedule_options *o, const struct stage_cost *each)
{
    struct stage_cost costs[4 * 4];
    struct q_err e = Q_ERR_INIT;
    double bubble = -1;
    for (uint32_t i = 0; i < o->n_rank * o->n_virtual; i++) {
        const bool whole = o->n_teacher_virtual < 2;
        costs[i] = (struct stage_cost){
            .teacher = whole ? each->teacher : each->teacher / o->n_virtual,
            .forward = each->forward / o->n_virtual,
            .backward = each->backward / o->n_virtual,
        };
    }
    assert_ok(schedule_bubble(o, costs, &bubble, &e), &e);
    return bubble;
}

static void check_bubble(const struct schedule_options *o, const struct stage_cost *each)
{
    /* (P - 1) / (v m + P - 1) */
    double all = each->teacher + each->forward + each->backward;
    double filling = (o->n_rank - 1) * all / o->n_virtual;
    double ideal = filling / (o->n_micro * all + filling);
    double bubble = bubble_of(o, each);
    if (bubble > 1.05 * ideal + 1e-12 || (bubble <= 0 && o->n_rank > 1))
        fail_msg("%s, costs %g %g %g: bubble %g, ideal %g", text_of(o), each->teacher,
                 each->forward, each->backward, bubble, ideal);
}

/* Balanced stages. */
static void test_bubble(void **state)
{
    (void)state;
    static const struct stage_cost shapes[] = {{0, 1, 2}, {1, 1, 2}, {4, 1, 2}, {5, 1, 1}};
    for (uint32_t p = 1; p <= 4; p++)
        for (uint32_t m = 8; m <= 32; m *= 4)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                check_bubble(&(struct schedule_options){p, 1, i ? p : 0, m, false, 1}, &shapes[i]);
    for (uint32_t p = 2; p <= 4; p++) /* whole groups; without i the teacher's rows of a file */
        for (uint32_t v = 2; v <= 4; v++)
            for (uint32_t n = 2; n <= 8; n *= 2)
                for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                    check_bubble(
                        &(struct schedule_options){p, v, i ? p : 0, n * p, false, i ? v : 1},
                        &shapes[i]);
}

/* A teacher of three times and more of the student's forward pass: divided, its virtual stages
 * leave the bubble far below that of plain 1F1B; whole, they would make it larger. */
static void test_interleaved_large_teacher(void **state)
{
    (void)state;
    for (double teacher = 3; teacher <= 12; teacher *= 2)
        for (uint32_t p = 2; p <= 4; p++)
            for (uint32_t v = 2; v <= 4; v++)
                for (uint32_t m = 2 * p; m <= 8 * p; m *= 2) {
                    const struct stage_cost each = {teacher, 1, 2};
                    const double plain =
                        bubble_of(&(struct schedule_options){p, 1, p, m, false, 1}, &each);
                    const double divided =
                        bubble_of(&(struct schedule_options){p, v, p, m, false, v}, &each);
                    const double whole =
                        bubble_of(&(struct schedule_options){p, v, p, m, false, 1}, &each);
                    if (divided > 1.1 * plain / v + 0.01 || divided >= whole)
                        fail_msg("%u ranks, %u stages, %u micro batches, teacher %g: plain %g, "
                                 "divided %g, whole %g",
                                 p, v, m, teacher, plain, divided, whole);
                }
}

/* A teacher on other pipeline ranks than the student's, all ranks with the same work but for what
 * one model alone has: its virtual stages leave a smaller bubble than whole ones beside virtual
 * stages of the student. */
static void test_interleaved_teacher_of_other_ranks(void **state)
{
    static const struct {
        uint32_t p, pt;
    } sizes[] = {{4, 3}, {4, 2}, {2, 1}, {4, 5}, {3, 4}, {2, 3}, {3, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t v = 2; v <= 4; v++) {
            const uint32_t p = sizes[i].p, pt = sizes[i].pt, n = larger(p, pt);
            struct stage_cost divided[RANKS_MAX * 4] = {{0}}, whole[RANKS_MAX * 4] = {{0}};
            struct q_err e = Q_ERR_INIT;
            double bubbles[2];
            for (uint32_t k = 0; k < n * v; k++) {
                const bool has_student = k / v >= n - p, has_teacher = k / v >= n - pt;
                divided[k].forward = whole[k].forward = has_student ? 1.0 / p / v : 0;
                divided[k].backward = whole[k].backward = has_student ? 2.0 / p / v : 0;
                divided[k].teacher = has_teacher ? 3.0 / pt / v : 0;
                whole[k].teacher = has_teacher && k % v == 0 ? 3.0 / pt : 0;
            }
            const struct schedule_options o = {p, v, pt, 8 * p, false, v},
                                          w = {p, v, pt, 8 * p, false, 1};
            assert_ok(schedule_bubble(&o, divided, &bubbles[0], &e), &e);
            assert_ok(schedule_bubble(&w, whole, &bubbles[1], &e), &e);
            check_that(bubbles[0] < bubbles[1], &o);
        }
}

/* The teacher's stages on one rank of two, both ranks with the same work. */
static void test_bubble_smaller_teacher(void **state)
{
    (void)state;
    static const struct stage_cost costs[] = {{0, 2, 4}, {3, 1, 2}};
    struct q_err e = Q_ERR_INIT;
    double bubble = -1;
    assert_ok(schedule_bubble(&(struct schedule_options){2, 1, 1, 8, false, 1}, costs, &bubble, &e),
              &e);
    assert_true(bubble <= 1.05 / 9);
}

static void test_waiting_is_found(void **state)
{
    (void)state;
    const struct schedule_options o = {2, 1, 0, 1, false, 1};
    static const struct stage_cost costs[2] = {{0, 1, 1}, {0, 1, 1}};
    struct schedule_item first[] = {
        {SCHEDULE_BACKWARD, 0, 0, 0},
        {SCHEDULE_FORWARD, 0, 0, 0},
    };
    struct schedule_item second[] = {
        {SCHEDULE_FORWARD, 0, 0, 0},
        {SCHEDULE_BACKWARD, 0, 0, 0},
    };
    const struct schedule schedules[] = {{first, 2, 1}, {second, 2, 1}};
    struct q_err e = Q_ERR_INIT;
    double bubble;
    assert_fails(schedule_run(&o, schedules, costs, &bubble, &e), Q_INVALID,
                 "rank 0 cannot begin its backward item of micro batch 0, stage 0; rank 1 cannot "
                 "begin its forward item",
                 &e);
}

/* A rank that sends three forward items before the other one takes the first: the third has to
 * wait, and the other one waits for what comes behind it. */
static void test_third_send_waits(void **state)
{
    (void)state;
    static const struct stage_cost costs[2] = {{0, 1, 1}, {0, 1, 1}};
    struct schedule_item first[6], second[6];
    struct q_err e = Q_ERR_INIT;
    double bubble = -1;
    for (uint32_t i = 0; i < 3; i++) {
        first[i] = (struct schedule_item){SCHEDULE_FORWARD, i, 0, i};
        first[3 + i] = (struct schedule_item){SCHEDULE_BACKWARD, 2 - i, 0, 2 - i};
        second[i] = (struct schedule_item){SCHEDULE_FORWARD, 2 - i, 0, i};
        second[3 + i] = (struct schedule_item){SCHEDULE_BACKWARD, 2 - i, 0, i};
    }
    const struct schedule schedules[] = {{first, 6, 3}, {second, 6, 3}};
    const struct schedule_options o = {2, 1, 0, 3, false, 1};
    assert_fails(schedule_run(&o, schedules, costs, &bubble, &e), Q_INVALID,
                 "rank 0 cannot send behind its forward item of micro batch 2", &e);
}

/* ---- cuts ---- */

static double stage_sum(const struct cut_costs *c, const struct stage_layers *s)
{
    double sum = s->has_embedding ? c->embedding : 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += c->layers[s->first + i];
    return s->has_head ? sum + c->head : sum;
}

/* The best cut by trying all of them: sizes in lexicographic order, large ones first, so that the
 * first of equal ones is the one that is wanted. */
static void try_all(const struct cut_costs *c, uint32_t stage, uint32_t first, double largest,
                    struct stage_layers *now, struct stage_layers *best, double *best_cost)
{
    const bool is_last = stage + 1 == c->n_stage;
    const uint32_t rest = c->n_stage - stage - 1;
    for (uint32_t n = c->n_layer - first - rest; n >= (is_last ? c->n_layer - first : 1); n--) {
        now[stage] = (struct stage_layers){first, n, stage == 0, is_last};
        double cost = fmax(largest, stage_sum(c, &now[stage]) + (c->beside ? c->beside[stage] : 0));
        if (!is_last) {
            try_all(c, stage + 1, first + n, cost, now, best, best_cost);
        } else if (cost < *best_cost) {
            *best_cost = cost;
            memcpy(best, now, c->n_stage * sizeof *best);
        }
    }
}

static void test_cut(void **state)
{
    (void)state;
    uint32_t seed = 1;
    print_message("seed %u\n", seed);
    for (uint32_t round = 0; round < 400; round++) {
        double layers[9], beside[9];
        struct cut_costs c = {.layers = layers, .n_layer = 1 + round % 9};
        seed = seed * 1664525 + 1013904223;
        c.n_stage = 1 + (seed >> 24) % c.n_layer;
        c.embedding = (seed >> 20) % 4;
        c.head = (seed >> 16) % 9;
        for (uint32_t i = 0; i < c.n_layer; i++)
            layers[i] = round % 2 ? 1.1 : 1 + (seed >> i) % 5;
        for (uint32_t i = 0; i < c.n_stage; i++)
            beside[i] = (seed >> (2 * i + 3)) % 8;
        c.beside = round % 3 ? NULL : beside;
        struct stage_layers got[9], want[9] = {{0}}, now[9];
        struct q_err e = Q_ERR_INIT;
        double best = INFINITY;
        try_all(&c, 0, 0, 0, now, want, &best);
        assert_ok(cut_layers(&c, got, &e), &e);
        for (uint32_t i = 0; i < c.n_stage; i++) {
            assert_int_equal(got[i].first, want[i].first);
            assert_int_equal(got[i].n, want[i].n);
            assert_int_equal(got[i].has_embedding, i == 0);
            assert_int_equal(got[i].has_head, i + 1 == c.n_stage);
        }
    }
}

/* Eight equal layers in four stages on two ranks, whose last stage has the head: the cut by stages
 * alone is 3, 3, 1, 1, four layers and six. Then random ones: never worse, each stage with a
 * layer. */
static void test_cut_balanced(void **state)
{
    (void)state;
    double layers[12] = {1, 1, 1, 1, 1, 1, 1, 1}, beside[6] = {0, 0, 0, 2};
    struct cut_costs c = {.layers = layers, .head = 2, .n_layer = 8, .n_stage = 4};
    struct stage_layers stages[6];
    struct q_err e = Q_ERR_INIT;
    assert_ok(cut_layers(&c, stages, &e), &e);
    cut_balance(&c, 2, beside, stages);
    static const uint32_t want[] = {3, 2, 2, 1};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(stages[i].n, want[i]);
    uint32_t seed = 1;
    for (uint32_t round = 0; round < 200; round++) {
        seed = seed * 1664525 + 1013904223;
        const uint32_t n_rank = 2 + (seed >> 28) % 2;
        double before[3] = {0}, after[3] = {0};
        c = (struct cut_costs){.layers = layers, .n_layer = 12, .n_stage = 2 * n_rank};
        for (uint32_t i = 0; i < 12; i++)
            layers[i] = 1 + (seed >> i) % 7;
        for (uint32_t i = 0; i < c.n_stage; i++)
            beside[i] = (seed >> (2 * i)) % 9;
        assert_ok(cut_layers(&c, stages, &e), &e);
        for (uint32_t i = 0; i < c.n_stage; i++)
            before[i % n_rank] += beside[i] + stage_sum(&c, &stages[i]);
        cut_balance(&c, n_rank, beside, stages);
        for (uint32_t i = 0, first = 0; i < c.n_stage; first += stages[i++].n) {
            assert_true(stages[i].first == first && stages[i].n > 0);
            after[i % n_rank] += beside[i] + stage_sum(&c, &stages[i]);
        }
        assert_int_equal(stages[c.n_stage - 1].first + stages[c.n_stage - 1].n, 12);
        assert_true(fmax(after[0], fmax(after[1], after[2])) <=
                    fmax(before[0], fmax(before[1], before[2])));
    }
}

static void test_cut_refused(void **state)
{
    (void)state;
    static const double layers[] = {1, 1, -1}, none[] = {1, NAN};
    struct stage_layers out[4];
    struct q_err e = Q_ERR_INIT;
    assert_fails(cut_layers(&(struct cut_costs){layers, 0, 0, 2, 3, NULL}, out, &e), Q_INVALID,
                 "2 layers cannot be cut into 3", &e);
    assert_fails(cut_layers(&(struct cut_costs){layers, 0, 0, 3, 2, NULL}, out, &e), Q_INVALID,
                 "below 0", &e);
    assert_fails(cut_layers(&(struct cut_costs){none, 0, 0, 2, 1, NULL}, out, &e), Q_INVALID,
                 "no number", &e);
    assert_fails(cut_layers(&(struct cut_costs){layers, 0, INFINITY, 2, 1, NULL}, out, &e),
                 Q_INVALID, "no number", &e);
}

/* ---- topology ---- */

static bool in_group(const struct transport_group *g, uint32_t rank)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (g->ranks[i] == rank)
            return true;
    return false;
}

/* A group is ascending, has this rank, and is the same group on all its ranks. */
static void check_groups(const struct topology *all, uint32_t rank)
{
    for (int which = 0; which < TOPOLOGY_GROUPS; which++) {
        const struct transport_group *g = &all[rank].groups[which];
        assert_true(g->n == 0 || in_group(g, rank));
        for (uint32_t i = 0; i < g->n; i++) {
            const struct transport_group *other = &all[g->ranks[i]].groups[which];
            assert_true(i == 0 || g->ranks[i - 1] < g->ranks[i]);
            assert_int_equal(other->n, g->n);
            assert_memory_equal(other->ranks, g->ranks, g->n * sizeof *g->ranks);
        }
    }
}

/* Each message of this rank's items has its other end: the same tag, from here. */
static void check_messages(const struct topology *all, uint32_t rank, enum schedule_kind kind)
{
    const struct topology *t = &all[rank];
    const uint32_t n_stage =
        kind == SCHEDULE_TEACHER ? larger(1, t->sizes.n_teacher_virtual) : t->sizes.n_virtual;
    if (kind == SCHEDULE_TEACHER ? !t->has_teacher : !t->has_student)
        return;
    for (uint32_t stage = 0; stage < n_stage; stage++) {
        struct topology_messages m = topology_messages(t, kind, stage);
        bool found = false;
        if (!m.to.exists)
            continue;
        const struct topology *peer = &all[m.to.peer];
        assert_true(m.to.tag < TRANSPORT_TAGS);
        assert_int_equal(peer->data, t->data);
        assert_int_equal(peer->tensor, t->tensor);
        assert_true(kind == SCHEDULE_TEACHER ? peer->has_teacher : peer->has_student);
        for (uint32_t i = 0; i < n_stage; i++) {
            struct topology_messages other = topology_messages(peer, kind, i);
            found = found ||
                    (other.from.exists && other.from.peer == rank && other.from.tag == m.to.tag);
        }
        assert_true(found);
    }
}

/* Ranks of the student's stages, and what each group is there for. */
static void check_counts(const struct topology *all, const struct topology_sizes *s)
{
    const uint32_t n = topology_n_rank(s);
    uint32_t n_student = 0, n_teacher = 0, n_ends = 0;
    for (uint32_t rank = 0; rank < n; rank++) {
        const struct topology *t = &all[rank];
        n_student += t->has_student;
        n_teacher += t->has_teacher;
        assert_int_equal(t->groups[TOPOLOGY_ALL].n, n);
        assert_int_equal(t->groups[TOPOLOGY_REPLICA].n, n / s->n_data);
        assert_int_equal((t->data * t->n_pipeline + t->pipeline) * t->n_tensor + t->tensor, rank);
        if (t->has_student) {
            assert_int_equal(t->groups[TOPOLOGY_STUDENT].n,
                             s->n_student_pipeline * s->n_student_tensor);
            assert_int_equal(t->groups[TOPOLOGY_TENSOR].n, s->n_student_tensor);
            assert_int_equal(t->groups[TOPOLOGY_DATA].n, s->n_data);
        }
        if (t->has_teacher)
            assert_int_equal(t->groups[TOPOLOGY_TEACHER_TENSOR].n, s->n_teacher_tensor);
        n_ends += t->groups[TOPOLOGY_EMBEDDING].n > 0;
    }
    assert_int_equal(n_student, s->n_student_pipeline * s->n_student_tensor * s->n_data);
    assert_int_equal(n_teacher, s->n_teacher_pipeline * s->n_teacher_tensor * s->n_data);
    assert_int_equal(n_ends,
                     (s->n_student_pipeline > 1 ? 2u : 1u) * s->n_student_tensor * s->n_data);
}

static void check_topology(const struct topology_sizes *s)
{
    const uint32_t n = topology_n_rank(s);
    struct topology *all = q_calloc(n, sizeof *all);
    struct q_err e = Q_ERR_INIT;
    for (uint32_t rank = 0; rank < n; rank++)
        assert_ok(topology_make(&all[rank], s, rank, n, &e), &e);
    check_counts(all, s);
    for (uint32_t rank = 0; rank < n; rank++) {
        check_groups(all, rank);
        check_messages(all, rank, SCHEDULE_TEACHER);
        check_messages(all, rank, SCHEDULE_FORWARD);
        check_messages(all, rank, SCHEDULE_BACKWARD);
        struct schedule_options o = topology_schedule(&all[rank], 4);
        struct schedule schedule;
        assert_ok(schedule_make(&schedule, &o, all[rank].pipeline, &e), &e);
        schedule_release(&schedule);
    }
    for (uint32_t rank = 0; rank < n; rank++)
        topology_release(&all[rank]);
    q_free(all);
}

static void test_topology(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 4; p++)
        for (uint32_t pt = 0; pt <= 4; pt++)
            for (uint32_t i = 0; i < 16; i++) {
                struct topology_sizes s = {
                    .n_student_pipeline = p,
                    .n_virtual = p > 1 ? 1 + i % 3 : 1,
                    .n_student_tensor = 1 + i / 2 % 3,
                    .n_teacher_pipeline = pt,
                    .n_teacher_tensor = pt ? 1 + i / 4 % 3 : 0,
                    .n_data = 1 + i % 2,
                    .n_teacher_virtual = pt ? 1 : 0,
                };
                check_topology(&s);
                s.n_teacher_virtual = s.n_virtual;
                if (schedule_divides_teacher(p, pt))
                    check_topology(&s);
            }
}

static void test_topology_example(void **state)
{
    (void)state;
    /* student 2 stages x tensor 1, teacher 3 stages x tensor 2, 2 replicas: 12 ranks */
    const struct topology_sizes s = {2, 1, 1, 3, 2, 2, 1};
    struct topology t;
    struct q_err e = Q_ERR_INIT;
    assert_int_equal(topology_n_rank(&s), 12);
    assert_ok(topology_make(&t, &s, 8, 12, &e), &e); /* replica 1, pipeline rank 1, tensor rank 0 */
    assert_true(t.has_student && t.has_teacher);
    assert_int_equal(t.student_pipeline, 0);
    assert_int_equal(t.teacher_pipeline, 1);
    struct topology_messages m = topology_messages(&t, SCHEDULE_TEACHER, 0);
    assert_int_equal(m.from.peer, 6);
    assert_int_equal(m.to.peer, 10);
    m = topology_messages(&t, SCHEDULE_BACKWARD, 0);
    assert_int_equal(m.from.peer, 10);
    assert_false(m.to.exists);
    assert_int_equal(t.groups[TOPOLOGY_DATA].ranks[0], 2);
    assert_int_equal(t.groups[TOPOLOGY_DATA].ranks[1], 8);
    assert_int_equal(t.groups[TOPOLOGY_BOTH_TENSOR].ranks[1], 9);
    topology_release(&t);
    assert_ok(topology_make(&t, &s, 11, 12, &e), &e); /* pipeline rank 2, tensor rank 1 */
    assert_true(!t.has_student && t.has_teacher);
    assert_int_equal(topology_student_stage(&t, 0), 1); /* of the ranks beside it */
    topology_release(&t);
    assert_ok(topology_make(&t, &s, 7, 12, &e), &e); /* pipeline rank 0, tensor rank 1 */
    assert_true(!t.has_student && t.has_teacher);
    assert_int_equal(t.groups[TOPOLOGY_DATA].n, 0);
    topology_release(&t);
    assert_fails(topology_make(&t, &s, 0, 8, &e), Q_INVALID,
                 "the run has 8 ranks, but its sizes need 12: data 2 x pipeline 3 x tensor 2", &e);
    assert_fails(topology_make(&t, &(struct topology_sizes){1, 1, 1, 1, 0, 1, 1}, 0, 1, &e),
                 Q_INVALID, "1 or more", &e);
    assert_fails(
        topology_make(&t, &(struct topology_sizes){4000, 1, 4000, 1, 1, 4000, 1}, 0, 1, &e),
        Q_INVALID, "at most", &e);
    assert_fails(topology_make(&t, &(struct topology_sizes){5, 2, 1, 2, 1, 1, 2}, 0, 5, &e),
                 Q_INVALID, "2 virtual stages of a teacher on 2 pipeline ranks", &e);
}

static void test_no_memory(void **state)
{
    (void)state;
    const struct schedule_options o = {2, 1, 2, 4, false, 1};
    const struct topology_sizes sizes = {2, 1, 1, 2, 1, 1, 1};
    static const struct stage_cost costs[2] = {{1, 1, 1}, {1, 1, 1}};
    static const double layers[] = {1, 1};
    struct q_err e = Q_ERR_INIT;
    struct topology t;
    struct stage_layers cut[2];
    double bubble;
    int64_t n = 0;
    enum q_code rc = Q_NO_MEMORY;
    for (; rc == Q_NO_MEMORY; n++) {
        mem_fail_after(n);
        rc = schedule_bubble(&o, costs, &bubble, &e);
        mem_fail_after(-1);
    }
    assert_int_equal(rc, Q_OK);
    assert_true(n > 5);
    mem_fail_after(0);
    assert_int_equal(topology_make(&t, &sizes, 0, 2, &e), Q_NO_MEMORY);
    assert_int_equal(cut_layers(&(struct cut_costs){layers, 0, 0, 2, 2, NULL}, cut, &e),
                     Q_NO_MEMORY);
    mem_fail_after(-1);
    topology_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_sizes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bubble),
        cmocka_unit_test(test_interleaved_large_teacher),
        cmocka_unit_test(test_interleaved_teacher_of_other_ranks),
        cmocka_unit_test(test_bubble_smaller_teacher),
        cmocka_unit_test(test_waiting_is_found),
        cmocka_unit_test(test_third_send_waits),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_cut_balanced),
        cmocka_unit_test(test_cut_refused),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_topology_example),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
