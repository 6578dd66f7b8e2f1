"""Which blocks of the KV cache are free, and the sequences that hold the others. No tensors."""

from __future__ import annotations

from .errors import CacheFull


class BlockPool:
    """Which of `limit` cache blocks are free, and how many sequences share each used one. The last
    one given back is taken first: what was never taken takes no memory."""

    def __init__(self, limit: int):
        self.limit = limit
        self.references = [0] * limit
        self.free = list(range(limit - 1, -1, -1))

    @property
    def used(self) -> int:
        return self.limit - len(self.free)

    def take(self, count: int = 1) -> list[int]:
        """Free blocks, now referenced once each. Raises CacheFull, and then takes none."""
        if count > len(self.free):
            raise CacheFull(
                f"The KV cache is full: {self.used + count} blocks wanted, {self.limit} allowed."
            )
        blocks = [self.free.pop() for _ in range(count)]
        for block in blocks:
            self.references[block] = 1
        return blocks

    def give_back(self, block: int) -> None:
        assert self.references[block] > 0, "a block was given back twice"
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)


class Sequence:
    """The tokens whose keys and values are in the cache, and the blocks that hold them; `release`
    it when done (also a context manager)."""

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
        self._block_size = block_size
        self.tokens: list[int] = []
        self.blocks: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Forget every token past the first `length`; the next forward writes over their slots."""
        assert 0 <= length <= len(self.tokens), "only what is held can be forgotten"
        del self.tokens[length:]

    def reserve(self, length: int) -> None:
        """Take the blocks that `length` tokens need. Raises CacheFull, and then takes none."""
        missing = -(-length // self._block_size) - len(self.blocks)
        if missing > 0:
            self.blocks += self._pool.take(missing)

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
