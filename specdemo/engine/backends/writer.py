"""Writes functions in LLVM IR, which llvmlite compiles. Importing this needs llvmlite."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from llvmlite import ir

from .tiles import LANES

I8, I16, I32, I64 = map(ir.IntType, (8, 16, 32, 64))
FLOAT, POINTER, NOTHING = ir.FloatType(), ir.PointerType(), ir.VoidType()
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES)


class Writer(ir.IRBuilder):  # type: ignore[misc]
    """Writes a function. Offsets are 64-bit integers, numbers of Python among them."""

    def __init__(self, module: ir.Module, name: str, kinds: list[Any], result: Any = NOTHING):
        written = ir.Function(module, ir.FunctionType(result, kinds), name)
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

    def add_in_order(self, x: Any, y: Any) -> Any:
        """The sum of vectors of AVX2, of 16 or 32 bits, in a form that LLVM does not see through:
        it would reorder sums, and spill them. (It also keeps saturating ones, which are slower.)"""
        instruction = "vpaddw" if x.type.element == I16 else "vpaddd"
        form = ir.FunctionType(x.type, [x.type, y.type])
        return self.asm(form, f"{instruction} $2, $1, $0", "=x,x,x", [x, y], side_effect=False)

    def splat(self, value: Any, lanes: int = LANES) -> Any:
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.insert_element(undefined, value, I32(0))
        return self.shuffle_vector(first, undefined, filled(ir.VectorType(I32, lanes), 0))

    def place(self, base: Any, offset: Any, kind: Any) -> Any:
        """The address `offset` elements of `kind` from `base`."""
        element = kind.element if isinstance(kind, ir.VectorType) else kind
        return self.gep(base, [_integer(offset)], source_etype=element)

    def read(self, base: Any, offset: Any, kind: Any) -> Any:
        return self.load(self.place(base, offset, kind), typ=kind, align=1)

    def write(self, value: Any, base: Any, offset: Any) -> None:
        self.store(value, self.place(base, offset, value.type), align=1)

    def prefetch(self, base: Any, offset: Any, low: bool) -> None:
        """Ask for a byte, into the first cache alone or the `low` ones; one beyond the end does no
        harm."""
        to_read, locality, data = I32(0), I32(2 if low else 0), I32(1)
        address = self.place(base, offset, I8)
        self.call_system("llvm.prefetch.p0", NOTHING, address, to_read, locality, data)

    def variable(self, value: Any) -> Any:
        """A variable with this value; the optimizer keeps it in a register."""
        with self.goto_entry_block():
            place = self.alloca(value.type)
        self.store(value, place)
        return place

    def room(self, kind: Any, count: int) -> Any:
        """The address of `count` elements on the stack."""
        with self.goto_entry_block():
            address = self.ptrtoint(self.alloca(kind, count), I64)
            return self.inttoptr(address, POINTER)

    def increase(self, variable: Any, value: Any) -> None:
        self.store(self.add(self.load(variable, typ=value.type), value), variable)

    def choose(self, index: Any, callees: list[Any], arguments: list[Any]) -> None:
        """Call the function with this index."""
        after = self.append_basic_block()
        switch = self.switch(index, after)
        for number, callee in enumerate(callees):
            block = self.append_basic_block()
            switch.add_case(I64(number), block)
            with self.goto_block(block):
                self.call(callee, arguments)
                self.branch(after)
        self.position_at_end(after)

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
    def loop(self, start: Any, end: Any, step: Any = 1) -> Iterator[Any]:
        """Repeat what is written inside for `start`, `start` + `step` and so on below `end`."""
        variable = self.variable(_integer(start))
        with self.while_below(end, lambda: self.load(variable, typ=I64)) as index:
            yield index
            self.store(self.plus(index, step), variable)


def _integer(value: Any) -> Any:
    return I64(value) if isinstance(value, int) else value


def filled(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


ZEROS = filled(FLOATS, 0.0)
