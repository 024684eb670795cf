/* SPDX-License-Identifier: Apache-2.0 */
/* tags - structural tags: free text with tags that contain structured parts (tool calls).
 *
 * The formats are those of vLLM and XGrammar: {"type": "structural_tag", "format": …} with
 * const_string, any_text, json_schema, regex, grammar, sequence, or, tag, triggered_tags and
 * tags_with_separator; and the older {"structures": […], "triggers": […]}. Failures are kept in
 * the build. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_TAGS_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_TAGS_H
#include <jansson.h>
#include "engine/grammar/automaton/expr.h"

/* The text that structural tags allow: root is the object of response_format (vLLM's and OpenAI's
 * names), compact: JSON in it has no spaces. EXPR_NEVER, and the reason in b->err, when root is not
 * one. */
const struct expr *tags_expr(struct build *b, const json_t *root, bool compact);

#endif
