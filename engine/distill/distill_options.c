/* SPDX-License-Identifier: Apache-2.0 */
/* Words and combinations of options. What the models say: distill_folders.c. */
#include "engine/distill/distill_options.h"
#include <stdlib.h>
#include <string.h>
#include "common/file.h"
#include "common/parse.h"

#define BETA_DEFAULT 0.5   /* of options.def: scripts may give it with any loss */
#define RANKS_MAX    4096u /* of MPI; on one machine: TRANSPORT_RANKS_MAX */

/* ---- words ---- */

struct word {
    const char *text;
    int value;
};

/* One of the words; `flag` is for the error. */
static FALLIBLE word_of(int *out, const char *flag, const char *text, const struct word *words,
                        struct q_err *e)
{
    char accepted[200] = "";
    size_t n = 0;
    for (const struct word *w = words; w->text; w++) {
        if (strcmp(w->text, text) == 0) {
            *out = w->value;
            return Q_OK;
        }
        n += (size_t)snprintf(accepted + n, sizeof accepted - n, "%s%s",
                              w == words  ? ""
                              : w[1].text ? ", "
                                          : " or ",
                              w->text);
    }
    return q_fail(e, Q_INVALID, "%s is \"%.60s\", expected %s", flag, text, accepted);
}

#define DTYPE_AUTO DT_COUNT
static const struct word student_dtypes[] = {
    {"auto", DTYPE_AUTO},
    {"float32", DT_F32},
    {"bfloat16", DT_BF16},
    {NULL, 0},
};
static const struct word any_dtypes[] = {
    {"auto", DTYPE_AUTO}, {"float32", DT_F32}, {"bfloat16", DT_BF16},
    {"float16", DT_F16},  {NULL, 0},
};
static const struct word quantizations[] = {
    {"none", QUANTIZE_NOT},
    {"int8", QUANTIZE_INT8},
    {"int4", QUANTIZE_INT4},
    {NULL, 0},
};
static const struct word kinds[] = {
    {"fkl", DISTILL_FKL},
    {"rkl", DISTILL_RKL},
    {"jsd", DISTILL_JSD},
    {NULL, 0},
};
static const struct word hidden_kinds[] = {
    {"none", HIDDEN_NONE},
    {"cosine", HIDDEN_COSINE},
    {"mse", HIDDEN_MSE},
    {NULL, 0},
};
enum { ATTENTION_NONE, ATTENTION_MINILM };
static const struct word attention_kinds[] = {
    {"none", ATTENTION_NONE},
    {"minilm", ATTENTION_MINILM},
    {NULL, 0},
};
static const struct word top_k_kinds[] = {{"full", 0}, {"renorm", 1}, {NULL, 0}};

/* ---- parts ---- */

static FALLIBLE read_device(const struct options *o, struct q_err *e)
{
    if (strcmp(o->device, "auto") == 0 || strcmp(o->device, "cpu") == 0)
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "--device is %s: training on GPUs is not supported; expected auto or cpu",
                  o->device);
}

/* Is the teacher a folder of log-probabilities? Then --loss has its top k alone. */
static bool has_logprobs(const struct options *o)
{
    return *o->teacher_file || *o->teach_url;
}

static FALLIBLE need_model(const char *flag, const char *value, const struct options *o,
                           struct q_err *e)
{
    if (*o->teacher)
        return Q_OK;
    return q_fail(e, Q_INVALID, "%s is %s without --teacher; %s", flag, value,
                  has_logprobs(o)
                      ? "--teacher-file and --teacher-url give log-probabilities, nothing else"
                      : "expected a model folder or id");
}

static FALLIBLE read_hidden(struct hidden_options *h, const struct options *o, struct q_err *e)
{
    int kind = 0;
    const enum q_code rc = word_of(&kind, "--hidden-loss", o->hidden_loss, hidden_kinds, e);
    if (rc)
        return rc;
    *h = (struct hidden_options){.kind = (enum hidden_kind)kind};
    if (h->kind != HIDDEN_NONE)
        h->weight = o->hidden_weight;
    else if (options_given(o, "--hidden-weight"))
        return q_fail(e, Q_INVALID, "--hidden-weight is %g without --hidden-loss",
                      o->hidden_weight);
    return h->kind == HIDDEN_NONE ? Q_OK : need_model("--hidden-loss", o->hidden_loss, o, e);
}

