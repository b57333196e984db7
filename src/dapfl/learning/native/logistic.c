/* One step of SGD, and scoring, for logistic regression, 784 to 10 (dapfl.learning.models.Logistic).
 *
 * The matrices are so narrow that calling a library takes longer than the arithmetic. Vectors run along the pixels.
 */
#include "models.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = PIXELS / LANES, HALF = CLASSES / 2 };

/* Images and weights lie where torch puts them: not always at a multiple of 32 bytes. */
typedef float row __attribute__((vector_size(4 * LANES), aligned(4)));

/* The logits of two images: they share the weights that are read, five classes at a time. */
static void score_two(const LogisticWeights *w, const float *left, const float *right, float out[2][CLASSES]) {
    for (int first = 0; first < CLASSES; first += HALF) {
        vec a[HALF] = {{0}}, b[HALF] = {{0}};
        for (int i = 0; i < STEPS; i++) {
            vec x = ((const row *)left)[i], y = ((const row *)right)[i];
            for (int c = 0; c < HALF; c++) {
                vec weight = ((const row *)(w->weight + (first + c) * PIXELS))[i];
                a[c] += weight * x;
                b[c] += weight * y;
            }
        }
        for (int c = 0; c < HALF; c++) {
            out[0][first + c] = total(a[c]) + w->bias[first + c];
            out[1][first + c] = total(b[c]) + w->bias[first + c];
        }
    }
}

/* The logits of images, a row each. */
void logistic_scores(const LogisticWeights *w, const float *images, int samples, float *out) {
    for (int s = 0; s < samples; s += 2) {
        float two[2][CLASSES];
        int pair = s + 1 < samples; /* a last image without a neighbour is its own */
        score_two(w, images + (size_t)s * PIXELS, images + (size_t)(s + pair) * PIXELS, two);
        memcpy(out + (size_t)s * CLASSES, two, sizeof(float) * CLASSES * (size_t)(1 + pair));
    }
}

/* Moves the weights by -eta times the gradient of the batch's mean cross-entropy; 0, or -1 without memory. */
int logistic_step(const LogisticWeights *w, const float *images, const int64_t *labels, int samples, float eta) {
    float(*move)[CLASSES] = malloc(sizeof(float) * CLASSES * (size_t)samples);
    if (!move) return -1;
    float rate = eta / (float)samples;
    for (int s = 0; s < samples; s += 2) {
        float two[2][CLASSES];
        int pair = s + 1 < samples;
        score_two(w, images + (size_t)s * PIXELS, images + (size_t)(s + pair) * PIXELS, two);
        for (int i = 0; i <= pair; i++) {
            softmax_less_one_hot(two[i], labels[s + i]);
            for (int c = 0; c < CLASSES; c++) move[s + i][c] = rate * two[i][c];
        }
    }
    for (int i = 0; i < STEPS; i++) {
        vec weight[CLASSES];
        for (int c = 0; c < CLASSES; c++) weight[c] = ((const row *)(w->weight + c * PIXELS))[i];
        for (int s = 0; s < samples; s++) {
            vec x = ((const row *)(images + (size_t)s * PIXELS))[i];
            for (int c = 0; c < CLASSES; c++) weight[c] -= move[s][c] * x;
        }
        for (int c = 0; c < CLASSES; c++) ((row *)(w->weight + c * PIXELS))[i] = weight[c];
    }
    for (int s = 0; s < samples; s++)
        for (int c = 0; c < CLASSES; c++) w->bias[c] -= move[s][c];
    free(move);
    return 0;
}
