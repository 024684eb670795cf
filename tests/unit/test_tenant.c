/* SPDX-License-Identifier: Apache-2.0 */
/* Whose request it is: salts and ids that agree where they should and differ where they must. */
#include "check.h"
#include "frontend/api/tenant.h"

static struct q_err e;
static unsigned char digest[32] = {1}, other_digest[32] = {2}, key[32] = {3}, other_key[32] = {4};

static struct tenant of(struct tenant_source s)
{
    struct tenant t;
    if (!s.digest)
        s.digest = digest;
    assert_ok(tenant_of(&t, &s, &e), &e);
    return t;
}

static bool same_salt(struct tenant a, struct tenant b)
{
    return a.n_salt == b.n_salt && !memcmp(a.salt, b.salt, sizeof a.salt);
}

static void keys_are_apart(void **state)
{
    (void)state;
    struct tenant mine = of((struct tenant_source){.key = key, .apart = true});
    assert_int_equal(mine.n_salt, 32);
    assert_true(same_salt(mine, of((struct tenant_source){.key = key, .apart = true})));
    assert_false(same_salt(mine, of((struct tenant_source){.key = other_key, .apart = true})));
    assert_false(same_salt(
        mine, of((struct tenant_source){.key = key, .apart = true, .digest = other_digest})));
    /* the client's salt divides further and never crosses keys */
    struct tenant salted = of((struct tenant_source){.key = key, .apart = true, .salt = "s"});
    assert_false(same_salt(mine, salted));
    assert_false(same_salt(
        salted, of((struct tenant_source){.key = other_key, .apart = true, .salt = "s"})));
    assert_false(
        same_salt(salted, of((struct tenant_source){.key = key, .apart = true, .salt = "t"})));
    /* a key cannot be imitated by a salt */
    assert_false(same_salt(mine, of((struct tenant_source){.salt = (char *)key, .apart = true})));
}

static void without_keys_all_share(void **state)
{
    (void)state;
    assert_int_equal(of((struct tenant_source){.apart = true}).n_salt, 0);
    assert_int_equal(of((struct tenant_source){.apart = true, .user = "u"}).n_salt, 0);
    assert_int_equal(of((struct tenant_source){.key = key}).n_salt, 0);
    assert_int_equal(of((struct tenant_source){.key = key, .salt = "s"}).n_salt, 32);
    assert_true(same_salt(of((struct tenant_source){.key = key, .salt = "s"}),
                          of((struct tenant_source){.key = other_key, .salt = "s"})));
}

static void fair_share_is_by_key_else_by_user(void **state)
{
    (void)state;
    assert_true(of((struct tenant_source){.apart = true}).id == 0);
    uint64_t mine = of((struct tenant_source){.key = key}).id;
    assert_true(mine && mine != of((struct tenant_source){.key = other_key}).id);
    assert_true(mine == of((struct tenant_source){.key = key, .user = "u", .apart = true}).id);
    uint64_t user = of((struct tenant_source){.user = "u"}).id;
    assert_true(user && user == of((struct tenant_source){.user = "u", .salt = "s"}).id);
    assert_true(user != of((struct tenant_source){.user = "v"}).id);
}

static void public_beginnings_are_found(void **state)
{
    (void)state;
    static const struct {
        uint32_t ids[5];
        size_t n;
        uint32_t shared;
    } cases[] = {
        {{1, 2, 3, 4}, 4, 3}, {{1, 2}, 2, 2}, {{1, 9, 3}, 3, 1}, {{9}, 1, 0}, {{7, 7}, 2, 2},
    };
    struct shared_prompts list = {NULL, 0};
    struct token_list a = TOKEN_LIST_INIT, b = TOKEN_LIST_INIT;
    for (uint32_t i = 1; i < 4; i++)
        assert_ok(token_list_add(&a, i, &e), &e);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(token_list_add(&b, 7, &e), &e);
    assert_ok(shared_prompts_add(&list, &a, &e), &e);
    assert_ok(shared_prompts_add(&list, &b, &e), &e);
    assert_null(a.ids);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_list ids = {(uint32_t *)cases[i].ids, cases[i].n, 5};
        assert_int_equal(shared_prompts_match(&list, &ids), cases[i].shared);
    }
    shared_prompts_release(&list);
    assert_int_equal(shared_prompts_match(&list, &(struct token_list){(uint32_t[]){1}, 1, 1}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_apart),
        cmocka_unit_test(without_keys_all_share),
        cmocka_unit_test(fair_share_is_by_key_else_by_user),
        cmocka_unit_test(public_beginnings_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
