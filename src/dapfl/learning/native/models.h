/* The kernels' interface to module.c. */
#ifndef DAPFL_MODELS_H
#define DAPFL_MODELS_H

#include <stdint.h>

enum { PIXELS = 28 * 28, CLASSES = 10 };

/* The kernels take a model's weights as arrays, in the order of the module's parameters. A step moves them by
 * -eta times the gradient of the mean cross-entropy of some samples, whose row numbers are `rows`; 0, or -1
 * without memory. Scores are the logits of images, a row each. */
typedef float *const *Arrays;
typedef int Step(Arrays weights, const float *images, const int64_t *labels, const int64_t *rows, int count, float eta);
typedef void Scores(Arrays weights, const float *images, int samples, float *out);

typedef struct {
    int lanes;            /* of a vector; 0 if these kernels are not for this kind of machine */
    int (*usable)(void);  /* on this CPU */
    Step *cnn_step, *logistic_step;
    Scores *cnn_scores, *logistic_scores;
} kernels;

extern const kernels dapfl_sixteen, dapfl_eight;

#endif
