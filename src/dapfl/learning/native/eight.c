/* Vectors of eight floats: with AVX2 and FMA on x86-64, elsewhere the compiler lowers them to what there is. */
#include "models.h"

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
static int usable(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
static int usable(void) { return 1; }
#endif

#define LANES 8
#define ABREAST 2
#define INWARD 5
#include "cnn.h"
#include "logistic.h"

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif

const kernels dapfl_eight = {LANES, usable, cnn_step, logistic_step, cnn_scores, logistic_scores};
