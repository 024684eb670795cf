/* SPDX-License-Identifier: Apache-2.0 */
#include "common/template/template_internal.h"
#include <math.h>
#include <stdarg.h>
#include <sys/random.h>
#include "common/utf8.h"
#include "common/template/lex.h"
#include "common/template/parse.h"
#include "common/template/text.h"

const struct template_limits template_limits_default = {
    .output_max = 64u << 20,
    .memory_max = 256u << 20,
    .steps_max = 20u * 1000 * 1000,
    .depth_max = 1000,
};

/* A cut, or a lone byte shown from the template, must not make a message ill-formed. */
static void make_utf8(char *text)
{
    size_t n = utf8_complete_prefix(text, strlen(text)), step;
    text[n] = '\0';
    for (size_t i = 0; i < n; i += step) {
        uint32_t c;
        step = utf8_decode(text + i, n - i, &c);
        if (!utf8_valid(text + i, step))
            memset(text + i, '?', step);
    }
}

void in_raise_text(struct interp *in, const char *type, const char *fmt, ...)
{
    char message[Q_MESSAGE_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    make_utf8(message);
    in->fault.type = type;
    q_fail(in->e, Q_INVALID, "%s", message);
}

static enum q_code limit(struct interp *in, const char *what, uint64_t n)
{
    in->fault.type = "LimitExceeded";
    return q_fail(in->e, Q_TOO_LARGE, "chat template: more than %llu %s", (unsigned long long)n,
                  what);
}

enum q_code in_charge(struct interp *in, uint64_t n_step)
{
    in->n_step += n_step;
    return in->n_step > in->limits.steps_max ? limit(in, "steps", in->limits.steps_max) : Q_OK;
}

enum q_code in_enter(struct interp *in)
{
    return ++in->depth > in->limits.depth_max ? limit(in, "levels of nesting", in->limits.depth_max)
                                              : Q_OK;
}

void in_leave(struct interp *in)
{
    in->depth--;
}

enum q_code in_output_check(struct interp *in)
{
    if (!in->out.failed)
        return Q_OK;
    in->fault.type = in->out.failed == Q_TOO_LARGE ? "LimitExceeded" : "MemoryError";
    return buf_check(&in->out, "chat template's output", in->e);
}

enum q_code in_alloc(struct interp *in, void *out_ptr, size_t n, size_t size)
{
    void *m = arena_alloc_array(&in->mem, n, size);
    memcpy(out_ptr, &m, sizeof m);
    if (m)
        return Q_OK;
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > in->limits.memory_max ||
        in->mem.used + bytes + 16 > in->limits.memory_max)
        return limit(in, "bytes of memory", in->limits.memory_max);
    in->fault.type = "MemoryError";
    return q_fail(in->e, Q_NO_MEMORY, "chat template: out of memory");
}

uint64_t hash_bytes(const char *data, size_t n)
{
    static uint64_t key;
    uint64_t k = __atomic_load_n(&key, __ATOMIC_RELAXED);
    if (!k) { /* two threads may both choose one; the first stays */
        uint64_t fresh = 0, none = 0;
        if (getrandom(&fresh, sizeof fresh, GRND_NONBLOCK) != sizeof fresh)
            fresh = (uint64_t)(uintptr_t)&fresh * 0x9E3779B97F4A7C15u;
        fresh |= 1;
        k = __atomic_compare_exchange_n(&key, &none, fresh, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)
                ? fresh
                : none;
    }
    uint64_t h = k ^ n;
    for (; n; data += n < 8 ? n : 8, n -= n < 8 ? n : 8) {
        uint64_t w = 0;
        memcpy(&w, data, n < 8 ? n : 8);
        unsigned __int128 m = (unsigned __int128)(h ^ w) * 0x9E3779B97F4A7C15u;
        h = (uint64_t)m ^ (uint64_t)(m >> 64) ^ k;
    }
    return h;
}

/* ---- undefined ---- */

enum q_code undef_new(struct interp *in, struct undef u, struct value *out)
{
    struct undef *copy;
    enum q_code rc = in_alloc(in, &copy, 1, sizeof *copy);
    if (rc)
        return rc;
    *copy = u;
    *out = (struct value){.kind = V_UNDEF, .as.undef = copy};
    return Q_OK;
}

enum q_code undef_hint(struct interp *in, const char *hint, struct value *out)
{
    return undef_new(in, (struct undef){.kind = UNDEF_HINT, .hint = hint}, out);
}

enum q_code in_undefined(struct interp *in, const struct undef *u)
{
    const struct str *name = u->name.kind == V_STR ? u->name.as.s : NULL;
    int n = name ? (int)(name->n < 100 ? name->n : 100) : 0;
    const char *text = name ? name->data : "";
    switch (u->kind) {
    case UNDEF_NAME:
        return in_raise(in, "UndefinedError", "'%.*s' is undefined", n, text);
    case UNDEF_UNSAFE:
        return in_raise(in, "SecurityError", "access to attribute '%.*s' of '%s' object is unsafe.",
                        n, text, u->owner);
    case UNDEF_HINT:
        return in_raise(in, "UndefinedError", "%s", u->hint);
    case UNDEF_MEMBER:
        break;
    }
    if (name)
        return in_raise(in, "UndefinedError", "'%s' has no attribute '%.*s'", u->owner, n, text);
    size_t mark = text_mark(in);
    enum q_code rc = print_repr(in, u->name);
    if (rc)
        return rc;
    return in_raise(in, "UndefinedError", "%s has no element %.100s", u->owner,
                    buf_str(&in->out) + mark);
}

/* ---- names ---- */

enum q_code scope_new(struct interp *in, struct scope *up, struct scope **out)
{
    enum q_code rc = in_alloc(in, out, 1, sizeof **out);
    if (!rc)
        (*out)->up = up;
    return rc;
}

