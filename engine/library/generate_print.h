/* SPDX-License-Identifier: Apache-2.0 */
/* generate_print - an answer of quire-generate: collected from its events, printed as text or JSON.
 * Threads: main. */
#ifndef QUIRE_ENGINE_LIBRARY_GENERATE_PRINT_H
#define QUIRE_ENGINE_LIBRARY_GENERATE_PRINT_H
#include "common/options.h"
#include "common/printable.h"
#include "engine/library/generate_input.h"
#include "engine/quire.h"

struct answer_style {
    const struct options *o;
    bool many;     /* answers have headings and are not streamed */
    bool terminal; /* standard output is one: reasoning is shown too, dimmed, and no control
                     * characters of an answer's */
};
struct generated {
    const struct generate_prompt *prompt;
    uint32_t i_answer;
    struct quire_request *request;
    struct buf text, calls, ids, logprobs;
    uint32_t n_token;
    bool dimmed;             /* the terminal is, for reasoning */
    struct printable shown;  /* of the text as it streams to a terminal */
    struct quire_event last; /* its FINISH */
};
void generated_release(struct generated *a);
/* The next event of the answer; printed at once if the style streams. */
void generated_take(struct generated *a, const struct answer_style *s,
                    const struct quire_event *event);
/* Print the rest. */
void generated_print(const struct generated *a, const struct answer_style *s);
/* A failed prompt, as an object of --json. */
void generated_print_error(const struct generate_prompt *prompt, const char *message);

#endif
