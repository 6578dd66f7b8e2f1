/* Kernels for decoders whose weights have 4 or 8 bits, and the pool of threads that runs them.
 *
 * `python -m tools.compile_kernels` makes LLVM text of this file, once for each instruction set, and
 * llvmlite compiles the committed text for the processor at hand. Every instruction set gives the
 * same bits, whatever the number of rows and threads: sums of integers are exact, and floats are
 * added in an order that depends on the row alone. So the compiler must not contract a * b + c.
 *
 * The language is C with the vectors of clang: operators apply to each lane, a number stands for a
 * vector of it, and `mask ? a : b` chooses lane by lane. */

#include <stdint.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("clang loop unroll(full)")

enum {
    LANES = 8,         /* of a vector of floats; with AVX512 products and attention have WIDTH */
    TILE = 16,         /* rows of weights that are multiplied together */
    BLOCK_TOKENS = 32, /* of a block of the KV cache */
    LINE_WORDS = 8,    /* int64 in a line of the processor's cache */
};

typedef _Float16 half;
typedef float floats __attribute__((ext_vector_type(LANES)));
typedef half halves __attribute__((ext_vector_type(LANES)));
typedef int32_t ints __attribute__((ext_vector_type(LANES)));
typedef int16_t shorts __attribute__((ext_vector_type(LANES)));
typedef int8_t bytes __attribute__((ext_vector_type(LANES)));

/* The same, at any address. */
typedef floats floats_anywhere __attribute__((aligned(1)));
typedef halves halves_anywhere __attribute__((aligned(1)));
typedef shorts shorts_anywhere __attribute__((aligned(1)));
typedef bytes bytes_anywhere __attribute__((aligned(1)));

INLINE floats read(const float *from) { return *(const floats_anywhere *)from; }

INLINE void write(float *to, floats values) { *(floats_anywhere *)to = values; }

INLINE int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
INLINE int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

INLINE float sum(floats x)
{
    float total = 0;
    UNROLLED for (int lane = 0; lane < LANES; lane++)
        total += x[lane];
    return total;
}

/* a * b + c, rounded once. */
INLINE floats fused(floats a, floats b, floats c) { return __builtin_elementwise_fma(a, b, c); }

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2, and exp(r) by its series up to r^6 (the next term is
 * below 2e-7). Arguments are limited to those whose result is a normal float. */
INLINE floats exponential(floats x)
{
    /* log(2) in two parts, the first of few bits, so that n times it is exact. */
    const float log2_high = 0.693359375f, log2_low = -2.12194440e-4f;
    static const float series[] = {1 / 120.0, 1 / 24.0, 1 / 6.0, 1 / 2.0, 1, 1};
    x = x > -87.0f ? x : (floats)-87.0f;
    x = x < 88.0f ? x : (floats)88.0f;
    floats n = __builtin_elementwise_rint(x * 1.4426950408889634f); /* log2(e) */
    floats rest = fused(n, -log2_low, fused(n, -log2_high, x));
    floats total = (float)(1 / 720.0);
    UNROLLED for (int term = 0; term < 6; term++)
        total = fused(total, rest, series[term]);
    return total * (floats)((__builtin_convertvector(n, ints) + 127) << 23);
}

/* ------------------------------------------------------------------------------------ the board
 *
 * Threads find their work on a board, one job at a time: `units` units of an operation. The units
 * are cut into `threads` shares, and each share into PARTS. A thread takes the parts of its own
 * share first, then what others have left. Python allocates the board and writes `threads`. */

/* In the order of OPERATIONS in forward_steps.py. Those up to LOG_SUM_EXP are jobs. */
enum operation {
    MATMUL, ATTEND, ROUND4, ROUND8, SWISH, GELU, ERF_GELU, RELU, SQUARE, LOG_SUM_EXP,
    NORMALIZE, STANDARDIZE, ADD, MULTIPLY, ROTATE, STORE, CHOOSE,
};

/* Weights in tiles, as tiles.py arranges them. A tile has the weights of TILE outputs; its word
 * s * TILE + o, of 32 bits, those of output o at step s: 4 columns of 8 bits or 8 columns of 4. */
struct matrix {
    const int8_t *words;
    const half *scales, *zeros;
    int64_t columns, groups, steps; /* steps of a group, which shares a scale */
    int64_t group_stride, tile_stride; /* of scales and zeros */
    int64_t outputs;
    int64_t wide; /* 0: 4 bits; 1: 8 bits */
};

/* Attention of a layer. In a block of the cache a head has keys [size, BLOCK_TOKENS] and values
 * [BLOCK_TOKENS, size]. */
struct attention {
    int64_t heads, key_heads, size;
    int64_t scale; /* the bits of a float */
    int64_t window; /* tokens to which one attends, itself included */
    half *keys, *values;
};

union job {
    int64_t words[2 * LINE_WORDS];
    struct {
        const struct matrix *matrix;
        const int8_t *x; /* rounded activations, with scale and sum of each group */
        const float *x_scales, *x_sums;
        float *y;
        int64_t rows;
    } matmul;
    struct {
        const struct attention *layer;
        const float *queries;
        const int32_t *positions, *firsts; /* of each row, its first index into `blocks` */
        float *y;
        const int32_t *blocks;
        int64_t rows;
        int64_t together, parts, pieces; /* see `attend` */
    } attend;
    struct {
        const float *x;
        int8_t *rounded;
        float *scales, *sums;
        int64_t columns; /* of a group */
    } round;
    struct {
        float *y;
        const float *x;
        int64_t width; /* of a row of log-sum-exp */
    } map;
};

struct line { /* of the processor's cache: words that different threads write lie in different ones */
    int64_t word, rest[LINE_WORDS - 1];
};

enum { PARTS = 4 };

struct board {
    struct line done; /* parts of the job that are computed */
    struct line threads;
    struct line running; /* 1 while `run` runs */
    union job job;
    int64_t units, operation, rest[LINE_WORDS - 2];
    struct line next[]; /* part to take, of each thread's share */
};

