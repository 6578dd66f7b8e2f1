"""Integer products of activations and compressed weights, as machine code that llvmlite compiles:
for processors with AVX2 and without VNNI, where the plugin unpacks weights to floats.

Activations are rounded to 8 bits, with one scale for each group of columns. The products of a group
are summed as integers, and groups are added in their order. So an output has the same bits whatever
the number of rows, threads and requests is. Nothing else is computed here, and no graph is known.
"""

import atexit
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_int64
from dataclasses import dataclass
from functools import cache
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

LANES, TILE = 8, 16
"""Outputs of a vector and of a tile. A tile has the weights of TILE rows; its word s * TILE + o, of
32 bits, has those of row o at step s: 4 columns of 8 bits or 8 columns of 4 bits."""

UNROLLED = 4
"""Steps at once. With 4 bits they add 8 products of at most 2 * 15 * 127 in 16 bits, the most that
fit; with 8 bits a product of two columns does: 2 * 128 * 127."""

BITS = (4, 8)
ROWS = 4  # rows that one pass over a tile computes: their sums fill the processor's registers
PARTS = 16  # of a product: a thread that other work delays takes fewer

SPINS, YIELDS = 200, 1000
"""A helping thread looks for work so often before it lets others run, and lets others run so often
before it sleeps: some milliseconds, more than the plugin needs between two products."""

SWITCH_SECONDS = 1e-4
"""After which Python takes the interpreter from a busy thread; every product needs it. Beside one a
1.5 B model gave 0.7 tokens/s with Python's own 5 ms, 7.6 with these (alone 14.7)."""

PROPERTY = ("PRODUCTS", "kernels")
"""Stands among the plugin's properties of a model whose products are computed here."""


WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # values of ONEDNN_MAX_CPU_ISA


