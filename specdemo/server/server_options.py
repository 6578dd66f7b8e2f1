"""The options of the servers: which pair, how many replicas, how many requests for each. Ray Serve
takes them from the `args` of a config file."""

import ipaddress
import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from specdemo.errors import BadInput
from specdemo.options import CONFIG, Line, Whole, option
from specdemo.pairs.registry import ModelChoice
from specdemo.runs.settings import MAX_NEW_TOKENS, Drafter
from specdemo.server.request_guard import address_of

Positive = Annotated[Whole, Field(ge=1)]
Port = Annotated[Whole, Field(ge=1, le=65535)]


def _host_name(name: str) -> str:
    if "/" in name:
        raise ValueError("it must be a name without scheme and path, or '*'")
    return name


def _origin(url: str) -> str:
    """As browsers send it. Raises ValueError for what none of them sends."""
    origin = url.lower().rstrip("/")
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", origin):
        raise ValueError("it must be a scheme and a name, such as https://example.com, or '*'")
    return origin


def _networks(addresses: str) -> str:
    """Raises ValueError for what uvicorn would compare with no address, and say nothing."""
    try:
        for address in addresses.split(",") if addresses != "*" else ():
            ipaddress.ip_network(address.strip())
    except ValueError:
        expected = "it must be an address or a network, such as 10.0.0.0/8, or '*'"
        raise ValueError(expected) from None
    return addresses


HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
Networks = Annotated[str, AfterValidator(_networks)]


@dataclass(frozen=True, slots=True, config=CONFIG)
class ServerOptions(ModelChoice):
    """The options of both servers, the page's and the API's: the models, and who may ask."""

    host: Line = option("127.0.0.1", "address to listen on")
    port: Port = option(8000, "port to listen on")
    share: bool = False
    shared: bool | None = option(
        None,
        "whether strangers share this server; what loads or compiles models (pair, device, KV "
        "cache, numerics) is then only its owner's choice",
        off="private",
        unset="shared on a Space, with --share (page), or where --host is not a loopback address",
    )
    allowed_host: tuple[HostName, ...] = option(
        (), "a further name that the server is reached by; '*' for any"
    )
    allow_origin: tuple[Origin, ...] = option(
        (), "another site whose pages may ask this server; '*' for any", metavar="URL"
    )
    cache_mb: Annotated[Whole, Field(ge=1, le=1_000_000)] = option(
        1024, "megabytes of KV cache at most, and one full context at least; taken as it is used"
    )

    log_format: Literal["text", "json"] = option("text", "form of the lines of the log")

    @property
    def strangers(self) -> bool:
        """Whether people who do not know each other share the server."""
        address = address_of(self.host)
        loopback = address.is_loopback if address else self.host == "localhost"
        public = self.share or "SPACE_ID" in os.environ or not loopback
        return public if self.shared is None else self.shared


@dataclass(frozen=True, slots=True, config=CONFIG)
class ServeOptions(ServerOptions):
    """The options of the API's server."""

    max_new_tokens: Annotated[Whole, Field(ge=1, le=MAX_NEW_TOKENS)] = option(
        512, "tokens of a chat answer whose request names no limit"
    )
    drafter: Drafter = option(
        "auto", "where drafts of a request come from that does not say; none for many at once"
    )
    no_ray: bool = option(False, "one engine in this process, without Ray")
    replicas: Positive = option(1, "replicas, each with the pair and an engine of its own")
    max_replicas: Positive | None = option(None, "the most replicas that the load may bring")
    cpus_per_replica: Positive | None = option(
        None, "cores of each replica", unset="1; with --no-ray all of the machine"
    )
    max_ongoing: Positive = option(8, "requests that each replica runs at once")
    max_waiting: Annotated[Whole, Field(ge=0)] = option(
        64, "requests that may wait for each replica; more are refused with status 429"
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = option(
        60.0, "how long answers that have begun may take to finish when a replica is stopped"
    )
    gateways: Positive = 1  # processes that serve the API


def key_from_environment() -> str | None:
    """The bearer key that requests must bring, None when none is set. Raises BadInput for one that
    no client can send."""
    key = os.environ.get("SPECDEMO_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput("SPECDEMO_API_KEY must be printable ASCII: headers carry nothing else.")
    return key or None
