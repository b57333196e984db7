/* What the kernels compute with: vectors of LANES floats. Whoever includes them defines LANES. */
#ifndef DAPFL_VECTORS_H
#define DAPFL_VECTORS_H

#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

static inline float total(vec v) {
    float parts[LANES];
    memcpy(parts, &v, sizeof parts);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[half + i];
    return parts[0];
}

/* The gradient of one sample's cross-entropy at its logits, in their place. */
static inline void softmax_less_one_hot(float logits[CLASSES], int64_t label) {
    float top = logits[0], sum = 0;
    for (int c = 1; c < CLASSES; c++) top = fmaxf(top, logits[c]);
    for (int c = 0; c < CLASSES; c++) sum += logits[c] = expf(logits[c] - top);
    for (int c = 0; c < CLASSES; c++) logits[c] = logits[c] / sum - (label == c);
}

#endif
