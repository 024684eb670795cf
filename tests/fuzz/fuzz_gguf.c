/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file of arbitrary bytes: refused, or every value and tensor lies inside the file, tensors
 * do not overlap, blocks become as many floats as the shape says, and what is made of the metadata
 * (config.json, tokenizer_config.json, tokenizer.json) is made or refused. */
#include <stdlib.h>
#include <string.h>
#include "common/gguf/gguf_chat.h"
#include "common/gguf/rows.h"
#include "common/hub/config.h"
#include "common/hub/gguf_config.h"
#include "common/hub/gguf_tensors.h"
#include "common/tokenizer/source/gguf_tokens.h"
#include "use_tokenizer.h"

#define NUMBERS_MAX 4096u /* of a tensor that are made floats */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_tensors(const struct gguf *g, const uint8_t *data, size_t n)
{
    static float numbers[NUMBERS_MAX];
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        uint64_t count = 1;
        Q_ASSERT(t->data >= data && t->n_bytes <= n && t->data + t->n_bytes <= data + n);
        Q_ASSERT(t->offset % g->alignment == 0 && t->n_dim >= 1 && t->n_dim <= GGUF_DIMS_MAX);
        for (uint32_t k = 0; k < t->n_dim; k++)
            count *= t->shape[k];
        Q_ASSERT(count / t->type->block * t->type->bytes == t->n_bytes);
        for (uint64_t k = 0; k < i; k++)
            Q_ASSERT(g->tensors[k].data + g->tensors[k].n_bytes <= t->data ||
                     t->data + t->n_bytes <= g->tensors[k].data);
        if (t->type->read_as == GGUF_BLOCKS && count <= NUMBERS_MAX)
            gguf_rows(numbers, t->type, t->data, (size_t)(count / t->type->block));
    }
}

static void check_values(const struct gguf *g, const uint8_t *data, size_t n)
{
    struct gguf_texts texts;
    struct gguf_text text;
    double number;
    int64_t whole;
    for (uint64_t i = 0; i < g->n_value; i++) {
        const struct gguf_value *v = &g->values[i];
        Q_ASSERT(v->data >= data && v->data <= data + n);
        if (gguf_text(v, &text))
            Q_ASSERT((const uint8_t *)text.s + text.n <= data + n);
        if (gguf_texts_of(&texts, v))
            while (gguf_texts_next(&texts, &text))
                Q_ASSERT((const uint8_t *)text.s + text.n <= data + n);
        (void)gguf_element(v, v->n - 1, &number);
        (void)gguf_element_whole(v, v->n - 1, &whole);
    }
}

static void check_config(const struct gguf *g)
{
    static struct model_config c;
    struct q_err e = Q_ERR_INIT;
    json_t *config = NULL;
    enum q_code rc = gguf_to_config(&config, g, &e);
    Q_ASSERT(rc == e.code);
    if (rc)
        return;
    char *text = json_dumps(config, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text) {
        rc = model_config_parse(&c, text, strlen(text), "fuzz.gguf", &e);
        Q_ASSERT(rc == e.code);
        free(text);
    }
    json_decref(config);
}

static void check_tokenizer(const struct gguf *g)
{
    struct q_err e = Q_ERR_INIT;
    json_t *root = NULL;
    struct tok_config c;
    struct tok_written w = {BUF_INIT_MAX(TOKENIZER_FILE_MAX), {0}};
    if (!gguf_to_tokenizer_config(&root, g, &e)) {
        tok_config_read(&c, root);
        if (!gguf_tokens_write(&w, g, &c, &e))
            use_written(&w);
    }
    tok_written_release(&w);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tensor_list list = {0};
    struct arena names = ARENA_INIT(1u << 20);
    struct q_err e = Q_ERR_INIT;
    struct gguf g = GGUF_INIT;
    const enum q_code rc = gguf_read(&g, data, n, "fuzz.gguf", &e);
    Q_ASSERT(rc == e.code);
    if (!rc) {
        const struct gguf_bytes all = {data, n, "fuzz.gguf"};
        check_tensors(&g, data, n);
        check_values(&g, data, n);
        check_config(&g);
        check_tokenizer(&g);
        q_err_reset(&e);
        Q_ASSERT(gguf_tensors_read(&list, &names, &all, &e) == e.code);
    }
    q_free(list.items);
    arena_release(&names);
    gguf_release(&g);
    return 0;
}
