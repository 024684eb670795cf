/* SPDX-License-Identifier: Apache-2.0 */
/* lora_device: adapters come to slots as steps have them: the one that no step had for longest
 * leaves, never one of the same step; a step with too many changes nothing; an adapter that is gone
 * leaves its slot; memory that is not there is an error that names what asked for it. */
#include <string.h>
#include "check.h"
#include "fake_device.h"
#include "common/hub/config.h"
#include "common/mem.h"
#include "engine/model/lora/lora_device.h"

#define DATA   "tests/data/"
#define N_LORA 4u
#define RANK   8u

static struct q_err e;

struct setup {
    struct device_link link;
    struct model_config config;
    struct lora_device *slots;
    struct lora *loras[N_LORA]; /* r4, r8, r4, r8 */
    unsigned char *host;        /* of a slot, read back */
};

static enum q_code make_slots(struct setup *s, uint32_t n)
{
    const struct lora_device_args a = {
        .link = &s->link,
        .config = &s->config,
        .dtype = DT_F32,
        .rank_max = RANK,
        .n_slot = n,
    };
    return lora_device_new(&s->slots, &a, &e);
}

static void open_device(struct setup *s)
{
    const struct device_options none = {0};
    struct generation_defaults ignored;
    *s = (struct setup){.link = {.t = fake_device_table()}};
    assert_ok(s->link.t->open(&s->link.d, &none, &e), &e);
    assert_ok(s->link.t->stream_new(s->link.d, &s->link.s, &e), &e);
    assert_ok(model_config_load(&s->config, &ignored, DATA "models/llama", &e), &e);
}

static void close_device(struct setup *s)
{
    assert_ok(s->link.t->sync(s->link.s, &e), &e); /* copies read what is freed here */
    for (uint32_t i = 0; i < N_LORA; i++)
        lora_free(s->loras[i]);
    lora_device_free(s->slots);
    s->link.t->host_free(s->link.d, s->host);
    s->link.t->stream_free(s->link.s);
    s->link.t->close(s->link.d);
}

static struct lora *load(const struct setup *s, uint32_t i)
{
    const struct lora_options o = {
        .dir = i % 2 ? DATA "lora/llama-lora-r8" : DATA "lora/llama-lora-r4",
        .dtype = DT_F32,
        .rank_max = RANK,
    };
    struct lora *a = NULL;
    assert_ok(lora_load(&a, &s->config, &o, &e), &e);
    return a;
}

static void setup_open(struct setup *s, uint32_t n_slot)
{
    void *p;
    open_device(s);
    assert_ok(make_slots(s, n_slot), &e);
    for (uint32_t i = 0; i < N_LORA; i++) {
        s->loras[i] = load(s, i);
        assert_ok(lora_device_add(s->slots, s->loras[i], &e), &e);
    }
    assert_ok(s->link.t->host_alloc(s->link.d, &p, lora_device_bytes(s->slots), "test", &e), &e);
    s->host = p;
}

/* A step with the adapters of a text such as "02", a row each. */
static void make_batch(const struct setup *s, struct lora_batch *b, const char *text)
{
    static const uint32_t rows[N_LORA] = {0, 1, 2, 3};
    b->n_group = 0;
    for (; *text; text++) {
        b->groups[b->n_group] = (struct lora_rows){s->loras[*text - '0'], &rows[b->n_group], 1};
        b->n_group++;
    }
}

static enum q_code place(struct setup *s, const char *text)
{
    struct lora_batch b;
    make_batch(s, &b, text);
    return lora_device_place(s->slots, &b, &e);
}

/* The slots of the adapters of the text are these: of placed ones. */
static void check_slots(const struct setup *s, const char *text, const char *slots)
{
    struct lora_batch b;
    struct lora_row_tile tiles[2 * N_LORA];
    uint32_t rows[N_LORA];
    make_batch(s, &b, text);
    assert_true(lora_device_n_tile(s->slots, N_LORA) <= sizeof tiles / sizeof *tiles);
    lora_device_tiles(s->slots, &b, N_LORA, tiles, rows);
    for (uint32_t i = 0; i < b.n_group; i++)
        assert_int_equal(tiles[i].slot, slots[i] - '0');
}

