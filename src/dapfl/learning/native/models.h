/* What the kernels share: vectors of eight floats, and their interface to module.c.
 *
 * On x86-64 the kernels are compiled for AVX2 and FMA and only called where the CPU has both; elsewhere the
 * compiler lowers the same vectors to what there is.
 */
#ifndef DAPFL_MODELS_H
#define DAPFL_MODELS_H

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__)
#define KERNELS_USABLE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#pragma GCC target("avx2,fma")
#else
#define KERNELS_USABLE 1
#endif

enum { LANES = 8, PIXELS = 28 * 28, CLASSES = 10 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

static inline float total(vec v) {
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

/* The gradient of one sample's cross-entropy at its logits, in their place. */
static inline void softmax_less_one_hot(float logits[CLASSES], int64_t label) {
    float top = logits[0], sum = 0;
    for (int c = 1; c < CLASSES; c++) top = fmaxf(top, logits[c]);
    for (int c = 0; c < CLASSES; c++) sum += logits[c] = expf(logits[c] - top);
    for (int c = 0; c < CLASSES; c++) logits[c] = logits[c] / sum - (label == c);
}

/* The kernels take a model's weights as arrays, in the order of the module's parameters. A step moves them by
 * -eta times the gradient of the mean cross-entropy of some samples, whose row numbers are `rows`; 0, or -1
 * without memory. Scores are the logits of images, a row each. */
typedef float *const *Arrays;
typedef int Step(Arrays weights, const float *images, const int64_t *labels, const int64_t *rows, int count, float eta);
typedef void Scores(Arrays weights, const float *images, int samples, float *out);

Step cnn_step, logistic_step;
Scores cnn_scores, logistic_scores;

#endif
