"""The machine code of kernels.c, which llvmlite makes of the LLVM text beside it, and threads that
run it. Importing this needs llvmlite."""

import atexit
import sys
from ctypes import CFUNCTYPE, c_int64
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from llvmlite import binding

from .tiles import LINE_BYTES, lines

MAX_THREADS, LINE_WORDS = 256, LINE_BYTES // 8
THREADS, NEXT = LINE_WORDS, 6 * LINE_WORDS  # indices of `threads` and `next` in struct board

SWITCH_SECONDS = 1e-4
"""After which Python takes the interpreter from a busy thread; every forward needs it. Beside one a
1.5 B model gave 0.7 tokens/s with Python's own 5 ms, 7.6 with these (alone 14.7)."""


class Kernels:
    """The code of an object `file`, and threads that help with every job."""

    def __init__(self, file: bytes) -> None:
        self._code = _functions(file)
        self._board = np.zeros(NEXT + LINE_WORDS * MAX_THREADS, np.int64)
        self._board[THREADS] = 1
        self._board[NEXT:] = MAX_THREADS  # no part is left
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

    def run(self, steps: int, count: int, slots: int, rows: int, chosen: int) -> None:
        """Run the `count` steps of a `forward.Program` at the address `steps` on `rows` rows of the
        operands whose addresses are at `slots`, of which so many are `chosen`. Callers hold
        `lock`."""
        for wake in self._wakes:
            if not wake.is_set():
                wake.set()
        self._code["run"](self._board.ctypes.data, steps, count, slots, rows, chosen)

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


def object_file(text: str) -> bytes:
    """The object file of an LLVM text. Takes a second."""
    machine, module = _machine(opt=3), binding.parse_assembly(text)
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


def _machine(**options: int) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    return binding.Target.from_default_triple().create_target_machine(**options)


def _functions(file: bytes) -> dict[str, Any]:
    """The functions of an object file, and "engine", which keeps their code."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(file))
    engine.finalize_object()
    made = {"engine": engine}
    for name, arguments in (("run", 6), ("help", 2)):
        prototype = CFUNCTYPE(None, *[c_int64] * arguments)
        made[name] = prototype(engine.get_function_address(name))
    return made
