/* SPDX-License-Identifier: Apache-2.0 */
/* libedit edits the line, but this file reads the bytes, for three reasons. Keys and signals:
 * Ctrl-C ends the line, Ctrl-Z stops the program, a resize redraws the line; keys arrive as bytes,
 * so that pasted text may contain them. Paste: terminals enclose pasted text in ESC[200~ and
 * ESC[201~; in it, characters that are commands of the editor, newlines above all, are quoted
 * (Ctrl-V). UTF-8: the editor gets complete characters. */
#include "frontend/cli/chat_input.h"
#include <errno.h>
#include <glob.h>
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/utf8.h"

#define HISTORY_MAX 1000 /* entries */
#define BYTES_MAX   4096 /* read at once */
#define ESCAPE_MS   50   /* maximum delay of the rest of an escape sequence */
#define CTRL_C      0x03
#define CTRL_V      0x16
#define CTRL_Z      0x1a
#define PASTE_BEGIN "\033[200~"
#define PASTE_END   "\033[201~"
#define PASTE_BYTES 6
#define PASTE_ON    "\033[?2004h"
#define PASTE_OFF   "\033[?2004l"
#define MORE_PROMPT "... "
#define TRIPLE      "\"\"\""

struct chat_input {
    EditLine *editor; /* NULL: plain lines */
    History *history;
    char history_path[PATH_MAX]; /* "" = not kept */
    const char *const *words;
    const char *prompt;
    char bytes[BYTES_MAX]; /* [n_byte] bytes read; those from `at` on are not processed */
    size_t at, n_byte;
    bool pasting, quoted;    /* inside a paste; Ctrl-V was passed for the next character */
    bool interrupted, empty; /* by Ctrl-C; on an empty line */
    bool warned;             /* that Ctrl-C once more ends */
    bool is_line;            /* the last message */
    bool terminal;           /* input is a terminal, perhaps without editing */
};

static volatile sig_atomic_t got_int, got_winch;

static void on_signal(int number)
{
    if (number == SIGINT)
        got_int = 1;
    else
        got_winch = 1;
}

static void catch (int number)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(number, &a, NULL);
}

static bool is_empty(EditLine *editor)
{
    const LineInfo *line = el_line(editor);
    return line->lastchar == line->buffer;
}

/* Read at least one byte within timeout_ms. False: none, because of Ctrl-C, the end of the input,
 * or the timeout. */
static bool more_bytes(struct chat_input *in, int timeout_ms)
{
    sigset_t both, before;
    ssize_t n = -1;
    struct timespec wait = {.tv_nsec = (long)timeout_ms * 1000000};
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGWINCH);
    sigprocmask(SIG_BLOCK, &both, &before);
    int ready = 0;
    while (!got_int && (ready = ppoll(&p, 1, timeout_ms < 0 ? NULL : &wait, &before)) < 0 &&
           errno == EINTR)
        if (got_winch) {
            got_winch = 0;
            el_resize(in->editor);
            el_set(in->editor, EL_REFRESH);
        }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (got_int || ready <= 0)
        return false;
    if (in->at > 0) { /* the remaining bytes move to the front */
        memmove(in->bytes, in->bytes + in->at, in->n_byte - in->at);
        in->n_byte -= in->at;
        in->at = 0;
    }
    n = read(STDIN_FILENO, in->bytes + in->n_byte, sizeof in->bytes - in->n_byte);
    in->n_byte += n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* Are the next bytes this mark? If they begin it, wait for the rest. */
static bool at_mark(struct chat_input *in, const char *mark)
{
    for (;;) {
        size_t left = in->n_byte - in->at, n = left < PASTE_BYTES ? left : PASTE_BYTES;
        if (memcmp(in->bytes + in->at, mark, n) != 0)
            return false;
        if (n == PASTE_BYTES)
            return true;
        if (!more_bytes(in, ESCAPE_MS))
            return false;
    }
}

