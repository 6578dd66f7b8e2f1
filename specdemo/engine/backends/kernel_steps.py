"""What a segment of a decoder computes beside its products, as machine code: rounding of
activations, sums, norms and gates, and the function that runs a segment's steps."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .fusion import JOBS, NORMS, OPERATIONS, ROUNDINGS, STEP_SIZE
from .tiles import LANES, TILE
from .writer import FLOAT, FLOATS, I8, I16, I32, I64, INTS, POINTER, ZEROS, Writer, filled

BYTES, SHORTS = ir.VectorType(I8, LANES), ir.VectorType(I16, LANES)
TOGETHER = 1024  # logits summed before they join those before: a large sum drops small terms
ERF = 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429
LOG2, LOG2_HIGH, LOG2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
"""Base 2 logarithm of e; and the natural one of 2 in two parts, the first of few bits, so that its
products with small integers are exact."""


def write_round(module: ir.Module, name: str, bits: int, wide: bool, job: int) -> Any:
    """Round groups of the activations of the job on the board: values, rounded values, scales,
    sums, and columns of a group. With 4 bits the even ones of 8 columns come first, as in the
    weights. `wide` values have 16 bits, the even ones of 4 columns first."""
    b = Writer(module, name, [POINTER, I64, I64])
    board, first, last = b.function.args
    x, rounded, scales, sums = (b.read(board, job + index, POINTER) for index in range(4))
    columns = b.read(board, job + 4, I64)
    order = [*range(0, 8, 2), *range(1, 8, 2)] if bits == 4 else [*range(8)]
    order = [0, 2, 1, 3, 4, 6, 5, 7] if wide else order
    with b.loop(first, last) as group:
        begin = b.times(group, columns)
        largest = b.variable(ZEROS)
        with b.loop(0, columns, LANES) as column:
            values = b.read(x, b.plus(begin, column), FLOATS)
            sizes = b.call_system("llvm.fabs.v8f32", FLOATS, values)
            before = b.load(largest, typ=FLOATS)
            b.store(b.select(b.fcmp_ordered(">", sizes, before), sizes, before), largest)
        sizes = b.load(largest, typ=FLOATS)
        top = b.call_system("llvm.vector.reduce.fmax.v8f32", FLOAT, sizes)
        some = b.fcmp_ordered(">", top, FLOAT(0.0))
        factor = b.select(some, b.fdiv(FLOAT(127.0), top), FLOAT(0.0))
        total = b.variable(filled(INTS, 0))
        with b.loop(0, columns, LANES) as column:
            place = b.plus(begin, column)
            scaled = b.fmul(b.read(x, place, FLOATS), b.splat(factor))
            integers = b.fptosi(b.call_system("llvm.rint.v8f32", FLOATS, scaled), INTS)
            b.increase(total, integers)
            ordered = b.shuffle_vector(integers, integers, ir.Constant(INTS, order))
            b.write(b.trunc(ordered, SHORTS if wide else BYTES), rounded, place)
        sum_ = b.call_system("llvm.vector.reduce.add.v8i32", I32, b.load(total, typ=INTS))
        b.write(b.sitofp(sum_, FLOAT), sums, group)
        b.write(b.fdiv(top, FLOAT(127.0)), scales, group)
    b.ret_void()
    return b.function


def write_gates(module: ir.Module, job: int) -> dict[str, Any]:
    """Functions of vectors of the job on the board: results, and values."""
    gates: dict[str, Callable[[Writer, Any], Any]] = {
        "Swish": lambda b, x: _gated(b, x, x),
        "Gelu": lambda b, x: _gated(b, x, _gelu_argument(b, x)),
        "ErfGelu": lambda b, x: b.fmul(x, _normal_share(b, x)),
        "Relu": lambda b, x: b.select(b.fcmp_ordered(">", x, ZEROS), x, ZEROS),
        "Square": lambda b, x: b.fmul(x, x),
    }
    written = {}
    for name, compute in gates.items():
        b = Writer(module, name, [POINTER, I64, I64])
        board, first, last = b.function.args
        y, x = (b.read(board, job + index, POINTER) for index in range(2))
        with b.loop(first, last) as number:
            index = b.times(number, LANES)
            b.write(compute(b, b.read(x, index, FLOATS)), y, index)
        b.ret_void()
        written[name] = b.function
    return written


def write_log_sum(module: ir.Module, job: int) -> Any:
    """The log-sum-exp of rows of the job on the board: results, values, and their number in a
    row."""
    b = Writer(module, "LogSumExp", [POINTER, I64, I64])
    board, first, last = b.function.args
    y, x = (b.read(board, job + index, POINTER) for index in range(2))
    width = b.read(board, job + 2, I64)
    with b.loop(first, last) as row:
        begin = b.times(row, width)
        largest = b.variable(filled(FLOATS, float("-inf")))
        some, total = (b.variable(ZEROS) for _ in range(2))
        with b.loop(0, width, LANES) as column:
            values = b.read(x, b.plus(begin, column), FLOATS)
            before = b.load(largest, typ=FLOATS)
            b.store(b.select(b.fcmp_ordered(">", values, before), values, before), largest)
        top = b.load(largest, typ=FLOATS)
        top = b.call_system("llvm.vector.reduce.fmax.v8f32", FLOAT, top)
        with b.loop(0, width, TOGETHER) as start:
            end = b.plus(start, TOGETHER)
            end = b.select(b.icmp_signed("<", end, width), end, width)
            b.store(ZEROS, some)
            with b.loop(start, end, LANES) as column:
                values = b.fsub(b.read(x, b.plus(begin, column), FLOATS), b.splat(top))
                b.store(b.fadd(b.load(some, typ=FLOATS), exponential(b, values)), some)
            b.store(b.fadd(b.load(total, typ=FLOATS), b.load(some, typ=FLOATS)), total)
        sum_ = b.load(total, typ=FLOATS)
        sum_ = b.call_system("llvm.vector.reduce.fadd.v8f32", FLOAT, FLOAT(0.0), sum_)
        b.write(b.fadd(b.call_system("llvm.log.f32", FLOAT, sum_), top), y, row)
    b.ret_void()
    return b.function


def write_operations(module: ir.Module) -> None:
    """Functions of `y`, `x` and a second operand, float32, for rows of a width. A `pace` of 0 takes
    the same row of the second operand for all."""
    of_values: dict[str, Callable[[Writer, Any, Any], Any]] = {
        "Add": lambda b, x, other: b.fadd(x, other),
        "Multiply": lambda b, x, other: b.fmul(x, other),
    }
    for name, compute in of_values.items():
        b = Writer(module, name, [POINTER] * 3 + [I64] * 3)
        y, x, other, rows, width, pace = b.function.args
        with b.loop(0, rows) as row, b.loop(0, width, LANES) as column:
            index = b.plus(b.times(row, width), column)
            second = b.read(other, b.plus(b.times(row, pace), column), FLOATS)
            b.write(compute(b, b.read(x, index, FLOATS), second), y, index)
        b.ret_void()
    for name in NORMS:
        _write_norm(module, name, centered=name == "Standardize")


def _write_norm(module: ir.Module, name: str, *, centered: bool) -> None:
    """Divide each row, if `centered` less its mean, by the root of its mean square and an epsilon,
    which comes as the bits of a float."""
    b = Writer(module, name, [POINTER] * 3 + [I64] * 3)
    y, x, _, rows, width, epsilon = b.function.args
    epsilon = b.bitcast(b.trunc(epsilon, I32), FLOAT)

    def mean_of(sum_: Any) -> Any:
        total = b.load(sum_, typ=FLOATS)
        total = b.call_system("llvm.vector.reduce.fadd.v8f32", FLOAT, FLOAT(0.0), total)
        return b.fdiv(total, b.sitofp(width, FLOAT))

    with b.loop(0, rows) as row:
        begin, squares = b.times(row, width), b.variable(ZEROS)
        middle = ZEROS
        if centered:
            sum_ = b.variable(middle)
            with b.loop(0, width, LANES) as column:
                b.store(
                    b.fadd(b.load(sum_, typ=FLOATS), b.read(x, b.plus(begin, column), FLOATS)), sum_
                )
            middle = b.splat(mean_of(sum_))
        with b.loop(0, width, LANES) as column:
            values = b.fsub(b.read(x, b.plus(begin, column), FLOATS), middle)
            b.store(fused(b, values, values, b.load(squares, typ=FLOATS)), squares)
        root = b.call_system("llvm.sqrt.f32", FLOAT, b.fadd(mean_of(squares), epsilon))
        factor = b.splat(b.fdiv(FLOAT(1.0), root))
        with b.loop(0, width, LANES) as column:
            place = b.plus(begin, column)
            b.write(b.fmul(b.fsub(b.read(x, place, FLOATS), middle), factor), y, place)
    b.ret_void()


def _gated(b: Writer, x: Any, argument: Any) -> Any:
    """x times the logistic function of the argument."""
    return b.fdiv(x, b.fadd(filled(FLOATS, 1.0), exponential(b, b.fneg(argument))))


def _gelu_argument(b: Writer, x: Any) -> Any:
    """Of the logistic function in Gelu's approximation by tanh: sqrt(8 / pi) (x + 0.044715 x^3)."""
    cubic = b.fmul(b.fmul(b.fmul(x, x), x), filled(FLOATS, 0.044715))
    return b.fmul(b.fadd(x, cubic), filled(FLOATS, 1.5957691216057308))


