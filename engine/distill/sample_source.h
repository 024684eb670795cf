/* SPDX-License-Identifier: Apache-2.0 */
/* sample_source - what lines of a data set are read with. Threads: only read. */
#ifndef QUIRE_ENGINE_DISTILL_SAMPLE_SOURCE_H
#define QUIRE_ENGINE_DISTILL_SAMPLE_SOURCE_H
#include <stdint.h>
#include "common/template/chat.h"
#include "common/tokenizer/tokenizer.h"

struct sample_source {
    uint32_t seq_len, vocab_size;
    const struct tokenizer *tokenizer; /* NULL: lines with text or messages need one */
    const struct chat *chat;           /* NULL: there is no template, chat_error says why */
    const char *chat_error;
    uint32_t eos; /* TOKEN_NONE: the tokenizer has none */
};

#endif
