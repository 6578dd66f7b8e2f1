"""Products of tiles as machine code: LLVM IR that llvmlite compiles, and threads that run it.
Importing this needs llvmlite."""

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_int64
from functools import reduce
from itertools import product
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from llvmlite import binding, ir

from .tiles import BITS, ROWS, TILE, Matrix

PARTS = 16  # of a product: a thread that other work delays takes fewer

SPINS, YIELDS = 200, 1000
"""A helping thread looks for work so often before it lets others run, and lets others run so often
before it sleeps: some milliseconds, more than the plugin needs between two products."""

DONE, JOB = 8, 16
"""Indices of the board, int64 [64]: at first the next part of the job; at DONE, in another line of
the cache, the number of parts that are done; from JOB on the arguments of `multiply`."""

SWITCH_SECONDS = 1e-4
"""After which Python takes the interpreter from a busy thread; every product needs it. Beside one a
1.5 B model gave 0.7 tokens/s with Python's own 5 ms, 7.6 with these (alone 14.7)."""

UNROLLED = 4
"""Steps at once. With 4 bits they add 8 products of at most 2 * 15 * 127 in 16 bits, the most that
fit; with 8 bits a product of two columns does: 2 * 128 * 127."""

LANES = TILE // 2  # outputs of a vector
I8, I16, I32, I64 = map(ir.IntType, (8, 16, 32, 64))
FLOAT, POINTER, NOTHING = ir.FloatType(), ir.PointerType(), ir.VoidType()
BYTES, SHORTS = ir.VectorType(I8, 4 * LANES), ir.VectorType(I16, 2 * LANES)
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(FLOAT, LANES)
HALVES, ZEROS = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(I8, LANES)


