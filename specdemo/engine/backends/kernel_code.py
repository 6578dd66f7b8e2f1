"""Products of tiles as machine code, which llvmlite compiles, and threads that run it. Importing
this needs llvmlite."""

import atexit
import sys
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_int64
from functools import partial
from itertools import product
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from llvmlite import binding, ir

from .fusion import JOBS, ROUNDINGS
from .kernel_attention import write_attend, write_rotate, write_store
from .kernel_steps import write_gates, write_log_sum, write_operations, write_round, write_run
from .tiles import BITS, LANES, ROWS, TILE, lines
from .writer import FLOAT, I8, I16, I32, I64, INTS, NOTHING, POINTER, Writer, filled

PARTS = 4  # of a thread's share of a product: another thread that is ready takes from them

SPINS, YIELDS = 200, 1000
"""A helping thread looks for work so often before it lets others run, and lets others run so often
before it sleeps: some milliseconds, more than the plugin needs between two segments."""

MAX_THREADS, LINE = 256, 8  # int64 of a line of the processor's cache
DONE, THREADS, RUNNING, JOB, NEXT = (LINE * line for line in range(5))
"""Indices of the board, int64, each in a line of the cache: the number of parts of the job that are
done; of threads; whether `run` runs; the arguments of a product; and for each thread, the next part
of its share."""

AVX512_VNNI, AVX_VNNI = "+avx512f,+avx512bw,+avx512vl,+avx512vnni", "+avxvnni"

BRIEF_ROWS, BRIEF_STEPS = 16, 64  # up to here Python waits for a segment

SWITCH_SECONDS = 1e-4
"""After which Python takes the interpreter from a busy thread; every segment needs it. Beside one a
1.5 B model gave 0.7 tokens/s with Python's own 5 ms, 7.6 with these (alone 14.7)."""

UNROLLED = 4
"""Steps at once. With 4 bits they add 8 products of at most 2 * 15 * 127 in 16 bits, the most that
fit."""

AHEAD_ROWS, NEAR, FAR = 2, 4096, 8192
"""From so many rows on a tile asks for the weights that follow so many bytes later: more than the
memory sends within its latency. What a processor expects by itself, it asks for too late once a
product computes for long between two reads; with fewer rows it expects enough. NEAR weights go to
the first cache alone, since the lower ones have the data of the rest of the forward. FAR ones go to
the lower caches: beside more than SMALL activations, which would displace them from the first, and
in more than half of a full pass, which computes for longer and may be followed by another one."""

SMALL = 4096  # rows times columns

BYTES, SHORTS = ir.VectorType(I8, 4 * LANES), ir.VectorType(I16, 2 * LANES)


