/* SPDX-License-Identifier: Apache-2.0 */
/* The run of a schedule on all ranks, with times instead of work. An item waits for its message,
 * computes, and sends; a send waits until the message TRANSPORT_SENDS before it to the same rank
 * and in its lane (teacher; student) was received. All times are the largest of those that they
 * depend on, so the order in which ranks are looked at has no influence; when none can go on, they
 * wait for each other. */
#include "common/buf.h"
#include "common/mem.h"
#include "engine/distill/schedule_internal.h"
#include "engine/distill/transport.h"

#define UNKNOWN  (-1.0)
#define SAID_MAX 4 /* ranks that an error names */

struct mail { /* one message */
    double sent, received;
};
struct channel { /* from one rank to another: what is under way */
    size_t last[TRANSPORT_SENDS];
    uint64_t n;
};
struct sim_rank {
    const struct schedule *schedule;
    uint32_t i_item;
    bool computed; /* the item; its message is not sent yet */
    double time, busy;
    struct channel channels[3]; /* student's to the next rank and to the previous one; teacher's */
};
struct sim {
    const struct schedule_options *o;
    const struct stage_cost *costs;
    struct schedule_place place;
    struct sim_rank *ranks; /* [place.n] */
    struct mail *mail;      /* [kind][receiving stage][micro] */
    uint32_t n_stage;       /* the larger number of stages, of student and teacher */
};

/* Stage in the whole student or teacher, and the stages that its message comes from and goes to;
 * UINT32_MAX: none. */
struct sim_route {
    uint32_t stage, from, to;
};
static struct sim_route item_route(const struct sim *s, uint32_t rank,
                                   const struct schedule_item *item)
{
    bool of_teacher = item->kind == SCHEDULE_TEACHER;
    uint32_t n_rank = of_teacher ? s->o->n_teacher_rank : s->o->n_rank;
    uint32_t n = n_rank * (of_teacher ? schedule_n_teacher(s->o) : s->o->n_virtual);
    uint32_t stage =
        item->stage * n_rank + rank - (of_teacher ? s->place.teacher : s->place.student);
    uint32_t before = stage > 0 ? stage - 1 : UINT32_MAX;
    uint32_t after = stage + 1 < n ? stage + 1 : UINT32_MAX;
    if (item->kind == SCHEDULE_BACKWARD)
        return (struct sim_route){stage, after, before};
    return (struct sim_route){stage, before, after};
}

static size_t mail_index(const struct sim *s, const struct schedule_item *item, uint32_t stage)
{
    return ((size_t)item->kind * s->n_stage + stage) * s->o->n_micro + item->micro;
}

/* With two ranks the next one is the previous one. */
static struct channel *item_channel(struct sim *s, uint32_t rank, enum schedule_kind kind)
{
    const uint32_t back = kind == SCHEDULE_BACKWARD && s->o->n_rank > 2;
    return &s->ranks[rank].channels[kind == SCHEDULE_TEACHER ? 2 : back];
}

static double item_cost(const struct sim *s, uint32_t rank, const struct schedule_item *item)
{
    const struct stage_cost *c = &s->costs[(size_t)rank * s->o->n_virtual + item->stage];
    switch (item->kind) {
    case SCHEDULE_TEACHER:
        return c->teacher;
    case SCHEDULE_FORWARD:
        return c->forward;
    default:
        return c->backward;
    }
}

/* One item of a rank, or its second half; false: it waits. */
static bool run_item(struct sim *s, uint32_t rank)
{
    struct sim_rank *r = &s->ranks[rank];
    if (r->i_item == r->schedule->n)
        return false;
    const struct schedule_item *item = &r->schedule->items[r->i_item];
    struct sim_route route = item_route(s, rank, item);
    if (!r->computed) {
        struct mail *in = &s->mail[mail_index(s, item, route.stage)];
        if (route.from != UINT32_MAX) {
            if (in->sent == UNKNOWN)
                return false;
            if (r->time < in->sent)
                r->time = in->sent;
            in->received = r->time;
        }
        r->time += item_cost(s, rank, item);
        r->busy += item_cost(s, rank, item);
        r->computed = true;
    }
    if (route.to != UINT32_MAX) {
        struct channel *c = item_channel(s, rank, item->kind);
        size_t *oldest = &c->last[c->n % TRANSPORT_SENDS];
        if (c->n >= TRANSPORT_SENDS) {
            if (s->mail[*oldest].received == UNKNOWN)
                return false;
            if (r->time < s->mail[*oldest].received)
                r->time = s->mail[*oldest].received;
        }
        *oldest = mail_index(s, item, route.to);
        s->mail[*oldest].sent = r->time;
        c->n++;
    }
    r->computed = false;
    r->i_item++;
    return true;
}

