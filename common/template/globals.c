/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the environment, and the methods of the objects that they create. */
#include <math.h>
#include <time.h>
#include "common/template/builtins.h"

#define RANGE_MAX 100000 /* items; the sandbox's own limit */

enum q_code global_raise_exception(struct interp *in, const struct value *a, struct value *out)
{
    (void)out;
    struct str *message;
    enum q_code rc = text_of(in, a[0], &message);
    if (rc)
        return rc;
    return in_raise(in, "TemplateError", "%.*s",
                    (int)(message->n < Q_MESSAGE_MAX ? message->n : Q_MESSAGE_MAX), message->data);
}

enum q_code global_range(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct range *r;
    int64_t at[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++)
        if (a[i].kind != V_MISSING && (rc = need_int(in, a[i], "range() argument", &at[i])))
            return rc;
    if (a[1].kind == V_MISSING) {
        at[1] = at[0];
        at[0] = 0;
    }
    if (at[2] == 0)
        return in_raise(in, "ValueError", "range() arg 3 must not be zero");
    __int128 span = (__int128)at[1] - at[0];
    if (span / at[2] > RANGE_MAX)
        return in_raise(in, "OverflowError",
                        "Range too big. The sandbox blocks ranges larger than %d.", RANGE_MAX);
    if ((rc = in_alloc(in, &r, 1, sizeof *r)))
        return rc;
    *r = (struct range){at[0], at[1], at[2]};
    *out = (struct value){.kind = V_RANGE, .as.range = r};
    return Q_OK;
}

