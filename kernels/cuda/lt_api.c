/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/lt_api.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(__has_include)
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME(LT_OK, CUBLAS_STATUS_SUCCESS);
SAME(LT_F32, CUDA_R_32F);
SAME(LT_F16, CUDA_R_16F);
SAME(LT_BF16, CUDA_R_16BF);
SAME(LT_I8, CUDA_R_8I);
SAME(LT_I32, CUDA_R_32I);
SAME(LT_E4M3, CUDA_R_8F_E4M3);
SAME(LT_COMPUTE_F32, CUBLAS_COMPUTE_32F);
SAME(LT_COMPUTE_I32, CUBLAS_COMPUTE_32I);
SAME(LT_PLAIN, CUBLAS_OP_N);
SAME(LT_TRANSPOSED, CUBLAS_OP_T);
SAME(LT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT);
SAME(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(LT_DESC_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_DESC_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(LT_DESC_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LT_DESC_BIAS_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(LT_DESC_SCALES_A, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(LT_DESC_SCALES_B, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
#if CUBLAS_VERSION >= 120900
SAME(LT_DESC_SCALES_A_IS, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(LT_DESC_SCALES_B_IS, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(LT_SCALES_OUTER, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif
SAME(LT_LAYOUT_COLS, CUBLASLT_MATRIX_LAYOUT_COLS);
SAME(LT_LAYOUT_STEP, CUBLASLT_MATRIX_LAYOUT_LD);
SAME(LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(sizeof(struct lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct lt_found), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct lt_found, workspace_bytes),
     offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(struct lt_found, status), offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif
#endif

static struct lt_api api;

static const struct {
    const char *name;
    void *to; /* the pointer in `api` */
} functions[] = {
    {"cublasLtGetVersion", &api.version},
    {"cublasLtCreate", &api.create},
    {"cublasLtDestroy", &api.destroy},
    {"cublasLtMatmulDescCreate", &api.desc_create},
    {"cublasLtMatmulDescSetAttribute", &api.desc_set},
    {"cublasLtMatmulDescDestroy", &api.desc_destroy},
    {"cublasLtMatrixLayoutCreate", &api.layout_create},
    {"cublasLtMatrixLayoutSetAttribute", &api.layout_set},
    {"cublasLtMatrixLayoutDestroy", &api.layout_destroy},
    {"cublasLtMatmulPreferenceCreate", &api.pref_create},
    {"cublasLtMatmulPreferenceSetAttribute", &api.pref_set},
    {"cublasLtMatmulPreferenceDestroy", &api.pref_destroy},
    {"cublasLtMatmulAlgoGetHeuristic", &api.heuristic},
    {"cublasLtMatmul", &api.matmul},
};

/* The loader's search path (the toolkit's packages, LD_LIBRARY_PATH), then the folders of the
 * toolkit's installer. 13 is the version of the linked runtime; 12 works too. */
static const char *const places[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                     "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13",
                                     "libcublasLt.so.12",
                                     "/usr/local/cuda/lib64/libcublasLt.so.12"};

const struct lt_api *lt_api_open(char why[LT_WHY_MAX])
{
    void *library = NULL;
    *why = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++) {
        library = dlopen(places[i], RTLD_LAZY | RTLD_LOCAL);
        const char *text = library ? NULL : dlerror();
        if (i == 0 && text)
            snprintf(why, LT_WHY_MAX, "%s", text);
    }
    for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol) {
            snprintf(why, LT_WHY_MAX, "libcublasLt lacks the function %s", functions[i].name);
            return NULL;
        }
        memcpy(functions[i].to, &symbol, sizeof symbol);
    }
    return library ? &api : NULL;
}
