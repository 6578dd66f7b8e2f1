"""Any OpenAI-compatible server as an engine of the audit: one URL with speculative decoding, and
one of the same model without it."""

import json
from collections.abc import Sequence
from typing import Any

import httpx

from specdemo.audit.engines import AuditedEngine, Case, Conversation, NotOffered, Tokens, messages
from specdemo.errors import RequestFailed, SpecdemoError
from specdemo.runs.settings import Settings

REFUSED = 400, 404, 422, 501  # status codes of a server that does not have a parameter
TIMEOUT = 600.0  # seconds
CHANGING = "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "stop"
FILTERS = "top_p", "top_k", "min_p"  # of sampled tokens


class ServerEngine(AuditedEngine):
    """Asks /v1/chat/completions. Tokens are texts, of the log-probabilities if the server has them,
    else characters. With `claims_seed` the server promises the same sampled answer for a seed with
    and without speculation. Without a `baseline` URL only repeatability and batches are judged.
    Raises RequestFailed or NotOffered for a server that names no model, SpecdemoError for one that
    has ended since."""

    name = "server"
    parallel = 8

    def __init__(self, url: str, baseline: str | None, claims_seed: bool = False):
        self._urls = (baseline and _base(baseline)), _base(url)
        self._client = httpx.Client(timeout=TIMEOUT)
        self.method = self._urls[1].split("://")[-1]
        offers = {"batch", "sampling", "end", "stop", "schema", "penalties"}
        self.offers = frozenset(offers | ({"seed"} if claims_seed else set()))
        self.facts = {"server": url, "baseline": baseline}
        self._models = {url: self._model(url) for url in self._urls if url}
        self._logprobs = True
        self._likeliest: dict[tuple[Case, bool], list[dict[int | str, float]]] = {}

    def generate(
        self, conversation: Conversation, settings: Settings, speculative: bool
    ) -> Sequence[int | str]:
        url = self._urls[speculative]
        if url is None:
            raise NotOffered("--server-baseline names no server without speculative decoding.")
        body = _body(conversation, settings) | {"model": self._models[url]}
        if self._logprobs:
            try:
                choice = self._ask(url, body | {"logprobs": True, "top_logprobs": 5})
            except NotOffered:
                self._logprobs = False
        if not self._logprobs:
            choice = self._ask(url, body)
        tokens = (choice.get("logprobs") or {}).get("content")
        if not tokens:
            return tuple(choice["message"]["content"] or "")
        self._likeliest[(conversation, settings), speculative] = [
            {top["token"]: top["logprob"] for top in token.get("top_logprobs") or ()}
            for token in tokens
        ]
        return tuple(token["token"] for token in tokens)

    def margins(
        self, conversation: Conversation, tokens: Tokens, pair: Tokens
    ) -> tuple[float, float] | None:
        """Differences of log-probabilities are differences of logits."""
        margins = {
            speculative: likeliest[len(tokens)][pair[0]] - likeliest[len(tokens)][pair[1]]
            for ((prompt, _), speculative), likeliest in reversed(self._likeliest.items())
            if prompt == conversation
            and len(tokens) < len(likeliest)
            and set(pair) <= set(likeliest[len(tokens)])
        }
        return (margins[False], margins[True]) if len(margins) == 2 else None

    def close(self) -> None:
        self._client.close()

    def _model(self, url: str) -> str:
        reply = self._reply("GET", f"{url}/models")
        try:
            return str(reply["data"][0]["id"])
        except (LookupError, TypeError):
            raise RequestFailed(f"{url}/models names no model; check its address.") from None

    def _ask(self, url: str, body: dict[str, Any]) -> Any:
        try:
            return self._reply("POST", f"{url}/chat/completions", json=body)["choices"][0]
        except RequestFailed as failure:
            try:
                self._model(url)
            except RequestFailed:  # no failure of its decoding
                hint = "start it and the audit again."
                raise SpecdemoError(f"The server has ended ({failure}); {hint}") from failure
            raise

    def _reply(self, method: str, url: str, **options: Any) -> Any:
        try:
            reply = self._client.request(method, url, **options)
            if reply.status_code in REFUSED:
                raise NotOffered(f"{url} refuses: {reply.text[:200]}")
            if not reply.is_success:
                raise RequestFailed(f"{url} failed: {reply.status_code} {reply.text[:200]}")
            return reply.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RequestFailed(f"{url} failed: {error}"[:300]) from error


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def _body(conversation: Conversation, settings: Settings) -> dict[str, Any]:
    """The request in OpenAI's terms; other servers' parameters only where they change something."""
    names, usual = CHANGING + (FILTERS if settings.temperature else ()), Settings()
    changing = {name: getattr(settings, name) for name in names}
    body = {name: value for name, value in changing.items() if value != getattr(usual, name)} | {
        "messages": [{"role": m.role, "content": m.content} for m in messages(conversation)],
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
    }
    if settings.logit_bias:
        body["logit_bias"] = dict(settings.logit_bias)
    if settings.json_schema:
        schema = {"name": "answer", "schema": json.loads(settings.json_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
