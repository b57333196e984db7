/* Plain C for any 64-bit machine: one lane, multiplied by its integer multiplier. */
#include "batch.h"

#ifdef __SIZEOF_INT128__
#define LANES 1
#define QUOTIENT_BY_BLOCK 0
typedef uint64_t V;
typedef V F;
#define AT(x, lane) (x)

typedef unsigned __int128 wide;
#define LIMB(x) ((uint64_t)(x) & ((UINT64_C(1) << BITS) - 1))
#define LO_OFFSET UINT64_C(0)
#define HI_OFFSET UINT64_C(0)
#define FACTOR(x) (x)
#define FACTORS(room, x, count) ((void)(room), (x))
#define ADD_WHOLE(lo, hi, product)                                \
    do {                                                          \
        wide whole_ = (product);                                  \
        (lo) += LIMB(whole_), (hi) += (uint64_t)(whole_ >> BITS); \
    } while (0)
#define MULTIPLY(lo, hi, x, y) ADD_WHOLE(lo, hi, (wide)(x) * (y))
#define MULTIPLY_TWO(lo, hi, x0, y0, x1, y1) ADD_WHOLE(lo, hi, (wide)(x0) * (y0) + (wide)(x1) * (y1))
#define MULTIPLY_THREE(lo, hi, x0, y0, x1, y1, x2, y2) \
    ADD_WHOLE(lo, hi, (wide)(x0) * (y0) + (wide)(x1) * (y1) + (wide)(x2) * (y2))
#define MULTIPLY_FOUR(lo, hi, x0, y0, x1, y1, x2, y2, x3, y3) \
    ADD_WHOLE(lo, hi, (wide)(x0) * (y0) + (wide)(x1) * (y1) + (wide)(x2) * (y2) + (wide)(x3) * (y3))
#define LOW(x, y) LIMB((x) * (y))

static inline void transpose(V *out, const V *in) { *out = *in; }

#include "kernels.h"
#include "operations.h"
#include "multipowers.h"
#include "products.h"

static int usable(void) { return 1; }

const backend dapfl_portable = {
    "portable", LANES, usable, powers, residue_powers, quotients, lane_powers, lane_quotients, build_table, table_powers,
    power_product, product, combine,
};
#else
static int usable(void) { return 0; }
const backend dapfl_portable = {"portable", 0, usable, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
#endif
