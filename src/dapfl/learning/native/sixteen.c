/* Vectors of sixteen floats, with AVX-512. */
#include "models.h"

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq")
#endif
static int usable(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }

#define LANES 16
#define ABREAST 5
#define INWARD 10
#include "cnn.h"
#include "logistic.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

const kernels dapfl_sixteen = {LANES, usable, cnn_step, logistic_step, cnn_scores, logistic_scores};
#else
static int usable(void) { return 0; }
const kernels dapfl_sixteen = {0, usable, NULL, NULL, NULL, NULL};
#endif