/* ------------------------------------------------------------------------------------- products
 *
 * Activations are rounded to 8 bits with one scale for each group of columns. A row of a tile is
 * the sum over groups of (integer sum - zero * sum of activations) * scale * scale of activations.
 * A pass computes up to PASS rows: their sums fill the processor's registers. */

#if defined(__AVX512VNNI__)
enum { WIDTH = 16, PASS = 8 };
#else
enum { WIDTH = 8, PASS = 4 };
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || !defined(__AVX2__)
#define FOURS 1 /* sums of four products of 8 bits in one instruction */
#else
#define FOURS 0
#endif

enum {
    VECTORS = TILE / WIDTH, /* that hold the outputs of a tile */
    STEPS = 4, /* at once; with AVX2 and 4 bits, 8 products of at most 2 * 15 * 127 fit 16 bits */
    /* From two rows on a pass asks for the weights that follow so many bytes later: more than the
     * memory sends within its latency. What a processor expects by itself, it asks for too late
     * once a product computes for long between two reads; with one row it expects enough. NEAR
     * weights go to the first cache alone, since the lower ones have the data of the rest of the
     * forward. FAR ones go to the lower caches: beside more than SMALL activations, which would
     * displace them from the first, and in more than half of a full pass, which computes for longer
     * and may be followed by another one. */
    NEAR = 4096, FAR = 8192, SMALL = 4096,
};

typedef float wide_floats __attribute__((ext_vector_type(WIDTH)));
typedef half wide_halves __attribute__((ext_vector_type(WIDTH)));
typedef int32_t wide_ints __attribute__((ext_vector_type(WIDTH)));
typedef int16_t wide_shorts __attribute__((ext_vector_type(2 * WIDTH)));
typedef int8_t wide_bytes __attribute__((ext_vector_type(4 * WIDTH)));
typedef wide_floats wide_floats_anywhere __attribute__((aligned(1)));
typedef wide_halves wide_halves_anywhere __attribute__((aligned(1)));
typedef wide_bytes wide_bytes_anywhere __attribute__((aligned(1)));
typedef int32_t int_anywhere __attribute__((aligned(1)));

INLINE wide_floats read_wide_halves(const half *from)
{
    return __builtin_convertvector(*(const wide_halves_anywhere *)from, wide_floats);
}

/* Bytes of an activation. With AVX2, weights and activations of 8 bits are multiplied in 16: four
 * products of 8 bits do not fit there, and two take more instructions. */
INLINE int64_t activation_bytes(int bits) { return bits == 8 && !FOURS ? 2 : 1; }

/* Weights without sign: of 8 bits and 128; of 4 bits, the low halves (part 0) or the high ones. */
INLINE wide_bytes without_sign(int bits, int part, wide_bytes stored)
{
    if (bits == 8)
        return stored ^ -128;
    typedef uint8_t unsigned_bytes __attribute__((ext_vector_type(4 * WIDTH)));
    return part ? (wide_bytes)((unsigned_bytes)stored >> 4) : stored & 15;
}

#if FOURS

