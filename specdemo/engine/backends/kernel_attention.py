"""Attention over a paged KV cache as machine code, with rotary positions. Importing this needs
llvmlite."""

from typing import Any

from llvmlite import ir

from .attention import BLOCK_TOKENS
from .kernel_steps import exponential, fused
from .tiles import LANES
from .writer import FLOAT, FLOATS, I32, I64, INTS, POINTER, ZEROS, Writer, filled

HALF = ir.HalfType()
HALVES = ir.VectorType(HALF, LANES)
PIECES = BLOCK_TOKENS // LANES  # vectors that hold a number for each token of a block
NEVER = float("-inf")

HEADS, AT_ONCE = 4, 2
"""Heads and vectors whose sums are in registers together; so a head's size is a multiple of 16."""

FEW_HEADS = 2
"""So few heads have twice as many vectors at once: additions to a sum wait for each other."""


def write_rotate(module: ir.Module) -> None:
    """Turn the pairs (i, i + turned / 2) of each head by the angles whose cosines and sines come
    with the row (RoPE, arXiv 2104.09864, in the order of Llama), and copy what follows them: y, x,
    cosines, sines, rows, width, and the sizes of a head and of its turned part in one number."""
    b = Writer(module, "Rotate", [POINTER] * 4 + [I64] * 3)
    y, x, cosines, sines, rows, width, sizes = b.function.args
    size, turned = b.and_(sizes, I64(0xFFFFFFFF)), b.lshr(sizes, I64(32))
    half = b.udiv(turned, I64(2))
    whole = b.sub(half, b.urem(half, I64(LANES)))
    with b.loop(0, rows) as row, b.loop(0, b.udiv(width, size)) as head:
        begin = b.plus(b.times(row, width), b.times(head, size))
        for start, end, step, kind in ((0, whole, LANES, FLOATS), (whole, half, 1, FLOAT)):
            with b.loop(start, end, step) as index:
                low, high = b.plus(begin, index), b.plus(begin, index, half)
                angles = b.plus(b.times(row, turned), index)
                first, second = b.read(x, low, kind), b.read(x, high, kind)
                for place, value, other, offset in (
                    (low, first, b.fneg(second), 0),
                    (high, second, first, half),
                ):
                    angle = b.plus(angles, offset)
                    sine = b.fmul(other, b.read(sines, angle, kind))
                    b.write(fused(b, value, b.read(cosines, angle, kind), sine), y, place)
        with b.loop(turned, size) as index:
            place = b.plus(begin, index)
            b.write(b.read(x, place, FLOAT), y, place)
    b.ret_void()


def write_store(module: ir.Module) -> None:
    """Put keys and values of rows into their places of the cache: keys, values, positions, first
    blocks, blocks, rows, description of the attention. In a block keys are [head size, tokens]
    and values [tokens, head size]."""
    b = Writer(module, "Store", [POINTER] * 5 + [I64] * 2)
    keys, values, positions, firsts, blocks, rows, attention = b.function.args
    attention = b.inttoptr(attention, POINTER)
    heads, size = b.read(attention, 1, I64), b.read(attention, 2, I64)
    kept_keys, kept_values = (b.read(attention, index, POINTER) for index in (5, 6))
    with b.loop(0, rows) as row:
        position = b.sext(b.read(positions, row, I32), I64)
        block = _block(b, blocks, b.read(firsts, row, I32), b.udiv(position, I64(BLOCK_TOKENS)))
        token = b.urem(position, I64(BLOCK_TOKENS))
        with b.loop(0, heads) as head, b.loop(0, size, LANES) as index:
            source = b.plus(b.times(b.plus(b.times(row, heads), head), size), index)
            start = b.times(b.plus(b.times(block, heads), head), size, BLOCK_TOKENS)
            rounded = b.fptrunc(b.read(values, source, FLOATS), HALVES)
            b.write(rounded, kept_values, b.plus(start, b.times(token, size), index))
            rounded = b.fptrunc(b.read(keys, source, FLOATS), HALVES)
            for lane in range(LANES):
                place = b.plus(start, b.times(b.plus(index, lane), BLOCK_TOKENS), token)
                b.write(b.extract_element(rounded, I32(lane)), kept_keys, place)
    b.ret_void()