static FALLIBLE read_attention(struct attention_options *a, const struct options *o,
                               struct q_err *e)
{
    static const char *const weights[] = {"--attention-weight", "--value-weight"};
    int kind = 0;
    const enum q_code rc =
        word_of(&kind, "--attention-loss", o->attention_loss, attention_kinds, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (kind == ATTENTION_NONE && options_given(o, weights[i]))
            return q_fail(e, Q_INVALID, "%s is given without --attention-loss", weights[i]);
    if (kind == ATTENTION_NONE)
        return Q_OK;
    if (o->attention_weight == 0 && o->value_weight == 0)
        return q_fail(e, Q_INVALID,
                      "--attention-loss is %s, but --attention-weight and --value-weight are 0; "
                      "expected one above 0",
                      o->attention_loss);
    a->weight = o->attention_weight;
    a->value_weight = o->value_weight;
    return need_model("--attention-loss", o->attention_loss, o, e);
}

static FALLIBLE read_loss(struct loss_options *l, const struct options *o, struct q_err *e)
{
    int kind = 0, renorm = 0;
    char number[16];
    enum q_code rc;
    if ((rc = word_of(&kind, "--loss", o->distill_loss, kinds, e)) ||
        (rc = word_of(&renorm, "--top-k-student", o->top_k_student, top_k_kinds, e)))
        return rc;
    *l = (struct loss_options){
        .kind = (enum distill_kind)kind,
        .temperature = (float)o->distill_temperature,
        .beta = (float)o->distill_beta,
        .t2 = o->distill_t2,
        .kd_weight = o->kd_weight,
        .ce_weight = o->ce_weight,
        .top_k = (uint32_t)o->distill_top_k,
        .renorm = renorm,
    };
    snprintf(number, sizeof number, "%u", l->top_k);
    if (o->distill_beta != BETA_DEFAULT && l->kind != DISTILL_JSD)
        return q_fail(e, Q_INVALID, "--beta is %g and --loss is %s; only --loss jsd has a beta",
                      o->distill_beta, o->distill_loss);
    if (l->beta <= 0 || l->beta >= 1)
        return q_fail(e, Q_INVALID,
                      "--beta is %g, expected a number above 0 and below 1; "
                      "--loss fkl and rkl are the limits",
                      o->distill_beta);
    if (l->renorm && !l->top_k && !has_logprobs(o))
        return q_fail(e, Q_INVALID, "--top-k-student is %s without --top-k", o->top_k_student);
    const bool has_top = l->top_k || has_logprobs(o);
    if (has_top && !l->renorm && l->kind != DISTILL_FKL)
        return q_fail(e, Q_INVALID,
                      "%s is %s with --loss %s and --top-k-student full, which needs the teacher's "
                      "probabilities beyond the K tokens; expected --top-k-student renorm, or "
                      "--loss fkl",
                      l->top_k           ? "--top-k"
                      : *o->teacher_file ? "--teacher-file"
                                         : "--teacher-url",
                      l->top_k           ? number
                      : *o->teacher_file ? o->teacher_file
                                         : o->teach_url,
                      o->distill_loss);
    if ((rc = read_hidden(&l->hidden, o, e)) || (rc = read_attention(&l->attention, o, e)))
        return rc;
    const double sum = l->kd_weight + l->ce_weight + l->hidden.weight + l->attention.weight +
                       l->attention.value_weight;
    return sum > 0 ? Q_OK
                   : q_fail(e, Q_INVALID,
                            "--kd-weight, --ce-weight and --hidden-weight are 0; expected one "
                            "above 0, or --attention-loss");
}

static FALLIBLE read_optimizer(struct optimizer_options *p, const struct options *o,
                               struct q_err *e)
{
    const struct {
        const char *flag;
        double value;
    } decays[] = {{"--adam-beta1", o->adam_beta1}, {"--adam-beta2", o->adam_beta2}};
    *p = (struct optimizer_options){
        .lr = o->learning_rate,
        .min_lr = o->min_lr,
        .beta1 = o->adam_beta1,
        .beta2 = o->adam_beta2,
        .eps = o->adam_eps,
        .weight_decay = o->weight_decay,
        .max_grad_norm = o->max_grad_norm,
        .warmup_steps = (uint64_t)o->warmup_steps,
        .n_step = (uint64_t)o->distill_steps,
    };
    if (!p->n_step)
        return q_fail(e, Q_INVALID, "--steps is missing; expected the number of optimizer steps");
    if (p->warmup_steps > p->n_step)
        return q_fail(e, Q_INVALID, "--warmup-steps is %llu, more than the %llu of --steps",
                      (unsigned long long)p->warmup_steps, (unsigned long long)p->n_step);
    if (p->min_lr > p->lr)
        return q_fail(e, Q_INVALID, "--min-lr is %g, more than the %g of --lr", p->min_lr, p->lr);
    for (size_t i = 0; i < sizeof decays / sizeof *decays; i++)
        if (decays[i].value >= 1)
            return q_fail(e, Q_INVALID, "%s is %g, expected a number from 0 to below 1",
                          decays[i].flag, decays[i].value);
    return p->eps > 0 ? Q_OK : q_fail(e, Q_INVALID, "--adam-eps is 0, expected a number above 0");
}

static FALLIBLE read_parallel(struct distill_options *d, const struct options *o, struct q_err *e)
{
    d->pipeline = (uint32_t)o->pipeline_parallel_size;
    d->tensor = (uint32_t)o->tensor_parallel_size;
    d->data_parallel = (uint32_t)o->data_parallel_size;
    d->virtual_stages = (uint32_t)o->virtual_pipeline_size;
    d->teacher_pipeline = (uint32_t)o->teacher_pipeline_parallel_size;
    d->teacher_tensor = (uint32_t)o->teacher_tensor_parallel_size;
    d->recompute = o->recompute;
    if (!*o->teacher && (d->teacher_pipeline || d->teacher_tensor))
        return q_fail(e, Q_INVALID, "%s is %u, but there is no --teacher to divide",
                      d->teacher_pipeline ? "--teacher-pipeline-parallel-size"
                                          : "--teacher-tensor-parallel-size",
                      d->teacher_pipeline ? d->teacher_pipeline : d->teacher_tensor);
    if (d->virtual_stages > 1 && d->pipeline == 1)
        return q_fail(e, Q_INVALID,
                      "--virtual-pipeline-size is %u with one pipeline rank; expected 1, or "
                      "--pipeline-parallel-size of 2 or more",
                      d->virtual_stages);
    const struct topology_sizes sizes = trainer_sizes(d);
    if (topology_n_rank(&sizes) <= RANKS_MAX)
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "the sizes of --pipeline-parallel-size, --tensor-parallel-size and "
                  "--data-parallel-size make %u ranks, expected at most %u",
                  topology_n_rank(&sizes), RANKS_MAX);
}

