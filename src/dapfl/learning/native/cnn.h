/* One step of SGD, and scoring, for the CNN of the paper's experiments (dapfl.learning.models.CNN).
 *
 * Convolutions with 1, 10 and 20 channels leave a general library's vectors half empty. Here a vector holds the
 * same number of LANES samples, so every layer fills its lanes whatever its shape, pooling and ReLU need no
 * shuffles, and a convolution and the pooling above it are one loop. Samples are taken in blocks of LANES; the
 * last block of a batch is filled up with blank samples whose gradient is zero.
 *
 * Arrays of vectors are laid out row, column, channel, as torch's channels_last lays out weights.
 *
 * Before including this file one defines LANES, and how many channels are computed abreast: enough sums in
 * flight to hide the latency of a product, and as few as registers hold.
 *   ABREAST  output channels of a convolution, times four pixels or five taps
 *   INWARD   input channels of the second convolution, times two pixels
 */
#include "vectors.h"

/* Convolutions have their channels last. */
typedef struct {
    float *conv1, *bias1;  /* [10][5][5], [10] */
    float *conv2, *bias2;  /* [20][5][5][10], [20] */
    float *fc1, *bias3;    /* [50][320], [50] */
    float *fc2, *bias4;    /* [10][50], [10] */
} Weights;

enum {
    SIDE = 28, K = 5, TAPS = K * K,
    C1 = 10, S1 = SIDE - K + 1, P1 = S1 / 2,  /* first convolution: channels, side, side after pooling */
    C2 = 20, S2 = P1 - K + 1, P2 = S2 / 2,    /* second */
    FLAT = C2 * P2 * P2, HIDDEN = 50,
    W2 = C2 * TAPS * C1
};

/* What one block of samples leaves behind on its way up, and what comes back down. */
typedef struct {
    vec x[SIDE][SIDE];
    vec h1[P1][P1][C1], h2[FLAT], h3[HIDDEN], out[CLASSES];
    mask arg1[P1][P1][C1], arg2[FLAT];  /* which of its four pixels a pooled one came from */
    vec d3[HIDDEN], d2[FLAT];
    vec dy2[S2][S2 + 2][C2];            /* one column on either side stays blank */
    vec dy1[C1][S1][S1];
} Block;

/* Sums over the blocks of a batch. Dense layers keep their samples, and are summed at the end. */
typedef struct {
    vec conv1[C1 * TAPS], bias1[C1], conv2[W2], bias2[C2];
    float taps_first[TAPS][C2][C1];  /* the weights of conv2, as its input's gradient reads them */
} Sums;

/* One of each for every thread, kept: fresh pages would cost as much as the arithmetic. */
static _Thread_local Block block;
static _Thread_local Sums sums;

static inline vec pick(mask which, vec yes, vec no) {
    return (vec)((which & (mask)yes) | (~which & (mask)no));
}

/* The largest of four, below by zero (ReLU), and which it was. */
static inline vec pool(const vec four[4], mask *which) {
    vec best = four[0];
    mask place = {0};
    for (int32_t i = 1; i < 4; i++) {
        mask above = four[i] > best;
        best = pick(above, four[i], best);
        place = (above & i) | (~above & place);
    }
    *which = place;
    vec zero = {0};
    return pick(best > zero, best, zero);
}

static void load_lane(Block *b, int lane, const float *image) {
    for (int i = 0; i < PIXELS; i++) ((float *)b->x)[i * LANES + lane] = image ? image[i] : 0.0f;
}

/* A pooled pixel is made of four: they share the weights. */
static void first_layer(Block *b, const Weights *w) {
    for (int y = 0; y < P1; y++)
        for (int x = 0; x < P1; x++)
            for (int c = 0; c < C1; c += ABREAST) {
                vec sum[ABREAST][4];
                for (int j = 0; j < ABREAST; j++)
                    for (int i = 0; i < 4; i++) sum[j][i] = (vec){0} + w->bias1[c + j];
                for (int ky = 0; ky < K; ky++)
                    for (int kx = 0; kx < K; kx++) {
                        vec in[4];
                        for (int i = 0; i < 4; i++) in[i] = b->x[2 * y + (i >> 1) + ky][2 * x + (i & 1) + kx];
                        for (int j = 0; j < ABREAST; j++)
                            for (int i = 0; i < 4; i++) sum[j][i] += w->conv1[(c + j) * TAPS + ky * K + kx] * in[i];
                    }
                for (int j = 0; j < ABREAST; j++) b->h1[y][x][c + j] = pool(sum[j], &b->arg1[y][x][c + j]);
            }
}