/* sums + products of four neighbours, of weights without sign and activations with one. */
INLINE wide_ints add_fours(wide_ints sums, wide_bytes weights, wide_bytes x)
{
#if defined(__AVX512VNNI__)
    return (wide_ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#elif defined(__AVXVNNI__)
    return (wide_ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
#else
    UNROLLED for (int shift = 0; shift < 32; shift += 8)
        sums += ((wide_ints)weights >> shift & 255) * ((wide_ints)x << (24 - shift) >> 24);
    return sums;
#endif
}

#else

/* Sums that the compiler does not see through: it would reorder them, and spill them. (It also
 * keeps saturating ones, which are slower.) */
INLINE wide_ints add_ints(wide_ints x, wide_ints y)
{
    __asm__("vpaddd %2, %1, %0" : "=x"(x) : "x"(x), "x"(y));
    return x;
}

INLINE wide_shorts add_shorts(wide_shorts x, wide_shorts y)
{
    __asm__("vpaddw %2, %1, %0" : "=x"(x) : "x"(x), "x"(y));
    return x;
}

/* Products of 16 bits, those of two neighbours added. */
INLINE wide_ints multiply_pairs(wide_shorts x, wide_shorts y)
{
    return (wide_ints)_mm256_madd_epi16((__m256i)x, (__m256i)y);
}

/* The same of weights without sign and activations with one, 8 bits. */
INLINE wide_shorts multiply_byte_pairs(wide_bytes weights, wide_bytes x)
{
    return (wide_shorts)_mm256_maddubs_epi16((__m256i)weights, (__m256i)x);
}

/* The even ones, or with part 1 the odd ones, of weights of 8 bits, in 16. */
INLINE wide_shorts every_other(int part, wide_bytes stored)
{
    return (part ? (wide_shorts)stored : (wide_shorts)stored << 8) >> 8;
}

#endif

/* Compute `rows` rows of a tile. `bits`, `rows` and `ahead` are constants. */
INLINE void multiply_tile(
    const union job *job, int64_t tile, int64_t first_row, int bits, int rows, int ahead)
{
    const struct matrix *matrix = job->matmul.matrix;
    const int64_t groups = matrix->groups, steps = matrix->steps, outputs = matrix->outputs;
    const int64_t group_stride = matrix->group_stride;
    const int64_t x_bytes = matrix->columns * activation_bytes(bits);
    const int8_t *words = matrix->words + tile * groups * steps * 4 * TILE;
    const half *scales = matrix->scales + tile * matrix->tile_stride;
    const half *zeros = matrix->zeros + tile * matrix->tile_stride;
    const int8_t *x = job->matmul.x + first_row * x_bytes;
    const float *x_scales = job->matmul.x_scales + first_row * groups;
    const float *x_sums = job->matmul.x_sums + first_row * groups;
    /* The last tile has the last outputs, some of which the one before may have too. */
    float *y = job->matmul.y + first_row * outputs + smaller(tile * TILE, outputs - TILE);
    const int parts = bits == 8 && FOURS ? 1 : 2; /* of the stored bytes, that are used in turn */

    wide_floats totals[PASS][VECTORS];
    UNROLLED for (int row = 0; row < rows; row++)
        UNROLLED for (int v = 0; v < VECTORS; v++)
            totals[row][v] = 0;
    for (int64_t group = 0; group < groups; group++) {
        wide_ints sums[PASS][VECTORS];
        UNROLLED for (int row = 0; row < rows; row++)
            UNROLLED for (int v = 0; v < VECTORS; v++)
                sums[row][v] = 0;
        for (int64_t step = group * steps; step < (group + 1) * steps; step += STEPS) {
#if !FOURS
            wide_shorts pairs[PASS][VECTORS];
#endif
            UNROLLED for (int offset = 0; offset < STEPS; offset++) {
                const int8_t *word = words + (step + offset) * 4 * TILE;
                const int8_t *column = x + (step + offset) * 4 * parts;
                wide_bytes stored[VECTORS];
                UNROLLED for (int v = 0; v < VECTORS; v++)
                    stored[v] = *(const wide_bytes_anywhere *)(word + v * 4 * WIDTH);
                if (ahead == NEAR)
                    __builtin_prefetch(word + ahead, 0, 0);
                if (ahead == FAR)
                    __builtin_prefetch(word + ahead, 0, 2);
                UNROLLED for (int part = 0; part < parts; part++)
                    UNROLLED for (int row = 0; row < rows; row++) {
                        const int8_t *four = column + row * x_bytes + 4 * part;
                        wide_bytes values = (wide_bytes)(wide_ints)*(const int_anywhere *)four;
                        UNROLLED for (int v = 0; v < VECTORS; v++) {
#if FOURS
                            wide_bytes weights = without_sign(bits, part, stored[v]);
                            sums[row][v] = add_fours(sums[row][v], weights, values);
#else
                            if (bits == 8) {
                                wide_shorts weights = every_other(part, stored[v]);
                                wide_ints products = multiply_pairs(weights, (wide_shorts)values);
                                sums[row][v] = add_ints(sums[row][v], products);
                            } else {
                                wide_bytes weights = without_sign(bits, part, stored[v]);
                                wide_shorts products = multiply_byte_pairs(weights, values);
                                if (offset || part)
                                    products = add_shorts(pairs[row][v], products);
                                pairs[row][v] = products;
                            }
#endif
                        }
                    }
            }
#if !FOURS
            if (bits == 4)
                UNROLLED for (int row = 0; row < rows; row++)
                    UNROLLED for (int v = 0; v < VECTORS; v++)
                        sums[row][v] += multiply_pairs(pairs[row][v], 1);
#endif
        }
        UNROLLED for (int v = 0; v < VECTORS; v++) {
            const int64_t place = group * group_stride + v * WIDTH;
            wide_floats scale = read_wide_halves(scales + place);
            wide_floats zero = read_wide_halves(zeros + place);
            if (bits == 8 && FOURS)
                zero += 128.0f; /* as in `without_sign` */
            UNROLLED for (int row = 0; row < rows; row++) {
                wide_floats x_scale = x_scales[row * groups + group];
                wide_floats x_sum = x_sums[row * groups + group];
                wide_floats integers = __builtin_convertvector(sums[row][v], wide_floats);
                integers = __builtin_elementwise_fma(-zero, x_sum, integers);
                totals[row][v] =
                    __builtin_elementwise_fma(integers, scale * x_scale, totals[row][v]);
            }
        }
    }
    UNROLLED for (int row = 0; row < rows; row++)
        UNROLLED for (int v = 0; v < VECTORS; v++)
            *(wide_floats_anywhere *)(y + row * outputs + v * WIDTH) = totals[row][v];
}

typedef void multiply_function(const union job *, int64_t tile, int64_t first_row);

#define TILE_FUNCTION(bits, rows, ahead) \
    static void tile_##bits##_##rows##_##ahead(const union job *job, int64_t tile, int64_t row) \
    { \
        multiply_tile(job, tile, row, bits, rows, ahead); \
    }

#define NO_AHEAD 0
#if defined(__AVX512VNNI__)
#define FEW(F, bits) \
    F(bits, 1, NO_AHEAD) F(bits, 2, NEAR) F(bits, 3, NEAR) F(bits, 4, NEAR)
#define MANY(F, bits) \
    F(bits, 2, FAR) F(bits, 3, FAR) F(bits, 4, FAR) F(bits, 5, FAR) F(bits, 6, FAR) \
    F(bits, 7, FAR) F(bits, 8, FAR)
#else
#define FEW(F, bits) F(bits, 1, NO_AHEAD) F(bits, 2, NEAR)
#define MANY(F, bits) F(bits, 2, FAR) F(bits, 3, FAR) F(bits, 4, FAR)
#endif

FEW(TILE_FUNCTION, 4)
MANY(TILE_FUNCTION, 4)
FEW(TILE_FUNCTION, 8)
MANY(TILE_FUNCTION, 8)

#define ENTRY(bits, rows, ahead) [bits / 8][ahead == FAR][rows] = tile_##bits##_##rows##_##ahead,
static multiply_function *const TILES[2][2][PASS + 1] = {
    FEW(ENTRY, 4) MANY(ENTRY, 4) FEW(ENTRY, 8) MANY(ENTRY, 8)};

/* Units are tiles. */
static void matmul(const union job *job, int64_t first, int64_t last)
{
    const struct matrix *matrix = job->matmul.matrix;
    for (int64_t tile = first; tile < last; tile++)
        for (int64_t row = 0; row < job->matmul.rows; row += PASS) {
            int64_t rows = smaller(job->matmul.rows - row, PASS);
            int far = rows > PASS / 2 || (rows > 1 && rows * matrix->columns > SMALL);
            TILES[matrix->wide][far][rows](job, tile, row);
        }
}

/* Round groups of activations; units are groups. With 4 bits the even ones of 8 columns come first,
 * as in the weights; in 16 bits, the even ones of 4 columns. `bits` is a constant. */
INLINE void round_groups(const union job *job, int64_t first, int64_t last, int bits)
{
    const int64_t columns = job->round.columns;
    for (int64_t group = first; group < last; group++) {
        const int64_t begin = group * columns, end = begin + columns;
        floats largest = 0;
        for (int64_t column = begin; column < end; column += LANES) {
            floats size = __builtin_elementwise_abs(read(job->round.x + column));
            largest = size > largest ? size : largest;
        }
        float top = __builtin_reduce_max(largest);
        float factor = top > 0 ? 127.0f / top : 0;
        ints total = 0;
        for (int64_t column = begin; column < end; column += LANES) {
            floats scaled = read(job->round.x + column) * factor;
            ints integers = __builtin_convertvector(__builtin_elementwise_rint(scaled), ints);
            total += integers;
            if (activation_bytes(bits) == 2) {
                ints ordered = __builtin_shufflevector(integers, integers, 0, 2, 1, 3, 4, 6, 5, 7);
                *(shorts_anywhere *)(job->round.rounded + 2 * column) =
                    __builtin_convertvector(ordered, shorts);
            } else {
                ints ordered = integers;
                if (bits == 4)
                    ordered = __builtin_shufflevector(integers, integers, 0, 2, 4, 6, 1, 3, 5, 7);
                *(bytes_anywhere *)(job->round.rounded + column) =
                    __builtin_convertvector(ordered, bytes);
            }
        }
        job->round.sums[group] = (float)__builtin_reduce_add(total);
        job->round.scales[group] = top / 127.0f;
    }
}

static void round4(const union job *job, int64_t first, int64_t last)
{
    round_groups(job, first, last, 4);
}

static void round8(const union job *job, int64_t first, int64_t last)
{
    round_groups(job, first, last, 8);
}

/* ------------------------------------------------------------------------------------ attention
 *
 * The context is cut into parts of PART_TOKENS, at fixed places. A part's blocks are read in order,
 * with the softmax computed along (arXiv 1805.02867), and then the parts are joined in theirs. So
 * the bits depend on the row alone, whatever is computed together. */

enum {
    PIECES = BLOCK_TOKENS / LANES, /* vectors that hold a number for each token of a block */
    MOST_VECTORS = BLOCK_TOKENS / WIDTH,
    HEADS = WIDTH / 2, /* whose sums are in registers together, of one row or of several */
    PART_TOKENS = 256,
    TOGETHER = 8, /* rows of a request that read a block one after the other, */
    QUERIES = 64, /* and their heads, unless one row has more */
    PARTIAL_FLOATS = 1 << 18, /* room for records of parts that threads share */
    GROUPS = 1024, /* at most, that do so */
    RESULT = 2 * LANES, /* where the sums of values begin in a record */
};

/* What a head has summed up is a record of floats: LANES of the total of exp(score - top), the top,
 * which is the largest score, and from RESULT on the sum of values by exp(score - top). */
enum { TOP = LANES };

static float partials[PARTIAL_FLOATS];
static int64_t parts_left[GROUPS]; /* of each group of units */

struct block {
    const half *keys, *values, *next_keys, *next_values;
    int64_t size; /* of a head */
    float scale;
    int64_t first, last; /* token that is read */
};

/* Vectors of sums of each head at once. With AVX2, few heads have more of them: additions to a sum
 * wait for each other. */
INLINE int vectors_at_once(int heads) { return heads <= 2 ? MOST_VECTORS : 2; }

/* scores[head][token]: products of `heads` queries and the keys of a block. A row of keys is a line
 * of the cache, as are the same bytes of values: those of the next block are asked for. */
INLINE void score(
    float scores[HEADS][BLOCK_TOKENS], const struct block *block, const float *const *queries,
    int heads)
{
    const int vectors = vectors_at_once(heads);
    UNROLLED for (int first = 0; first < BLOCK_TOKENS; first += vectors * WIDTH) {
        wide_floats sums[HEADS][MOST_VECTORS];
        UNROLLED for (int head = 0; head < heads; head++)
            UNROLLED for (int v = 0; v < vectors; v++)
                sums[head][v] = 0;
        for (int64_t index = 0; index < block->size; index++) {
            const half *row = block->keys + index * BLOCK_TOKENS + first;
            wide_floats of_tokens[MOST_VECTORS];
            if (!first)
                __builtin_prefetch(block->next_keys + index * BLOCK_TOKENS, 0, 2);
            if (first + vectors * WIDTH == BLOCK_TOKENS)
                __builtin_prefetch(block->next_values + index * BLOCK_TOKENS, 0, 2);
            UNROLLED for (int v = 0; v < vectors; v++)
                of_tokens[v] = read_wide_halves(row + v * WIDTH);
            UNROLLED for (int head = 0; head < heads; head++)
                UNROLLED for (int v = 0; v < vectors; v++)
                    sums[head][v] = __builtin_elementwise_fma(
                        (wide_floats)queries[head][index], of_tokens[v], sums[head][v]);
        }
        UNROLLED for (int head = 0; head < heads; head++)
            UNROLLED for (int v = 0; v < vectors; v++)
                *(wide_floats_anywhere *)(scores[head] + first + v * WIDTH) = sums[head][v];
    }
}

/* weights = exp(score - top) of the tokens that are read, which are added to the total, once the
 * top is at least their largest score. Gives by what earlier sums shrink. */
INLINE float weigh(
    float *weights, float *record, const float *scores, const struct block *block)
{
    floats limited[PIECES], largest;
    ints read_here[PIECES];
    UNROLLED for (int piece = 0; piece < PIECES; piece++) {
        const ints tokens = (ints){0, 1, 2, 3, 4, 5, 6, 7} + piece * LANES;
        read_here[piece] = (tokens >= (ints)(int32_t)block->first)
                           & (tokens <= (ints)(int32_t)block->last);
        floats scaled = read(scores + piece * LANES) * block->scale;
        limited[piece] = read_here[piece] ? scaled : (floats)-__builtin_inff();
    }
    largest = limited[0];
    UNROLLED for (int piece = 1; piece < PIECES; piece++)
        largest = limited[piece] > largest ? limited[piece] : largest;
    const float before = record[TOP], here = __builtin_reduce_max(largest);
    const float top = record[TOP] = here > before ? here : before;
    const floats factor = exponential(before - top);
    floats total = read(record) * factor;
    UNROLLED for (int piece = 0; piece < PIECES; piece++) {
        floats weight = exponential(limited[piece] - top);
        weight = read_here[piece] ? weight : (floats)0;
        write(weights + piece * LANES, weight);
        total += weight;
    }
    write(record, total);
    return factor[0];
}

/* result = factor * result + the sum of values by their weights, for `vectors` vectors from `begin`
 * of each head. */
INLINE void add_vectors(
    float *const *records, float weights[HEADS][BLOCK_TOKENS], const float *factors,
    const struct block *block, int64_t begin, int heads, int vectors)
{
    wide_floats sums[HEADS][MOST_VECTORS];
    UNROLLED for (int head = 0; head < heads; head++)
        UNROLLED for (int v = 0; v < vectors; v++) {
            const float *result = records[head] + RESULT + begin + v * WIDTH;
            sums[head][v] = *(const wide_floats_anywhere *)result * factors[head];
        }
    for (int64_t token = block->first; token <= block->last; token++) {
        const half *row = block->values + token * block->size + begin;
        wide_floats of_token[MOST_VECTORS];
        UNROLLED for (int v = 0; v < vectors; v++)
            of_token[v] = read_wide_halves(row + v * WIDTH);
        UNROLLED for (int head = 0; head < heads; head++)
            UNROLLED for (int v = 0; v < vectors; v++)
                sums[head][v] = __builtin_elementwise_fma(
                    (wide_floats)weights[head][token], of_token[v], sums[head][v]);
    }
    UNROLLED for (int head = 0; head < heads; head++)
        UNROLLED for (int v = 0; v < vectors; v++)
            *(wide_floats_anywhere *)(records[head] + RESULT + begin + v * WIDTH) = sums[head][v];
}

/* Add a block to the records of `heads` queries, a constant. They share a key's head, and each key
 * and value is unpacked once for all of them. */
INLINE void add_block(
    const struct block *block, const float *const *queries, float *const *records, int heads)
{
    float scores[HEADS][BLOCK_TOKENS], weights[HEADS][BLOCK_TOKENS], factors[HEADS];
    score(scores, block, queries, heads);
    UNROLLED for (int head = 0; head < heads; head++)
        factors[head] = weigh(weights[head], records[head], scores[head], block);
    const int vectors = vectors_at_once(heads);
    int64_t at = 0;
    for (; at + vectors * WIDTH <= block->size; at += vectors * WIDTH)
        add_vectors(records, weights, factors, block, at, heads, vectors);
    if (vectors > VECTORS && at < block->size)
        add_vectors(records, weights, factors, block, at, heads, VECTORS);
}

#define BLOCK_FUNCTION(heads) \
    static void add_block_##heads( \
        const struct block *block, const float *const *queries, float *const *records) \
    { \
        add_block(block, queries, records, heads); \
    }

BLOCK_FUNCTION(1)
BLOCK_FUNCTION(2)
BLOCK_FUNCTION(3)
BLOCK_FUNCTION(4)
#if defined(__AVX512VNNI__)
BLOCK_FUNCTION(5)
BLOCK_FUNCTION(6)
BLOCK_FUNCTION(7)
BLOCK_FUNCTION(8)
#endif

typedef void block_function(const struct block *, const float *const *, float *const *);
static block_function *const BLOCK_FUNCTIONS[] = {
    0, add_block_1, add_block_2, add_block_3, add_block_4,
#if defined(__AVX512VNNI__)
    add_block_5, add_block_6, add_block_7, add_block_8,
#endif
};

INLINE int64_t oldest(const union job *job, int64_t row) /* token that a row reads */
{
    return larger(job->attend.positions[row] - job->attend.layer->window + 1, 0);
}

/* Compute the records of a part of the context, `stride` floats apart, for the rows from `first` to
 * before `end` of one request, and the heads that share `key_head`. */
static void attend_part(
    const union job *job, int64_t first, int64_t end, int64_t key_head, int64_t part,
    float *records, int64_t stride)
{
    const struct attention *layer = job->attend.layer;
    const int64_t size = layer->size, shared = layer->heads / layer->key_heads;
    const int32_t *positions = job->attend.positions;
    const int32_t *blocks = job->attend.blocks + job->attend.firsts[first];
    const int64_t block_size = size * BLOCK_TOKENS;
    int64_t begin = INT64_MAX, last = 0;
    for (int64_t row = first; row < end; row++) {
        begin = smaller(begin, oldest(job, row));
        last = larger(last, positions[row]);
    }
    begin = larger(begin - begin % BLOCK_TOKENS, part * PART_TOKENS);
    last = smaller(last, (part + 1) * PART_TOKENS - 1);
    for (int64_t query = 0; query < (end - first) * shared; query++) {
        float *record = records + query * stride;
        for (int64_t at = 0; at < RESULT + size; at += LANES)
            write(record + at, 0);
        record[TOP] = -__builtin_inff();
    }
    for (int64_t start = begin; start <= last; start += BLOCK_TOKENS) {
        const int64_t number = start / BLOCK_TOKENS;
        const int64_t following = blocks[number + (start + BLOCK_TOKENS <= last)];
        const int64_t place = (blocks[number] * layer->key_heads + key_head) * block_size;
        const int64_t next = (following * layer->key_heads + key_head) * block_size;
        struct block block = {
            layer->keys + place, layer->values + place, layer->keys + next, layer->values + next,
            size, *(const float *)&layer->scale, 0, BLOCK_TOKENS - 1};
        int whole = 1; /* whether all rows read all tokens */
        for (int64_t row = first; row < end; row++)
            whole &= oldest(job, row) <= start && positions[row] >= start + BLOCK_TOKENS - 1;
        for (int64_t row = first; row < end; row++) {
            int64_t query = (row - first) * shared;
            const int64_t queries = whole ? (end - first) * shared : query + shared;
            if (!whole) {
                block.first = larger(oldest(job, row) - start, 0);
                block.last = smaller(positions[row] - start, BLOCK_TOKENS - 1);
            }
            if (block.first > block.last)
                continue;
            for (; query < queries; query += HEADS) {
                const float *asked[HEADS];
                float *of_heads[HEADS];
                const int64_t heads = smaller(queries - query, HEADS);
                for (int64_t index = query; index < query + heads; index++) {
                    const int64_t of_row = first + index / shared;
                    const int64_t head = key_head * shared + index % shared;
                    asked[index - query] =
                        job->attend.queries + (of_row * layer->heads + head) * size;
                    of_heads[index - query] = records + index * stride;
                }
                BLOCK_FUNCTIONS[heads](&block, asked, of_heads);
            }
            if (whole)
                break;
        }
    }
}

/* Join a record to that of the parts before. */
static void join(float *record, const float *other, int64_t size)
{
    const float never = -__builtin_inff();
    if (other[TOP] == never) /* of which the row reads nothing */
        return;
    const float top = record[TOP] > other[TOP] ? record[TOP] : other[TOP];
    const floats factor = record[TOP] == never ? (floats)0 : exponential(record[TOP] - top);
    const floats other_factor = exponential(other[TOP] - top);
    for (int64_t at = 0; at < RESULT + size; at += LANES)
        write(record + at, fused(read(other + at), other_factor, read(record + at) * factor));
    record[TOP] = top;
}

INLINE void finish(float *y, const float *record, int64_t size)
{
    const float inverse = 1 / sum(read(record));
    for (int64_t at = 0; at < size; at += LANES)
        write(y + at, read(record + RESULT + at) * inverse);
}

/* The row after those of the same request that begin with `row`, before `end`. */
INLINE int64_t end_of_request(const union job *job, int64_t row, int64_t end)
{
    const int32_t first = job->attend.firsts[row];
    while (row < end && job->attend.firsts[row] == first)
        row++;
    return row;
}

/* A group of units is a key's head and `together` rows, or fewer at the end. With `pieces` above 1
 * each unit computes one part of the context, and the last one of a group joins them. */
static void attend(const union job *job, int64_t first_unit, int64_t last_unit)
{
    const struct attention *layer = job->attend.layer;
    const int64_t together = job->attend.together, rows = job->attend.rows;
    const int64_t parts = job->attend.parts, pieces = job->attend.pieces;
    const int64_t tiles = (rows + together - 1) / together;
    const int64_t size = layer->size, shared = layer->heads / layer->key_heads;
    const int64_t record = RESULT + size, stride = record * (pieces > 1 ? pieces : 2);
    float own[pieces > 1 ? 1 : together * shared * stride];
    for (int64_t unit = first_unit; unit < last_unit; unit++) {
        const int64_t group = unit / pieces, key_head = group / tiles;
        const int64_t first = group % tiles * together, end = smaller(first + together, rows);
        const int64_t queries = (end - first) * shared;
        float *records = pieces > 1 ? partials + group * together * shared * stride : own;
        int64_t part = unit % pieces;
        do {
            float *of_part = records + (pieces > 1 ? part : part > 0) * record;
            for (int64_t row = first, next; row < end; row = next) {
                next = end_of_request(job, row, end);
                float *of_request = of_part + (row - first) * shared * stride;
                attend_part(job, row, next, key_head, part, of_request, stride);
            }
            if (pieces == 1 && part)
                for (int64_t query = 0; query < queries; query++)
                    join(records + query * stride, of_part + query * stride, size);
        } while (pieces == 1 && ++part < parts);
        if (pieces > 1 && __atomic_sub_fetch(&parts_left[group], 1, __ATOMIC_SEQ_CST))
            continue;
        for (int64_t query = 0; query < queries; query++) {
            const int64_t row = first + query / shared;
            const int64_t head = key_head * shared + query % shared;
            float *joined = records + query * stride;
            for (part = 1; part < pieces; part++)
                join(joined, joined + part * record, size);
            finish(job->attend.y + (row * layer->heads + head) * size, joined, size);
        }
    }
}

/* Fill in how the rows of `job` are computed together; gives the number of units. */
static int64_t plan_attention(union job *job, int64_t threads)
{
    const struct attention *layer = job->attend.layer;
    const int64_t rows = job->attend.rows, wanted = PARTS * threads;
    const int64_t shared = layer->heads / layer->key_heads;
    int64_t together = smaller(larger(QUERIES / shared, 1), smaller(rows, TOGETHER)), last = 0;
    for (int64_t row = 0; row < rows; row++)
        last = larger(last, job->attend.positions[row]);
    const int64_t parts = last / PART_TOKENS + 1;
    int64_t groups = (rows + together - 1) / together * layer->key_heads, pieces = 1;
    const int64_t records = groups * together * shared * parts;
    if (groups < smaller(wanted, GROUPS) && records * (RESULT + layer->size) <= PARTIAL_FLOATS)
        pieces = parts;
    if (pieces > 1)
        for (int64_t group = 0; group < groups; group++)
            parts_left[group] = pieces;
    while (pieces == 1 && together > 1 && groups < wanted) {
        together /= 2;
        groups = (rows + together - 1) / together * layer->key_heads;
    }
    job->attend.together = together;
    job->attend.parts = parts;
    job->attend.pieces = pieces;
    return groups * pieces;
}

/* Turn the pairs (i, i + turned / 2) of each head by the angles whose cosines and sines come with
 * the row (RoPE, arXiv 2104.09864, in the order of Llama), and copy what follows them. `sizes` are
 * those of a head and of its turned part in one number. */
static void rotate(
    float *y, const float *x, const float *cosines, const float *sines, int64_t rows,
    int64_t width, int64_t sizes)
{
    const int64_t size = sizes & 0xFFFFFFFF, turned = sizes >> 32, half = turned / 2;
    for (int64_t row = 0; row < rows; row++) {
        const float *cosine = cosines + row * turned, *sine = sines + row * turned;
        for (int64_t begin = row * width; begin < (row + 1) * width; begin += size) {
            const float *low = x + begin, *high = low + half;
            int64_t index = 0;
            for (; index + LANES <= half; index += LANES) {
                floats first = read(low + index), second = read(high + index);
                write(y + begin + index, fused(first, read(cosine + index), -second * read(sine + index)));
                write(y + begin + half + index, fused(second, read(cosine + half + index), first * read(sine + half + index)));
            }
            for (; index < half; index++) {
                float first = low[index], second = high[index];
                y[begin + index] = __builtin_elementwise_fma(first, cosine[index], -second * sine[index]);
                y[begin + half + index] = __builtin_elementwise_fma(second, cosine[half + index], first * sine[half + index]);
            }
            for (index = turned; index < size; index++)
                y[begin + index] = x[begin + index];
        }
    }
}

/* Put keys and values of rows into their places of the cache. */
static void store(
    const struct attention *layer, const float *keys, const float *values,
    const int32_t *positions, const int32_t *firsts, const int32_t *blocks, int64_t rows)
{
    const int64_t heads = layer->key_heads, size = layer->size;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t block = blocks[firsts[row] + positions[row] / BLOCK_TOKENS];
        const int64_t token = positions[row] % BLOCK_TOKENS;
        for (int64_t head = 0; head < heads; head++) {
            const int64_t source = (row * heads + head) * size;
            const int64_t place = (block * heads + head) * size * BLOCK_TOKENS;
            for (int64_t index = 0; index < size; index += LANES) {
                halves value = __builtin_convertvector(read(values + source + index), halves);
                *(halves_anywhere *)(layer->values + place + token * size + index) = value;
                halves key = __builtin_convertvector(read(keys + source + index), halves);
                UNROLLED for (int lane = 0; lane < LANES; lane++)
                    layer->keys[place + (index + lane) * BLOCK_TOKENS + token] = key[lane];
            }
        }
    }
}

