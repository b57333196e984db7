/* One step of SGD, and scoring, for logistic regression, 784 to 10 (dapfl.learning.models.Logistic).
 *
 * The matrices are so narrow that calling a library takes longer than the arithmetic. Vectors run along the pixels.
 */
#include "vectors.h"

typedef struct {
    float *weight, *bias;  /* [10][784], [10] */
} Plane;

enum { STEPS = PIXELS / LANES, HALF = CLASSES / 2 };

/* Images and weights lie where torch puts them: not always at a multiple of a vector. */
typedef float row __attribute__((vector_size(4 * LANES), aligned(4)));

/* The logits of two images: they share the weights that are read, five classes at a time. */
static void score_two(const Plane *w, const float *left, const float *right, float out[2][CLASSES]) {
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

static void logistic_scores(Arrays weights, const float *images, int samples, float *out) {
    const Plane w = {weights[0], weights[1]};
    for (int s = 0; s < samples; s += 2) {
        float two[2][CLASSES];
        int pair = s + 1 < samples; /* a last image without a neighbour is its own */
        score_two(&w, images + (size_t)s * PIXELS, images + (size_t)(s + pair) * PIXELS, two);
        memcpy(out + (size_t)s * CLASSES, two, sizeof(float) * CLASSES * (size_t)(1 + pair));
    }
}

static int logistic_step(Arrays weights, const float *images, const int64_t *labels, const int64_t *rows, int count,
                  float eta) {
    const Plane w = {weights[0], weights[1]};
    float(*move)[CLASSES] = malloc(sizeof(float) * CLASSES * (size_t)count);
    if (!move) return -1;
    float rate = eta / (float)count;
    for (int s = 0; s < count; s += 2) {
        float two[2][CLASSES];
        int pair = s + 1 < count;
        score_two(&w, images + rows[s] * PIXELS, images + rows[s + pair] * PIXELS, two);
        for (int i = 0; i <= pair; i++) {
            softmax_less_one_hot(two[i], labels[rows[s + i]]);
            for (int c = 0; c < CLASSES; c++) move[s + i][c] = rate * two[i][c];
        }
    }
    for (int i = 0; i < STEPS; i++) {
        vec weight[CLASSES];
        for (int c = 0; c < CLASSES; c++) weight[c] = ((const row *)(w.weight + c * PIXELS))[i];
        for (int s = 0; s < count; s++) {
            vec x = ((const row *)(images + rows[s] * PIXELS))[i];
            for (int c = 0; c < CLASSES; c++) weight[c] -= move[s][c] * x;
        }
        for (int c = 0; c < CLASSES; c++) ((row *)(w.weight + c * PIXELS))[i] = weight[c];
    }
    for (int s = 0; s < count; s++)
        for (int c = 0; c < CLASSES; c++) w.bias[c] -= move[s][c];
    free(move);
    return 0;
}
