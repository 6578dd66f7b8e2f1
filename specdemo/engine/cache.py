"""The free blocks of a KV cache, and the sequences that hold the others. Holds no tensors."""

from contextlib import AbstractContextManager
from typing import Any

from .cost_model import LARGEST
from .faults import CacheFull

CACHE_TOKENS = 16_384  # by default; memory is taken only for blocks that were used


class BlockPool:
    """The free blocks of `limit` cache blocks, and the number of sequences that share each used
    one. The block given back last is taken first, so blocks that were never used need no memory."""

    def __init__(self, limit: int):
        self.limit = limit
        self.references = [0] * limit
        self.free = list(range(limit - 1, -1, -1))

    @property
    def used(self) -> int:
        return self.limit - len(self.free)

    def take(self, count: int = 1) -> list[int]:
        """Take `count` free blocks, each with one reference. Takes none if it raises CacheFull."""
        if count > len(self.free):
            wanted = self.used + count
            raise CacheFull(f"The KV cache is full: {wanted} blocks wanted, {self.limit} allowed.")
        blocks = [self.free.pop() for _ in range(count)]
        for block in blocks:
            self.references[block] = 1
        return blocks

    def give_back(self, block: int) -> None:
        assert self.references[block] > 0, "a block was given back twice"
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)

    def state_blocks(self, prompt: int, back: int = LARGEST) -> int:
        """The most blocks that the recurrent states of a request take with so many tokens as its
        `prompt`, if it goes back by at most `back` tokens."""
        return 0


class RecurrentPool(BlockPool):
    """Also holds blocks of recurrent state. Each takes the place of `state_size` blocks, which need
    as much memory, so that one limit covers both."""

    def __init__(self, limit: int, state_size: int, block_size: int):
        super().__init__(limit)
        self.state_size = state_size
        self.spacing = state_size * block_size  # tokens whose keys and values are as large
        self.states = BlockPool(limit // state_size)
        self.replaced: dict[int, list[int]] = {}

    def take_states(self, count: int) -> list[int]:
        """Take `count` blocks of state, each with one reference. Takes none if it raises
        CacheFull."""
        blocks = iter(self.take(count * self.state_size))
        states = self.states.take(count)
        for state in states:
            self.replaced[state] = [next(blocks) for _ in range(self.state_size)]
        return states

    def give_back_state(self, state: int) -> None:
        self.states.give_back(state)
        if not self.states.references[state]:
            for block in self.replaced.pop(state):
                self.give_back(block)

    def state_blocks(self, prompt: int, back: int = LARGEST) -> int:
        # The present one, those that it can go back to, and of the prompt the first, the end, the
        # one with which the last chunk began, and those between.
        return self.state_size * (1 + back + 3 + prompt // self.spacing)


class KVSequence(AbstractContextManager[Any]):
    """The tokens whose keys and values are in the cache, and the blocks that hold them."""

    cache: Any  # keys and values of a TorchModel

    def __init__(self, pool: BlockPool, block_size: int):
        self.pool = pool
        self._block_size = block_size
        self.tokens: list[int] = []
        self.blocks: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens; the next forward overwrites the other slots."""
        assert 0 <= length <= len(self.tokens), "only what is held can be forgotten"
        del self.tokens[length:]

    def reserve(self, length: int) -> None:
        """Take the blocks that `length` tokens need. Takes none if it raises CacheFull."""
        missing = -(-length // self._block_size) - len(self.blocks)
        if missing > 0:
            self.blocks += self.pool.take(missing)

    def reach(self, length: int) -> int:
        """The most tokens, but not more than `length`, to which the sequence can go back."""
        return length

    def settle(self) -> None:
        """Never go back from here again."""

    def held_blocks(self) -> list[int]:
        """All blocks that it holds. Safe to call from any thread."""
        return list(self.blocks)

    def trim_blocks(self) -> None:
        keep = -(-len(self.tokens) // self._block_size)
        while len(self.blocks) > keep:
            self.pool.give_back(self.blocks.pop())

    def release(self) -> None:
        """Give all blocks back and empty the sequence. A second call does nothing."""
        self.tokens.clear()
        self.trim_blocks()

    def __exit__(self, *_: object) -> None:
        self.release()


class RecurrentSequence(KVSequence):
    """A sequence that also has recurrent states: `states` maps numbers of tokens to the block with
    the state after so many. It can go back to these only. Stepwise forwards write one after each
    token, others one at their end. Of the latter those in `kept` stay for the prefix cache: the
    first, those `spacing` tokens apart, and the one with which the latest chunk began."""

    pool: RecurrentPool

    def __init__(self, pool: RecurrentPool, block_size: int):
        super().__init__(pool, block_size)
        self.states: dict[int, int] = {}
        self.kept: list[int] = []

    def reach(self, length: int) -> int:
        return max((end for end in self.states if end <= length), default=0)

    def truncate(self, length: int) -> None:
        super().truncate(self.reach(length))
        self._forget(0, self.length)

    def settle(self) -> None:
        self._forget(self.length, self.length)

    def share_states(self, source: "RecurrentSequence") -> None:
        """Share the states of `source` that stay, and the one at the end of this sequence."""
        self.kept = [end for end in source.kept if end <= self.length]
        for end in {*self.kept, *({self.length} & source.states.keys())}:
            self.states[end] = source.states[end]
            self.pool.states.references[source.states[end]] += 1

    def reserve_states(self, count: int, stepwise: bool) -> None:
        """Take blocks for the states after the next `count` tokens: if `stepwise` after each of the
        last LARGEST, else after the last. Takes none if it raises CacheFull."""
        begin, end = self.length, self.length + count
        if not stepwise and begin in self.states:
            if len(self.kept) > 1 and self.kept[-1] - self.kept[-2] < self.pool.spacing:
                self.kept.pop()
            self.kept.append(begin)
        self._forget(min(begin, end - LARGEST) if stepwise else begin, begin)
        ends = range(max(begin, end - LARGEST) + 1 if stepwise else end, end + 1)
        self.states |= zip(ends, self.pool.take_states(len(ends)), strict=True)

    def _forget(self, first: int, last: int) -> None:
        """Forget the states after fewer than `first` tokens, but those that stay, and after more
        than `last`."""
        self.kept = [end for end in self.kept if end <= last]
        for end in list(self.states):
            if end > last or (end < first and end not in self.kept):
                self.pool.give_back_state(self.states.pop(end))

    def held_blocks(self) -> list[int]:
        replaced, states = self.pool.replaced, list(self.states.values())
        return [*self.blocks, *(block for state in states for block in replaced.get(state, ()))]

    def trim_blocks(self) -> None:
        super().trim_blocks()
        self.settle()