/* Read a complete character at in->at. False: its rest did not arrive. */
static bool take_char(struct chat_input *in, uint32_t *c)
{
    while (utf8_complete_prefix(in->bytes + in->at, in->n_byte - in->at) == 0)
        if (in->n_byte - in->at >= 4 || !more_bytes(in, ESCAPE_MS))
            break;
    in->at += utf8_decode(in->bytes + in->at, in->n_byte - in->at, c);
    return true;
}

static void note_paste(struct chat_input *in)
{
    if (in->bytes[in->at] != '\033')
        return;
    if (!at_mark(in, in->pasting ? PASTE_END : PASTE_BEGIN))
        return;
    in->at += PASTE_BYTES;
    in->pasting = !in->pasting;
}

/* The common prefix of all candidates beyond the n bytes that are typed. */
static size_t common_length(char *const *candidates, size_t n_candidate)
{
    size_t n = strlen(candidates[0]);
    for (size_t i = 1; i < n_candidate; i++) {
        size_t k = 0;
        while (k < n && candidates[i][k] == candidates[0][k])
            k++;
        n = k;
    }
    return n;
}

static void insert(EditLine *editor, const char *text, size_t n)
{
    char piece[PATH_MAX];
    if (n == 0 || n >= sizeof piece)
        return;
    memcpy(piece, text, n);
    piece[n] = '\0';
    el_insertstr(editor, piece);
    el_set(editor, EL_REFRESH);
}

static void complete_file(EditLine *editor, const char *name)
{
    char pattern[PATH_MAX];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s*", name);
    if (glob(pattern, GLOB_MARK | GLOB_TILDE_CHECK, NULL, &found) == 0 && found.gl_pathc &&
        !strncmp(found.gl_pathv[0], name, strlen(name))) {
        size_t n = common_length(found.gl_pathv, found.gl_pathc);
        if (n > strlen(name))
            insert(editor, found.gl_pathv[0] + strlen(name), n - strlen(name));
    }
    globfree(&found);
}

/* Tab: complete a command, or the file name after a command that takes one. */
static void complete(struct chat_input *in)
{
    EditLine *editor = in->editor;
    const LineInfo *line = el_line(editor);
    char typed[PATH_MAX];
    char *found[32];
    size_t n_found = 0, n = (size_t)(line->cursor - line->buffer);
    if (n == 0 || n >= sizeof typed || line->buffer[0] != '/') {
        insert(editor, "    ", 4);
        return;
    }
    memcpy(typed, line->buffer, n);
    typed[n] = '\0';
    for (size_t i = 0; in->words[i] && n_found < 32; i++) {
        size_t n_word = strlen(in->words[i]);
        if (in->words[i][n_word - 1] == ' ' && !strncmp(typed, in->words[i], n_word)) {
            complete_file(editor, typed + n_word);
            return;
        }
        if (!strncmp(in->words[i], typed, n))
            found[n_found++] = (char *)(uintptr_t)in->words[i];
    }
    if (n_found)
        insert(editor, found[0] + n, common_length(found, n_found) - n);
}

static void suspend(EditLine *editor)
{
    el_set(editor, EL_PREP_TERM, 0);
    raise(SIGTSTP);
    el_set(editor, EL_PREP_TERM, 1);
    el_set(editor, EL_REFRESH);
}

/* A key that the editor does not handle. */
static bool take_key(struct chat_input *in)
{
    char key = in->bytes[in->at];
    if (in->pasting || in->quoted || (key != CTRL_C && key != CTRL_Z && key != '\t'))
        return false;
    in->at++;
    if (key == CTRL_C)
        got_int = 1;
    else if (key == '\t')
        complete(in);
    else
        suspend(in->editor);
    return true;
}