/* The first factor's rank in a slot's head tells its adapter. */
static uint32_t rank_in(struct setup *s, uint32_t slot)
{
    const struct lora_slots at = lora_device_slots(s->slots, N_LORA, NULL, NULL);
    struct lora_slot_factors first;
    s->link.t->copy(s->link.s, s->host, at.data + slot * at.bytes, at.bytes);
    assert_ok(s->link.t->sync(s->link.s, &e), &e);
    memcpy(&first, s->host, sizeof first);
    return first.n_part ? first.parts[0].rank : 0;
}

static void the_oldest_leaves(void **state)
{
    struct setup s;
    (void)state;
    setup_open(&s, 2);
    assert_ok(place(&s, "0"), &e);
    assert_ok(place(&s, "1"), &e);
    check_slots(&s, "01", "01");
    assert_ok(place(&s, "0"), &e);
    assert_ok(place(&s, "3"), &e); /* for 1 */
    check_slots(&s, "03", "01");
    assert_ok(place(&s, "20"), &e); /* 0 is of the step, though 3 was there later */
    check_slots(&s, "20", "10");
    assert_ok(place(&s, "31"), &e);
    assert_int_equal(rank_in(&s, 0), 8);
    assert_int_equal(rank_in(&s, 1), 8);
    assert_ok(place(&s, "12"), &e);
    check_slots(&s, "12", "10");
    assert_int_equal(rank_in(&s, 0), 4);
    assert_int_equal(rank_in(&s, 1), 8);
    close_device(&s);
}

static void too_many_change_nothing(void **state)
{
    struct setup s;
    (void)state;
    setup_open(&s, 2);
    assert_ok(place(&s, "02"), &e);
    assert_fails(place(&s, "013"), Q_TOO_LARGE, "3 adapters, the device has 2 slots", &e);
    check_slots(&s, "02", "01");
    assert_int_equal(rank_in(&s, 0), 4);
    assert_int_equal(rank_in(&s, 1), 4);
    close_device(&s);
}

static void one_that_is_gone_leaves_its_slot(void **state)
{
    struct setup s;
    (void)state;
    setup_open(&s, 2);
    assert_ok(place(&s, "0"), &e);
    assert_ok(place(&s, "01"), &e);
    assert_ok(s.link.t->sync(s.link.s, &e), &e);
    lora_device_remove(s.slots, s.loras[1]);
    lora_free(s.loras[1]);
    s.loras[1] = load(&s, 1);
    assert_ok(lora_device_add(s.slots, s.loras[1], &e), &e);
    assert_ok(place(&s, "3"), &e); /* where 1 was: 0 stays, which is older */
    check_slots(&s, "03", "01");
    close_device(&s);
}

static void memory_is_refused(void **state)
{
    struct setup s;
    (void)state;
    open_device(&s);
    fake_refused_in = 1;
    assert_fails(make_slots(&s, 3), Q_NO_MEMORY, "3 slots of ", &e);
    fake_refused_in = 1;
    assert_fails(make_slots(&s, 3), Q_NO_MEMORY, "--max-loras", &e);
    assert_ok(make_slots(&s, 3), &e);
    s.loras[0] = load(&s, 0);
    fake_refused_in = 1;
    assert_fails(lora_device_add(s.slots, s.loras[0], &e), Q_NO_MEMORY, "an adapter", &e);
    assert_ok(lora_device_add(s.slots, s.loras[0], &e), &e);
    assert_ok(place(&s, "0"), &e);
    close_device(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_leaves),
        cmocka_unit_test(too_many_change_nothing),
        cmocka_unit_test(one_that_is_gone_leaves_its_slot),
        cmocka_unit_test(memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