static FALLIBLE read_batch(struct distill_options *d, const struct options *o, struct q_err *e)
{
    const uint64_t micro = (uint64_t)o->micro_batch_size, unit = micro * d->data_parallel;
    const uint64_t global = o->global_batch_size ? (uint64_t)o->global_batch_size : unit;
    if (global % unit)
        return q_fail(e, Q_INVALID,
                      "--global-batch-size is %llu, expected a multiple of %llu "
                      "(--micro-batch-size %llu times --data-parallel-size %u)",
                      (unsigned long long)global, (unsigned long long)unit,
                      (unsigned long long)micro, d->data_parallel);
    d->data.global_batch = (uint32_t)global;
    d->data.micro_batch = (uint32_t)micro;
    return Q_OK;
}

/* One teacher, or none. */
static FALLIBLE read_teacher(struct distill_options *d, struct distill_texts *texts,
                             const struct options *o, struct q_err *e)
{
    const struct {
        const char *flag, *value;
    } all[] = {
        {"--teacher", o->teacher},
        {"--teacher-file", o->teacher_file},
        {"--teacher-url", o->teach_url},
    };
    const char *given = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (*all[i].value && given)
            return q_fail(e, Q_INVALID, "%s and %s are both given; expected one", given,
                          all[i].flag);
        given = *all[i].value ? all[i].flag : given;
    }
    if (!given && o->kd_weight > 0)
        return q_fail(e, Q_INVALID,
                      "--teacher is missing; expected a model folder or id, "
                      "--teacher-file, --teacher-url, or --kd-weight 0 with --ce-weight");
    for (size_t i = 0; !*o->teacher && i < 2; i++) {
        const char *flag = i ? "--teacher-quantization" : "--teacher-dtype";
        if (options_given(o, flag))
            return q_fail(e, Q_INVALID, "%s is given without --teacher", flag);
    }
    d->teacher = *o->teacher ? o->teacher : NULL;
    d->teacher_file = *o->teacher_file ? o->teacher_file : NULL;
    d->teacher_url = *o->teach_url ? o->teach_url : NULL;
    if (!d->teacher_url)
        return Q_OK;
    d->teacher_file = texts->taught;
    return path_join(texts->taught, sizeof texts->taught, o->distill_output, "teacher-logprobs", e);
}

