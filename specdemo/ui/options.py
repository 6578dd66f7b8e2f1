"""What the page's server is told: which models, who may ask, how much. Checked data; `app.py` makes
options of its fields."""

from __future__ import annotations

import os

from pydantic.dataclasses import dataclass

from specdemo.settings import CONFIG, Line, ModelChoice, option, whole

ON_SPACE = "SPACE_ID" in os.environ


@dataclass(frozen=True, slots=True, config=CONFIG)
class PageOptions(ModelChoice):
    """The models, and the fields below; `shared` None lets the address decide."""

    no_fetch: bool = option(
        False, "answer with a pair that is here; without this a Dolly pair is fetched meanwhile"
    )
    engine: Line = option(
        "",
        "let a `specdemo serve` at http://HOST:PORT answer, in place of models here",
        metavar="URL",
    )
    host: Line = option("0.0.0.0" if ON_SPACE else "127.0.0.1", "address to listen on")
    port: whole(1, 65535) = option(7860, "port to listen on")
    share: bool = option(False, "also print a public link through Gradio's tunnel")
    shared: bool | None = option(
        None,
        "whether strangers share this server; what loads or compiles models (pair, device, KV "
        "cache, numerics) is then its owner's alone",
        off="private",
        unset="shared on a Space, with --share, or where --host is not this machine's own address",
    )
    allowed_host: tuple[str, ...] = option(
        (), "a further name that the server is reached by; '*' for any"
    )
    allow_origin: tuple[str, ...] = option(
        (), "another site whose pages may ask this server; '*' for any", metavar="URL"
    )
    trusted_proxy: tuple[str, ...] = option(
        (),
        "a proxy in front, whose X-Forwarded-For says who asks",
        metavar="ADDRESS",
        unset="a Space's own",
    )
    drain_seconds: whole(0, 3600) = option(
        20, "how long answers that have begun may take to finish when the server is stopped"
    )
    learn_ngrams: bool | None = option(
        None,
        "whether an n-gram table grows from finished answers; by how soon text comes a visitor "
        "could notice what another was answered",
        off="no-learn-ngrams",
        unset="on unless strangers share the server",
    )
    visitors: whole(1, 64) = option(16, "requests that share the models at once; more wait")
    cache_mb: whole(1, 1_000_000) = option(
        1024, "megabytes of KV cache at most, and one full context at least; taken as it is used"
    )
    exclusive: bool = option(
        False, "run requests one at a time, so that no figure is of a shared machine"
    )
    max_new_tokens: whole(1, 2000) = option(100, "where the page's setting of that name starts")
