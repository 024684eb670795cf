/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "frontend/api/json.h"
#include "frontend/api/pool.h"

static const char *word_of(const struct pool_job *j, enum pool_field field, const char *absent)
{
    return j->fields[field] ? json_string_value(j->fields[field]) : absent;
}

static void add_head(const struct pool_job *j, struct buf *out)
{
    buf_add_str(out, "{\"id\":");
    buf_add_json_str(out, j->id, strlen(j->id));
    if (j->form != POOL_RERANK)
        buf_printf(out, ",\"object\":\"list\",\"created\":%lld", (long long)j->created);
    buf_add_str(out, ",\"model\":");
    buf_add_json_str(out, j->model, strlen(j->model));
}

static void add_usage(const struct pool_job *j, struct buf *out)
{
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu",
               (unsigned long long)j->n_token, (unsigned long long)j->n_token);
    if (j->form != POOL_RERANK)
        buf_add_str(out, ",\"completion_tokens\":0,\"prompt_tokens_details\":null");
    buf_add_char(out, '}');
}

static void add_vectors(const struct pool_job *j, struct buf *out)
{
    const bool embeds = j->form == POOL_EMBEDDINGS;
    for (size_t i = 0; i < j->n_text; i++) {
        const struct pool_text *t = &j->texts[i];
        buf_printf(out, "%s{\"index\":%zu,\"object\":\"%s\",\"%s\":", i ? "," : "", i,
                   embeds ? "embedding" : "pooling", embeds ? "embedding" : "data");
        pool_values_add(&j->values, out, t->values, t->n_value);
        buf_add_char(out, '}');
    }
}

static void add_classes(const struct pool_job *j, struct buf *out)
{
    char text[32];
    for (size_t i = 0; i < j->n_text; i++) {
        const struct pool_text *t = &j->texts[i];
        uint32_t best = 0;
        for (uint32_t k = 1; k < t->n_value; k++)
            best = t->values[k] > t->values[best] ? k : best;
        const char *label = pooling_label(&j->app->served.pooling, best, text);
        buf_printf(out, "%s{\"index\":%zu,\"label\":", i ? "," : "", i);
        buf_add_json_str(out, label, strlen(label));
        buf_add_str(out, ",\"probs\":");
        pool_values_add(&(struct pool_values){.encoding = POOL_FLOAT}, out, t->values, t->n_value);
        buf_printf(out, ",\"num_classes\":%u}", t->n_value);
    }
}

static double cosine(const struct pool_text *a, const struct pool_text *b)
{
    double dot = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < a->n_value && i < b->n_value; i++) {
        dot += (double)a->values[i] * b->values[i];
        aa += (double)a->values[i] * a->values[i];
        bb += (double)b->values[i] * b->values[i];
    }
    return aa > 0 && bb > 0 ? dot / sqrt(aa * bb) : 0;
}

static double score_of(const struct pool_job *j, size_t i)
{
    if (j->is_paired)
        return (double)j->texts[i].values[0];
    return cosine(&j->texts[j->n_first == 1 ? 0 : i], &j->texts[j->n_first + i]);
}

static void add_scores(const struct pool_job *j, struct buf *out)
{
    for (size_t i = 0; i < j->n_second; i++)
        buf_printf(out, "%s{\"index\":%zu,\"object\":\"score\",\"score\":%.9g}", i ? "," : "", i,
                   score_of(j, i));
}

struct ranked {
    size_t i;
    double score;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

static void add_document(const struct pool_job *j, struct buf *out, size_t i)
{
    const struct pool_text *t = &j->texts[j->is_paired ? i : j->n_first + i];
    buf_add_str(out, "\"document\":{\"text\":");
    buf_add_json_str(out, j->is_paired ? t->second_text : t->text,
                     j->is_paired ? t->n_second_text : t->n_text);
    buf_add_str(out, "},");
}

static void add_ranking(const struct pool_job *j, struct buf *out)
{
    struct ranked *all = q_calloc(j->n_second, sizeof *all);
    const json_int_t top = json_integer_value(j->fields[POOL_top_n]);
    const size_t n = top > 0 && (size_t)top < j->n_second ? (size_t)top : j->n_second;
    const bool is_bare = json_is_false(j->fields[POOL_return_documents]);
    for (size_t i = 0; all && i < j->n_second; i++)
        all[i] = (struct ranked){i, score_of(j, i)};
    if (all)
        qsort(all, j->n_second, sizeof *all, by_score);
    for (size_t i = 0; all && i < n; i++) {
        buf_printf(out, "%s{\"index\":%zu,", i ? "," : "", all[i].i);
        if (!is_bare)
            add_document(j, out, all[i].i);
        buf_printf(out, "\"relevance_score\":%.9g}", all[i].score);
    }
    q_free(all);
}

void pool_reply_metadata(const struct pool_job *j, struct buf *out)
{
    size_t at = 0;
    buf_add_str(out, "{\"id\":");
    buf_add_json_str(out, j->id, strlen(j->id));
    buf_printf(out, ",\"created\":%lld,\"model\":", (long long)j->created);
    buf_add_json_str(out, j->model, strlen(j->model));
    buf_add_str(out, ",\"data\":[");
    for (size_t i = 0; i < j->n_text; i++) {
        const size_t n = pool_values_bytes(&j->values, j->texts[i].n_value);
        buf_printf(out,
                   "%s{\"index\":%zu,\"embed_dtype\":\"%s\",\"endianness\":\"%s\",\"start\":%zu,"
                   "\"end\":%zu,\"shape\":[%u]}",
                   i ? "," : "", i, word_of(j, POOL_embed_dtype, "float32"),
                   word_of(j, POOL_endianness, "native"), at, at + n, j->texts[i].n_value);
        at += n;
    }
    buf_printf(out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}",
               (unsigned long long)j->n_token, (unsigned long long)j->n_token);
}

void pool_reply(const struct pool_job *j, struct buf *out)
{
    for (size_t i = 0; pool_values_is_body(&j->values) && i < j->n_text; i++)
        pool_values_add(&j->values, out, j->texts[i].values, j->texts[i].n_value);
    if (pool_values_is_body(&j->values))
        return;
    add_head(j, out);
    buf_add_str(out, j->form == POOL_RERANK ? ",\"results\":[" : ",\"data\":[");
    if (j->form == POOL_CLASSIFY)
        add_classes(j, out);
    else if (j->form == POOL_SCORE)
        add_scores(j, out);
    else if (j->form == POOL_RERANK)
        add_ranking(j, out);
    else
        add_vectors(j, out);
    buf_add_char(out, ']');
    add_usage(j, out);
    buf_add_char(out, '}');
}