def _normal_share(b: Writer, x: Any) -> Any:
    """The share of the standard normal distribution below x: (1 + erf(x / sqrt(2))) / 2, with
    Abramowitz and Stegun's 7.1.26 for the share beyond |x| (its error is below 1e-7)."""
    size = b.call_system("llvm.fabs.v8f32", FLOATS, x)
    scaled = b.fmul(size, filled(FLOATS, 0.3275911 / 2**0.5))
    t = b.fdiv(filled(FLOATS, 1.0), b.fadd(scaled, filled(FLOATS, 1.0)))
    total = filled(FLOATS, ERF[-1])
    for coefficient in ERF[-2::-1]:
        total = fused(b, total, t, filled(FLOATS, coefficient))
    density = exponential(b, b.fmul(b.fmul(x, x), filled(FLOATS, -0.5)))
    beyond = b.fmul(b.fmul(b.fmul(total, t), density), filled(FLOATS, 0.5))
    below = b.fsub(filled(FLOATS, 1.0), beyond)
    return b.select(b.fcmp_ordered(">", x, ZEROS), below, beyond)


def exponential(b: Writer, x: Any) -> Any:
    """exp(x) = 2^n exp(r) with |r| <= log(2) / 2, and exp(r) by its series up to r^6 (the next term
    is below 2e-7). Arguments are limited to those whose result is a normal float."""
    low, high = filled(FLOATS, -87.0), filled(FLOATS, 88.0)
    x = b.select(b.fcmp_ordered(">", x, low), x, low)
    x = b.select(b.fcmp_ordered("<", x, high), x, high)
    n = b.call_system("llvm.rint.v8f32", FLOATS, b.fmul(x, filled(FLOATS, LOG2)))
    rest = fused(b, n, filled(FLOATS, -LOG2_HIGH), x)
    rest = fused(b, n, filled(FLOATS, -LOG2_LOW), rest)
    total = filled(FLOATS, 1 / 720)
    for factorial in (120, 24, 6, 2, 1, 1):
        total = fused(b, total, rest, filled(FLOATS, 1 / factorial))
    exponent = b.shl(b.add(b.fptosi(n, INTS), filled(INTS, 127)), filled(INTS, 23))
    return b.fmul(total, b.bitcast(exponent, FLOATS))