def write_attend(module: ir.Module, job: int) -> Any:
    """Compute the attention of the job on the board, for rows and the heads that share a key: units
    from the first to before the last, in which a head's rows follow each other, with its keys and
    values in the cache. Blocks are read in order, with the softmax computed along (arXiv
    1805.02867), so the bits depend on the row alone."""
    together = [_write_heads(module, job, count) for count in range(1, HEADS + 1)]
    b = Writer(module, "Attend", [POINTER, I64, I64])
    board, first, last = b.function.args
    attention = b.read(board, job, POINTER)
    heads, key_heads = (b.read(attention, index, I64) for index in range(2))
    rows = b.udiv(b.read(board, job + 6, I64), key_heads)
    shared = b.udiv(heads, key_heads)
    with b.loop(first, last) as unit, b.loop(0, shared, HEADS) as member:
        key_head, row = b.udiv(unit, rows), b.urem(unit, rows)
        left = b.sub(shared, member)
        head = b.plus(b.times(key_head, shared), member)
        for count, compute_heads in enumerate(together, 1):
            compare = ">=" if count == HEADS else "=="
            with b.if_then(b.icmp_signed(compare, left, I64(count))):
                b.call(compute_heads, [board, row, key_head, head])
    b.ret_void()
    return b.function


def _write_heads(module: ir.Module, job: int, count: int) -> Any:
    """The attention of `count` heads of a row: board, row, the key's head, and the first head. Each
    key and value is unpacked once for all of them."""
    b = Writer(module, f"attend_{count}", [POINTER, I64, I64, I64])
    board, row, key_head, head = b.function.args
    attention, queries, positions, firsts, y, blocks = (
        b.read(board, job + index, POINTER) for index in range(6)
    )
    heads, key_heads, size, scale, window = (b.read(attention, index, I64) for index in range(5))
    keys, values = (b.read(attention, index, POINTER) for index in (5, 6))
    scale = b.splat(b.bitcast(b.trunc(scale, I32), FLOAT))
    last = b.sext(b.read(positions, row, I32), I64)
    first = b.read(firsts, row, I32)
    oldest = _at_least_0(b, b.plus(b.sub(last, window), 1))  # the first token that is read
    begins = [b.times(b.plus(b.times(row, heads), head, index), size) for index in range(count)]
    asked = [b.place(queries, begin, FLOAT) for begin in begins]
    results = [b.place(y, begin, FLOAT) for begin in begins]
    weights = [b.room(FLOAT, BLOCK_TOKENS) for _ in begins]
    tops = [b.variable(FLOAT(NEVER)) for _ in begins]
    totals = [b.variable(ZEROS) for _ in begins]
    for result in results:
        with b.loop(0, size, LANES) as index:
            b.write(ZEROS, result, index)
    of_oldest = b.sub(oldest, b.urem(oldest, I64(BLOCK_TOKENS)))
    with b.loop(of_oldest, b.plus(last, 1), BLOCK_TOKENS) as start:
        block = _block(b, blocks, first, b.udiv(start, I64(BLOCK_TOKENS)))
        place = b.times(b.plus(b.times(block, key_heads), key_head), size, BLOCK_TOKENS)
        scores = _scores(b, asked, b.place(keys, place, HALF), size)
        # Indices in the block: the first token that is read, below 0 if before it, and the last.
        early, left = b.sub(oldest, start), b.sub(last, start)
        factors = [
            _weigh(b, of_head, scale, early, left, *state)
            for of_head, *state in zip(scores, tops, totals, weights, strict=True)
        ]
        read = b.plus(left, 1)
        read = b.select(b.icmp_signed("<", read, I64(BLOCK_TOKENS)), read, I64(BLOCK_TOKENS))
        rows_read = _at_least_0(b, early), read
        _add_values(b, results, b.place(values, place, HALF), size, rows_read, weights, factors)
    for result, total in zip(results, totals, strict=True):
        sum_ = b.load(total, typ=FLOATS)
        sum_ = b.call_system("llvm.vector.reduce.fadd.v8f32", FLOAT, FLOAT(0.0), sum_)
        inverse = b.splat(b.fdiv(FLOAT(1.0), sum_))
        with b.loop(0, size, LANES) as index:
            b.write(b.fmul(b.read(result, index, FLOATS), inverse), result, index)
    b.ret_void()
    return b.function


def _at_least_0(b: Writer, value: Any) -> Any:
    return b.select(b.icmp_signed(">", value, I64(0)), value, I64(0))


def _block(b: Writer, blocks: Any, first: Any, number: Any) -> Any:
    """Which block of the cache holds the block `number` of a sequence."""
    return b.sext(b.read(blocks, b.plus(b.sext(first, I64), number), I32), I64)


