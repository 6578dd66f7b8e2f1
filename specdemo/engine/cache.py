"""Who holds which blocks of the KV cache: the pool of blocks, and sequences as tables of them.
Holds no tensors."""

from __future__ import annotations

from .errors import CacheFull


class BlockPool:
    """Which cache blocks are free, and how many sequences share each used one. Holds no tensors."""

    def __init__(self, blocks: int, limit: int | None = None):
        self.limit = limit
        self.references = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))

    @property
    def used(self) -> int:
        return len(self.references) - len(self.free)

    def take(self) -> int | None:
        """A free block, now referenced once, or None when there is none."""
        if not self.free:
            return None
        block = self.free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        assert self.references[block] > 0, "only a used block can be shared"
        self.references[block] += 1

    def give_back(self, block: int) -> None:
        assert self.references[block] > 0, "a block was given back twice"
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)

    def grown_size(self, wanted: int) -> int:
        """The pool size that gives `wanted` more free blocks: doubling, up to the limit. Raises
        CacheFull."""
        needed = self.used + wanted
        if self.limit is not None and needed > self.limit:
            raise CacheFull(f"The KV cache is full: {needed} blocks wanted, {self.limit} allowed.")
        size = max(len(self.references), 1)
        while size < needed:
            size *= 2
        return size if self.limit is None else min(size, self.limit)

    def grow(self, size: int) -> None:
        old = len(self.references)
        self.references.extend([0] * (size - old))
        self.free[:0] = range(size - 1, old - 1, -1)


class Sequence:
    """The tokens whose keys and values are in the cache, and the blocks that hold them.

    Made by `PagedModel.new_sequence` and `fork`; `release` it when done (also a context manager).
    """

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
        self._block_size = block_size
        self.tokens: list[int] = []
        self.blocks: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Forget every token past the first `length`: O(tokens forgotten), whatever the context.

        Blocks stay in the table: the next forward writes over the forgotten slots.
        """
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot truncate a sequence of {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]

    def trim_blocks(self) -> None:
        """Give back the blocks past the last token."""
        keep = -(-len(self.tokens) // self._block_size)
        while len(self.blocks) > keep:
            self._pool.give_back(self.blocks.pop())

    def release(self) -> None:
        """Give every block back; the sequence is empty afterwards. Twice is harmless."""
        self.tokens.clear()
        self.trim_blocks()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