static enum q_code fail_waiting(const struct sim *s, struct q_err *e)
{
    static const char *const kinds[] = {
        [SCHEDULE_TEACHER] = "teacher",
        [SCHEDULE_FORWARD] = "forward",
        [SCHEDULE_BACKWARD] = "backward",
    };
    struct buf text = BUF_INIT;
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < s->place.n; rank++) {
        const struct sim_rank *r = &s->ranks[rank];
        if (r->i_item == r->schedule->n || n++ >= SAID_MAX)
            continue;
        const struct schedule_item *item = &r->schedule->items[r->i_item];
        buf_printf(&text, "%srank %u %s its %s item of micro batch %u, stage %u", n > 1 ? "; " : "",
                   rank, r->computed ? "cannot send behind" : "cannot begin", kinds[item->kind],
                   item->micro, item->stage);
    }
    enum q_code rc = q_fail(e, Q_INVALID, "schedule: %u ranks wait for each other: %s%s", n,
                            buf_str(&text), n > SAID_MAX ? "; …" : "");
    buf_release(&text);
    return rc;
}

static enum q_code make_sim(struct sim *s, const struct schedule *schedules, struct q_err *e)
{
    const struct schedule_options *o = s->o;
    const uint32_t n_teacher = o->n_teacher_rank * schedule_n_teacher(o);
    s->n_stage = o->n_rank * o->n_virtual;
    if (s->n_stage < n_teacher)
        s->n_stage = n_teacher;
    size_t n_mail = (size_t)3 * s->n_stage * o->n_micro;
    s->ranks = q_calloc(s->place.n, sizeof *s->ranks);
    s->mail = q_calloc(n_mail, sizeof *s->mail);
    if (!s->ranks || !s->mail)
        return q_fail(e, Q_NO_MEMORY, "schedule: no memory for %zu messages", n_mail);
    for (size_t i = 0; i < n_mail; i++)
        s->mail[i] = (struct mail){UNKNOWN, UNKNOWN};
    for (uint32_t rank = 0; rank < s->place.n; rank++)
        s->ranks[rank].schedule = &schedules[rank];
    return Q_OK;
}

static double idle_part(const struct sim *s)
{
    double end = 0, busy = 0;
    for (uint32_t rank = 0; rank < s->place.n; rank++) {
        busy += s->ranks[rank].busy;
        if (end < s->ranks[rank].time)
            end = s->ranks[rank].time;
    }
    return end > 0 ? 1 - busy / (end * s->place.n) : 0;
}

FALLIBLE schedule_run(const struct schedule_options *o, const struct schedule *schedules,
                      const struct stage_cost *costs, double *bubble, struct q_err *e)
{
    struct sim s = {.o = o, .costs = costs, .place = schedule_place(o)};
    enum q_code rc = make_sim(&s, schedules, e);
    bool moved = !rc, done = true;
    while (moved) {
        moved = false;
        for (uint32_t rank = 0; rank < s.place.n; rank++)
            while (run_item(&s, rank))
                moved = true;
    }
    for (uint32_t rank = 0; !rc && rank < s.place.n; rank++)
        done = done && s.ranks[rank].i_item == s.ranks[rank].schedule->n;
    if (!rc && !done)
        rc = fail_waiting(&s, e);
    if (!rc)
        *bubble = idle_part(&s);
    q_free(s.ranks);
    q_free(s.mail);
    return rc;
}

FALLIBLE schedule_bubble(const struct schedule_options *o, const struct stage_cost *costs,
                         double *bubble, struct q_err *e)
{
    const uint32_t n = schedule_place(o).n;
    enum q_code rc = schedule_check(o, e);
    if (rc)
        return rc;
    struct schedule *schedules = q_calloc(n, sizeof *schedules);
    if (!schedules)
        return q_fail(e, Q_NO_MEMORY, "schedule: no memory for %u ranks", n);
    for (uint32_t rank = 0; !rc && rank < n; rank++)
        rc = schedule_make(&schedules[rank], o, rank, e);
    if (!rc)
        rc = schedule_run(o, schedules, costs, bubble, e);
    for (uint32_t rank = 0; rank < n; rank++)
        schedule_release(&schedules[rank]);
    q_free(schedules);
    return rc;
}
