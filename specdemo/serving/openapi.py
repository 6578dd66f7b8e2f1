"""The API's description as OpenAPI 3.1, of the very models that read its requests (`schema`)."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from specdemo import __version__
from specdemo.serving.schema import ChatRequest, CompletionRequest

Schema = dict[str, Any]


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "required": [*fields], "properties": fields}


_STRING, _INTEGER, _NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
_NOT_BLANK = {"pattern": r"\S"}
_ASKS_BASELINE = _object(speculative=_object(baseline={"const": True}))
_MODEL = _object(id=_STRING, object={"const": "model"}, created=_INTEGER, owned_by=_STRING)
_HEALTH = _object(status={"enum": ["ready", "loading", "failed"]})
_MESSAGE = _object(role={"const": "assistant"}, content=_STRING, refusal=_NULL)
_NAME = {"name": "model", "in": "path", "required": True, "schema": _STRING}

WITHOUT_KEY = "/health", "/openapi.json"
"""The paths that need no key where one is set; /health then tells its status alone."""


def document(model: dict[str, Any], *, with_key: bool) -> Schema:
    """What this server's requests may hold and what its answers do; `with_key` where requests must
    bring one."""
    gets = {
        "/v1/models": _object(data={"type": "array", "items": _MODEL}),
        "/v1/models/{model}": _MODEL,
        "/health": _HEALTH,
        "/metrics": None,
        "/openapi.json": {"type": "object"},
    }
    paths = {path: {"get": _operation(answer)} for path, answer in gets.items()}
    paths["/v1/models/{model}"]["get"]["parameters"] = [_NAME]
    paths["/health"]["get"]["responses"]["503"] = _body("Not ready", _HEALTH)
    chat, text = _answer(message=_MESSAGE), _answer(text=_STRING)
    paths["/v1/chat/completions"] = {"post": _operation(chat, "ChatRequest")}
    paths["/v1/completions"] = {"post": _operation(text, "CompletionRequest")}
    for path, methods in paths.items():
        for operation in methods.values():
            if with_key and path not in WITHOUT_KEY:
                operation["security"] = [{"key": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "specdemo", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _requests(model),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _requests(model: dict[str, Any]) -> Schema:
    """The schemas of both kinds of request, with the limits of this server's model, and the rules
    that concern several fields."""
    kinds = [(kind, "validation") for kind in (ChatRequest, CompletionRequest)]
    template = "#/components/schemas/{model}"
    schemas = models_json_schema(kinds, ref_template=template)[1]["$defs"]
    chat, completion = schemas["ChatRequest"], schemas["CompletionRequest"]
    for fields in (chat["properties"], completion["properties"]):
        fields["model"] = {"enum": sorted({model["id"], model["pair"]})}
        for name in {"max_tokens", "max_completion_tokens"} & fields.keys():
            fields[name]["anyOf"][0]["maximum"] = model["max_answer_tokens"]
    speculative = schemas["SpeculativeOptions"]["properties"]
    speculative["max_new_tokens"]["maximum"] = model["max_answer_tokens"]
    id = {"type": "integer", "minimum": 0, "maximum": model["vocabulary_size"] - 1}
    text, ids = {"type": "string", "minLength": 1}, {"type": "array", "items": id, "minItems": 1}
    one = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": 1}
    completion["properties"]["prompt"] = {"anyOf": [text, ids, one]}
    completion["not"] = _ASKS_BASELINE
    by_user = {"properties": {"role": {"const": "user"}}}
    alone = {"messages": {"maxItems": 1, "items": by_user}, "stop": {"enum": [None, []]}}
    both = _object(max_tokens=_INTEGER, max_completion_tokens=_INTEGER)
    chat |= {"not": both, "if": _ASKS_BASELINE, "then": {"properties": alone}}
    # A pattern says nothing of a list, `contains` nothing of a string.
    said = {"type": ["string", "array"], **_NOT_BLANK}
    said["contains"] = {"properties": {"text": _NOT_BLANK}}
    schemas["ChatMessage"] |= {"if": by_user, "then": _object(content=said)}
    return schemas


def _answer(**said: Schema) -> Schema:
    """A chat completion or a completion whose one choice holds what was `said`."""
    choice = _object(
        index={"const": 0}, logprobs=_NULL, finish_reason={"enum": ["stop", "length"]}, **said
    )
    return _object(
        id=_STRING,
        object={"const": "chat.completion" if "message" in said else "text_completion"},
        created=_INTEGER,
        model=_STRING,
        system_fingerprint={"type": ["string", "null"]},
        choices={"type": "array", "minItems": 1, "maxItems": 1, "items": choice},
        usage=_object(prompt_tokens=_INTEGER, completion_tokens=_INTEGER, total_tokens=_INTEGER),
        speculative={"type": "object"},
    )


def _body(words: str, schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": words, "content": {kind: {"schema": schema}}}


def _operation(answer: Schema | None, asked: str = "") -> Schema:
    """A method that answers with `answer` (None: text) and takes a request of the schema `asked`,
    if it takes one."""
    told = {"type": ["string", "null"]}
    error = _object(error=_object(message=_STRING, type=_STRING, param=told, code=told))
    good = _body("The answer", answer) if answer else _body("The answer", _STRING, "text/plain")
    operation = {"responses": {"200": good, "default": _body("An error", error)}}
    if asked:
        good["content"]["text/event-stream"] = {"schema": {}}
        schema = {"$ref": f"#/components/schemas/{asked}"}
        operation["requestBody"] = {"required": True, **_body("", schema)}
    return operation