static FALLIBLE read_sources(struct distill_options *d, struct distill_texts *texts,
                             const struct options *o, struct q_err *e)
{
    enum q_code rc;
    const struct {
        const char *flag, *value, *use;
    } required[] = {
        {"--student", o->student, "the model that is trained"},
        {"--output", o->distill_output, "a folder for the results"},
        {"--data", o->train_data.n ? o->train_data.items[0] : "", "a JSONL file"},
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!*required[i].value)
            return q_fail(e, Q_INVALID, "%s is missing; expected %s", required[i].flag,
                          required[i].use);
    if ((rc = read_teacher(d, texts, o, e)))
        return rc;
    d->student = o->student;
    d->output = o->distill_output;
    d->eval_path = *o->eval_data ? o->eval_data : NULL;
    d->eval_steps = (uint64_t)o->eval_steps;
    return d->eval_steps && !d->eval_path
               ? q_fail(e, Q_INVALID, "--eval-steps is %llu without --eval-data",
                        (unsigned long long)d->eval_steps)
               : Q_OK;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* "1,2,10" into texts->save_steps, ascending, each once. */
static FALLIBLE read_save_steps(struct distill_options *d, struct distill_texts *texts,
                                const char *text, struct q_err *e)
{
    uint64_t *steps = texts->save_steps;
    uint32_t n = 0, n_different = 0;
    for (const char *at = text; *at;) {
        char one[24] = "";
        const size_t length = strcspn(at, ",");
        int64_t step = 0;
        if (n == DISTILL_SAVE_STEPS_MAX)
            return q_fail(e, Q_INVALID,
                          "--save-steps has more than %u steps; --save-every has no "
                          "such limit",
                          DISTILL_SAVE_STEPS_MAX);
        snprintf(one, sizeof one, "%.*s", (int)length, at);
        enum q_code rc = parse_i64(&step, one, 1, (int64_t)d->optimizer.n_step, "--save-steps", e);
        if (rc)
            return rc;
        steps[n++] = (uint64_t)step;
        at += length + (at[length] == ',');
    }
    qsort(steps, n, sizeof *steps, by_value);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || steps[i] != steps[i - 1])
            steps[n_different++] = steps[i];
    d->save_steps = steps;
    d->n_save_step = n_different;
    return Q_OK;
}