class Kernels:
    """The compiled code, and threads that help with every product."""

    def __init__(self) -> None:
        self._code = _functions()
        self._board = np.zeros(64, np.int64)
        self._board[0] = PARTS  # no part is left
        self._lock = Lock()
        self._room: list[np.ndarray] = []
        self._wakes: list[Event] = []
        self._helpers: list[Thread] = []
        self._ended = False
        atexit.register(self.close)  # the code is unmapped when the interpreter ends

    def start(self, threads: int) -> None:
        """Let so many threads compute every product: the calling one, and helpers."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        with self._lock:
            while len(self._helpers) < threads - 1:
                self._wakes.append(Event())
                arguments = [self._wakes[-1]]
                helper = Thread(target=self._help, args=arguments, name="kernels", daemon=True)
                self._helpers.append(helper)
                helper.start()

    def multiply(self, matrices: list[Matrix], x: int, outputs: list[int], rows: int) -> None:
        """Multiply `rows` rows of float32 at the address `x` with each of `matrices`, which have
        the same columns, bits and groups, to float32 at the addresses `outputs`."""
        first = matrices[0]
        board, groups = self._board.ctypes.data, rows * first.columns // first.group
        for wake in self._wakes:
            if not wake.is_set():
                wake.set()
        with self._lock:
            rounded = self._rounded(rows * first.columns, groups)
            self._code[f"round_{first.bits}"](x, *rounded, groups, first.group)
            for matrix, y in zip(matrices, outputs, strict=True):
                self._code["multiply"](board, matrix.address, *rounded, y, rows)

    def close(self) -> None:
        """Stop the helping threads."""
        self._ended = True
        for wake, helper in zip(self._wakes, self._helpers, strict=True):
            wake.set()
            helper.join()

    def _help(self, wake: Event) -> None:
        while not self._ended:
            wake.wait()
            self._code["help"](self._board.ctypes.data)
            wake.clear()

    def _rounded(self, values: int, groups: int) -> list[int]:
        """Addresses with room for rounded activations: values, the scale and the sum of a group."""
        if not self._room or len(self._room[0]) < values or len(self._room[1]) < groups:
            kinds = (values, np.int8), (groups, np.float32), (groups, np.float32)
            self._room = [np.empty(size, kind) for size, kind in kinds]
            self._addresses = [array.ctypes.data for array in self._room]
        return self._addresses


def _functions() -> dict[str, Any]:
    """Compile all. The functions, and "engine", which keeps their code."""
    module = ir.Module()
    for bits in BITS:
        _write_round(module, bits)
    tiles = [_write_tile(module, bits, rows) for bits in BITS for rows in range(1, ROWS + 1)]
    compute_parts = _write_compute_parts(module, tiles)
    _write_multiply(module, compute_parts)
    _write_help(module, compute_parts)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    parsed = binding.parse_assembly(str(module))
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu="haswell", opt=3)
    options = binding.create_pipeline_tuning_options(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    made = {"engine": engine}
    # Only `help` runs while Python does; the others would spend more on letting it.
    for name in ("multiply", "help", *(f"round_{bits}" for bits in BITS)):
        kind = CFUNCTYPE if name == "help" else PYFUNCTYPE
        prototype = kind(None, *[c_int64] * len(module.get_global(name).args))
        made[name] = prototype(engine.get_function_address(name))
    return made


class _Writer(ir.IRBuilder):  # type: ignore[misc]
    """Writes a function without a result. Offsets are 64-bit integers, numbers of Python among
    them."""

    def __init__(self, module: ir.Module, name: str, kinds: list[Any]):
        written = ir.Function(module, ir.FunctionType(NOTHING, kinds), name)
        super().__init__(written.append_basic_block())

    def plus(self, *terms: Any) -> Any:
        return reduce(self.add, map(_integer, terms))

    def times(self, *factors: Any) -> Any:
        return reduce(self.mul, map(_integer, factors))

    def call_system(self, name: str, kind: Any, *arguments: Any) -> Any:
        """Call an instruction of LLVM or a function of the system."""
        form = ir.FunctionType(kind, [value.type for value in arguments])
        callee = self.module.globals.get(name) or ir.Function(self.module, form, name)
        return self.call(callee, arguments)

    def splat(self, value: Any, count: int = LANES) -> Any:
        kind = ir.VectorType(value.type, count)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.insert_element(undefined, value, I32(0))
        return self.shuffle_vector(first, undefined, _filled(ir.VectorType(I32, count), 0))

    def place(self, base: Any, offset: Any, kind: Any) -> Any:
        """The address `offset` elements of `kind` from `base`."""
        element = kind.element if isinstance(kind, ir.VectorType) else kind
        return self.gep(base, [_integer(offset)], source_etype=element)

    def read(self, base: Any, offset: Any, kind: Any) -> Any:
        return self.load(self.place(base, offset, kind), typ=kind, align=1)

    def write(self, value: Any, base: Any, offset: Any) -> None:
        self.store(value, self.place(base, offset, value.type), align=1)

    def variable(self, value: Any) -> Any:
        """A variable with this value; the optimizer keeps it in a register."""
        with self.goto_entry_block():
            place = self.alloca(value.type)
        self.store(value, place)
        return place

    def increase(self, variable: Any, value: Any) -> None:
        self.store(self.add(self.load(variable, typ=value.type), value), variable)

    @contextmanager
    def while_below(self, limit: Any, value: Callable[[], Any]) -> Iterator[Any]:
        """Repeat what is written inside while `value()` is below the limit; gives that value."""
        test, body, after = (self.append_basic_block() for _ in range(3))
        self.branch(test)
        self.position_at_end(test)
        current = value()
        self.cbranch(self.icmp_signed("<", current, _integer(limit)), body, after)
        self.position_at_end(body)
        yield current
        self.branch(test)
        self.position_at_end(after)

    @contextmanager
    def loop(self, start: Any, end: Any, step: int = 1) -> Iterator[Any]:
        """Repeat what is written inside for `start`, `start` + `step` and so on below `end`."""
        variable = self.variable(_integer(start))
        with self.while_below(end, lambda: self.load(variable, typ=I64)) as index:
            yield index
            self.store(self.plus(index, step), variable)


def _integer(value: Any) -> Any:
    return I64(value) if isinstance(value, int) else value


def _filled(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _write_tile(module: ir.Module, bits: int, rows: int) -> Any:
    """Compute a tile of the job on the board for some rows: board, tile, and the first row."""
    b = _Writer(module, f"tile_{bits}_{rows}", [POINTER, I64, I64])
    board, tile, first_row = b.function.args
    matrix, x, x_scales, x_sums, y = (b.read(board, JOB + index, POINTER) for index in range(5))
    words, scales, zeros = (b.read(matrix, index, POINTER) for index in range(3))
    columns, groups, steps, pace, scales_tile, outputs = (
        b.read(matrix, index, I64) for index in range(3, 9)
    )
    words = b.place(words, b.times(tile, groups, steps, 4 * TILE), I8)
    scales = b.place(scales, b.times(tile, scales_tile), HALVES)
    zeros = b.place(zeros, b.times(tile, scales_tile), ZEROS)
    x = b.place(x, b.times(first_row, columns), I8)
    x_scales, x_sums = (
        b.place(values, b.times(first_row, groups), FLOAT) for values in (x_scales, x_sums)
    )
    y = b.place(y, b.plus(b.times(first_row, outputs), b.times(tile, TILE)), FLOAT)
    cells = [(row, half) for row in range(rows) for half in range(2)]
    totals = {cell: b.variable(_filled(FLOATS, 0.0)) for cell in cells}
    with b.loop(0, groups) as group:
        sums = {cell: b.variable(_filled(INTS, 0)) for cell in cells}
        with b.loop(0, steps, UNROLLED) as step:
            pair_sums: dict[tuple[int, int], Any] = {}
            for number in range(UNROLLED):
                index = b.plus(b.times(group, steps), step, number)
                halves = [
                    b.read(words, b.plus(b.times(index, 64), half), BYTES) for half in (0, 32)
                ]
                column = b.times(index, 32 // bits)
                for part, row in product(range(8 // bits), range(rows)):
                    of_row = b.plus(b.times(columns, row), column, 4 * part)
                    four = b.read(b.place(x, of_row, I8), 0, I32)
                    values = b.bitcast(b.splat(four), BYTES)
                    for half, stored in enumerate(halves):
                        cell, pairs = (row, half), _pairs(b, bits, part, stored, values)
                        if bits == 8:
                            b.increase(sums[cell], _fours(b, pairs))
                        elif cell in pair_sums:
                            pair_sums[cell] = b.add(pair_sums[cell], pairs)
                        else:
                            pair_sums[cell] = pairs
            for cell, pairs in pair_sums.items():
                b.increase(sums[cell], _fours(b, pairs))
        for half in range(2):
            start = b.plus(b.times(group, pace), half * LANES)
            scale = b.fpext(b.read(scales, start, HALVES), FLOATS)
            zero = b.sitofp(b.read(zeros, start, ZEROS), FLOATS)
            for row in range(rows):
                of_row = b.plus(b.times(groups, row), group)
                x_scale, x_sum = (b.splat(b.read(of, of_row, FLOAT)) for of in (x_scales, x_sums))
                integers = b.sitofp(b.load(sums[row, half], typ=INTS), FLOATS)
                # Exact: both are integers below 2 ** 24.
                integers = b.fsub(integers, b.fmul(zero, x_sum))
                total = b.load(totals[row, half], typ=FLOATS)
                added = b.call_system(
                    "llvm.fma.v8f32", FLOATS, integers, b.fmul(scale, x_scale), total
                )
                b.store(added, totals[row, half])
    for row, half in cells:
        total = b.load(totals[row, half], typ=FLOATS)
        b.write(total, y, b.plus(b.times(outputs, row), half * LANES))
    b.ret_void()
    return b.function


def _pairs(b: _Writer, bits: int, part: int, stored: Any, values: Any) -> Any:
    """Products of weights and values, and of their neighbours, added. With 4 bits part 0 of the
    stored bytes are the low halves, part 1 the high ones."""
    if bits == 8:  # the instruction takes the first factor without a sign
        sign = "llvm.x86.avx2.psign.b"
        values = b.call_system(sign, BYTES, values, stored)
        weights = b.call_system(sign, BYTES, stored, stored)
    else:
        weights = b.lshr(stored, _filled(BYTES, 4)) if part else b.and_(stored, _filled(BYTES, 15))
    return b.call_system("llvm.x86.avx2.pmadd.ub.sw", SHORTS, weights, values)


def _fours(b: _Writer, pairs: Any) -> Any:
    """Sums of two neighbours, 32 bits."""
    return b.call_system("llvm.x86.avx2.pmadd.wd", INTS, pairs, _filled(SHORTS, 1))


def _write_round(module: ir.Module, bits: int) -> None:
    """Round groups of activations: values, rounded values, scales, sums; number of groups, and
    columns of each. With 4 bits the even ones of 8 columns come first, as in the weights."""
    count = 16
    floats, ints = ir.VectorType(FLOAT, count), ir.VectorType(I32, count)
    b = _Writer(module, f"round_{bits}", [POINTER] * 4 + [I64] * 2)
    x, rounded, scales, sums, groups, columns = b.function.args
    order = [*range(0, 8, 2), *range(1, 8, 2)] if bits == 4 else [*range(8)]
    mask = ir.Constant(ints, [*order, *(index + 8 for index in order)])
    with b.loop(0, groups) as group:
        begin = b.times(group, columns)
        largest = b.variable(_filled(floats, 0.0))
        with b.loop(0, columns, count) as column:
            values = b.read(x, b.plus(begin, column), floats)
            sizes = b.call_system("llvm.fabs.v16f32", floats, values)
            before = b.load(largest, typ=floats)
            b.store(b.select(b.fcmp_ordered(">", sizes, before), sizes, before), largest)
        sizes = b.load(largest, typ=floats)
        top = b.call_system("llvm.vector.reduce.fmax.v16f32", FLOAT, sizes)
        some = b.fcmp_ordered(">", top, FLOAT(0.0))
        factor = b.select(some, b.fdiv(FLOAT(127.0), top), FLOAT(0.0))
        total = b.variable(_filled(ints, 0))
        with b.loop(0, columns, count) as column:
            place = b.plus(begin, column)
            scaled = b.fmul(b.read(x, place, floats), b.splat(factor, count))
            integers = b.fptosi(b.call_system("llvm.rint.v16f32", floats, scaled), ints)
            b.increase(total, integers)
            ordered = b.shuffle_vector(integers, integers, mask)
            b.write(b.trunc(ordered, ir.VectorType(I8, count)), rounded, place)
        sum_ = b.call_system("llvm.vector.reduce.add.v16i32", I32, b.load(total, typ=ints))
        b.write(b.sitofp(sum_, FLOAT), sums, group)
        b.write(b.fdiv(top, FLOAT(127.0)), scales, group)
    b.ret_void()


def _write_compute_parts(module: ir.Module, tiles: list[Any]) -> Any:
    """Compute parts of the job on the board until none is left. A thread that takes a part finds
    the arguments of its job: they change only when all parts are done."""
    b = _Writer(module, "compute_parts", [POINTER])
    [board] = b.function.args
    with b.while_below(PARTS, lambda: b.atomic_rmw("add", board, I64(1), "seq_cst")) as part:
        matrix, rows = b.read(board, JOB, POINTER), b.read(board, JOB + 5, I64)
        outputs, code = b.read(matrix, 8, I64), b.read(matrix, 9, I64)
        count = b.udiv(outputs, I64(TILE))
        first, last = (b.udiv(b.times(count, end), I64(PARTS)) for end in (part, b.plus(part, 1)))
        with b.loop(first, last) as tile, b.loop(0, rows, ROWS) as row:
            left = b.sub(rows, row)
            left = b.select(b.icmp_signed(">", left, I64(ROWS)), I64(ROWS), left)
            chosen = b.plus(code, left)
            for number, compute_tile in enumerate(tiles, 1):
                with b.if_then(b.icmp_signed("==", chosen, I64(number))):
                    b.call(compute_tile, [board, tile, row])
        b.atomic_rmw("add", b.place(board, DONE, I64), I64(1), "seq_cst")
    b.ret_void()
    return b.function


def _write_multiply(module: ir.Module, compute_parts: Any) -> None:
    """Put a job on the board, help with it, and wait until all its parts are done: board,
    description of the matrix, activations, their scales and sums, outputs, and rows."""
    b = _Writer(module, "multiply", [POINTER] + [I64] * 6)
    board, *job = b.function.args
    for index, value in enumerate(job, JOB):
        b.write(value, board, index)
    done = b.place(board, DONE, I64)
    for counter in (done, board):
        b.atomic_rmw("xchg", counter, I64(0), "seq_cst")
    b.call(compute_parts, [board])
    with b.while_below(PARTS, lambda: b.load_atomic(done, "seq_cst", 8, typ=I64)):
        b.call_system("llvm.x86.sse2.pause", NOTHING)
    b.ret_void()


def _write_help(module: ir.Module, compute_parts: Any) -> None:
    """Take parts of the jobs on the board, until there was none for a while."""
    b = _Writer(module, "help", [POINTER])
    [board] = b.function.args
    idle = b.variable(I64(0))
    with b.while_below(SPINS * YIELDS, lambda: b.load(idle, typ=I64)) as spins:
        part = b.load_atomic(board, "seq_cst", 8, typ=I64)
        with b.if_else(b.icmp_signed("<", part, I64(PARTS))) as (work, none):
            with work:
                b.call(compute_parts, [board])
                b.store(I64(0), idle)
            with none:
                b.call_system("llvm.x86.sse2.pause", NOTHING)
                b.store(b.plus(spins, 1), idle)
                with b.if_then(b.icmp_signed("==", b.urem(spins, I64(SPINS)), I64(0))):
                    b.call_system("sched_yield", I32)
    b.ret_void()