/* --------------------------------------------------------------------- gates, norms, sums, masses */

/* x times the logistic function of `argument`. */
INLINE floats gated(floats x, floats argument) { return x / (1.0f + exponential(-argument)); }

INLINE floats swish(floats x) { return gated(x, x); }

/* By tanh: the argument is sqrt(8 / pi) (x + 0.044715 x^3). */
INLINE floats gelu(floats x)
{
    return gated(x, (x + x * x * x * 0.044715f) * 1.5957691216057308f);
}

/* x times the share of the standard normal distribution below it, (1 + erf(x / sqrt(2))) / 2, with
 * Abramowitz and Stegun's 7.1.26 for the share beyond |x| (its error is below 1e-7). */
INLINE floats erf_gelu(floats x)
{
    static const float series[] = {-1.453152027, 1.421413741, -0.284496736, 0.254829592};
    floats t = 1.0f / (__builtin_elementwise_abs(x) * (float)(0.3275911 / 1.4142135623730951) + 1.0f);
    floats total = 1.061405429f;
    UNROLLED for (int term = 0; term < 4; term++)
        total = fused(total, t, series[term]);
    floats beyond = total * t * exponential(x * x * -0.5f) * 0.5f;
    return x * (x > 0.0f ? 1.0f - beyond : beyond);
}

