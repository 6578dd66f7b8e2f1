"""The free blocks of a KV cache, and the sequences that hold the others. Holds no tensors."""

from contextlib import AbstractContextManager
from typing import Any

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


class KVSequence(AbstractContextManager[Any]):
    """The tokens whose keys and values are in the cache, and the blocks that hold them."""

    cache: Any  # keys and values of a TorchModel

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
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
            self.blocks += self._pool.take(missing)

    def trim_blocks(self) -> None:
        keep = -(-len(self.tokens) // self._block_size)
        while len(self.blocks) > keep:
            self._pool.give_back(self.blocks.pop())

    def release(self) -> None:
        """Give all blocks back and empty the sequence. A second call does nothing."""
        self.tokens.clear()
        self.trim_blocks()

    def __exit__(self, *_: object) -> None:
        self.release()
