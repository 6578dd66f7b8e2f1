"""Restricts answers to a JSON Schema or to tool calls with llguidance, which is imported when the
first grammar is made. Forced text has the tokenizer's own tokens, with and without drafts."""

import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from specdemo.engine.constraint import Constraint, forced, yield_to_models
from specdemo.errors import BadInput
from specdemo.machine.threads import ShortestFirst
from specdemo.options import shown
from specdemo.text.schemas import json_grammar, require_size, styled
from specdemo.text.tokenizer import MARKER, Tokenizer
from specdemo.text.tools import CallForm, Tools

CHECKED_TOKENS = 64  # forced tokens at the beginning that are checked before a schema is accepted
KEPT_GRAMMARS = 8
MAX_STATES = 20_000  # of a lexer, 1 to 2 kB each
LEXER_TOKENS = 100  # that a lexer must last for; limited texts take some 25 states a token
REST = 3.0
"""Pause after compiling, relative to its time. Without it a stream of schemas of 60,000 characters
slowed the rounds of others by 18 %, although its priority is the lowest."""

MAX_DIGITS, MAX_EXPONENT = 20, 2  # 17 digits tell any double, after a zero and a point

Start = Callable[[], Constraint]
"""Makes a constraint that has read no token."""


class Grammars:
    """Compiles grammars for one tokenizer, the shortest first (thread safe). Takes 0.3 s for 49,000
    tokens. Raises BadInput without `stop_ids`."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Iterable[int]):
        import llguidance

        self._library = llguidance
        self.stops = sorted(stop_ids)
        if not self.stops:
            raise BadInput("This model has no token that ends an answer, so none can be JSON.")
        size = tokenizer.vocabulary_size
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer.unspelled_json, size, self.stops)
        except ValueError as error:
            message = f"Answers of this model cannot be restricted; its tokenizer: {error}."
            raise BadInput(message) from error
        piece = "\u2581"
        ids = self._tokenizer.tokenize_str(piece)
        self._unwritable = self._tokenizer.decode_bytes(ids) != piece.encode()
        self._added, self._special = tokenizer.added, tokenizer.special_ids
        self.numbers = _Numbers(tokenizer, self._tokenizer.vocab_size, self.stops)
        self._known: dict[tuple[str, Tools | None], Start] = {}
        self._turns = ShortestFirst(REST)
        self._compiler = ThreadPoolExecutor(1, "specdemo-grammars", yield_to_models)

    def compiled(self, schema: str, tools: Tools | None = None) -> Start:
        """Restrict answers to JSON of the `schema` (JSON text), to calls of `tools`, or to either
        of them. Raises BadInput, which names the unusable keyword or place."""
        if start := self._known.get((schema, tools)):
            return start
        with self._turns.turn(len(schema) + len(tools.functions if tools else "")):
            return self._compiler.submit(self._in_turn, schema, tools).result()

    def _in_turn(self, schema: str, tools: Tools | None) -> Start:
        if start := self._known.get((schema, tools)):
            return start
        if tools and schema:
            self._compiled(schema, None)  # raises what is wrong with the schema alone
        try:
            start = self._known[schema, tools] = self._compiled(schema, tools)
        except BadInput:
            for function in json.loads(tools.functions) if tools else ():
                alone = Tools(json.dumps([function]))
                self._compiled("", alone, f"tools: {function['name']}")
            raise
        if len(self._known) > KEPT_GRAMMARS:
            del self._known[next(iter(self._known))]
        return start

    def _compiled(self, schema: str, tools: Tools | None, place: str = "tools") -> Start:
        place = place if tools else "json_schema"
        lark = self._calls(tools, schema) if tools else f"start: {self._json(schema, place)}"
        matcher = self._matcher(lark, place)

        def renewed() -> Any:
            self._known.pop((schema, tools), None)
            return self._matcher(lark, place)

        start = partial(_GrammarConstraint, self, matcher, place, renewed)
        constraint = start()
        for _ in range(CHECKED_TOKENS):  # a schema that contains itself for ever fails here
            mask = constraint.mask()
            token = None if mask is None else forced(mask)
            if token is None:
                break
            constraint.advance(token)
        return start

    def _matcher(self, lark: str, place: str) -> Any:
        text = self._library.LLMatcher.grammar_from_lark("%llguidance {}\n" + lark)
        limits = self._library.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        matcher = self._library.LLMatcher(self._tokenizer, text, limits=limits, log_level=0)
        _require(matcher, place)
        return matcher

    def _json(self, schema: str, place: str) -> str:
        def allows(rules: dict[str, Any], texts: list[str], escapes: bool = False) -> list[bool]:
            matcher = self._matcher(f"start: {styled(rules, escapes)}", place)
            return [_can_follow(matcher, self._tokenizer.tokenize_str(text)) for text in texts]

        grammar = json_grammar(schema, place, allows)
        if self._unwritable and r"\u2581" in grammar:
            why = "the character '\u2581', which this model's tokenizer reads as a space"
            raise BadInput(f"{place} has {why}.", place.partition(":")[0])
        return grammar

    def _calls(self, tools: Tools, schema: str) -> str:
        """The grammar of an answer that calls `tools`, or else is JSON of `schema`, or any text
        with "". Raises BadInput."""
        require_size(tools.functions, "tools")
        form = tools.form
        several = tools.several and form.separator is not None
        # A call that may begin like the JSON is made of the same parts.
        as_json = form.first and bool(schema) and not tools.required
        begin, end = self._around_calls(form)
        head = "" if as_json else self._literal(form.head)
        more = f"({self._literal(f'{form.separator}{form.head}')} call)*" if several else ""
        functions = (self._call(item, form, as_json) for item in json.loads(tools.functions))
        return rf"""start: {self._answer(tools, schema, several)}
