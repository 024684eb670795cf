/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/source/chars.h"
#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#define RUNS_MAX 8192u /* Unicode 15 has some 3300 */

static const struct range digits[] = {{'0', '9'}};
static const struct range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct range spaces[] = {{9, 13}, {' ', ' '}};
/* White space of ECMA-262, Python and Rust together. */
static const struct range wide_spaces[] = {
    {9, 13},          {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
    {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200A}, {0x2028, 0x2029},
    {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF},
};

const struct cset *chars_one(struct build *b, uint32_t lo, uint32_t hi)
{
    return cset_of(b, &(struct range){lo, hi}, 1);
}

/* Code points in runs of one category each; made once, as asking for each of them takes longer than
 * most grammars take to compile. */
static struct run {
    uint32_t lo, category; /* to the next run's lo */
} runs[RUNS_MAX];
static size_t n_run;
static pthread_once_t runs_once = PTHREAD_ONCE_INIT;

static void make_runs(void)
{
    for (uint32_t c = 0; c <= EXPR_CHAR_MAX; c++) {
        uint32_t category = (uint32_t)utf8proc_category((utf8proc_int32_t)c);
        if (n_run && runs[n_run - 1].category == category)
            continue;
        Q_ASSERT(n_run < RUNS_MAX);
        runs[n_run++] = (struct run){c, category};
    }
}

/* Code points whose category is in the set of bits. */
static const struct cset *by_category(struct build *b, uint32_t categories)
{
    static const struct cset none;
    pthread_once(&runs_once, make_runs);
    struct range *r = build_work(b, n_run) ? build_alloc(b, n_run, sizeof *r) : NULL;
    size_t n = 0;
    for (size_t i = 0; r && i < n_run; i++)
        if (categories >> runs[i].category & 1)
            r[n++] = (struct range){runs[i].lo, i + 1 < n_run ? runs[i + 1].lo - 1 : EXPR_CHAR_MAX};
    return r ? cset_of(b, r, n) : &none;
}

#define CAT(x)  (1u << UTF8PROC_CATEGORY_##x)
#define LETTERS (CAT(LU) | CAT(LL) | CAT(LT) | CAT(LM) | CAT(LO))
#define MARKS   (CAT(MN) | CAT(MC) | CAT(ME))
#define NUMBERS (CAT(ND) | CAT(NL) | CAT(NO))

const struct cset *chars_category(struct build *b, const char *name, size_t n)
{
    static const struct {
        const char *name;
        uint32_t categories;
    } known[] = {
        {"L", LETTERS},
        {"Letter", LETTERS},
        {"Alphabetic", LETTERS},
        {"Lu", CAT(LU)},
        {"Uppercase_Letter", CAT(LU)},
        {"Ll", CAT(LL)},
        {"Lowercase_Letter", CAT(LL)},
        {"Lt", CAT(LT)},
        {"Lm", CAT(LM)},
        {"Lo", CAT(LO)},
        {"M", MARKS},
        {"Mark", MARKS},
        {"Mn", CAT(MN)},
        {"Mc", CAT(MC)},
        {"Me", CAT(ME)},
        {"N", NUMBERS},
        {"Number", NUMBERS},
        {"Nd", CAT(ND)},
        {"digit", CAT(ND)},
        {"Nl", CAT(NL)},
        {"No", CAT(NO)},
        {"P", CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO)},
        {"Punctuation", CAT(PC) | CAT(PD) | CAT(PS) | CAT(PE) | CAT(PI) | CAT(PF) | CAT(PO)},
        {"Pc", CAT(PC)},
        {"Pd", CAT(PD)},
        {"Ps", CAT(PS)},
        {"Pe", CAT(PE)},
        {"Pi", CAT(PI)},
        {"Pf", CAT(PF)},
        {"Po", CAT(PO)},
        {"S", CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO)},
        {"Symbol", CAT(SM) | CAT(SC) | CAT(SK) | CAT(SO)},
        {"Sm", CAT(SM)},
        {"Sc", CAT(SC)},
        {"Sk", CAT(SK)},
        {"So", CAT(SO)},
        {"Z", CAT(ZS) | CAT(ZL) | CAT(ZP)},
        {"Separator", CAT(ZS) | CAT(ZL) | CAT(ZP)},
        {"Zs", CAT(ZS)},
        {"Cc", CAT(CC)},
        {"Cf", CAT(CF)},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == n && !memcmp(known[i].name, name, n))
            return by_category(b, known[i].categories);
    return NULL;
}

struct char_class chars_negated(struct build *b, struct char_class c)
{
    return (struct char_class){cset_not(b, c.maybe), cset_not(b, c.sure)};
}

struct char_class chars_class(struct build *b, char letter)
{
    struct char_class c;
    switch (letter | 0x20) {
    case 'd':
        c.sure = c.maybe = cset_of(b, digits, 1);
        if (letter == 'D')
            c.maybe = by_category(b, CAT(ND));
        break;
    case 'w':
        c.sure = c.maybe = cset_of(b, words, 4);
        if (letter == 'W')
            c.maybe = by_category(b, LETTERS | MARKS | NUMBERS | CAT(PC));
        break;
    default:
        c.sure = cset_of(b, spaces, 2);
        c.maybe = cset_of(b, wide_spaces, sizeof wide_spaces / sizeof *wide_spaces);
    }
    return letter < 'a' ? chars_negated(b, c) : c;
}

const struct cset *chars_dot(struct build *b)
{
    static const struct range ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}};
    return cset_not(b, cset_of(b, ends, sizeof ends / sizeof *ends));
}
