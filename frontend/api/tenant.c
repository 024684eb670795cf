/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/api/tenant.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"

/* HMAC of label, key and text; an absent part is 32 zeros, which is no known digest. */
static enum q_code mac(unsigned char out[32], const struct tenant_source *s, const char *label,
                       const char *text, struct q_err *e)
{
    struct {
        char label[16]; /* padded with zeros */
        unsigned char key[32], text[32];
    } input = {.label = ""};
    unsigned int n = 32;
    snprintf(input.label, sizeof input.label, "%s", label);
    for (size_t i = 0; s->key && i < sizeof input.key; i++)
        input.key[i] = s->key[i];
    if ((text && !EVP_Digest(text, strlen(text), input.text, &n, EVP_sha256(), NULL)) ||
        !HMAC(EVP_sha256(), s->digest, 32, (const unsigned char *)&input, sizeof input, out, &n))
        return q_fail(e, Q_INTERNAL, "HMAC-SHA-256 is not available");
    return Q_OK;
}

FALLIBLE tenant_of(struct tenant *t, const struct tenant_source *s, struct q_err *e)
{
    unsigned char who[32];
    enum q_code rc;
    memset(t, 0, sizeof *t);
    if (s->key || s->user) {
        if ((rc = mac(who, s, "quire tenant", s->key ? NULL : s->user, e)) != Q_OK)
            return rc;
        memcpy(&t->id, who, sizeof t->id);
        t->id |= t->id == 0;
    }
    struct tenant_source apart = *s;
    if (!s->apart)
        apart.key = NULL;
    if (!apart.key && !s->salt)
        return Q_OK;
    if ((rc = mac(t->salt, &apart, "quire cache", s->salt, e)) == Q_OK)
        t->n_salt = sizeof t->salt;
    return rc;
}

void shared_prompts_release(struct shared_prompts *s)
{
    for (size_t i = 0; i < s->n; i++)
        token_list_release(&s->items[i]);
    q_free(s->items);
    *s = (struct shared_prompts){NULL, 0};
}

FALLIBLE shared_prompts_add(struct shared_prompts *s, struct token_list *ids, struct q_err *e)
{
    size_t cap = s->n;
    enum q_code rc = q_grow(&s->items, &cap, s->n + 1, sizeof *s->items, SHARED_PROMPTS_MAX, e);
    if (rc != Q_OK)
        return rc;
    s->items[s->n++] = *ids;
    *ids = (struct token_list)TOKEN_LIST_INIT;
    return Q_OK;
}

uint32_t shared_prompts_match(const struct shared_prompts *s, const struct token_list *ids)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct token_list *p = &s->items[i];
        size_t n = 0;
        while (n < p->n && n < ids->n && p->ids[n] == ids->ids[n])
            n++;
        longest = n > longest ? n : longest;
    }
    return (uint32_t)longest;
}