def _scores(b: Writer, asked: list[Any], keys: Any, size: Any) -> list[list[Any]]:
    """Products of queries and the keys of a block, a vector for each LANES tokens."""
    scores: list[list[Any]] = [[] for _ in asked]
    at_once = _vectors_at_once(len(asked))
    for first in range(0, PIECES, at_once):
        sums = [[b.variable(ZEROS) for _ in range(at_once)] for _ in asked]
        with b.loop(0, size) as index:
            place = b.plus(b.times(index, BLOCK_TOKENS), first * LANES)
            of_tokens = [
                b.fpext(b.read(keys, b.plus(place, piece * LANES), HALVES), FLOATS)
                for piece in range(at_once)
            ]
            for query, of_query in zip(asked, sums, strict=True):
                factor = b.splat(b.read(query, index, FLOAT))
                for key, sum_ in zip(of_tokens, of_query, strict=True):
                    b.store(fused(b, factor, key, b.load(sum_, typ=FLOATS)), sum_)
        for found, of_query in zip(scores, sums, strict=True):
            found += [b.load(sum_, typ=FLOATS) for sum_ in of_query]
    return scores


def _weigh(
    b: Writer,
    scores: list[Any],
    scale: Any,
    first: Any,
    last: Any,
    top: Any,
    total: Any,
    weights: Any,
) -> Any:
    """Put exp(score - top) of the block's tokens from `first` to `last` into `weights` and add
    them to `total`, once `top` is at least their largest score. Gives by what earlier sums
    shrink."""
    least, most = (b.splat(b.trunc(index, I32)) for index in (first, last))
    read, limited = [], []
    for piece, score in enumerate(scores):
        tokens = ir.Constant(INTS, [*range(piece * LANES, (piece + 1) * LANES)])
        within = b.icmp_signed(">=", tokens, least), b.icmp_signed("<=", tokens, most)
        read.append(b.and_(*within))
        limited.append(b.select(read[-1], b.fmul(score, scale), filled(FLOATS, NEVER)))
    largest = limited[0]
    for score in limited[1:]:
        largest = b.select(b.fcmp_ordered(">", score, largest), score, largest)
    largest = b.call_system("llvm.vector.reduce.fmax.v8f32", FLOAT, largest)
    before = b.load(top, typ=FLOAT)
    now = b.select(b.fcmp_ordered(">", largest, before), largest, before)
    b.store(now, top)
    factor = exponential(b, b.splat(b.fsub(before, now)))
    sum_ = b.fmul(b.load(total, typ=FLOATS), factor)
    for piece, (seen, score) in enumerate(zip(read, limited, strict=True)):
        weight = exponential(b, b.fsub(score, b.splat(now)))
        weight = b.select(seen, weight, ZEROS)
        b.write(weight, weights, piece * LANES)
        sum_ = b.fadd(sum_, weight)
    b.store(sum_, total)
    return factor


def _add_values(
    b: Writer,
    results: list[Any],
    values: Any,
    size: Any,
    read: tuple[Any, Any],
    weights: list[Any],
    factors: list[Any],
) -> None:
    """result = factor * result + the sum of a block's values by their weights, for each head:
    from the first that is `read` to before the last."""
    at_once = _vectors_at_once(len(results))
    rest = b.urem(size, I64(at_once * LANES))
    for start, end, vectors in (
        (0, b.sub(size, rest), at_once),
        (b.sub(size, rest), size, AT_ONCE),
    ):
        with b.loop(start, end, vectors * LANES) as begin:
            places = [b.plus(begin, piece * LANES) for piece in range(vectors)]
            sums = [
                [b.variable(b.fmul(b.read(result, place, FLOATS), factor)) for place in places]
                for result, factor in zip(results, factors, strict=True)
            ]
            with b.loop(*read) as token:
                row = b.place(values, b.times(token, size), HALF)
                of_token = [b.fpext(b.read(row, place, HALVES), FLOATS) for place in places]
                for of_head, of_weights in zip(sums, weights, strict=True):
                    weight = b.splat(b.read(of_weights, token, FLOAT))
                    for value, sum_ in zip(of_token, of_head, strict=True):
                        b.store(fused(b, weight, value, b.load(sum_, typ=FLOATS)), sum_)
            for result, of_head in zip(results, sums, strict=True):
                for place, sum_ in zip(places, of_head, strict=True):
                    b.write(b.load(sum_, typ=FLOATS), result, place)


def _vectors_at_once(heads: int) -> int:
    return 2 * AT_ONCE if heads <= FEW_HEADS else AT_ONCE
