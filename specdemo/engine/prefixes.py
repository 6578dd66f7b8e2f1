"""The prefix cache: keeps the texts of a model for later requests."""

from collections import Counter
from collections.abc import Sequence

from .cache import KVSequence
from .forwards import PREFILL_CHUNK, Model, Prompt
from .policy import MAX_DRAFT

SPARE_TOKENS = 8192  # kept at most; the newest text stays, whatever its length


class PrefixCache:
    """Keeps texts of one model, and drops the least recently used first. A request reuses a text
    that it repeats or continues as a whole, and of others only whole chunks of `chunk` tokens at
    fixed places; `template_prefix`, which a template gives to all prompts, is a chunk of its own.
    So the time that reuse saves tells no visitor a text that another one sent. The last `unread`
    tokens of a prompt are always read. `set_aside` blocks are for measurements; requests and kept
    texts have the others."""

    def __init__(
        self,
        model: Model,
        chunk: int = PREFILL_CHUNK,
        template_prefix: tuple[int, ...] = (),
        set_aside: int = 0,
        unread: int = 0,
    ):
        self.model = model
        self.unread = unread
        self.set_aside = set_aside
        self.chunk = chunk
        self.template_prefix = template_prefix
        self._texts: dict[tuple[int, ...], tuple[KVSequence, Prompt | None]] = {}

    @property
    def capacity(self) -> int:
        """The blocks of requests and kept texts."""
        return self.model.pool.limit - self.set_aside

    def template_prefix_of(self, tokens: tuple[int, ...]) -> int:
        """The length of `template_prefix` if the prompt begins with it and is longer, else 0."""
        size = len(self.template_prefix)
        return size if len(tokens) > size and tokens[:size] == self.template_prefix else 0

    def find(
        self, tokens: tuple[int, ...], any_length: bool = True
    ) -> tuple[KVSequence, Prompt | None]:
        """The longest reusable prefix as a new sequence; its Prompt if that was kept with all of
        `tokens`. Without `any_length` a text that the prompt continues is reused in chunks, at
        whose ends a prompt that nothing was kept of is divided too."""
        if tokens in self._texts:
            # The most recently used is last.
            sequence, prompt = self._texts[tokens] = self._texts.pop(tokens)
            if prompt is not None:
                return self.model.fork(sequence, len(tokens)), prompt
        prefix = self.template_prefix_of(tokens)
        limit = max(len(tokens) - self.unread, prefix)
        best, reused = None, 0
        for text, (sequence, _) in self._texts.items():
            shared = common(tokens, text)
            if shared == len(text) and any_length:
                shared = min(shared, limit)
            else:
                beyond = min(shared, limit) - prefix
                shared = 0 if beyond < 0 else prefix + beyond // self.chunk * self.chunk
            if (shared := sequence.reach(shared)) > reused:
                best, reused = sequence, shared
        return (self.model.fork(best, reused) if best else self.model.new_sequence()), None

    def keep(self, sequence: KVSequence, prompt: Prompt | None = None) -> None:
        """Keep the text of a sequence. From then on the cache owns the sequence."""
        text = tuple(sequence.tokens)
        if not text or (prompt is None and text in self._texts):
            sequence.release()
            return
        sequence.trim_blocks()
        if text in self._texts:
            self._texts.pop(text)[0].release()
        self._texts[text] = sequence, prompt
        self.make_room(SPARE_TOKENS // self.model.block_size, keep=1)

    def max_blocks(self, prompt: int, tokens: int) -> int:
        """The most blocks that a request of `tokens` tokens can take, `prompt` of them its prompt,
        which is kept for reuse; in a paged model the answer shares the full blocks."""
        size = self.model.block_size
        shared = prompt // size if self.model.paged else 0
        states = self.model.pool.state_blocks(prompt)
        return -(-prompt // size) + -(-(tokens + MAX_DRAFT + 1) // size) - shared + states

    def blocks(self) -> set[int]:
        """The blocks that kept texts hold. Safe to call from any thread."""
        texts = list(self._texts.values())
        return {block for sequence, _ in texts for block in sequence.held_blocks()}

    def make_room(self, blocks: int, keep: int = 0) -> None:
        """Drop the oldest texts until the rest hold at most `blocks` blocks and are no more than
        `blocks`, but keep the newest `keep` texts."""
        sequences = (sequence for sequence, _ in self._texts.values())
        used = Counter(block for sequence in sequences for block in sequence.held_blocks())
        while max(len(used), len(self._texts)) > blocks and len(self._texts) > keep:
            sequence, _ = self._texts.pop(next(iter(self._texts)))
            used -= Counter(sequence.held_blocks())
            sequence.release()


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the common beginning."""
    length = min(len(left), len(right))
    return next((index for index in range(length) if left[index] != right[index]), length)