INLINE floats relu(floats x) { return x > 0.0f ? x : (floats)0; }
INLINE floats square(floats x) { return x * x; }

/* Units are vectors. */
#define GATE_FUNCTION(gate) \
    static void gate##_all(const union job *job, int64_t first, int64_t last) \
    { \
        for (int64_t unit = first; unit < last; unit++) \
            write(job->map.y + unit * LANES, gate(read(job->map.x + unit * LANES))); \
    }

GATE_FUNCTION(swish)
GATE_FUNCTION(gelu)
GATE_FUNCTION(erf_gelu)
GATE_FUNCTION(relu)
GATE_FUNCTION(square)

enum { ADDENDS = 1024 }; /* summed before they join the total: a large sum drops small terms */

/* Units are rows. */
static void log_sum_exp(const union job *job, int64_t first, int64_t last)
{
    const int64_t width = job->map.width;
    for (int64_t row = first; row < last; row++) {
        const float *x = job->map.x + row * width;
        floats largest = -__builtin_inff(), total = 0;
        for (int64_t column = 0; column < width; column += LANES) {
            floats values = read(x + column);
            largest = values > largest ? values : largest;
        }
        const float top = __builtin_reduce_max(largest);
        for (int64_t start = 0; start < width; start += ADDENDS) {
            floats some = 0;
            for (int64_t column = start; column < smaller(start + ADDENDS, width); column += LANES)
                some += exponential(read(x + column) - top);
            total += some;
        }
        job->map.y[row] = __builtin_elementwise_log(sum(total)) + top;
    }
}

