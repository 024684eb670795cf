/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors through the public library: the golden's texts, pairs, more inputs than run at once, and
 * what is refused. */
#include "engine/quire_pool.h"
#include <jansson.h>
#include <math.h>
#include "check.h"

#define POOLING_DIR "tests/data/pooling/"

static struct quire_error error;

static struct quire_engine *open_engine(const char *name)
{
    struct quire_options o;
    struct quire_engine *engine = NULL;
    char model[64];
    snprintf(model, sizeof model, POOLING_DIR "%s", name);
    quire_options_init(&o, sizeof o);
    o.model = model;
    o.dtype = "float32";
    o.threads = 1;
    o.pin_threads = false;
    o.max_num_seqs = 3;
    o.max_num_queued_reqs = 2;
    if (quire_engine_open(&engine, &o, &error))
        fail_msg("%s", error.message);
    return engine;
}

static void embeddings(void **state)
{
    struct quire_pool_input inputs[20] = {0};
    struct quire_pool_params p;
    struct quire_vectors v = {.values = NULL}, few;
    (void)state;
    json_t *golden = json_load_file(POOLING_DIR "bert/golden.json", 0, NULL);
    const json_t *text = json_array_get(json_object_get(golden, "text"), 1);
    const json_t *want = json_object_get(text, "embedding_normalized");
    struct quire_engine *engine = open_engine("bert");
    struct quire_info info = {.size = sizeof info};
    quire_engine_info(engine, &info);
    assert_true(info.n_vector == 64 && !info.classifies && info.max_model_len == 256);
    for (int i = 0; i < 20; i++)
        inputs[i].text = i == 17 ? json_string_value(json_object_get(text, "text")) : "Hello";
    quire_pool_params_init(&p, sizeof p);
    p.inputs = inputs;
    p.n_input = 20;
    if (quire_pool(engine, &v, &p, &error))
        fail_msg("%s", error.message);
    assert_true(v.n == 20 && v.n_value == 64 && json_array_size(want) == 64 && v.n_token > 40);
    for (uint32_t i = 0; i < 64; i++)
        assert_true(fabs((double)v.values[17 * 64 + i] -
                         json_number_value(json_array_get(want, i))) < 1e-4);
    assert_memory_equal(v.values, v.values + 64, 64 * sizeof(float));
    inputs[0] = inputs[17];
    p.n_input = 1;
    assert_int_equal(quire_pool(engine, &few, &p, &error), QUIRE_OK);
    assert_memory_equal(few.values, v.values + 17 * 64, 64 * sizeof(float));
    const char *documents[] = {inputs[0].text, "Hello"};
    float scores[2];
    assert_int_equal(quire_score(engine, scores, inputs[0].text, documents, 2, &error), QUIRE_OK);
    assert_true(fabsf(scores[0] - 1) < 1e-5f && scores[1] < 0.9999f);
    inputs[1] = (struct quire_pool_input){.ids = (const uint32_t[]){600}, .n_ids = 1};
    p.n_input = 2;
    assert_int_equal(quire_pool(engine, &few, &p, &error), QUIRE_INVALID);
    assert_non_null(strstr(error.message, "input 1"));
    assert_int_equal(quire_score(engine, scores, NULL, documents, 2, &error), QUIRE_INVALID);
    assert_non_null(strstr(error.message, "query: NULL"));
    assert_int_equal(quire_score(engine, scores, "Hello", NULL, 2, &error), QUIRE_INVALID);
    assert_non_null(strstr(error.message, "documents: NULL"));
    documents[1] = NULL;
    assert_int_equal(quire_score(engine, scores, "Hello", documents, 2, &error), QUIRE_INVALID);
    assert_non_null(strstr(error.message, "documents[1]: NULL"));
    p.dimensions = 65;
    assert_int_equal(quire_pool(engine, &few, &p, &error), QUIRE_INVALID);
    struct quire_params generate;
    struct quire_request *r = NULL;
    quire_params_init(&generate, sizeof generate);
    generate.text = "Hello";
    assert_int_equal(quire_submit(&r, engine, &generate, &error), QUIRE_INVALID);
    assert_non_null(strstr(error.message, "generates no text"));
    quire_free(few.values);
    quire_free(v.values);
    quire_engine_close(engine);
    json_decref(golden);
}

static void pairs(void **state)
{
    (void)state;
    json_t *golden = json_load_file(POOLING_DIR "bert-rerank/golden.json", 0, NULL);
    const json_t *text = json_array_get(json_object_get(golden, "text"), 0);
    const double logit = json_number_value(json_array_get(json_object_get(text, "logits"), 0));
    const char *document = json_string_value(json_object_get(text, "text_pair"));
    struct quire_engine *engine = open_engine("bert-rerank");
    float score;
    char name[32];
    if (quire_score(engine, &score, json_string_value(json_object_get(text, "text")), &document, 1,
                    &error))
        fail_msg("%s", error.message);
    assert_true(fabs((double)score - 1 / (1 + exp(-logit))) < 1e-4);
    assert_string_equal(quire_class_name(engine, 0, name), "LABEL_0");
    quire_engine_close(engine);
    json_decref(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(embeddings), cmocka_unit_test(pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