static FALLIBLE read_checkpoints(struct distill_options *d, struct distill_texts *texts,
                                 const struct options *o, struct q_err *e)
{
    d->save_every = (uint64_t)o->save_every;
    d->state_every = (uint64_t)o->state_every;
    d->save_gradients = (uint64_t)o->save_gradients;
    d->keep_last = (uint32_t)o->keep_last;
    d->resume = o->resume;
    d->max_bad_steps = (uint32_t)o->max_bad_steps;
    d->spike_factor = o->spike_factor;
    if (d->save_gradients > d->optimizer.n_step)
        return q_fail(e, Q_INVALID,
                      "--save-gradients is %llu, expected a step up to the %llu of "
                      "--steps",
                      (unsigned long long)d->save_gradients,
                      (unsigned long long)d->optimizer.n_step);
    if (d->spike_factor > 0 && d->spike_factor <= 1)
        return q_fail(e, Q_INVALID, "--spike-factor is %g, expected a number above 1, or 0",
                      d->spike_factor);
    return read_save_steps(d, texts, o->save_steps, e);
}

static FALLIBLE read_dtypes(struct distill_options *d, struct distill_texts *texts,
                            const struct options *o, struct q_err *e)
{
    int student = 0, teacher = 0, save = 0, quantization = QUANTIZE_NOT;
    uint32_t caps = 0;
    enum q_code rc;
    if ((rc = word_of(&student, "--dtype", o->dtype, student_dtypes, e)) ||
        (rc = word_of(&teacher, "--teacher-dtype", o->teacher_dtype, any_dtypes, e)) ||
        (rc = word_of(&save, "--save-dtype", o->save_dtype, any_dtypes, e)) ||
        (*o->teacher_quantization && (rc = word_of(&quantization, "--teacher-quantization",
                                                   o->teacher_quantization, quantizations, e))) ||
        (rc = kern_caps_parse(&caps, o->cpu_isa, e)) ||
        (rc = plugins_config_set(&texts->plugins, o->plugin.items, o->plugin.n, o->plugin_path, e)))
        return rc;
    kern_table_cpu(&texts->kern, caps);
    d->kern = &texts->kern;
    d->compute_auto = student == DTYPE_AUTO;
    d->compute = d->compute_auto ? DT_F32 : (enum dtype)student;
    d->teacher_dtype_auto = teacher == DTYPE_AUTO;
    d->teacher_dtype = d->teacher_dtype_auto ? d->compute : (enum dtype)teacher;
    d->save_dtype_auto = save == DTYPE_AUTO;
    d->save_dtype = d->save_dtype_auto ? DT_F32 : (enum dtype)save;
    d->teacher_quantization = (enum quantization)quantization;
    return Q_OK;
}

static FALLIBLE read_data(struct distill_options *d, struct distill_texts *texts,
                          const struct options *o, struct q_err *e)
{
    d->data.paths = o->train_data.items;
    d->data.n_path = o->train_data.n;
    d->data.cache_dir = *o->data_cache ? o->data_cache : texts->cache;
    d->data.seq_len = (uint32_t)o->seq_length;
    d->data.packing = o->packing;
    d->data.shuffle = o->shuffle;
    d->data.seed = (uint64_t)o->distill_seed;
    return path_join(texts->cache, sizeof texts->cache, o->distill_output, "data-cache", e);
}

static void read_report(struct distill_options *d, const struct options *o)
{
    d->metrics_path = *o->metrics_file ? o->metrics_file : NULL;
    d->tensorboard_dir = *o->tensorboard ? o->tensorboard : NULL;
    d->metrics_port = (uint32_t)o->metrics_port;
    d->json = o->json;
    d->quiet = o->quiet;
    d->n_thread = (uint32_t)o->threads;
}

FALLIBLE distill_options_parse(struct distill_options *out, struct distill_texts *texts,
                               const struct options *o, struct q_err *e)
{
    enum q_code rc;
    *out = (struct distill_options){.student = NULL};
    if ((rc = read_device(o, e)) || (rc = read_sources(out, texts, o, e)) ||
        (rc = read_loss(&out->loss, o, e)) || (rc = read_optimizer(&out->optimizer, o, e)) ||
        (rc = read_parallel(out, o, e)) || (rc = read_batch(out, o, e)) ||
        (rc = read_checkpoints(out, texts, o, e)) || (rc = read_dtypes(out, texts, o, e)) ||
        (rc = read_data(out, texts, o, e)))
        return rc;
    read_report(out, o);
    return Q_OK;
}
