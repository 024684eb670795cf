/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer - text to token ids and back, equal to the `tokenizers` package for the same
 * tokenizer.json.
 *
 * A tokenizer is loaded once and never changes; every kind (byte-level BPE first) is one row in
 * the table of tok_kinds.def. Parts of tokenizer.json that quire does not have are refused at load
 * by name, never approximated. Streams and stop strings are in tokenizer/stream.h. Threads: a
 * loaded tokenizer is read-only and may be used by any number of threads at once. */
#ifndef QUIRE_COMMON_TOKENIZER_TOKENIZER_H
#define QUIRE_COMMON_TOKENIZER_TOKENIZER_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/ranges.h"
#include "common/tokenizer/token_list.h"

struct tokenizer;

#define TOKENIZER_FILE_MAX ((size_t)256 << 20) /* bytes of tokenizer.json accepted */
#define TOKENIZER_TEXT_MAX ((size_t)64 << 20)  /* bytes of one text accepted by tokenizer_encode */

/* Load the tokenizer of a folder, or the file itself. In a folder the first of these that is there:
 * tokenizer.json (with tokenizer_config.json beside it for added tokens that older folders list
 * only there), tekken.json (Mistral's), a SentencePiece model (tokenizer.model, spiece.model …),
 * tiktoken ranks, vocab.json with merges.txt (GPT-2's), vocab.txt (BERT's). Errors: Q_NOT_FOUND
 * (none of them), Q_CORRUPT (malformed, with the JSON path), Q_UNSUPPORTED (names the component).
 * Ownership: tokenizer_free. */
FALLIBLE tokenizer_open(struct tokenizer **out, const char *path, struct q_err *e);
/* Is there a tokenizer, as far as names and first bytes of files show? For a program that tells of
 * a wrong folder before it reads. Errors: Q_NOT_FOUND, Q_CORRUPT (download.h), Q_IO. */
FALLIBLE tokenizer_check(const char *path, struct q_err *e);
/* --tokenizer-mode, before tokenizer_open: auto, hf and slow leave the folder `path` as it is;
 * mistral makes it the path of its file in Mistral's format, which tokenizer_open would take only
 * where there is no tokenizer.json. Errors: Q_UNSUPPORTED (any other mode), Q_NOT_FOUND. */
FALLIBLE tokenizer_apply_mode(char path[PATH_MAX], const char *mode, struct q_err *e);
/* The version that Mistral's tekken.json in the folder says ("v13": 13); 0: there is no such file.
 * Errors: Q_CORRUPT, Q_IO. */
FALLIBLE tokenizer_mistral_version(uint32_t *version, const char *dir, struct q_err *e);
/* tokenizer_open from tokenizer.json text in memory (tests, fuzzing). */
FALLIBLE tokenizer_from_json(struct tokenizer **out, const char *json, size_t n, struct q_err *e);
void tokenizer_free(struct tokenizer *t);

/* Append the ids of text[0..n) (UTF-8; ill-formed bytes are an error) to `out`. add_special runs
 * the post-processor (bos, eos). Special tokens written in the text are recognised, as the
 * reference does. Errors: Q_INVALID (not UTF-8, with the byte offset), Q_TOO_LARGE, Q_NO_MEMORY;
 * `out` is then unchanged. */
FALLIBLE tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                          struct token_list *out, struct q_err *e);
/* Bytes of text that one token can stand for, at most, so that n bytes are ceil(n / this) tokens or
 * more; 0: no such number is known (normalizers that drop text, unknown words). Cost: O(tokens). */
size_t tokenizer_token_bytes_max(const struct tokenizer *t);
struct tokenizer_insert { /* an id that no text stands for: a placeholder of an item */
    size_t at;            /* byte of the text; ascending */
    uint32_t id;          /* any */
    size_t position;      /* set: its index in the ids */
};
struct tokenizer_text {
    const char *data; /* [n] UTF-8 */
    size_t n;
    const struct ranges *content; /* the bytes that the prompt's template did not write, or NULL */
    struct tokenizer_insert *inserts; /* [n_insert] the text is divided there as by a token */
    size_t n_insert;
};
/* tokenizer_encode for a rendered prompt: in `content` no control tokens (added tokens that are
 * marked special, or look like <|…|>) are found, nor across its borders; such text is encoded as
 * any other. Where none is spelled out, the ids are tokenizer_encode's. */
FALLIBLE tokenizer_encode_prompt(const struct tokenizer *t, const struct tokenizer_text *text,
                                 bool add_special, struct token_list *out, struct q_err *e);
struct token_mark {
    size_t at;       /* byte of the text, where a character begins, or its end */
    size_t n_before; /* out: ids of the text that lie before it */
    bool crosses;    /* out: the next id has bytes on both sides */
};
struct token_marks {
    struct token_mark *items; /* [n] ascending by `at` */
    size_t n;
};
/* tokenizer_encode_prompt without special tokens, and where in the ids some places of the text are:
 * behind as many ids as the text up to there has on its own, as far as they are the same. Cost: a
 * place inside of text between two added tokens encodes the part of that text before it again.
 * Errors: also Q_INVALID (a mark inside of a character). */
FALLIBLE tokenizer_encode_marked(const struct tokenizer *t, const struct tokenizer_text *text,
                                 const struct token_marks *marks, struct token_list *out,
                                 struct q_err *e);
struct tokenizer_pair {             /* ids of two texts, each encoded without special tokens */
    const uint32_t *first, *second; /* [n_first], [n_second] */
    size_t n_first, n_second;
};
/* Append both with the special tokens before, between and after them. *second_at: the index in
 * `out` of the first id of type 1; 0: there is none. Errors: Q_UNSUPPORTED (the tokenizer does not
 * put two texts together), Q_NO_MEMORY. */
FALLIBLE tokenizer_encode_pair(const struct tokenizer *t, const struct tokenizer_pair *p,
                               struct token_list *out, uint32_t *second_at, struct q_err *e);
/* Number of the special tokens that it adds. */
size_t tokenizer_pair_special(const struct tokenizer *t);
/* tokenizer_encode, then truncated and padded as the file says, which is what the `tokenizers`
 * package does on its own and no server wants: a prompt is never cut in silence. */
FALLIBLE tokenizer_encode_limited(const struct tokenizer *t, const char *text, size_t n,
                                  bool add_special, struct token_list *out, struct q_err *e);
/* Append the text of the ids to `out`; unknown ids decode to nothing, ill-formed UTF-8 to U+FFFD as
 * the reference. */
FALLIBLE tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n,
                          bool skip_special, struct buf *out, struct q_err *e);
/* Append the raw bytes that this one token stands for (for logprobs' `bytes`); special tokens give
 * their text. */
FALLIBLE tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, struct buf *out,
                               struct q_err *e);
/* The token as the vocabulary spells it ("Ġworld", "▁the", "##ing", "<0x0A>"; what transformers'
 * convert_ids_to_tokens gives), NUL-terminated, borrowed; *n its bytes. NULL: there is no such id.
 */
const char *tokenizer_token_text(const struct tokenizer *t, uint32_t id, size_t *n);

uint32_t
tokenizer_vocab_size(const struct tokenizer *t); /* largest id + 1, added tokens included */
uint32_t tokenizer_id(const struct tokenizer *t,
                      const char *token); /* by vocabulary string; TOKEN_NONE */
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);

#endif