static void second_layer(Block *b, const Weights *w) {
    for (int y = 0; y < P2; y++)
        for (int x = 0; x < P2; x++)
            for (int c = 0; c < C2; c += ABREAST) {
                vec sum[ABREAST][4];
                for (int j = 0; j < ABREAST; j++)
                    for (int i = 0; i < 4; i++) sum[j][i] = (vec){0} + w->bias2[c + j];
                for (int ky = 0; ky < K; ky++) {
                    const float *taps = w->conv2 + (c * TAPS + ky * K) * C1;
                    const vec *in[4];
                    for (int i = 0; i < 4; i++) in[i] = b->h1[2 * y + (i >> 1) + ky][2 * x + (i & 1)];
                    for (int t = 0; t < K * C1; t++)
                        for (int j = 0; j < ABREAST; j++)
                            for (int i = 0; i < 4; i++) sum[j][i] += taps[j * TAPS * C1 + t] * in[i][t];
                }
                for (int j = 0; j < ABREAST; j++) {
                    int place = ((c + j) * P2 + y) * P2 + x;
                    b->h2[place] = pool(sum[j], &b->arg2[place]);
                }
            }
}

static void dense(vec *out, int outputs, const vec *in, int inputs, const float *w, const float *bias) {
    for (int o = 0; o < outputs; o += 5) {
        vec sum[5];
        for (int i = 0; i < 5; i++) sum[i] = (vec){0} + bias[o + i];
        for (int k = 0; k < inputs; k++)
            for (int i = 0; i < 5; i++) sum[i] += w[(o + i) * inputs + k] * in[k];
        for (int i = 0; i < 5; i++) out[o + i] = sum[i];
    }
}

static void forward(Block *b, const Weights *w) {
    vec zero = {0};
    first_layer(b, w);
    second_layer(b, w);
    dense(b->h3, HIDDEN, b->h2, FLAT, w->fc1, w->bias3);
    for (int i = 0; i < HIDDEN; i++) b->h3[i] = pick(b->h3[i] > zero, b->h3[i], zero);
    dense(b->out, CLASSES, b->h3, HIDDEN, w->fc2, w->bias4);
}

/* The gradient at the logits, in their place; zero for blank samples. */
static void loss_gradient(Block *b, const int64_t *labels, const int64_t *rows, int count) {
    for (int s = 0; s < LANES; s++) {
        float one[CLASSES] = {0};
        if (s < count) {
            for (int c = 0; c < CLASSES; c++) one[c] = b->out[c][s];
            softmax_less_one_hot(one, labels[rows[s]]);
        }
        for (int c = 0; c < CLASSES; c++) b->out[c][s] = one[c];
    }
}

static void backward_dense(Block *b, const Weights *w) {
    vec zero = {0};
    for (int i = 0; i < HIDDEN; i++) {
        vec sum = {0};
        for (int c = 0; c < CLASSES; c++) sum += w->fc2[c * HIDDEN + i] * b->out[c];
        b->d3[i] = pick(b->h3[i] > zero, sum, zero);
    }
    for (int k = 0; k < FLAT; k += 8) {
        vec sum[8] = {{0}};
        for (int o = 0; o < HIDDEN; o++)
            for (int i = 0; i < 8; i++) sum[i] += w->fc1[o * FLAT + k + i] * b->d3[o];
        for (int i = 0; i < 8; i++) b->d2[k + i] = pick(b->h2[k + i] > zero, sum[i], zero);
    }
}

static void backward_second(Block *b, Sums *g) {
    vec zero = {0};
    for (int c = 0; c < C2; c++)
        for (int y = 0; y < P2; y++)
            for (int x = 0; x < P2; x++) {
                int place = (c * P2 + y) * P2 + x;
                vec d = b->d2[place];
                g->bias2[c] += d;
                for (int32_t i = 0; i < 4; i++)
                    b->dy2[2 * y + (i >> 1)][1 + 2 * x + (i & 1)][c] = pick(b->arg2[place] == i, d, zero);
            }
    for (int c = 0; c < C2; c += ABREAST)
        for (int ky = 0; ky < K; ky++)
            for (int t = 0; t < K * C1; t += 5) {
                vec sum[ABREAST][5] = {{{0}}};
                for (int y = 0; y < S2; y++)
                    for (int x = 0; x < S2; x++) {
                        const vec *in = &b->h1[y + ky][x][0] + t, *d = &b->dy2[y][1 + x][c];
                        for (int j = 0; j < ABREAST; j++)
                            for (int i = 0; i < 5; i++) sum[j][i] += d[j] * in[i];
                    }
                for (int j = 0; j < ABREAST; j++)
                    for (int i = 0; i < 5; i++) g->conv2[((c + j) * TAPS + ky * K) * C1 + t + i] += sum[j][i];
            }
}

