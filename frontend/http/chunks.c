/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/chunks.h"

#define DIGITS_MAX 16 /* of a size, as h2o has it */

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* A character of an extension or of a trailer's value: no control character except the tab. */
static bool is_text(char c)
{
    return c == '\t' || ((unsigned char)c >= ' ' && c != 0x7f);
}

static bool is_name(char c)
{
    return is_text(c) && c != ' ' && c != '\t' && c != ':';
}

static const char *size_byte(struct chunks *c, char byte)
{
    int digit = hex_value(byte);
    if (digit >= 0 && c->n_digit == DIGITS_MAX)
        return "invalid chunk: its size has more than 16 digits";
    if (digit >= 0) {
        c->left = c->left * 16 + (unsigned)digit;
        c->n_digit++;
        return NULL;
    }
    if (!c->n_digit || (byte != ';' && byte != '\r'))
        return "invalid chunk: its size is not a hexadecimal number";
    c->state = byte == ';' ? CHUNKS_EXTENSION : CHUNKS_SIZE_END;
    return NULL;
}

static const char *size_end(struct chunks *c, char byte)
{
    if (byte != '\n')
        return "invalid chunk: its size does not end with CR LF";
    c->n_digit = 0;
    c->state = c->left ? CHUNKS_DATA : CHUNKS_TRAILER;
    return NULL;
}

static const char *data_end(struct chunks *c, char byte)
{
    if (byte != (c->state == CHUNKS_DATA_END ? '\n' : '\r'))
        return "invalid chunk: its data do not end with CR LF";
    c->state = c->state == CHUNKS_DATA_END ? CHUNKS_SIZE : CHUNKS_DATA_END;
    return NULL;
}

static const char *trailer_byte(struct chunks *c, char byte)
{
    bool begins = c->state == CHUNKS_TRAILER, in_value = c->state == CHUNKS_TRAILER_VALUE;
    if (begins && byte == '\r')
        c->state = CHUNKS_LAST;
    else if (in_value && byte == '\r')
        c->state = CHUNKS_TRAILER_END;
    else if (c->state == CHUNKS_TRAILER_NAME && byte == ':')
        c->state = CHUNKS_TRAILER_VALUE;
    else if (in_value ? !is_text(byte) : !is_name(byte))
        return "a line after the last chunk is not a header line";
    else if (begins)
        c->state = CHUNKS_TRAILER_NAME;
    return NULL;
}

static const char *line_end(struct chunks *c, char byte)
{
    if (byte != '\n')
        return "a line after the last chunk does not end with CR LF";
    c->state = c->state == CHUNKS_LAST ? CHUNKS_WHOLE : CHUNKS_TRAILER;
    return NULL;
}

static const char *take_byte(struct chunks *c, char byte)
{
    switch (c->state) {
    case CHUNKS_SIZE:
        return size_byte(c, byte);
    case CHUNKS_EXTENSION:
        if (byte == '\r')
            c->state = CHUNKS_SIZE_END;
        return byte == '\r' || is_text(byte)
                   ? NULL
                   : "invalid chunk: its extension contains a control character";
    case CHUNKS_SIZE_END:
        return size_end(c, byte);
    case CHUNKS_DATA_RETURN:
    case CHUNKS_DATA_END:
        return data_end(c, byte);
    case CHUNKS_TRAILER:
    case CHUNKS_TRAILER_NAME:
    case CHUNKS_TRAILER_VALUE:
        return trailer_byte(c, byte);
    case CHUNKS_TRAILER_END:
    case CHUNKS_LAST:
        return line_end(c, byte);
    case CHUNKS_DATA:
    case CHUNKS_WHOLE:
    case CHUNKS_WRONG:
        break;
    }
    return NULL;
}

const char *chunks_take(struct chunks *c, const char *bytes, size_t n)
{
    const char *fault = NULL;
    for (size_t i = 0; i < n && c->state < CHUNKS_WHOLE; i++) {
        if (c->state == CHUNKS_DATA) {
            uint64_t taken = c->left < n - i ? c->left : n - i;
            c->left -= taken;
            i += (size_t)taken - 1;
            c->state = c->left ? CHUNKS_DATA : CHUNKS_DATA_RETURN;
            continue;
        }
        fault = take_byte(c, bytes[i]);
        if (fault)
            c->state = CHUNKS_WRONG;
    }
    return fault;
}