def fused(b: Writer, factor: Any, other: Any, term: Any) -> Any:
    """factor * other + term, rounded once, of vectors or numbers."""
    kind = term.type
    name = "llvm.fma.v8f32" if kind == FLOATS else "llvm.fma.f32"
    return b.call_system(name, kind, factor, other, term)


def write_run(module: ir.Module, running: int, share: Any) -> None:
    """Run steps (`fusion.Program`) one after the other: board, steps, their number, slots, rows.
    Meanwhile the board's word at `running` is 1."""
    b = Writer(module, "run", [POINTER, POINTER, I64, POINTER, I64])
    board, steps, count, slots, rows = b.function.args
    b.write(I64(1), board, running)
    with b.loop(0, count) as number:
        step = b.place(steps, b.times(number, STEP_SIZE), I64)
        code, *indices, width, extra = (b.read(step, index, I64) for index in range(STEP_SIZE))
        y, x, other, third = (b.read(slots, index, I64) for index in indices)
        # Of operands with three parts, the others.
        parts = [b.read(slots, b.plus(indices[2], part), I64) for part in (1, 2)]
        positions, firsts, blocks = (b.read(slots, index, I64) for index in range(3))
        described = b.inttoptr(extra, POINTER)
        for index, name in enumerate(OPERATIONS):
            with b.if_then(b.icmp_signed("==", code, I64(index))):
                if name in JOBS:
                    if name == "MatMul":
                        outputs = b.read(described, 8, I64)
                        units = b.udiv(b.plus(outputs, TILE - 1), I64(TILE))
                        arguments = [extra, other, *parts, y, rows]
                    elif name == "Attend":
                        units = b.times(rows, b.read(described, 1, I64))
                        arguments = [extra, x, positions, firsts, y, blocks]
                    elif name in ROUNDINGS:
                        units = b.udiv(b.times(rows, width), extra)
                        arguments = [x, other, *parts, extra]
                    elif name == "LogSumExp":
                        units, arguments = rows, [y, x, extra]
                    else:
                        units, arguments = b.udiv(b.times(rows, width), I64(LANES)), [y, x]
                    arguments += [I64(0)] * (6 - len(arguments))
                    b.call(share, [board, *arguments, units, I64(JOBS.index(name))])
                    continue
                arguments = [y, x, other, rows, width, extra]
                if name in NORMS:
                    norms = b.udiv(b.times(rows, width), indices[3])
                    arguments = [y, x, other, norms, indices[3], extra]
                elif name == "Rotate":
                    arguments = [y, x, other, third, rows, width, extra]
                elif name == "Store":
                    arguments = [x, other, positions, firsts, blocks, rows, extra]
                callee = module.get_global(name)
                b.call(
                    callee,
                    [
                        b.inttoptr(value, POINTER) if parameter.type == POINTER else value
                        for value, parameter in zip(arguments, callee.args, strict=True)
                    ],
                )
    b.write(I64(0), board, running)
    b.ret_void()
