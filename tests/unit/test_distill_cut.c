/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of both models over pipeline ranks: a rank that has a part of the student alone gets more
 * of its layers, the rank with most work has as little as any cut gives it, and the teacher's
 * virtual stages are those with the smaller predicted bubble. */
#include "check.h"
#include <math.h>
#include "engine/distill/trainer_internal.h"

#define MICROS 8u

static struct q_err e;

static const struct distill_options options = {
    .teacher = "tests/data/distill/pairA/teacher", /* 6 layers */
    .student = "tests/data/distill/pairA/student", /* 4 */
    .data = {.global_batch = MICROS, .micro_batch = 1, .seq_len = 48},
};

static struct topology topology_of(const struct topology_sizes *s)
{
    struct topology top;
    assert_ok(topology_make(&top, s, 0, topology_n_rank(s), &e), &e);
    return top;
}

static double work_of(const struct trainer_cut *c, const struct topology *top, uint32_t rank)
{
    double sum = 0;
    for (uint32_t i = 0; i < top->sizes.n_virtual; i++) {
        const struct stage_cost *s = &c->costs[rank * top->sizes.n_virtual + i];
        sum += s->teacher + s->forward + s->backward;
    }
    return sum;
}

/* The teacher on the second of two ranks: with every other cut one of them has more to do. */
static void test_smaller_teacher(void **state)
{
    const struct topology_sizes s = {2, 1, 1, 1, 1, 1, 1};
    struct topology top = topology_of(&s);
    struct trainer_cut c = {.bubble = -1};
    (void)state;
    assert_ok(trainer_cut_make(&c, &options, &top, &e), &e);
    const double layer = 3 * c.student_costs.layers[0], head = 3 * c.student_costs.head;
    const double teacher = model_costs_row(&c.teacher_costs);
    const double most = fmax(work_of(&c, &top, 0), work_of(&c, &top, 1));
    assert_true(c.student[0].n == 3 && c.student[1].n == 1 && c.teacher[0].n == 6);
    for (uint32_t n = 1; n < 4; n++)
        assert_true(most <= fmax(n * layer, (4 - n) * layer + head + teacher) * (1 + 1e-9));
    trainer_cut_release(&c);
    topology_release(&top);
}

/* The first of three ranks has layers of the teacher alone: more of them. */
static void test_larger_teacher(void **state)
{
    const struct topology_sizes s = {2, 1, 1, 3, 1, 1, 1};
    struct topology top = topology_of(&s);
    struct trainer_cut c = {.bubble = -1};
    (void)state;
    assert_ok(trainer_cut_make(&c, &options, &top, &e), &e);
    assert_true(c.teacher[0].n > c.teacher[1].n && c.teacher[0].n > c.teacher[2].n);
    trainer_cut_release(&c);
    topology_release(&top);
}

static double bubble_with(const struct topology_sizes *s, uint32_t n_teacher_virtual)
{
    struct topology top = topology_of(s);
    struct trainer_cut c = {.bubble = -1};
    top.sizes.n_teacher_virtual = n_teacher_virtual;
    assert_ok(trainer_cut_make(&c, &options, &top, &e), &e);
    const double bubble = c.bubble;
    trainer_cut_release(&c);
    topology_release(&top);
    return bubble;
}

static void test_the_smaller_bubble_is_chosen(void **state)
{
    static const struct topology_sizes all[] = {
        {2, 2, 1, 3, 1, 1, 2},
        {2, 2, 1, 1, 1, 1, 2},
        {2, 2, 1, 2, 1, 1, 2},
        {2, 1, 1, 3, 1, 1, 1},
    };
    uint32_t n_divided = 0;
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double whole = bubble_with(&all[i], 1);
        const double divided = bubble_with(&all[i], all[i].n_teacher_virtual);
        struct topology top = topology_of(&all[i]);
        struct trainer_cut c = {.bubble = -1};
        assert_ok(trainer_cut_choose(&c, &options, &top, &e), &e);
        assert_true(c.bubble == fmin(whole, divided));
        assert_int_equal(c.n_teacher, top.sizes.n_teacher_pipeline * top.sizes.n_teacher_virtual);
        n_divided += top.sizes.n_teacher_virtual > 1;
        trainer_cut_release(&c);
        topology_release(&top);
    }
    assert_true(n_divided >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smaller_teacher),
        cmocka_unit_test(test_larger_teacher),
        cmocka_unit_test(test_the_smaller_bubble_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
