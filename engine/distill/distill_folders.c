/* SPDX-License-Identifier: Apache-2.0 */
/* What teacher, student and the options say of each other, from config.json and the tokenizers:
 * before a rank starts, so that a mistake is one message and not one of each rank. */
#include <string.h>
#include "common/buf.h"
#include "common/file.h"
#include "common/hub/hub.h"
#include "common/mem.h"
#include "common/tokenizer/tokenizer.h"
#include "engine/distill/data_file.h"
#include "engine/distill/distill_options.h"
#include "engine/distill/student.h"
#include "engine/distill/teacher.h"
#include "engine/model/arch.h"
#include "engine/model/model.h"

#define SEQ_LENGTH_DEFAULT 4096u /* the most that --seq-length 0 gives */
#define PADDING_MAX        1024u /* by which vocabularies that are the same differ at most */

/* ---- layers and stages ---- */

struct division { /* of one model */
    const char *name, *sizes;
    const struct model_config *config;
    uint32_t n_stage;
    const char *tensor_flag; /* NULL: heads are not divided */
    uint32_t n_tensor;
};

static FALLIBLE check_division(const struct division *d, struct q_err *e)
{
    const struct model_config *c = d->config;
    if (d->n_stage > c->n_layer)
        return q_fail(e, Q_INVALID,
                      "%s make%s %u stages, but the %s has %u layers; expected at "
                      "most %u stages",
                      d->sizes, strstr(d->sizes, " and ") ? "" : "s", d->n_stage, d->name,
                      c->n_layer, c->n_layer);
    if (d->tensor_flag && c->n_head % d->n_tensor)
        return q_fail(e, Q_INVALID,
                      "%s is %u, but the %s has %u attention heads; expected a "
                      "divisor of %u",
                      d->tensor_flag, d->n_tensor, d->name, c->n_head, c->n_head);
    return Q_OK;
}

static FALLIBLE check_divisions(const struct distill_options *o, const struct model_config *student,
                                const struct model_config *teacher, struct q_err *e)
{
    const struct topology_sizes s = trainer_sizes(o);
    const struct division divisions[] = {
        {
            .name = "student",
            .sizes = "--pipeline-parallel-size and --virtual-pipeline-size",
            .config = student,
            .n_stage = s.n_student_pipeline * s.n_virtual,
            .tensor_flag = "--tensor-parallel-size",
            .n_tensor = s.n_student_tensor,
        },
        {
            .name = "teacher",
            .sizes = "--teacher-pipeline-parallel-size",
            .config = teacher,
            .n_stage = s.n_teacher_pipeline * s.n_teacher_virtual,
        },
    };
    enum q_code rc = check_division(&divisions[0], e);
    return rc || !o->teacher ? rc : check_division(&divisions[1], e);
}

/* ---- vocabularies and tokenizers ---- */

static FALLIBLE check_vocabularies(const struct model_config *student,
                                   const struct model_config *teacher, struct q_err *e)
{
    const uint32_t a = teacher->vocab_size, b = student->vocab_size;
    if ((a > b ? a - b : b - a) <= PADDING_MAX)
        return Q_OK;
    return q_fail(e, Q_MISMATCH,
                  "the vocabularies have %u tokens (teacher) and %u (student), which differ by "
                  "more than padding (%u); expected models of one tokenizer, or "
                  "--allow-different-tokenizers",
                  a, b, PADDING_MAX);
}

/* Are the files equal, byte for byte? False also where one cannot be read. */
static bool is_same_file(const char *dir_a, const char *dir_b, const char *name)
{
    char a[PATH_MAX], b[PATH_MAX];
    struct mapping x = MAPPING_INIT, y = MAPPING_INIT;
    struct q_err e = Q_ERR_INIT;
    bool same = !path_join(a, sizeof a, dir_a, name, &e) &&
                !path_join(b, sizeof b, dir_b, name, &e) && !mapping_open(&x, a, &e) &&
                !mapping_open(&y, b, &e) && x.size == y.size &&
                (x.size == 0 || memcmp(x.data, y.data, x.size) == 0);
    mapping_release(&x);
    mapping_release(&y);
    return same;
}

static FALLIBLE compare_tokens(const struct tokenizer *teacher, const struct tokenizer *student,
                               struct q_err *e)
{
    const uint32_t a = tokenizer_vocab_size(teacher), b = tokenizer_vocab_size(student);
    const uint32_t n = a < b ? a : b;
    for (uint32_t i = 0; i < n; i++) {
        size_t n_x = 0, n_y = 0;
        const char *x = tokenizer_token_text(teacher, i, &n_x);
        const char *y = tokenizer_token_text(student, i, &n_y);
        if (x && y && (n_x != n_y || memcmp(x, y, n_x) != 0))
            return q_fail(e, Q_MISMATCH,
                          "the tokenizers differ: token %u is \"%.60s\" in the teacher and "
                          "\"%.60s\" in the student; expected models of one tokenizer, or "
                          "--allow-different-tokenizers",
                          i, x, y);
    }
    return Q_OK;
}

