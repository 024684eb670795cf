/* SPDX-License-Identifier: Apache-2.0 */
/* template - Jinja with the settings of transformers' apply_chat_template.
 *
 * source text -> tokens -> syntax tree (compiled once) -> rendered with the request's values. The
 * tree never changes; a rendering has its own arena and limits, so that a hostile template has
 * bounded time and memory. Filters, tests, functions and methods are rows in tables (filters.def,
 * tests.def, methods.def). Threads: a compiled template may be rendered by several threads at
 * once. */
#ifndef QUIRE_COMMON_TEMPLATE_TEMPLATE_H
#define QUIRE_COMMON_TEMPLATE_TEMPLATE_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/ranges.h"

struct template;

struct template_fault {    /* where and what kind, beside the message in q_err */
    const char *type;      /* Python's name: "UndefinedError", "TemplateError" (raise_exception) */
    uint32_t line, column; /* from 1; 0 = unknown */
};

struct template_limits {
    size_t output_max;  /* bytes of rendered text */
    size_t memory_max;  /* bytes of values made while rendering */
    uint64_t steps_max; /* evaluated nodes */
    uint32_t depth_max; /* nesting of calls and expressions */
};
extern const struct template_limits template_limits_default;

/* Compile source[0..n). Errors: Q_INVALID (message "chat template line L, column C: …"); fault (may
 * be NULL) is filled. */
FALLIBLE template_compile(struct template **out, const char *source, size_t n,
                          struct template_fault *fault, struct q_err *e);
void template_free(struct template *t);
bool template_marks_generation(const struct template *t); /* has it {% generation %} blocks? */

struct template_run {
    const json_t *variables; /* object or NULL: the names the template sees; borrowed */
    /* Object or NULL: more of them, taken first, whose text is the request's and not the
     * template's; where it is in the output is added to `content` (NULL: not wanted). */
    const json_t *request;
    struct ranges *content;
    struct ranges *generated; /* what {% generation %} blocks wrote is added; NULL: not wanted */
    int64_t now;              /* unix seconds strftime_now() shows; 0 = the clock */
    const struct template_limits *limits; /* NULL = template_limits_default */
};
/* Append the rendered text to `out`. Errors: Q_INVALID (the template refused or failed;
 * raise_exception's text is the message), Q_TOO_LARGE (a limit). */
FALLIBLE template_render(const struct template *t, const struct template_run *run, struct buf *out,
                         struct template_fault *fault, struct q_err *e);

#endif
