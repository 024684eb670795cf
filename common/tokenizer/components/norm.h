/* SPDX-License-Identifier: Apache-2.0 */
/* norm - the Unicode normal forms and lower case, shared by the normalizers. Private to
 * common/tokenizer. Threads: a form is read-only. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_NORM_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_NORM_H
#include "common/tokenizer/tokenizer_internal.h"

struct norm_form; /* NFC, NFD, NFKC or NFKD; released by q_free */
FALLIBLE norm_form_new(struct norm_form **out, bool compose, bool compat, struct q_err *e);
/* Rewrite w->text in that form. */
FALLIBLE norm_form_run(const struct norm_form *f, struct tok_work *w, struct q_err *e);

extern const struct norm_ops norm_lowercase, norm_replace;
/* By which factor the Replace normalizer shortens a text at most; 0: by any. */
size_t norm_replace_shorter(const struct tok_part *p);

#endif
