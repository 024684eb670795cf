/* SPDX-License-Identifier: Apache-2.0 */
/* encode - the steps of encoding that are also used at load. Private to common/tokenizer. Threads:
 * as tok_work. */
#ifndef QUIRE_COMMON_TOKENIZER_ENCODE_H
#define QUIRE_COMMON_TOKENIZER_ENCODE_H
#include "common/tokenizer/tokenizer_internal.h"

/* Run the normalizers over w->text. */
FALLIBLE tok_normalize(const struct tokenizer *t, struct tok_work *w, struct q_err *e);

#endif