def plugin_properties(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those that the plugin knows."""
    return {name: value for name, value in properties if (name, value) != PROPERTY}


@cache
def available() -> bool:
    """Whether this processor has AVX2 and no VNNI (or oneDNN must not use it), and llvmlite is
    installed."""
    if os.name != "posix" or importlib.util.find_spec("llvmlite") is None:
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI
    vnni = not limited and (features.get("avx512vnni") or features.get("avxvnni"))
    return not vnni and all(features.get(name) for name in ("avx2", "fma", "f16c"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Compressed weights in tiles. `columns` are rounded in groups of `group`. Every weight is
    (stored - zero) * scale: `scales` (float16) and `zeros` (int8) are [tiles, groups, TILE], or
    [tiles, 1, TILE] where a row has one scale. `description` has what the code reads."""

    outputs: int
    columns: int
    bits: int
    group: int
    words: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    description: np.ndarray
    address: int  # of the description


def pack(
    weights: np.ndarray, bits: int, scales: np.ndarray, zeros: np.ndarray, flipped: int = 0
) -> Matrix | None:
    """Arrange `weights`, bytes [outputs, columns * bits / 8]: int8, or two of 0 to 15 a byte, the
    first in the low half, once the bits `flipped` are turned. `scales` (float16) and `zeros` (int8)
    are [outputs, groups]. None for shapes that the code does not compute."""
    outputs, columns, groups = len(weights), weights.shape[1] * 8 // bits, scales.shape[1]
    group = next((size for size in (128, 64, 32) if columns // groups % size == 0), 0)
    if outputs % TILE or not group or (groups > 1 and columns // groups != group):
        return None
    steps = columns * bits // 32
    words = np.full((outputs // TILE, steps, TILE), flipped * 0x01010101, np.uint32)
    words ^= weights.view(np.uint32).reshape(-1, TILE, steps).transpose(0, 2, 1)
    # Copies: the memory of a graph's constants does not stay.
    scales, zeros = (
        np.array(values.reshape(-1, TILE, groups).transpose(0, 2, 1), order="C")
        for values in (scales, zeros)
    )
    pointers = [array.ctypes.data for array in (words, scales, zeros)]
    code = BITS.index(bits) * ROWS
    numbers = outputs, columns, columns // group, group * bits // 32, groups, code
    description = np.array([*pointers, *numbers], np.int64)
    address = description.ctypes.data
    return Matrix(outputs, columns, bits, group, words, scales, zeros, description, address)


class Kernels:
    """The compiled code, and threads that help with every product."""

    def __init__(self) -> None:
        self._code = _Compiler().functions()
        self._board = np.zeros(64, np.int64)
        self._board[0] = PARTS  # no part is left
        self._lock = Lock()
        self._room: list[np.ndarray] = []
        self._wakes: list[Event] = []
        self._helpers: list[Thread] = []
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
        self._board[1] = 1
        for wake, helper in zip(self._wakes, self._helpers, strict=True):
            wake.set()
            helper.join()

    def _help(self, wake: Event) -> None:
        while not self._board[1]:
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


@cache
def shared() -> Kernels:
    """The kernels of this process."""
    return Kernels()


class _Compiler:
    """Writes the code as LLVM IR. Its board, 64 integers of 64 bits: [0] the ticket, the number of
    the job << 32 and the next part of it; [1] not 0: stop; [8] the parts that are done; [16] on:
    the arguments of `multiply`."""

    def __init__(self) -> None:
        from llvmlite import binding, ir

        self.binding, self.ir = binding, ir
        self.module = ir.Module()
        self.i8, self.i16, self.i32, self.i64 = map(ir.IntType, (8, 16, 32, 64))
        self.float, self.half, self.pointer = ir.FloatType(), ir.HalfType(), ir.PointerType()
        self.names: dict[str, tuple[Any, int]] = {}

    def functions(self) -> dict[str, Any]:
        """Compile all. The functions keep their code."""
        for bits in BITS:
            self._round(bits)
        claim = self._claim(
            [self._tile(bits, rows) for bits in BITS for rows in range(1, ROWS + 1)]
        )
        self._multiply(claim)
        self._help(claim)
        binding = self.binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        module = binding.parse_assembly(str(self.module))
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(cpu="haswell", opt=3)
        options = binding.create_pipeline_tuning_options(speed_level=3)
        passes = binding.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        engine = binding.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        made = {"engine": engine}
        for name, (kind, count) in self.names.items():
            prototype = kind(None, *[c_int64] * count)
            made[name] = prototype(engine.get_function_address(name))
        return made

    def _function(self, name: str, kinds: list[Any], public: Any = None) -> Any:
        """A function without a result, and a builder at its entry."""
        made = self.ir.Function(self.module, self.ir.FunctionType(self.ir.VoidType(), kinds), name)
        if public:
            self.names[name] = public, len(kinds)
        return made, self.ir.IRBuilder(made.append_basic_block())

    def _call(self, b: Any, name: str, kind: Any, arguments: list[Any]) -> Any:
        """Call an instruction of LLVM or a function of the system."""
        form = self.ir.FunctionType(kind, [value.type for value in arguments])
        callee = self.module.globals.get(name) or self.ir.Function(self.module, form, name)
        return b.call(callee, arguments)

    def _vector(self, kind: Any, count: int = LANES) -> Any:
        return self.ir.VectorType(kind, count)

    def _constant(self, kind: Any, value: float) -> Any:
        vector = isinstance(kind, self.ir.VectorType)
        return self.ir.Constant(kind, [value] * kind.count if vector else value)

    def _splat(self, b: Any, value: Any, count: int = LANES) -> Any:
        undefined = self.ir.Constant(self._vector(value.type, count), self.ir.Undefined)
        first = b.insert_element(undefined, value, self.i32(0))
        return b.shuffle_vector(first, undefined, self._constant(self._vector(self.i32, count), 0))

    def _place(self, b: Any, base: Any, kind: Any, offset: Any, size: int = 0) -> Any:
        """The address `offset` elements of `kind`, or `offset` times `size` bytes, from `base`."""
        element = kind.element if isinstance(kind, self.ir.VectorType) else kind
        return b.gep(base, [offset], source_etype=self.i8 if size else element)

    def _load(self, b: Any, base: Any, kind: Any, offset: Any, size: int = 0) -> Any:
        return b.load(self._place(b, base, kind, offset, size), typ=kind, align=1)

    def _store(self, b: Any, value: Any, base: Any, offset: Any) -> None:
        b.store(value, self._place(b, base, value.type, offset), align=1)

    def _add(self, b: Any, variable: Any, value: Any) -> None:
        b.store(b.add(b.load(variable, typ=value.type), value), variable)

    def _variable(self, b: Any, value: Any) -> Any:
        """A variable with this value; the optimizer keeps it in a register."""
        with b.goto_entry_block():
            place = b.alloca(value.type)
        b.store(value, place)
        return place

    @contextmanager
    def _loop(self, b: Any, start: Any, end: Any, step: int = 1) -> Iterator[Any]:
        """Repeat what is built inside for `start`, `start` + `step` and so on below `end`."""
        place = self._variable(b, start)
        test, body, after = (b.append_basic_block() for _ in range(3))
        b.branch(test)
        b.position_at_end(test)
        index = b.load(place, typ=self.i64)
        b.cbranch(b.icmp_signed("<", index, end), body, after)
        b.position_at_end(body)
        yield index
        b.store(b.add(index, self.i64(step)), place)
        b.branch(test)
        b.position_at_end(after)

    def _tile(self, bits: int, rows: int) -> Any:
        """One tile for some rows: words, scales, zeros, numbers between the scales of two groups,
        activations, their scales and sums, outputs; columns, groups, steps of a group, and numbers
        between two rows of the outputs."""
        bytes_, shorts = self._vector(self.i8, 32), self._vector(self.i16, 16)
        ints, floats = self._vector(self.i32), self._vector(self.float)
        kinds = [self.pointer] * 3 + [self.i64] + [self.pointer] * 4 + [self.i64] * 4
        made, b = self._function(f"tile_{bits}_{rows}", kinds)
        words, scales, zeros, pace, x, x_scales, x_sums, y, columns, groups, steps, width = (
            made.args
        )
        low, high = self._constant(bytes_, 15), self._constant(bytes_, 4)
        ones, none = self._constant(shorts, 1), self._constant(floats, 0.0)
        cells = [(row, half) for row in range(rows) for half in range(2)]
        totals = {cell: self._variable(b, none) for cell in cells}

        def pairs(left: Any, right: Any) -> Any:
            return self._call(b, "llvm.x86.avx2.pmadd.ub.sw", shorts, [left, right])

        def fours(short: Any) -> Any:
            return self._call(b, "llvm.x86.avx2.pmadd.wd", ints, [short, ones])

        with self._loop(b, self.i64(0), groups) as g:
            sums = {cell: self._variable(b, self._constant(ints, 0)) for cell in cells}
            with self._loop(b, self.i64(0), steps, UNROLLED) as step:
                short: dict[tuple[int, int], Any] = {}
                for u in range(UNROLLED):
                    at = b.add(b.add(b.mul(g, steps), step), self.i64(u))
                    loaded = [
                        self._load(b, words, bytes_, b.add(b.mul(at, self.i64(64)), self.i64(half)))
                        for half in (0, 32)
                    ]
                    column = b.mul(at, self.i64(32 // bits))
                    for part in range(8 // bits):
                        for row in range(rows):
                            here = b.add(b.mul(columns, self.i64(row)), column)
                            four = self._load(b, x, self.i32, b.add(here, self.i64(4 * part)), 1)
                            values = b.bitcast(self._splat(b, four), bytes_)
                            for half, stored in enumerate(loaded):
                                cell = row, half
                                if bits == 8:  # one factor of `pairs` has no sign
                                    sign = "llvm.x86.avx2.psign.b"
                                    signed = self._call(b, sign, bytes_, [values, stored])
                                    size = self._call(b, sign, bytes_, [stored, stored])
                                    four_sums = fours(pairs(size, signed))
                                    self._add(b, sums[cell], four_sums)
                                    continue
                                nibbles = b.lshr(stored, high) if part else b.and_(stored, low)
                                product = pairs(nibbles, values)
                                before = short.get(cell)
                                short[cell] = product if before is None else b.add(before, product)
                for cell, pair_sums in short.items():
                    self._add(b, sums[cell], fours(pair_sums))
            place = b.mul(g, pace)
            for half in range(2):
                start = b.add(place, self.i64(half * LANES))
                scale = b.fpext(self._load(b, scales, self._vector(self.half), start), floats)
                zero = b.sitofp(self._load(b, zeros, self._vector(self.i8), start), floats)
                for row in range(rows):
                    of_row = b.add(b.mul(groups, self.i64(row)), g)
                    x_scale = self._splat(b, self._load(b, x_scales, self.float, of_row))
                    x_sum = self._splat(b, self._load(b, x_sums, self.float, of_row))
                    whole = b.sitofp(b.load(sums[row, half], typ=ints), floats)
                    # Exact: both are integers below 2 ** 24.
                    whole = b.fsub(whole, b.fmul(zero, x_sum))
                    total = b.load(totals[row, half], typ=floats)
                    terms = [whole, b.fmul(scale, x_scale), total]
                    b.store(self._call(b, "llvm.fma.v8f32", floats, terms), totals[row, half])
        for row, half in cells:
            place = b.add(b.mul(width, self.i64(row)), self.i64(half * LANES))
            self._store(b, b.load(totals[row, half], typ=floats), y, place)
        b.ret_void()
        return made

    def _round(self, bits: int) -> None:
        """Round groups of activations: values, rounded values, scales, sums; number of groups, and
        columns of each. With 4 bits the even ones of 8 columns come first, as in the weights."""
        count = 16
        floats, ints = self._vector(self.float, count), self._vector(self.i32, count)
        kinds = [self.pointer] * 4 + [self.i64] * 2
        made, b = self._function(f"round_{bits}", kinds, PYFUNCTYPE)
        x, rounded, scales, sums, groups, columns = made.args
        order = [*range(0, 8, 2), *range(1, 8, 2)] if bits == 4 else range(8)
        mask = self.ir.Constant(
            self._vector(self.i32, count), [*order, *(index + 8 for index in order)]
        )
        with self._loop(b, self.i64(0), groups) as group:
            begin = b.mul(group, columns)
            largest = self._variable(b, self._constant(floats, 0.0))
            with self._loop(b, self.i64(0), columns, count) as column:
                values = self._load(b, x, floats, b.add(begin, column))
                sizes = self._call(b, "llvm.fabs.v16f32", floats, [values])
                before = b.load(largest, typ=floats)
                larger = b.fcmp_ordered(">", sizes, before)
                b.store(b.select(larger, sizes, before), largest)
            top = self._call(
                b, "llvm.vector.reduce.fmax.v16f32", self.float, [b.load(largest, typ=floats)]
            )
            some = b.fcmp_ordered(">", top, self.float(0.0))
            factor = b.select(some, b.fdiv(self.float(127.0), top), self.float(0.0))
            total = self._variable(b, self._constant(ints, 0))
            with self._loop(b, self.i64(0), columns, count) as column:
                place = b.add(begin, column)
                scaled = b.fmul(self._load(b, x, floats, place), self._splat(b, factor, count))
                whole = b.fptosi(self._call(b, "llvm.rint.v16f32", floats, [scaled]), ints)
                self._add(b, total, whole)
                ordered = b.shuffle_vector(whole, whole, mask)
                self._store(b, b.trunc(ordered, self._vector(self.i8, count)), rounded, place)
            sum_ = self._call(
                b, "llvm.vector.reduce.add.v16i32", self.i32, [b.load(total, typ=ints)]
            )
            self._store(b, b.sitofp(sum_, self.float), sums, group)
            self._store(b, b.fdiv(top, self.float(127.0)), scales, group)
        b.ret_void()

    def _field(self, b: Any, board: Any, index: int) -> Any:
        return self._load(b, board, self.i64, self.i64(index))

    def _claim(self, codes: list[Any]) -> Any:
        """Compute parts of the job on the board until none is left. Whoever takes a part finds the
        arguments of its job: they change only when all parts are done."""
        made, b = self._function("claim", [self.pointer])
        [board] = made.args
        take, work, end = (b.append_basic_block() for _ in range(3))
        b.branch(take)
        b.position_at_end(take)
        ticket = b.atomic_rmw("add", board, self.i64(1), "seq_cst")
        part = b.and_(ticket, self.i64(0xFFFFFFFF))
        b.cbranch(b.icmp_unsigned("<", part, self.i64(PARTS)), work, end)
        b.position_at_end(work)
        description, x, x_scales, x_sums, y, rows = (
            self._field(b, board, 16 + index) for index in range(6)
        )
        place = b.inttoptr(description, self.pointer)
        words, scales, zeros, outputs, columns, groups, steps, scale_groups, code = (
            self._field(b, place, index) for index in range(9)
        )
        tiles = b.udiv(outputs, self.i64(TILE))
        first, last = (
            b.udiv(b.mul(tiles, number), self.i64(PARTS))
            for number in (part, b.add(part, self.i64(1)))
        )
        several = b.icmp_unsigned(">", scale_groups, self.i64(1))
        pace = b.select(several, self.i64(TILE), self.i64(0))
        scales_tile = b.mul(scale_groups, self.i64(TILE))
        words_tile = b.mul(b.mul(groups, steps), self.i64(4 * TILE))
        with self._loop(b, first, last) as tile:
            scale = b.mul(tile, scales_tile)
            weights = [
                b.add(words, b.mul(tile, words_tile)),
                b.add(scales, b.mul(scale, self.i64(2))),
                b.add(zeros, scale),
            ]
            with self._loop(b, self.i64(0), rows, ROWS) as row:
                left = b.sub(rows, row)
                many = b.icmp_signed(">", left, self.i64(ROWS))
                count = b.select(many, self.i64(ROWS), left)
                of_group = b.mul(b.mul(row, groups), self.i64(4))
                output = b.mul(b.add(b.mul(row, outputs), b.mul(tile, self.i64(TILE))), self.i64(4))
                places = [
                    b.add(x, b.mul(row, columns)),
                    b.add(x_scales, of_group),
                    b.add(x_sums, of_group),
                    b.add(y, output),
                ]
                pointers = [b.inttoptr(value, self.pointer) for value in (*weights, *places)]
                arguments = [*pointers[:3], pace, *pointers[3:], columns, groups, steps, outputs]
                after = b.append_basic_block()
                choice = b.switch(b.sub(b.add(count, code), self.i64(1)), after)
                for index, tile_code in enumerate(codes):
                    block = b.append_basic_block()
                    choice.add_case(self.i64(index), block)
                    b.position_at_end(block)
                    b.call(tile_code, arguments)
                    b.branch(after)
                b.position_at_end(after)
        b.atomic_rmw("add", self._place(b, board, self.i64, self.i64(8)), self.i64(1), "seq_cst")
        b.branch(take)
        b.position_at_end(end)
        b.ret_void()
        return made

    def _multiply(self, claim: Any) -> None:
        """Put a job on the board, help with it, and wait until all its parts are done: board,
        description of the matrix, activations, their scales and sums, outputs, and rows."""
        kinds = [self.pointer] + [self.i64] * 6
        made, b = self._function("multiply", kinds, PYFUNCTYPE)
        board, *arguments = made.args
        for index, value in enumerate(arguments):
            self._store(b, value, board, self.i64(16 + index))
        done = self._place(b, board, self.i64, self.i64(8))
        b.atomic_rmw("xchg", done, self.i64(0), "seq_cst")
        job = b.lshr(self._field(b, board, 0), self.i64(32))
        ticket = b.shl(b.add(job, self.i64(1)), self.i64(32))
        b.atomic_rmw("xchg", board, ticket, "seq_cst")
        b.call(claim, [board])
        wait, end = b.append_basic_block(), b.append_basic_block()
        b.branch(wait)
        b.position_at_end(wait)
        self._call(b, "llvm.x86.sse2.pause", self.ir.VoidType(), [])
        count = b.load_atomic(done, "seq_cst", 8, typ=self.i64)
        b.cbranch(b.icmp_unsigned("<", count, self.i64(PARTS)), wait, end)
        b.position_at_end(end)
        b.ret_void()

    def _help(self, claim: Any) -> None:
        """Take parts of the jobs on the board, until there was none for a while."""
        made, b = self._function("help", [self.pointer], CFUNCTYPE)
        [board] = made.args
        idle = self._variable(b, self.i64(0))
        look, work, wait, rest, end = (b.append_basic_block() for _ in range(5))
        b.branch(look)
        b.position_at_end(look)
        ticket = b.load_atomic(board, "seq_cst", 8, typ=self.i64)
        part = b.and_(ticket, self.i64(0xFFFFFFFF))
        b.cbranch(b.icmp_unsigned("<", part, self.i64(PARTS)), work, wait)
        b.position_at_end(work)
        b.call(claim, [board])
        b.store(self.i64(0), idle)
        b.branch(look)
        b.position_at_end(wait)
        self._call(b, "llvm.x86.sse2.pause", self.ir.VoidType(), [])
        self._add(b, idle, self.i64(1))
        spins = b.urem(b.load(idle, typ=self.i64), self.i64(SPINS))
        b.cbranch(b.icmp_unsigned("==", spins, self.i64(0)), rest, look)
        b.position_at_end(rest)
        self._call(b, "sched_yield", self.i32, [])
        long = b.icmp_unsigned(">", b.load(idle, typ=self.i64), self.i64(SPINS * YIELDS))
        stopped = b.icmp_unsigned("!=", self._field(b, board, 1), self.i64(0))
        b.cbranch(b.or_(long, stopped), end, look)
        b.position_at_end(end)
        b.ret_void()
