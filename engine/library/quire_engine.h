/* SPDX-License-Identifier: Apache-2.0 */
/* quire_engine - struct quire_engine, shared by the files of the public library. Threads: constant
 * after quire_engine_open, but for the session. */
#ifndef QUIRE_ENGINE_LIBRARY_QUIRE_ENGINE_H
#define QUIRE_ENGINE_LIBRARY_QUIRE_ENGINE_H
#include "common/chat/chat_model.h"
#include "engine/library/session.h"

struct quire_engine {
    struct session *session;
    struct tokenizer *tokenizer; /* NULL with skip_tokenizer */
    struct chat_model chat;
    struct generation_defaults defaults; /* none with generation_config "vllm" */
};

#endif
