/* Plain C with the lanes and limbs of the ifma backend: slow, for checking the shared code on any machine. */
#include <stdint.h>

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors as arguments never leave this file */
#endif

#define LANES 8
#define MAX_LIMBS 80
#define MAX_BITS 52
typedef uint64_t V __attribute__((vector_size(8 * LANES)));
typedef uint64_t WORD;

static V low_limbs(V c, V x, V y) {
    const uint64_t mask = (UINT64_C(1) << 52) - 1;
    for (int i = 0; i < LANES; i++) c[i] += (uint64_t)((unsigned __int128)(x[i] & mask) * (y[i] & mask)) & mask;
    return c;
}

static V high_limbs(V c, V x, V y) {
    const uint64_t mask = (UINT64_C(1) << 52) - 1;
    for (int i = 0; i < LANES; i++) c[i] += (uint64_t)((unsigned __int128)(x[i] & mask) * (y[i] & mask) >> 52);
    return c;
}

#define LO(c, x, y) low_limbs(c, x, y)
#define HI(c, x, y) high_limbs(c, x, y)
#define LOW(x, y, f) low_limbs((V){0}, x, y)

static void transpose(V *out, const V *in) {
    for (int i = 0; i < LANES; i++)
        for (int lane = 0; lane < LANES; lane++) out[i][lane] = in[lane][i];
}

static V widen(const WORD *words) {
    V x;
    __builtin_memcpy(&x, words, sizeof x);
    return x;
}

#include "kernels.h"
#include "operations.h"
#include "products.h"

static int usable(void) { return 1; }

const backend dapfl_portable = {
    "portable",  LANES,  MAX_LIMBS, MAX_BITS,    0,            sizeof(WORD),
    usable, powers, quotients, build_table, table_powers, product,
};