calls: {begin}{head} call {more} {end}
lead[lazy]: TEXT? {json.dumps(form.leads[0])}
rest: call {more} {end}
call: {" | ".join(functions)}
text: TEXT? {self._tokens_beside(form)}
TEXT: /(.|\n)+/
OTHER: TEXT & ~/\s*\{{\s*"name"\s*:(.|\n)*/"""

    def _answer(self, tools: Tools, schema: str, several: bool) -> str:
        """The grammar of the whole answer. OTHER is text that begins like no call, and `lead` text
        up to a call whose marker is spelled."""
        if tools.required:
            return "calls"
        if schema:
            return f"calls | {self._json(schema, 'json_schema')}"
        if tools.form.first:
            return "calls | OTHER?"
        if self._literal(tools.form.leads[0]).startswith("<["):  # a token, which is no part of TEXT
            return "text (calls text)*" if several else "text calls?"
        return "(lead rest)* TEXT?" if several else "lead rest | TEXT?"

    def _around_calls(self, form: CallForm) -> tuple[str, str]:
        """The grammars of what precedes the first call, and of what follows the last one."""
        end = f"({self._literal(form.end)})?" if form.end else ""
        if form.list_marker:
            return f'{self._literal(form.list_marker)} " "? "["', f'"]" {end}'
        if form.first and "<|python_tag|>" in self._added:
            return f"({self._literal('<|python_tag|>')})?", end
        return "", end

    def _call(self, function: dict[str, Any], form: CallForm, as_json: bool) -> str:
        """The grammar of a call of one function, from its name to its end. Raises BadInput."""
        name, parameters = function["name"], _of_objects(function)
        place = f"tools: {name}"
        if as_json:
            return self._json(json.dumps(_call_schema(name, parameters)), place)
        arguments = self._json(json.dumps(parameters), place)
        return f"{self._literal(name + form.middle)} {arguments} {self._literal(form.tail)}"

    def _tokens_beside(self, form: CallForm) -> str:
        """Added tokens such as <think>, which are neither TEXT nor a part of a call."""
        added = {id for text, id in self._added.items() if text not in form.text}
        ids = ",".join(map(str, sorted(added - self._special)))
        return f"(<[{ids}]> TEXT?)*" if ids else ""

    def _literal(self, text: str) -> str:
        """The grammar of a text. Markers are added tokens if the model has them: it was not
        trained to spell them."""
        parts, ids = filter(None, re.split(f"({MARKER.pattern})", text)), self._added
        return " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts)


class _Numbers:
    """Ends numbers in JSON, which llguidance does not (1.3333...), after MAX_DIGITS digits, or
    MAX_EXPONENT of an exponent."""

    def __init__(self, tokenizer: Tokenizer, size: int, stops: list[int]):
        self.size = size
        self._strings = dict.fromkeys(range(size), "")
        self._strings |= {id: string for string, id in tokenizer.vocabulary().items()}
        first = np.array([string[:1] for string in self._strings.values()])
        self._digits = np.isin(first, list("0123456789"))
        self._after = np.isin(first, list(",}]")) | np.isin(np.arange(size), stops)
        self._quotes = first == '"'

    def limit(self, mask: np.ndarray, tokens: list[int]) -> None:
        """Forbid digits in `mask` if `tokens` end with a number that is long enough. It is a
        number, and no text, if a comma or a bracket may follow but no quote."""
        last = self._strings[tokens[-1]] if tokens else ""
        if last[-1:] not in "0123456789" or not last:
            return
        text = "".join(map(self._strings.__getitem__, tokens[-2 * MAX_DIGITS :]))
        number = re.search(r"([0-9.]*)(?:[eE][+-]?([0-9]+))?$", text)
        assert number, "any text ends so"
        mantissa, exponent = number.groups()
        long = len(exponent) >= MAX_EXPONENT if exponent else len(mantissa) > MAX_DIGITS
        if long and (mask & self._after).any() and not (mask & self._quotes).any():
            mask &= ~self._digits


class _GrammarConstraint:
    """Restricts one request, by a copy of `matcher`, which has read no token. The lexer is the same
    for all copies, so too many states may be those of other answers. Then `renewed` ends the use of
    the copies, and this request goes on with a lexer of its own."""

    def __init__(self, grammars: Grammars, matcher: Any, place: str, renewed: Callable[[], Any]):
        self._matcher = matcher.deep_copy()
        self._numbers, self._stops = grammars.numbers, grammars.stops
        self._place, self._renewed, self._renewed_at = place, renewed, -LEXER_TOKENS
        self._tokens: list[int] = []
        self._after_end = 0
        self._size = self._numbers.size
        self._bits = np.zeros(-(-self._size // 32), np.int32)

    def mask(self) -> np.ndarray | None:
        if self._after_end:
            return None
        mask: np.ndarray
        if self._matcher.is_stopped() and not self._matcher.is_error():
            # All stop tokens mean the same here, so one of them is forced.
            mask = np.arange(self._size) == self._stops[0]
            return mask
        place = self._bits.ctypes.data, self._bits.nbytes
        self._call(lambda matcher: matcher.unsafe_compute_mask_ptr(*place))
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        mask = bits.view(bool)
        self._numbers.limit(mask, self._tokens)
        return mask

    def advance(self, token: int) -> None:
        if self._after_end or token in self._stops:
            self._after_end += 1
            return
        self._call(lambda matcher: matcher.consume_token(token))
        self._tokens.append(token)

    def rollback(self, count: int) -> None:
        after_end = min(count, self._after_end)
        self._after_end -= after_end
        self._matcher.rollback(count - after_end)
        del self._tokens[len(self._tokens) - (count - after_end) :]

    def _call(self, act: Callable[[Any], object]) -> None:
        """`act` on the matcher. Raises BadInput if that fails with a renewed one too."""
        act(self._matcher)
        if self._matcher.is_error() and len(self._tokens) - self._renewed_at >= LEXER_TOKENS:
            self._matcher, self._renewed_at = self._renewed(), len(self._tokens)
            self._matcher.consume_tokens(self._tokens)
            act(self._matcher)
        _require(self._matcher, self._place)


def _can_follow(matcher: Any, tokens: list[int]) -> bool:
    """Whether `matcher` reads all `tokens` and allows another one after them, or the end."""
    matcher = matcher.deep_copy()
    if matcher.try_consume_tokens(tokens) < len(tokens):
        return False
    return matcher.is_stopped() or any(matcher.compute_bitmask()) and not matcher.is_error()


def _require(matcher: Any, place: str) -> None:
    """Raise BadInput, which names `place`, if `matcher` has an error."""
    if not matcher.is_error():
        return
    error = matcher.get_error().removesuffix("<non-verbose/>")
    # Without the parts of a grammar, which is not the user's.
    internal = r"^at .*?: failed to compile JSON schema: |\s+\d+ \| .*| Enable 'coerce_one_of'.*"
    error = re.sub(internal, "", error, flags=re.S)
    error = error.replace("NoExtensionBias", "nothing can follow what it allows")
    if "too many states" in error:
        error = "a text with a length limit or a pattern became too long; ask for shorter texts"
    reason = " ".join(error.replace("Unimplemented keys", "unsupported keywords").split())
    message = f"{place} cannot be used: {reason[:200].rstrip('.')}."
    raise BadInput(message, place.partition(":")[0])


def _of_objects(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's parameters, which are an object also where it does not say so.
    Raises BadInput."""
    parameters = function.get("parameters") or {}
    kinds = parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        name = f"tools: {function['name']} has parameters"
        raise BadInput(f"{name} of the type {shown(kinds)}; it must be object.", "tools")
    return {**parameters, "type": "object"}


def _call_schema(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call as an object, with the definitions of its parameters at the top."""
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    } | {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