/* Folders without a tokenizer are fine: their data are token ids. */
static FALLIBLE check_tokenizers(const char *teacher_dir, const char *student_dir, struct q_err *e)
{
    struct tokenizer *teacher = NULL, *student = NULL;
    struct q_err none = Q_ERR_INIT;
    enum q_code rc = Q_OK;
    if (tokenizer_check(teacher_dir, &none) || tokenizer_check(student_dir, &none) ||
        is_same_file(teacher_dir, student_dir, "tokenizer.json"))
        return Q_OK;
    if (!(rc = tokenizer_open(&teacher, teacher_dir, e)) &&
        !(rc = tokenizer_open(&student, student_dir, e)))
        rc = compare_tokens(teacher, student, e);
    tokenizer_free(teacher);
    tokenizer_free(student);
    return rc;
}

/* ---- all ---- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct side { /* teacher or student */
    const char *name;
    const struct model_config *config;
    struct model_lengths lengths;
};

static FALLIBLE find_lengths(struct side *s, struct q_err *e)
{
    const struct arch *arch;
    const enum q_code rc = arch_find(&arch, s->config->architecture, e);
    if (!rc)
        s->lengths = model_lengths(arch, s->config);
    return rc;
}

static FALLIBLE check_length(const struct distill_options *o, const struct side *s, struct q_err *e)
{
    if (o->data.seq_len <= s->lengths.max)
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "--seq-length is %u, more than the %u positions of the %s "
                  "(max_position_embeddings %u and its rope scaling)",
                  o->data.seq_len, s->lengths.max, s->name, s->config->max_position);
}

/* data.seq_len, data.vocab_size: what both models have. */
static FALLIBLE set_data(struct distill_options *o, const struct model_config *student,
                         const struct model_config *teacher, struct q_err *e)
{
    struct side sides[] = {
        {.name = "student", .config = student},
        {.name = "teacher", .config = teacher},
    };
    uint32_t usual = SEQ_LENGTH_DEFAULT;
    for (size_t i = 0; i < (o->teacher ? 2 : 1); i++) {
        enum q_code rc;
        if ((rc = find_lengths(&sides[i], e)) || (rc = check_length(o, &sides[i], e)))
            return rc;
        usual = smaller(usual, sides[i].lengths.usual);
    }
    if (!o->data.seq_len)
        o->data.seq_len = usual;
    o->data.vocab_size =
        o->teacher ? smaller(student->vocab_size, teacher->vocab_size) : student->vocab_size;
    o->data.tokenizer_dir = o->student;
    return Q_OK;
}

static void set_dtypes(struct distill_options *o, const struct model_config *student)
{
    if (o->save_dtype_auto)
        o->save_dtype = student->dtype;
    if (o->compute_auto)
        o->compute = student->dtype == DT_BF16 ? DT_BF16 : DT_F32;
    if (o->teacher_dtype_auto)
        o->teacher_dtype = o->compute;
    o->compute_auto = o->teacher_dtype_auto = false;
}

/* What the folders cannot do, before ranks start. */
static FALLIBLE check_teacher(const struct distill_options *o, const struct model_config *c,
                              struct q_err *e)
{
    const struct topology_sizes sizes = trainer_sizes(o);
    const struct teacher_options teacher = {
        .dir = o->teacher,
        .kern = o->kern,
        .dtype = o->teacher_dtype,
        .quantization = o->teacher_quantization,
        .layers = {0, sizes.n_teacher_pipeline > 1 ? c->n_layer - 1 : 0, true, false},
        .tensor_parallel = {.size = sizes.n_teacher_tensor},
    };
    return o->teacher && teacher_check(&teacher, e) ? q_wrap(e, "--teacher") : Q_OK;
}

/* A plugin's forward pass shows no hidden states and no attention. */
static FALLIBLE check_built_in(const char *flag, const struct model_config *teacher,
                               struct q_err *e)
{
    const struct arch *arch;
    const enum q_code rc = arch_find(&arch, teacher->architecture, e);
    if (rc || !arch->plugin)
        return rc;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: the teacher's architecture %s is a plugin's, expected one that is built in",
                  flag, teacher->architecture);
}

static FALLIBLE check_hidden(const struct distill_options *o, const struct model_config *teacher,
                             struct q_err *e)
{
    return o->loss.hidden.kind == HIDDEN_NONE ? Q_OK : check_built_in("--hidden-loss", teacher, e);
}

