/* Plain C, with the lanes of the ifma backend: slow, for checking the shared code on any machine. */
#include "batch.h"

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors as arguments never leave this file */
#endif

#define LANES 8
#define QUOTIENT_BY_BLOCK 0
typedef uint64_t V __attribute__((vector_size(8 * LANES)));
typedef V F;

#define LIMB(x) ((x) & ((UINT64_C(1) << BITS) - 1))
#define LO_OFFSET UINT64_C(0)
#define HI_OFFSET UINT64_C(0)
#define FACTOR(x) (x)
#define FACTORS(room, x, count) ((void)(room), (x))
#define MULTIPLY(lo, hi, x, y)                                                                 \
    for (int lane_ = 0; lane_ < LANES; lane_++) {                                              \
        unsigned __int128 whole_ = (unsigned __int128)LIMB((x)[lane_]) * LIMB((y)[lane_]);     \
        (lo)[lane_] += LIMB((uint64_t)whole_), (hi)[lane_] += (uint64_t)(whole_ >> BITS);      \
    }

static V LOW(V x, V y) {
    V lo = {0}, hi = {0};
    MULTIPLY(lo, hi, x, y)
    return lo;
}

static void transpose(V *out, const V *in) {
    for (int i = 0; i < LANES; i++)
        for (int lane = 0; lane < LANES; lane++) out[i][lane] = in[lane][i];
}

#include "kernels.h"
#include "operations.h"
#include "multipowers.h"
#include "products.h"

static int usable(void) { return 1; }

const backend dapfl_portable = {
    "portable", LANES, usable, powers, residue_powers, quotients, lane_powers, lane_quotients, build_table, table_powers,
    power_product, product, combine,
};
