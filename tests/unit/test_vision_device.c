/* SPDX-License-Identifier: Apache-2.0 */
/* vision_device: images of built-in models have the bits of the CPU on the fake device too, with
 * graphs and without, in chunks that end within an image, and from the prefix cache. Tokens around
 * rows (SmolVLM) come from the device's own history. */
#include "device_near.h"
#include "items_run.h"

#define IMAGE_ID   300u
#define N_REQUEST  4u
#define SIDE_MAX   64u
#define N_TEXT_MAX 12u

static struct items_request asked[N_REQUEST];
static unsigned char pixels[N_REQUEST][SIDE_MAX * SIDE_MAX * 3];
static struct bits_answer expected[BITS_REQUESTS];

static void add_words(struct items_request *r, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        add_id(r, 3 + (seed * 31 + i * 7) % 250, 1);
}

/* Request 3 has no image. */
static void make_request(uint32_t i)
{
    const uint32_t height = 20 + 11 * i, width = SIDE_MAX - 9 * i;
    struct items_request *r = &asked[i];
    memset(r, 0, sizeof *r);
    add_words(r, 3 + 4 * i, i);
    if (i < 3) {
        for (uint32_t k = 0; k < height * width * 3; k++)
            pixels[i][k] = (unsigned char)(k * (i + 3) / 7);
        r->items[r->n_item++] = (struct item_array){
            .modality = "image",
            .dtype = ITEM_U8,
            .n_dim = 3,
            .dims = {height, width, 3},
            .data = pixels[i],
            .n_byte = (size_t)height * width * 3,
        };
        add_id(r, IMAGE_ID, 1);
    }
    add_words(r, N_TEXT_MAX - 2 * i, i + 9);
}

static void run(const struct core_config *c)
{
    open_core(c);
    for (uint32_t i = 0; i < N_REQUEST; i++)
        ask_items(&asked[i], i);
    finish_all(N_REQUEST);
    core_free(engine.core);
}

static void same(const char *model, const char *how, uint32_t chunk)
{
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        assert_int_equal(answers[i].finish, FINISH_LENGTH);
        if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
            fail_msg("%s, %s, chunks of %u: request %u has other bits", model, how, chunk, i);
    }
}

static void check_model(const char *dir)
{
    static const uint32_t chunks[] = {7, 16, 64};
    struct core_config c = config_of(dir);
    c.worker.n_thread = 1;
    c.worker.max_model_len = 160;
    c.worker.n_block = 64;
    c.items.store_bytes = 1u << 20;
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    run(&c);
    memcpy(expected, answers, sizeof expected);
    assert_true(memcmp(&expected[0], &expected[1], sizeof expected[0]) != 0);
    for (uint32_t on_device = 0; on_device < 2; on_device++) {
        if (on_device)
            device_choose(&c, "/tests/libquire-fake.so");
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            c.worker.enforce_eager = i == 0;
            c.worker.max_num_batched_tokens = chunks[i];
            c.worker.max_num_seqs = 4;
            run(&c);
            same(dir, on_device ? "device" : "CPU", chunks[i]);
        }
        c.prefix_cache = true;
        run(&c);
        same(dir, on_device ? "device, prefix cache" : "CPU, prefix cache", chunks[2]);
        c.prefix_cache = false;
    }
}

static void test_models(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_REQUEST; i++)
        make_request(i);
    check_model("tests/data/vision/smolvlm");
    check_model("tests/data/vision/llava");
    check_model("tests/data/vision/internvl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