/* A dict from a mapping or an iterable of pairs, then from keywords. */
static enum q_code fill_dict(struct interp *in, const struct value *a, struct dict *d)
{
    enum q_code rc = Q_OK;
    struct seq *items, *pair;
    const struct dict *from = a[0].kind == V_DICT ? a[0].as.dict : NULL, *named = a[1].as.dict;
    for (size_t i = 0; from && i < from->n && !rc; i++)
        rc = dict_put(in, d, from->entries[i].key, from->entries[i].value);
    if (!from && a[0].kind != V_MISSING) {
        if ((rc = op_iterate(in, a[0], &items)))
            return rc;
        for (size_t i = 0; i < items->n && !rc; i++) {
            if ((rc = op_iterate(in, items->items[i], &pair)))
                return rc;
            if (pair->n != 2)
                return in_raise(
                    in, "ValueError",
                    "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                    pair->n);
            rc = dict_put(in, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < named->n && !rc; i++)
        rc = dict_put(in, d, named->entries[i].key, named->entries[i].value);
    return rc;
}

enum q_code global_dict(struct interp *in, const struct value *a, struct value *out)
{
    struct dict *d;
    enum q_code rc = dict_new(in, 4, &d);
    *out = v_dict(d);
    return rc ? rc : fill_dict(in, a, d);
}

enum q_code global_namespace(struct interp *in, const struct value *a, struct value *out)
{
    struct dict *d;
    enum q_code rc;
    if ((rc = dict_new(in, 4, &d)) || (rc = fill_dict(in, a, d)))
        return rc;
    for (size_t i = 0; i < d->n; i++) {
        struct value key = d->entries[i].key;
        if (key.kind == V_STR && key.as.s->n && key.as.s->data[0] == '_')
            return in_raise(in, "SecurityError",
                            "Chat templates cannot store underscore-prefixed attributes on a "
                            "namespace, but got "
                            "'%.*s'. Please rename the attribute.",
                            (int)(key.as.s->n < 80 ? key.as.s->n : 80), key.as.s->data);
    }
    *out = (struct value){.kind = V_NAMESPACE, .as.dict = d};
    return Q_OK;
}

/* ---- strftime_now ---- */

/* Python's strftime of a time without zone: %f, %z and %Z are its own, the rest is the C library's.
 */
enum q_code global_strftime_now(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *format;
    struct tm tm;
    time_t now = (time_t)(in->run->now ? in->run->now : time(NULL));
    if ((rc = need_str(in, a[0], "strftime() argument 1", &format)))
        return rc;
    if (!localtime_r(&now, &tm))
        return in_raise(in, "ValueError", "strftime_now: the time cannot be formatted");
    size_t mark = text_mark(in);
    for (size_t i = 0; i < format->n; i++) {
        char one[8] = {format->data[i]}, text[256];
        if (one[0] != '%') {
            buf_add_char(&in->out, one[0]);
            continue;
        }
        size_t n = 1;
        while (n < sizeof one - 2 && i + n < format->n && strchr("-_0^#EO", format->data[i + n])) {
            one[n] = format->data[i + n];
            n++;
        }
        if (i + n >= format->n) {
            buf_add(&in->out, format->data + i, format->n - i);
            break;
        }
        one[n] = format->data[i + n];
        i += n;
        if (one[n] == 'f')
            buf_add_str(&in->out, "000000");
        else if (one[n] != 'z' && one[n] != 'Z')
            buf_add(&in->out, text, strftime(text, sizeof text, one, &tm));
    }
    text_made_of(in, mark, format, 0, format->n);
    return text_take(in, mark, out);
}

/* ---- cycler, joiner, loop ---- */

static enum q_code cycler_new(struct interp *in, struct value *items, size_t n, struct value *out)
{
    struct cycler *c;
    enum q_code rc = in_alloc(in, &c, 1, sizeof *c);
    if (rc)
        return rc;
    *c = (struct cycler){items, n, 0};
    *out = (struct value){.kind = V_CYCLER, .as.cycler = c};
    return Q_OK;
}

enum q_code global_cycler(struct interp *in, const struct value *a, struct value *out)
{
    if (a[0].as.seq->n == 0)
        return in_raise(in, "RuntimeError", "at least one item has to be provided");
    return cycler_new(in, a[0].as.seq->items, a[0].as.seq->n, out);
}

enum q_code global_joiner(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct value *item;
    if ((rc = in_alloc(in, &item, 1, sizeof *item)))
        return rc;
    *item = a[0];
    if ((a[0].kind == V_MISSING && (rc = text_borrow(in, ", ", 2, item))) ||
        (rc = cycler_new(in, item, 1, out)))
        return rc;
    out->kind = V_JOINER;
    return Q_OK;
}

enum q_code method_cycler_next(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    struct cycler *c = a[0].as.cycler;
    *out = c->items[c->at];
    c->at = (c->at + 1) % c->n;
    return Q_OK;
}

enum q_code method_cycler_reset(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    a[0].as.cycler->at = 0;
    *out = v_none();
    return Q_OK;
}

enum q_code method_loop_cycle(struct interp *in, const struct value *a, struct value *out)
{
    const struct seq *items = a[1].as.seq;
    if (items->n == 0)
        return in_raise(in, "TypeError", "no items for cycling given");
    *out = items->items[a[0].as.loop->at % items->n];
    return Q_OK;
}

enum q_code method_loop_changed(struct interp *in, const struct value *a, struct value *out)
{
    struct loop *loop = a[0].as.loop;
    const struct seq *now = a[1].as.seq;
    bool same = loop->changed && loop->n_changed == now->n;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < now->n && same && !rc; i++)
        rc = op_equal(in, loop->changed[i], now->items[i], &same);
    if (!same) {
        static struct value nothing;
        loop->changed = now->n ? now->items : &nothing;
        loop->n_changed = now->n;
    }
    *out = v_bool(!same);
    return rc;
}

/* ---- lipsum ---- */

/* Filler text. Jinja's is random; a chat template that wants it gets a fixed paragraph. */
enum q_code global_lipsum(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    int64_t n;
    bool html = arg_bool(a[1], true);
    if ((rc = arg_int(in, a[0], 5, "n", &n)))
        return rc;
    size_t mark = text_mark(in);
    for (int64_t i = 0; i < n; i++) {
        if ((rc = in_charge(in, 8)))
            return rc;
        buf_printf(&in->out, "%s%sLorem ipsum dolor sit amet, consectetur adipiscing elit.%s",
                   i ? (html ? "\n" : "\n\n") : "", html ? "<p>" : "", html ? "</p>" : "");
    }
    if ((rc = text_take(in, mark, out)))
        return rc;
    out->as.s->markup = html;
    return Q_OK;
}

/* ---- numbers ---- */

enum q_code method_float_is_integer(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    *out = v_bool(isfinite(a[0].as.f) && a[0].as.f == floor(a[0].as.f));
    return Q_OK;
}

enum q_code method_int_bit_length(struct interp *in, const struct value *a, struct value *out)
{
    (void)in;
    uint64_t u = a[0].as.i < 0 ? -(uint64_t)a[0].as.i : (uint64_t)a[0].as.i;
    *out = v_int(u ? 64 - __builtin_clzll(u) : 0);
    return Q_OK;
}