/* Sets the shapes of the last layers. */
static FALLIBLE check_attention(struct distill_options *o, const struct model_config *student,
                                const struct model_config *teacher, struct q_err *e)
{
    struct attention_options *a = &o->loss.attention;
    const uint32_t n_tensor = trainer_sizes(o).n_student_tensor;
    enum q_code rc;
    if (!attention_is_asked(a))
        return Q_OK;
    if ((rc = check_built_in("--attention-loss", teacher, e)))
        return rc;
    if (n_tensor > 1)
        return q_fail(e, Q_UNSUPPORTED,
                      "--attention-loss is not supported with --tensor-parallel-size %u; expected "
                      "1, and --teacher-tensor-parallel-size where the teacher is large",
                      n_tensor);
    if (attention_shape_of(&a->teacher, teacher, e))
        return q_wrap(e, "--attention-loss: --teacher");
    if (attention_shape_of(&a->student, student, e))
        return q_wrap(e, "--attention-loss: --student");
    return attention_loss_check(a, e) ? q_wrap(e, "--attention-loss") : Q_OK;
}

static FALLIBLE check_student(const struct distill_options *o, const struct model_config *c,
                              struct q_err *e)
{
    const struct stage_layers all = {0, c->n_layer, true, true};
    const struct student_options student = {
        .dir = o->student,
        .kern = o->kern,
        .compute = o->compute,
        .stages = &all,
        .n_stage = 1,
        .n_slot = 1,
        .n_row_max = 1,
        .recompute = o->recompute,
        .tensor_parallel = {.size = trainer_sizes(o).n_student_tensor},
    };
    return student_check(&student, e) ? q_wrap(e, "--student") : Q_OK;
}

struct configs { /* large */
    struct model_config student, teacher;
};

static FALLIBLE check_configs(struct distill_options *o, struct configs *c, bool allow_different,
                              struct q_err *e)
{
    enum q_code rc;
    if ((rc = model_config_load(&c->student, NULL, o->student, e)) ||
        (o->teacher && (rc = model_config_load(&c->teacher, NULL, o->teacher, e))))
        return rc;
    if (c->student.quant.method != QUANT_NONE)
        return q_fail(e, Q_UNSUPPORTED,
                      "--student %s is quantized (%s); expected a checkpoint of float32, bfloat16 "
                      "or float16 weights",
                      o->student, quant_config_name(&c->student.quant));
    o->teacher_layers = o->teacher ? c->teacher.n_layer : 0;
    if ((rc = check_divisions(o, &c->student, &c->teacher, e)) ||
        (rc = set_data(o, &c->student, &c->teacher, e)))
        return rc;
    set_dtypes(o, &c->student);
    o->student_hidden = c->student.hidden_size;
    o->student_tied = c->student.tie_word_embeddings;
    o->teacher_hidden = c->teacher.hidden_size;
    o->teacher_vocab = c->teacher.vocab_size;
    o->loss.hidden.n_teacher = c->teacher.hidden_size;
    if (o->teacher && !allow_different &&
        ((rc = check_tokenizers(o->teacher, o->student, e)) ||
         (rc = check_vocabularies(&c->student, &c->teacher, e))))
        return rc;
    if ((rc = check_hidden(o, &c->teacher, e)) || (rc = check_student(o, &c->student, e)) ||
        (rc = check_attention(o, &c->student, &c->teacher, e)))
        return rc;
    return check_teacher(o, &c->teacher, e);
}

/* --output with the folders above it. */
static FALLIBLE make_output(const char *path, struct q_err *e)
{
    struct q_err cause = Q_ERR_INIT;
    const enum q_code rc = dirs_make(path, &cause);
    if (rc)
        return q_fail(e, rc, "--output: %s", cause.message);
    if (!dir_exists(path))
        return q_fail(e, Q_INVALID, "--output %s is a file, expected a folder", path);
    return checkpoint_check_output(path, e); /* before the data's cache lies in a model's folder */
}

FALLIBLE distill_options_folders(struct distill_options *o, struct distill_texts *texts,
                                 bool allow_different, struct q_err *e)
{
    enum q_code rc;
    if (hub_resolve(texts->student, o->student, NULL, e))
        return q_wrap(e, "--student");
    if (o->teacher && hub_resolve(texts->teacher, o->teacher, NULL, e))
        return q_wrap(e, "--teacher");
    o->student = texts->student;
    o->teacher = o->teacher ? texts->teacher : NULL;
    if ((rc = plugins_open(&texts->plugins, o->student, e)) ||
        (o->teacher && (rc = plugins_open(&texts->plugins, o->teacher, e))))
        return rc;
    for (uint32_t i = 0; i < o->data.n_path; i++)
        if ((rc = data_file_check("--data", o->data.paths[i], e)))
            return rc;
    if (o->eval_path && (rc = data_file_check("--eval-data", o->eval_path, e)))
        return rc;
    struct configs *c = q_calloc(1, sizeof *c);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "no memory for the models' configs");
    rc = check_configs(o, c, allow_different, e);
    q_free(c);
    return rc ? rc : make_output(o->output, e);
}