class Kernels:
    """The compiled code, and threads that help with every job. `vnni` names what the processor has
    beside AVX2 to compute products with VNNI, as LLVM does; its results have the same bits."""

    def __init__(self, vnni: str = "") -> None:
        self._code = _functions(vnni)
        self._board = np.full(NEXT + LINE * MAX_THREADS, PARTS, np.int64)  # no part is left
        self._board[THREADS], self._board[RUNNING] = 1, 0
        self.lock = Lock()
        self._memory = np.empty(0, np.uint8)
        self._base = 0
        self._wakes: list[Event] = []
        self._helpers: list[Thread] = []
        self._ended = False
        atexit.register(self.close)  # the code is unmapped when the interpreter ends

    def start(self, threads: int) -> None:
        """Let so many threads compute every product: the calling one, and helpers."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        with self.lock:
            while len(self._helpers) < min(threads, MAX_THREADS) - 1:
                self._wakes.append(Event())
                arguments = [self._wakes[-1], len(self._wakes)]
                helper = Thread(target=self._help, args=arguments, name="kernels", daemon=True)
                self._helpers.append(helper)
                helper.start()
            self._board[THREADS] = len(self._helpers) + 1

    def run(self, steps: int, count: int, slots: int, rows: int) -> None:
        """Run the `count` steps of a `fusion.Program` at the address `steps` on `rows` rows of the
        operands whose addresses are at `slots`. Callers hold `lock`."""
        for wake in self._wakes:
            if not wake.is_set():
                wake.set()
        brief = rows <= BRIEF_ROWS and count <= BRIEF_STEPS
        run = self._code["run" if brief else "run beside Python"]
        run(self._board.ctypes.data, steps, count, slots, rows)

    def room(self, size: int) -> int:
        """The address of `size` bytes of memory, until the next call. Callers hold `lock`."""
        if len(self._memory) < size:
            self._memory = lines(size)
            self._base = self._memory.ctypes.data
        return self._base

    def close(self) -> None:
        """Stop the helping threads."""
        self._ended = True
        for wake, helper in zip(self._wakes, self._helpers, strict=True):
            wake.set()
            helper.join()

    def _help(self, wake: Event, thread: int) -> None:
        while not self._ended:
            wake.wait()
            self._code["help"](self._board.ctypes.data, thread)
            wake.clear()


def _functions(vnni: str) -> dict[str, Any]:
    """Compile all. The functions, and "engine", which keeps their code."""
    module = ir.Module()
    jobs = write_gates(module, JOB)
    jobs |= {"MatMul": _write_products(module, vnni), "Attend": write_attend(module, JOB)}
    jobs["LogSumExp"] = write_log_sum(module, JOB)
    for name, bits in zip(ROUNDINGS, BITS, strict=True):
        jobs[name] = write_round(module, name, bits, _is_wide(bits, vnni), JOB)
    compute_parts = _write_compute_parts(module, [jobs[name] for name in JOBS])
    write_rotate(module)
    write_store(module)
    _write_help(module, compute_parts)
    write_operations(module)
    write_run(module, RUNNING, _write_share(module, compute_parts))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    parsed = binding.parse_assembly(str(module))
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu="haswell", features=vnni, opt=3)
    options = binding.create_pipeline_tuning_options(speed_level=1)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    made = {"engine": engine}
    # To let Python run meanwhile takes longer than a segment for few rows.
    for name, function, kind in (
        ("run", "run", PYFUNCTYPE),
        ("run beside Python", "run", CFUNCTYPE),
        ("help", "help", CFUNCTYPE),
    ):
        prototype = kind(None, *[c_int64] * len(module.get_global(function).args))
        made[name] = prototype(engine.get_function_address(function))
    return made


def _is_wide(bits: int, vnni: str) -> bool:
    """Whether weights and activations are multiplied in 16 bits: 4 products of 8 bits do not fit
    there, and 2 take more instructions."""
    return bits == 8 and not vnni


def _write_products(module: ir.Module, vnni: str) -> Any:
    """Compute tiles of the job on the board: description of the matrix, activations, their scales
    and sums, outputs, rows."""
    tiles = _write_tiles(module, vnni)
    b = Writer(module, "MatMul", [POINTER, I64, I64])
    board, first, last = b.function.args
    matrix, rows = b.read(board, JOB, POINTER), b.read(board, JOB + 5, I64)
    columns, code = b.read(matrix, 3, I64), b.read(matrix, 9, I64)
    full = I64(len(tiles) // 2 // len(BITS))
    with b.loop(first, last) as tile, b.loop(0, rows, full) as row:
        left = b.sub(rows, row)
        left = b.select(b.icmp_signed(">", left, full), full, left)
        many = b.icmp_signed(">", b.times(left, columns), I64(SMALL))
        kind = b.plus(b.times(code, 2), b.zext(many, I64))
        b.choose(b.plus(b.times(kind, full), left, -1), tiles, [board, tile, row])
    b.ret_void()
    return b.function


def _write_tiles(module: ir.Module, vnni: str) -> list[Any]:
    """Functions for every number of bits, few and many activations, 1 row to a full pass."""
    full = ROWS if vnni == AVX512_VNNI else ROWS // 2
    tiles = []
    for bits, many in product(BITS, (False, True)):
        for rows in range(1, full + 1):
            ahead = FAR if many or rows > full // 2 else NEAR
            ahead = ahead if rows >= AHEAD_ROWS else 0
            found = module.globals.get(_name_of_tile(bits, rows, ahead))
            tiles.append(found or _write_tile(module, bits, rows, ahead, vnni))
    return tiles


def _name_of_tile(bits: int, rows: int, ahead: int) -> str:
    return f"tile_{bits}_{rows}_{ahead}"


def _write_tile(module: ir.Module, bits: int, rows: int, ahead: int, vnni: str) -> Any:
    """Compute a tile of the job on the board for some rows, and ask for weights so many bytes
    `ahead`, if not 0: board, tile, and the first row."""
    b = Writer(module, _name_of_tile(bits, rows, ahead), [POINTER, I64, I64])
    lanes = TILE if vnni == AVX512_VNNI else LANES
    floats, ints, bytes_ = (
        ir.VectorType(kind, count)
        for kind, count in ((FLOAT, lanes), (I32, lanes), (I8, 4 * lanes))
    )
    board, tile, first_row = b.function.args
    matrix, x, x_scales, x_sums, y = (b.read(board, JOB + index, POINTER) for index in range(5))
    words, scales, zeros = (b.read(matrix, index, POINTER) for index in range(3))
    columns, groups, steps, pace, scales_tile, outputs = (
        b.read(matrix, index, I64) for index in range(3, 9)
    )
    words = b.place(words, b.times(tile, groups, steps, 4 * TILE), I8)
    scales = b.place(scales, b.times(tile, scales_tile), ir.HalfType())
    zeros = b.place(zeros, b.times(tile, scales_tile), I8)
    wide, parts = _is_wide(bits, vnni), 1 if bits == 8 and vnni else 2
    x_bytes = b.times(columns, 2 if wide else 1)
    x = b.place(x, b.times(first_row, x_bytes), I8)
    x_scales, x_sums = (
        b.place(values, b.times(first_row, groups), FLOAT) for values in (x_scales, x_sums)
    )
    output, last = b.times(tile, TILE), b.sub(outputs, I64(TILE))
    output = b.select(b.icmp_signed("<", output, last), output, last)
    y = b.place(y, b.plus(b.times(first_row, outputs), output), FLOAT)
    starts = range(0, TILE, lanes)
    cells = list(product(range(rows), starts))
    totals = {cell: b.variable(filled(floats, 0.0)) for cell in cells}
    with b.loop(0, groups) as group:
        sums = {cell: b.variable(filled(ints, 0)) for cell in cells}
        with b.loop(0, steps, UNROLLED) as step:
            pair_sums: dict[tuple[int, int], Any] = {}
            for number in range(UNROLLED):
                index = b.plus(b.times(group, steps), step, number)
                place = b.times(index, 4 * TILE)
                stored = {
                    start: b.read(words, b.plus(place, 4 * start), bytes_) for start in starts
                }
                if ahead:
                    b.prefetch(words, b.plus(place, ahead), low=ahead == FAR)
                column = b.times(index, 4 * parts)
                for part, row in product(range(parts), range(rows)):
                    of_row = b.plus(b.times(x_bytes, row), column, 4 * part)
                    four = b.read(b.place(x, of_row, I8), 0, I32)
                    values = b.bitcast(b.splat(four, lanes), bytes_)
                    for start in starts:
                        cell = row, start
                        if vnni:
                            weights = _unsigned(b, bits, part, stored[start])
                            sum_ = b.load(sums[cell], typ=ints)
                            b.store(_add_fours(b, sum_, weights, values), sums[cell])
                            continue
                        if wide:
                            pairs = _every_other(b, part, stored[start])
                            pairs = _pairs(b, pairs, b.bitcast(values, SHORTS))
                            sum_ = b.load(sums[cell], typ=ints)
                            b.store(b.add_in_order(sum_, pairs), sums[cell])
                            continue
                        weights = _unsigned(b, bits, part, stored[start])
                        pairs = b.call_system("llvm.x86.avx2.pmadd.ub.sw", SHORTS, weights, values)
                        if cell in pair_sums:
                            pair_sums[cell] = b.add_in_order(pair_sums[cell], pairs)
                        else:
                            pair_sums[cell] = pairs
            for cell, pairs in pair_sums.items():
                b.increase(sums[cell], _pairs(b, pairs, filled(SHORTS, 1)))
        for start in starts:
            place = b.plus(b.times(group, pace), start)
            scale = b.fpext(b.read(scales, place, ir.VectorType(ir.HalfType(), lanes)), floats)
            zero = b.sitofp(b.read(zeros, place, ir.VectorType(I8, lanes)), floats)
            if vnni and bits == 8:  # as in `_unsigned`
                zero = b.fadd(zero, filled(floats, 128.0))
            for row in range(rows):
                of_row = b.plus(b.times(groups, row), group)
                x_scale, x_sum = (
                    b.splat(b.read(of, of_row, FLOAT), lanes) for of in (x_scales, x_sums)
                )
                integers = b.sitofp(b.load(sums[row, start], typ=ints), floats)
                # Exact: both are integers below 2 ** 24.
                integers = b.fsub(integers, b.fmul(zero, x_sum))
                total = b.load(totals[row, start], typ=floats)
                factor = b.fmul(scale, x_scale)
                added = b.call_system(f"llvm.fma.v{lanes}f32", floats, integers, factor, total)
                b.store(added, totals[row, start])
    for row, start in cells:
        total = b.load(totals[row, start], typ=floats)
        b.write(total, y, b.plus(b.times(outputs, row), start))
    b.ret_void()
    return b.function


def _unsigned(b: Writer, bits: int, part: int, stored: Any) -> Any:
    """Weights of 8 bits and 128, or of 4 bits: part 0 of the stored bytes are the low halves, part
    1 the high ones."""
    if bits == 8:
        return b.xor(stored, filled(stored.type, -128))
    if part:
        return b.lshr(stored, filled(stored.type, 4))
    return b.and_(stored, filled(stored.type, 15))


def _add_fours(b: Writer, sums: Any, weights: Any, values: Any) -> Any:
    """Sums of four neighbours, 32 bits, added to those before."""
    operands = (b.bitcast(operand, sums.type) for operand in (weights, values))
    name = f"llvm.x86.avx512.vpdpbusd.{32 * sums.type.count}"
    return b.call_system(name, sums.type, sums, *operands)


def _every_other(b: Writer, part: int, stored: Any) -> Any:
    """The even ones, or with part 1 the odd ones, of weights of 8 bits, in 16."""
    shorts, eight = b.bitcast(stored, SHORTS), filled(SHORTS, 8)
    return b.ashr(shorts if part else b.shl(shorts, eight), eight)


def _pairs(b: Writer, x: Any, y: Any) -> Any:
    """Products of 16 bits and of their neighbours, added: 32 bits."""
    return b.call_system("llvm.x86.avx2.pmadd.wd", INTS, x, y)


def _write_compute_parts(module: ir.Module, jobs: list[Any]) -> Any:
    """Compute parts of the job on the board until none is left, those of the `thread`'s own share
    first. Gives how many. A thread that takes a part finds the arguments of its job: they change
    only when all parts are done."""
    b = Writer(module, "compute_parts", [POINTER, I64], I64)
    board, thread = b.function.args
    threads, computed = b.read(board, THREADS, I64), b.variable(I64(0))
    with b.loop(0, threads) as offset:
        share = b.urem(b.plus(thread, offset), threads)
        following = b.place(board, b.plus(NEXT, b.times(share, LINE)), I64)
        before = b.load(computed, typ=I64)

        def take(following: Any = following) -> Any:
            part = b.variable(I64(PARTS))
            left = b.load_atomic(following, "seq_cst", 8, typ=I64)
            with b.if_then(b.icmp_signed("<", left, I64(PARTS))):  # else only read the line
                b.store(b.atomic_rmw("add", following, I64(1), "seq_cst"), part)
            return b.load(part, typ=I64)

        with b.while_below(PARTS, take) as part:
            units, code = b.read(board, JOB + 6, I64), b.read(board, JOB + 7, I64)
            begin = b.plus(b.times(share, PARTS), part)
            parts = b.times(b.read(board, THREADS, I64), PARTS)
            first, last = (b.udiv(b.times(units, end), parts) for end in (begin, b.plus(begin, 1)))
            b.choose(code, jobs, [board, first, last])
            b.increase(computed, I64(1))
        count = b.sub(b.load(computed, typ=I64), before)
        with b.if_then(b.icmp_signed(">", count, I64(0))):
            b.atomic_rmw("add", b.place(board, DONE, I64), count, "seq_cst")
    b.ret(b.load(computed, typ=I64))
    return b.function


def _write_share(module: ir.Module, compute_parts: Any) -> Any:
    """Put a job on the board, help with it, and wait until all its parts are done: board, six
    arguments of its function in JOBS, number of units, and index of that function."""
    b = Writer(module, "share", [POINTER, *[I64] * 8])
    board, *arguments = b.function.args
    for index, value in enumerate(arguments, JOB):
        b.write(value, board, index)
    done, threads = b.place(board, DONE, I64), b.read(board, THREADS, I64)
    b.atomic_rmw("xchg", done, I64(0), "seq_cst")
    with b.loop(0, threads) as thread:
        following = b.place(board, b.plus(NEXT, b.times(thread, LINE)), I64)
        b.atomic_rmw("xchg", following, I64(0), "seq_cst")
    b.call(compute_parts, [board, I64(0)])
    all_done = partial(b.load_atomic, done, "seq_cst", 8, typ=I64)
    with b.while_below(b.times(threads, PARTS), all_done):
        b.call_system("llvm.x86.sse2.pause", NOTHING)
    b.ret_void()
    return b.function


def _write_help(module: ir.Module, compute_parts: Any) -> None:
    """Take parts of the jobs on the board, until there was none for a while: board, and the number
    of the thread."""
    b = Writer(module, "help", [POINTER, I64])
    board, thread = b.function.args
    running, idle = b.place(board, RUNNING, I64), b.variable(I64(0))
    with b.while_below(SPINS * YIELDS, lambda: b.load(idle, typ=I64)) as spins:
        computed = b.call(compute_parts, [board, thread])
        with b.if_else(b.icmp_signed(">", computed, I64(0))) as (work, none):
            with work:
                b.store(I64(0), idle)
            with none:
                b.call_system("llvm.x86.sse2.pause", NOTHING)
                # Between two runs the plugin needs the processor.
                between = b.icmp_signed("==", b.load_atomic(running, "seq_cst", 8, typ=I64), I64(0))
                b.store(b.plus(spins, b.select(between, I64(SPINS // 4), I64(1))), idle)
                often = b.icmp_signed("==", b.urem(spins, I64(SPINS)), I64(0))
                with b.if_then(b.or_(often, between)):
                    b.call_system("sched_yield", I32)
    b.ret_void()
