"""Who has reserved which blocks of the KV caches."""

from collections.abc import Hashable, Mapping

from .prefixes import PrefixCache


class Ledger:
    """The blocks that each request may need at worst, by cache. Blocks that a cache sets aside for
    measurements are never reserved."""

    def __init__(self) -> None:
        self._reserved: dict[Hashable, Mapping[PrefixCache, int]] = {}

    def room(self, cache: PrefixCache) -> int:
        """The number of blocks that nobody has reserved. Kept texts may hold them."""
        return cache.capacity - sum(blocks.get(cache, 0) for blocks in self._reserved.values())

    def reserve(self, owner: Hashable, blocks: Mapping[PrefixCache, int]) -> bool:
        """Reserve these blocks for `owner` and drop the kept texts that hold them; gives False, and
        reserves none, if they are not there."""
        if any(self.room(cache) < count for cache, count in blocks.items()):
            return False
        self._reserved[owner] = blocks
        for cache in blocks:
            cache.make_room(self.room(cache))
        return True

    def release(self, owner: Hashable) -> None:
        """Give back what `owner` has reserved, if anything."""
        self._reserved.pop(owner, None)