/* From the second convolution's output to the first one's: two pixels side by side share the weights. */
static void backward_first(Block *b, Sums *g) {
    vec zero = {0};
    for (int y = 0; y < P1; y++)
        for (int x = 0; x < P1; x += 2)
            for (int c = 0; c < C1; c += INWARD) {
                vec sum[2][INWARD] = {{{0}}};
                for (int ky = y < S2 ? 0 : y - S2 + 1; ky < K && ky <= y; ky++)
                    for (int kx = x < S2 ? 0 : x - S2 + 1; kx < K && kx <= x + 1; kx++) {
                        const vec *d = b->dy2[y - ky][1 + x - kx];
                        const float(*w)[C1] = g->taps_first[ky * K + kx];
                        for (int o = 0; o < C2; o++)
                            for (int i = 0; i < INWARD; i++) {
                                sum[0][i] += w[o][c + i] * d[o];
                                sum[1][i] += w[o][c + i] * d[C2 + o];
                            }
                    }
                for (int side = 0; side < 2; side++)
                    for (int i = 0; i < INWARD; i++) {
                        vec h = b->h1[y][x + side][c + i];
                        vec d = pick(h > zero, sum[side][i], zero);
                        g->bias1[c + i] += d;
                        for (int32_t p = 0; p < 4; p++)
                            b->dy1[c + i][2 * y + (p >> 1)][2 * (x + side) + (p & 1)] =
                                pick(b->arg1[y][x + side][c + i] == p, d, zero);
                    }
            }
    for (int c = 0; c < C1; c += ABREAST)
        for (int ky = 0; ky < K; ky++) {
            vec sum[ABREAST][K] = {{{0}}};
            for (int y = 0; y < S1; y++)
                for (int x = 0; x < S1; x++)
                    for (int j = 0; j < ABREAST; j++)
                        for (int i = 0; i < K; i++) sum[j][i] += b->dy1[c + j][y][x] * b->x[y + ky][x + i];
            for (int j = 0; j < ABREAST; j++)
                for (int i = 0; i < K; i++) g->conv1[(c + j) * TAPS + ky * K + i] += sum[j][i];
        }
}

/* w -= rate · Σ_s d[s]·x[s], the samples of a batch one after the other. */
static void move_dense(float *w, float *bias, int outputs, int inputs, const float *d, const float *x, int samples,
                       float rate) {
    for (int o = 0; o < outputs; o++)
        for (int s = 0; s < samples; s++) {
            float step = rate * d[s * outputs + o];
            const float *in = x + s * inputs;
            for (int i = 0; i < inputs; i++) w[o * inputs + i] -= step * in[i];
            bias[o] -= step;
        }
}

static void unpack(float *rows, const vec *lanes, int width, int samples) {
    for (int i = 0; i < width; i++)
        for (int s = 0; s < samples; s++) rows[s * width + i] = lanes[i][s];
}

static Weights weights_of(Arrays w) { return (Weights){w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]}; }

static int cnn_step(Arrays weights, const float *images, const int64_t *labels, const int64_t *rows, int samples, float eta) {
    enum { KEPT = FLAT + 2 * HIDDEN + CLASSES };
    const Weights named = weights_of(weights), *w = &named;
    Block *b = &block;
    Sums *g = &sums;
    float *kept = malloc(sizeof(float) * KEPT * (size_t)samples);
    if (!kept) return -1;
    float *h2 = kept, *h3 = h2 + FLAT * samples, *d3 = h3 + HIDDEN * samples, *d4 = d3 + HIDDEN * samples;
    memset(g, 0, sizeof *g);
    for (int t = 0; t < TAPS; t++)
        for (int o = 0; o < C2; o++) memcpy(g->taps_first[t][o], w->conv2 + (o * TAPS + t) * C1, sizeof(float) * C1);

    for (int first = 0; first < samples; first += LANES) {
        int count = samples - first < LANES ? samples - first : LANES;
        for (int s = 0; s < LANES; s++) load_lane(b, s, s < count ? images + rows[first + s] * PIXELS : NULL);
        forward(b, w);
        loss_gradient(b, labels, rows + first, count);
        backward_dense(b, w);
        backward_second(b, g);
        backward_first(b, g);
        unpack(h2 + first * FLAT, b->h2, FLAT, count);
        unpack(h3 + first * HIDDEN, b->h3, HIDDEN, count);
        unpack(d3 + first * HIDDEN, b->d3, HIDDEN, count);
        unpack(d4 + first * CLASSES, b->out, CLASSES, count);
    }

    float rate = eta / (float)samples;
    for (int i = 0; i < C1 * TAPS; i++) w->conv1[i] -= rate * total(g->conv1[i]);
    for (int i = 0; i < C1; i++) w->bias1[i] -= rate * total(g->bias1[i]);
    for (int i = 0; i < W2; i++) w->conv2[i] -= rate * total(g->conv2[i]);
    for (int i = 0; i < C2; i++) w->bias2[i] -= rate * total(g->bias2[i]);
    move_dense(w->fc1, w->bias3, HIDDEN, FLAT, d3, h2, samples, rate);
    move_dense(w->fc2, w->bias4, CLASSES, HIDDEN, d4, h3, samples, rate);
    free(kept);
    return 0;
}

static void cnn_scores(Arrays weights, const float *images, int samples, float *out) {
    const Weights w = weights_of(weights);
    Block *b = &block;
    for (int first = 0; first < samples; first += LANES) {
        int count = samples - first < LANES ? samples - first : LANES;
        for (int s = 0; s < LANES; s++) load_lane(b, s, s < count ? images + (size_t)(first + s) * PIXELS : NULL);
        forward(b, &w);
        unpack(out + first * CLASSES, b->out, CLASSES, count);
    }
}