/* EL_GETCFN: 1, 0 at the end, -1 after Ctrl-C. */
static int get_char(EditLine *editor, wchar_t *out)
{
    struct chat_input *in = NULL;
    uint32_t c = 0;
    el_get(editor, EL_CLIENTDATA, &in);
    for (;;) {
        if (got_int || (in->at == in->n_byte && !more_bytes(in, -1))) {
            in->interrupted = got_int;
            in->empty = is_empty(editor);
            return got_int ? -1 : 0;
        }
        size_t before = in->at;
        if (take_key(in))
            continue;
        if (!in->quoted)
            note_paste(in);
        if (in->at == before)
            break;
    }
    if (in->pasting && !in->quoted && (unsigned char)in->bytes[in->at] < 0x20) {
        in->quoted = true;
        *out = CTRL_V;
        return 1;
    }
    take_char(in, &c);
    if (in->pasting && c == '\r')
        c = '\n'; /* terminals send it for the line ends of pasted text */
    in->quoted = false;
    *out = (wchar_t)c;
    return 1;
}

static char *give_prompt(EditLine *editor)
{
    struct chat_input *in = NULL;
    el_get(editor, EL_CLIENTDATA, &in);
    el_set(editor, EL_PREP_TERM, 1); /* read keys as bytes before the prompt is shown */
    return (char *)(uintptr_t)in->prompt;
}

/* $XDG_STATE_HOME/quire/chat_history; "" if there is no such folder. */
static void find_history(char path[PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX];
    *path = '\0';
    if (state && *state == '/')
        snprintf(dir, sizeof dir, "%.2000s", state);
    else if (home && *home == '/')
        snprintf(dir, sizeof dir, "%.2000s/.local/state", home);
    else
        return;
    for (char *at = dir + 1; *at; at++) /* create its missing folders */
        if (*at == '/') {
            *at = '\0';
            mkdir(dir, 0700);
            *at = '/';
        }
    mkdir(dir, 0700);
    strncat(dir, "/quire", sizeof dir - strlen(dir) - 1);
    mkdir(dir, 0700);
    snprintf(path, PATH_MAX, "%.4000s/chat_history", dir);
}

static void load_history(struct chat_input *in)
{
    HistEvent event;
    history(in->history, &event, H_SETSIZE, HISTORY_MAX);
    history(in->history, &event, H_SETUNIQUE, 1);
    find_history(in->history_path);
    if (*in->history_path)
        history(in->history, &event, H_LOAD, in->history_path);
}

/* Save after every message, because a terminal may be closed at any time. */
static void keep(struct chat_input *in, const struct buf *text)
{
    HistEvent event;
    mode_t before = umask(077);
    history(in->history, &event, H_ENTER, buf_str(text));
    if (*in->history_path)
        history(in->history, &event, H_SAVE, in->history_path);
    umask(before);
}