/* Divide each row, if `centered` less its mean, by the root of its mean square and an epsilon,
 * which comes as the bits of a float. */
INLINE void norm(float *y, const float *x, int64_t rows, int64_t width, int32_t epsilon, int centered)
{
    for (int64_t begin = 0; begin < rows * width; begin += width) {
        const float *row = x + begin;
        floats middle = 0, squares = 0;
        if (centered) {
            for (int64_t column = 0; column < width; column += LANES)
                middle += read(row + column);
            middle = sum(middle) / (float)width;
        }
        for (int64_t column = 0; column < width; column += LANES) {
            floats values = read(row + column) - middle;
            squares = fused(values, values, squares);
        }
        const float square = sum(squares) / (float)width + *(const float *)&epsilon;
        const float factor = 1 / __builtin_elementwise_sqrt(square);
        for (int64_t column = 0; column < width; column += LANES)
            write(y + begin + column, (read(row + column) - middle) * factor);
    }
}

/* A pace of 0 takes the same row of the second operand for all. */
#define OPERATION_FUNCTION(name, operator) \
    static void name( \
        float *y, const float *x, const float *other, int64_t rows, int64_t width, int64_t pace) \
    { \
        for (int64_t row = 0; row < rows; row++) \
            for (int64_t column = 0; column < width; column += LANES) { \
                floats second = read(other + row * pace + column); \
                write(y + row * width + column, read(x + row * width + column) operator second); \
            } \
    }

