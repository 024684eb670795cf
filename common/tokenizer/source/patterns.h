/* SPDX-License-Identifier: Apache-2.0 */
/* patterns - split patterns of byte-level tokenizers that files name and do not contain. In the
 * common syntax of PCRE2 and Oniguruma; a class without Han characters is a lookahead. Source:
 * tiktoken and the authors of the tokenizers. Private to common/tokenizer. */
#ifndef QUIRE_COMMON_TOKENIZER_SOURCE_PATTERNS_H
#define QUIRE_COMMON_TOKENIZER_SOURCE_PATTERNS_H

#define PATTERN_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PATTERN_TAIL         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_CL100K \
    PATTERN_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" PATTERN_TAIL
#define PATTERN_QWEN PATTERN_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" PATTERN_TAIL
#define PATTERN_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PATTERN_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define PATTERN_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PATTERN_O200K                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "*" PATTERN_LOWER "+" PATTERN_CONTRACTIONS   \
    "?|[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "+" PATTERN_LOWER "*" PATTERN_CONTRACTIONS \
    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Mistral's: as o200k without contractions, digits one by one. */
#define PATTERN_TEKKEN                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "*" PATTERN_LOWER   \
    "+|[^\\r\\n\\p{L}\\p{N}]?" PATTERN_UPPER "+" PATTERN_LOWER \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"                \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#endif