static void set_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static FALLIBLE open_editor(struct chat_input *in, struct q_err *e)
{
    set_locale();
    in->history = history_init();
    in->editor = el_init("quire", stdin, stdout, stderr);
    if (!in->history || !in->editor)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the line editor");
    el_set(in->editor, EL_CLIENTDATA, in);
    el_set(in->editor, EL_PROMPT, give_prompt);
    el_set(in->editor, EL_EDITOR, "emacs");
    el_set(in->editor, EL_HIST, history, in->history);
    el_set(in->editor, EL_GETCFN, get_char);
    el_set(in->editor, EL_SETTY, "-d", "-isig", NULL);
    el_set(in->editor, EL_BIND, "^V", "ed-quoted-insert", NULL);
    el_set(in->editor, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(in->editor, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    el_set(in->editor, EL_BIND, "\033[1~", "ed-move-to-beg", NULL);
    el_set(in->editor, EL_BIND, "\033[4~", "ed-move-to-end", NULL);
    el_set(in->editor, EL_BIND, "\033[3~", "ed-delete-next-char", NULL);
    el_set(in->editor, EL_BIND, "\033[1;5D", "ed-prev-word", NULL);
    el_set(in->editor, EL_BIND, "\033[1;5C", "em-next-word", NULL);
    catch (SIGINT);
    catch (SIGWINCH);
    load_history(in);
    return Q_OK;
}

FALLIBLE chat_input_open(struct chat_input **out, const char *const *words, struct q_err *e)
{
    struct chat_input *in = q_calloc(1, sizeof *in);
    enum q_code rc = in ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory");
    if (!rc) {
        in->words = words;
        in->terminal = isatty(STDIN_FILENO);
        if (in->terminal && isatty(STDOUT_FILENO))
            rc = open_editor(in, e);
    }
    if (rc)
        chat_input_close(in);
    else
        *out = in;
    return rc;
}

void chat_input_close(struct chat_input *in)
{
    if (!in)
        return;
    if (in->editor)
        el_end(in->editor);
    if (in->history)
        history_end(in->history);
    q_free(in);
}

bool chat_input_edits(const struct chat_input *in)
{
    return in->editor != NULL;
}

void chat_input_warned(struct chat_input *in)
{
    in->warned = true;
}

bool chat_input_is_line(const struct chat_input *in)
{
    return in->is_line;
}

/* Read one line of any length, without its end. */
static enum chat_input_kind plain_line(struct chat_input *in, const char *prompt, struct buf *text)
{
    int c;
    buf_reset(text);
    if (in->terminal)
        fputs(prompt, stderr);
    while ((c = getchar()) != EOF && c != '\n')
        if (c != '\r')
            buf_add_char(text, (char)c);
    return c != EOF || text->len ? INPUT_TEXT : INPUT_END;
}

/* Append one line from the editor, without its end. */
static enum chat_input_kind edit_line(struct chat_input *in, const char *prompt, struct buf *text)
{
    int n = 0;
    in->prompt = prompt;
    in->interrupted = false;
    got_int = 0;
    fputs(PASTE_ON, stdout);
    fflush(stdout);
    const char *line = el_gets(in->editor, &n);
    fputs(PASTE_OFF, stdout);
    fflush(stdout);
    in->pasting = in->quoted = false;
    if (in->interrupted) {
        puts("^C");
        bool ends = in->empty && in->warned;
        in->warned = false;
        got_int = 0;
        el_reset(in->editor);
        return ends ? INPUT_END : INPUT_INTERRUPTED;
    }
    if (!line || n <= 0) {
        puts("");
        return INPUT_END;
    }
    in->warned = false;
    buf_add(text, line, (size_t)n - (line[n - 1] == '\n'));
    return INPUT_TEXT;
}

static bool ends_with(const struct buf *text, size_t from, const char *end)
{
    size_t n = strlen(end);
    return text->len >= from + n && !memcmp(text->data + text->len - n, end, n);
}

/* Read a text between """ and """, without the marks. */
static enum chat_input_kind quoted_lines(struct chat_input *in, struct buf *text)
{
    enum chat_input_kind kind = INPUT_TEXT;
    while (kind == INPUT_TEXT && !ends_with(text, 3, TRIPLE)) {
        buf_add_char(text, '\n');
        kind = edit_line(in, MORE_PROMPT, text);
    }
    if (kind != INPUT_TEXT)
        return kind;
    size_t begin = 3 + (text->data[3] == '\n'), end = text->len - 3;
    end -= end > begin && text->data[end - 1] == '\n';
    memmove(text->data, text->data + begin, end - begin);
    text->len = end - begin;
    text->data[text->len] = '\0';
    return kind;
}

static size_t n_newline(const struct buf *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++)
        n += text->data[i] == '\n';
    return n;
}

enum chat_input_kind chat_input_read(struct chat_input *in, const char *prompt, struct buf *text)
{
    enum chat_input_kind kind;
    size_t n_more = 0;
    in->is_line = true;
    if (!in->editor)
        return plain_line(in, prompt, text);
    buf_reset(text);
    kind = edit_line(in, prompt, text);
    if (kind == INPUT_TEXT && text->len >= 3 && !memcmp(text->data, TRIPLE, 3)) {
        kind = quoted_lines(in, text);
    } else {
        while (kind == INPUT_TEXT && ends_with(text, 0, "\\")) {
            text->data[text->len - 1] = '\n';
            n_more++;
            kind = edit_line(in, MORE_PROMPT, text);
        }
    }
    in->is_line = n_newline(text) == n_more;
    if (kind == INPUT_END && text->len) /* Ctrl-D inside a message discards this message only */
        kind = INPUT_INTERRUPTED;
    if (kind == INPUT_TEXT && text->len)
        keep(in, text);
    return kind;
}
