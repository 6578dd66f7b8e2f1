"""What a service is made of: which pair, how many replicas, how much each takes on. Checked data.

The `serve` command makes options of its fields, Ray Serve takes them from the `args` of a config
file.
"""

from __future__ import annotations

import os

from pydantic.dataclasses import dataclass

from specdemo.settings import CONFIG, MAX_NEW_TOKENS, Line, ModelChoice, option, real, whole


@dataclass(frozen=True, slots=True, config=CONFIG)
class ServeOptions(ModelChoice):
    """The models, and the fields below; `gateways` are processes that speak the API."""

    host: Line = option("127.0.0.1", "address to listen on")
    port: whole(1, 65535) = option(8000, "port to listen on")
    shared: bool | None = option(
        None,
        "whether strangers share this server; numerics that are not loaded are then refused",
        off="private",
        unset="shared where --host is not this machine's own address",
    )
    allowed_host: tuple[str, ...] = option(
        (), "a further name that the server is reached by; '*' for any"
    )
    allow_origin: tuple[str, ...] = option(
        (), "another site whose pages may ask this server; '*' for any", metavar="URL"
    )
    max_new_tokens: whole(1, MAX_NEW_TOKENS) = option(
        512, "tokens of a chat answer whose request names no limit"
    )
    learn_ngrams: bool | None = option(
        None,
        "whether an n-gram table grows from finished answers; by how soon text comes a client "
        "could notice what another was answered",
        off="no-learn-ngrams",
        unset="on unless strangers share the server",
    )
    no_ray: bool = option(False, "one engine in this process, without Ray")
    replicas: whole(1) = option(1, "replicas, each with the pair and an engine of its own")
    max_replicas: whole(1) | None = option(None, "the most replicas that the load may bring")
    cpus_per_replica: whole(1) | None = option(
        None, "cores of each replica", unset="1; with --no-ray all of the machine"
    )
    ongoing: whole(1) = option(8, "requests that each replica runs at once", name="max_ongoing")
    waiting: whole(0) = option(
        64,
        "requests that may wait for each replica; more are refused with status 429",
        name="max_waiting",
    )
    cache_mb: whole(1) | None = option(
        1024,
        "megabytes of KV cache of each replica, allocated at the start; one full context at least",
    )
    drain_seconds: real(0, 86_400) = option(
        60.0, "how long answers that have begun may take to finish when a replica is stopped"
    )
    gateways: whole(1) = 1

    @property
    def strangers(self) -> bool:
        from specdemo.serving.door import strangers_share

        return strangers_share(self.host, option=self.shared)


def key_from_environment() -> str | None:
    """The bearer key that requests must bring, None when none is set."""
    return os.environ.get("SPECDEMO_API_KEY", "").strip() or None