static struct var *scope_find(const struct scope *s, const struct str *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->vars[i].name == name)
            return &s->vars[i];
    return NULL;
}

enum q_code scope_set(struct interp *in, struct scope *s, const struct str *name, struct value v)
{
    enum q_code rc;
    struct var *var = scope_find(s, name);
    if ((rc = in_charge(in, s->n / 8)))
        return rc;
    if (var) {
        var->value = v;
        return Q_OK;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct var *vars;
        if ((rc = in_alloc(in, &vars, cap, sizeof *vars)))
            return rc;
        if (s->n)
            memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct var){name, v};
    return Q_OK;
}

/* The scope above the top one caches what came from the request or from globals.def. */
enum q_code name_lookup(struct interp *in, const struct str *name, struct value *out)
{
    enum q_code rc;
    struct scope *s = in->scope, *last = s;
    Q_ASSERT(s); /* a rendering begins with the outermost scope */
    for (; s; last = s, s = s->up) {
        struct var *var = scope_find(s, name);
        if ((rc = in_charge(in, s->n / 8)))
            return rc;
        if (var) {
            *out = var->value;
            return Q_OK;
        }
    }
    if (name == in->t->self_name) {
        *out = (struct value){.kind = V_TEMPLATE, .as.block = NULL};
        return Q_OK;
    }
    const json_t *j = in->run->request ? json_object_get(in->run->request, name->data) : NULL;
    const unsigned char *origin = j ? TEXT_ALL : NULL;
    if (!j && in->run->variables)
        j = json_object_get(in->run->variables, name->data);
    const struct native *row = j ? NULL : global_find(name->data, name->n);
    if (!j && !row)
        return undef_new(in, (struct undef){.kind = UNDEF_NAME, .name = v_str((struct str *)name)},
                         out);
    *out = (struct value){.kind = V_FUNC, .as.func = row};
    if (j && (rc = value_from_json(in, j, origin, out)))
        return rc;
    return scope_set(in, last, name, *out);
}

/* ---- the public functions ---- */

/* The ranges of in->out as ranges of a text in which it begins at `start`. */
static enum q_code give_ranges(struct ranges *to, const struct ranges *from, size_t start,
                               struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; to && i < from->n && !rc; i++)
        rc = ranges_add(to, start + from->at[i].start, start + from->at[i].end, e);
    return rc;
}

static enum q_code finish(struct interp *in, enum q_code rc, struct buf *out,
                          struct template_fault *fault)
{
    size_t start = out->len;
    if (!rc && !(rc = in_output_check(in))) {
        buf_add(out, in->out.data, in->out.len);
        rc = buf_check(out, "chat template's output", in->e);
        if (!rc && !(rc = give_ranges(in->run->content, &in->content, start, in->e)))
            rc = give_ranges(in->run->generated, &in->generated, start, in->e);
    } else if (rc == Q_INVALID && strcmp(in->fault.type, "TemplateError") != 0) {
        q_wrap(in->e, "chat template line %u, column %u", in->fault.line, in->fault.column);
    }
    if (rc && fault)
        *fault = in->fault;
    buf_release(&in->out);
    ranges_release(&in->content);
    ranges_release(&in->generated);
    arena_release(&in->mem);
    return rc;
}

enum q_code template_render(const struct template *t, const struct template_run *run,
                            struct buf *out, struct template_fault *fault, struct q_err *e)
{
    struct interp in = {.t = t, .run = run, .e = e, .fault = {"", 0, 0}};
    in.limits = run->limits ? *run->limits : template_limits_default;
    in.mem = (struct arena)ARENA_INIT(in.limits.memory_max);
    in.out = (struct buf)BUF_INIT_MAX(in.limits.output_max);
    struct scope *globals;
    enum q_code rc;
    if (!(rc = scope_new(&in, NULL, &globals)) && !(rc = scope_new(&in, globals, &in.top))) {
        in.scope = in.top;
        rc = exec_body(&in, &t->body);
    }
    return finish(&in, rc, out, fault);
}

/* Python reads a template as text lines: \r\n and \r become \n, and one newline at the very end is
 * dropped. */
static size_t normalise(char *text, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        text[to++] = text[i] == '\r' ? '\n' : text[i];
    }
    return to && text[to - 1] == '\n' ? to - 1 : to;
}

enum q_code template_compile(struct template **out, const char *source, size_t n,
                             struct template_fault *fault, struct q_err *e)
{
    struct lex_error err = {fault, e};
    struct token_list tokens = {NULL, 0, 0};
    struct token start = {.line = 1, .column = 1};
    if (n > TEMPLATE_SOURCE_MAX)
        return q_fail(e, Q_TOO_LARGE, "chat template: %zu bytes, the limit is %u", n,
                      TEMPLATE_SOURCE_MAX);
    if (!utf8_valid(source, n))
        return lex_fail(&err, &start, "UnicodeDecodeError", "the template is not valid UTF-8");
    struct template *t = q_calloc(1, sizeof *t);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    t->mem = (struct arena)ARENA_INIT(TEMPLATE_MEMORY_MAX);
    enum q_code rc;
    char *text = arena_strndup(&t->mem, source, n);
    if (!text) {
        rc = q_fail(e, Q_NO_MEMORY, "chat template: out of memory");
    } else {
        t->source = text;
        t->n = normalise(text, n);
        if (!(rc = lex_all(&tokens, t->source, t->n, &err)))
            rc = parse_template(t, &tokens, &err);
    }
    q_free(tokens.at);
    if (rc)
        template_free(t);
    else
        *out = t;
    return rc;
}

bool template_marks_generation(const struct template *t)
{
    return t->marks_generation;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    arena_release(&t->mem);
    q_free(t);
}
