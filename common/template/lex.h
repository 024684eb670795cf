/* SPDX-License-Identifier: Apache-2.0 */
/* lex - template text to tokens, with Jinja's whitespace rules applied (trim_blocks and
 * lstrip_blocks on).
 * Threads: pure. */
#ifndef QUIRE_COMMON_TEMPLATE_LEX_H
#define QUIRE_COMMON_TEMPLATE_LEX_H
#include "common/template/ast.h"

enum token_kind {
    T_EOF,
    T_DATA,
    T_PRINT_BEGIN, /* {{ */
    T_PRINT_END,
    T_BLOCK_BEGIN, /* {% */
    T_BLOCK_END,
    T_NAME,
    T_STRING, /* text still with its quotes and escapes */
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_COMMA,
    T_PIPE,
    T_SEMICOLON,
    T_LPAREN,
    T_RPAREN,
    T_LBRACKET,
    T_RBRACKET,
    T_LBRACE,
    T_RBRACE
};

struct token {
    enum token_kind kind;
    uint32_t line, column;
    const char *text; /* [n] borrowed from the source */
    size_t n;
};
struct token_list {
    struct token *at; /* [n], closed by T_EOF */
    size_t n, cap;
};

struct lex_error { /* where the lexer or parser failed */
    struct template_fault *fault;
    struct q_err *e;
};

/* Tokens of source[0..n) (newlines normalised). Release with q_free(out->at), also after a failure.
 */
FALLIBLE lex_all(struct token_list *out, const char *source, size_t n, const struct lex_error *err);
/* Fail at a place: "chat template line L, column C: …". */
__attribute__((format(printf, 4, 5))) enum q_code lex_fail(const struct lex_error *err,
                                                           const struct token *at, const char *type,
                                                           const char *fmt, ...);
/* The name of a token in messages: "end of print statement", the text of a name … */
const char *lex_describe(const struct token *t, char *scratch, size_t size);

#endif