OPERATION_FUNCTION(add, +)
OPERATION_FUNCTION(multiply, *)

/* -------------------------------------------------------------------------------------- threads */

typedef void job_function(const union job *, int64_t first, int64_t last);
static job_function *const JOB_FUNCTIONS[] = {
    [MATMUL] = matmul, [ATTEND] = attend, [ROUND4] = round4, [ROUND8] = round8,
    [SWISH] = swish_all, [GELU] = gelu_all, [ERF_GELU] = erf_gelu_all, [RELU] = relu_all,
    [SQUARE] = square_all, [LOG_SUM_EXP] = log_sum_exp,
};

INLINE int64_t load(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

INLINE void pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Compute parts of the job on the board until none is left, those of the thread's own share first.
 * Gives how many. A thread that takes a part finds the arguments of its job: they change only when
 * all parts are done. */
static int64_t compute_parts(struct board *board, int64_t thread)
{
    const int64_t threads = board->threads.word;
    int64_t computed = 0;
    for (int64_t offset = 0; offset < threads; offset++) {
        const int64_t share = (thread + offset) % threads;
        int64_t *next = &board->next[share].word, before = computed, part;
        while (load(next) < PARTS /* else only read the line */
               && (part = __atomic_fetch_add(next, 1, __ATOMIC_SEQ_CST)) < PARTS) {
            const int64_t begin = share * PARTS + part, parts = board->threads.word * PARTS;
            JOB_FUNCTIONS[board->operation](
                &board->job, board->units * begin / parts, board->units * (begin + 1) / parts);
            computed++;
        }
        if (computed > before)
            __atomic_fetch_add(&board->done.word, computed - before, __ATOMIC_SEQ_CST);
    }
    return computed;
}

/* Put a job on the board, help with it, and wait until all its parts are done. */
static void share(
    struct board *board, const union job *job, int64_t units, int64_t operation)
{
    const int64_t threads = board->threads.word;
    board->job = *job;
    board->units = units;
    board->operation = operation;
    __atomic_exchange_n(&board->done.word, 0, __ATOMIC_SEQ_CST);
    for (int64_t thread = 0; thread < threads; thread++)
        __atomic_exchange_n(&board->next[thread].word, 0, __ATOMIC_SEQ_CST);
    compute_parts(board, 0);
    while (load(&board->done.word) < threads * PARTS)
        pause();
}

extern int sched_yield(void);

/* A helping thread looks for work so often before it lets others run, and lets others run so often
 * before it sleeps: some milliseconds, more than lie between two forwards. */
enum { SPINS = 200, YIELDS = 1000 };

/* Take parts of the jobs on the board, until there was none for a while. */
void help(struct board *board, int64_t thread)
{
    for (int64_t idle = 0; idle < SPINS * YIELDS;) {
        if (compute_parts(board, thread) > 0) {
            idle = 0;
            continue;
        }
        pause();
        /* Between two runs the plugin needs the processor. */
        const int between = load(&board->running.word) == 0;
        if (between || idle % SPINS == 0)
            sched_yield();
        idle += between ? SPINS / 4 : 1;
    }
}

/* A step of a program: indices of the result's and the operands' slots, which hold addresses. */
struct step {
    int64_t operation, y, x, other, third, width, number;
};

/* Run the steps of a `forward.Program` on `rows` rows, those that follow CHOOSE on `chosen` of them.
 * The first slots are the layout of the tokens: positions, firsts, blocks, and indices of rows. */
void run(
    struct board *board, const struct step *steps, int64_t count, void *const *slots, int64_t rows,
    int64_t chosen)
{
    const int32_t *indices = slots[3];
    board->running.word = 1;
    for (const struct step *step = steps; step < steps + count; step++) {
        float *y = slots[step->y];
        const float *x = slots[step->x], *other = slots[step->other];
        void *const *rounded = &slots[step->other]; /* activations, their scales and sums */
        const int64_t width = step->width, number = step->number;
        const struct matrix *matrix = (const struct matrix *)number;
        const struct attention *layer = (const struct attention *)number;
        union job job;
        int64_t units = rows * width / LANES;
        switch (step->operation) {
        case NORMALIZE:
            norm(y, x, rows * width / step->third, step->third, number, 0);
            continue;
        case STANDARDIZE:
            norm(y, x, rows * width / step->third, step->third, number, 1);
            continue;
        case ADD:
            add(y, x, other, rows, width, number);
            continue;
        case MULTIPLY:
            multiply(y, x, other, rows, width, number);
            continue;
        case ROTATE:
            rotate(y, x, other, slots[step->third], rows, width, number);
            continue;
        case STORE:
            store(layer, x, other, slots[0], slots[1], slots[2], rows);
            continue;
        case CHOOSE:
            rows = chosen;
            for (int64_t row = 0; row < rows; row++)
                for (int64_t column = 0; column < width; column++)
                    y[row * width + column] = x[indices[row] * width + column];
            continue;
        case MATMUL:
            job.matmul.matrix = matrix;
            job.matmul.x = rounded[0];
            job.matmul.x_scales = rounded[1];
            job.matmul.x_sums = rounded[2];
            job.matmul.y = y;
            job.matmul.rows = rows;
            units = (matrix->outputs + TILE - 1) / TILE;
            break;
        case ATTEND:
            job.attend.layer = layer;
            job.attend.queries = x;
            job.attend.positions = slots[0];
            job.attend.firsts = slots[1];
            job.attend.blocks = slots[2];
            job.attend.y = y;
            job.attend.rows = rows;
            units = plan_attention(&job, board->threads.word);
            break;
        case ROUND4:
        case ROUND8:
            job.round.x = x;
            job.round.rounded = rounded[0];
            job.round.scales = rounded[1];
            job.round.sums = rounded[2];
            job.round.columns = number;
            units = rows * width / number;
            break;
        case LOG_SUM_EXP:
            units = rows;
            /* fallthrough */
        default: /* gates */
            job.map.y = y;
            job.map.x = x;
            job.map.width = number;
        }
        share(board, &job, units, step->operation);
    }
    board->running.word = 0;
}
