"""`specdemo page`, which `app.py` is too: serves the page, and loads the models meanwhile."""

import gc
import os
import tempfile
from dataclasses import fields
from functools import partial
from typing import Annotated

from huggingface_hub import constants
from pydantic import Field
from pydantic.dataclasses import dataclass

from specdemo.commands import CONTEXT
from specdemo.commands.shared import options_of, sectioned
from specdemo.errors import RequestFailed
from specdemo.options import CONFIG, Line, Whole, option
from specdemo.pairs.registry import EMBEDDED, ModelChoice, chosen_pair
from specdemo.runs.race import ENOUGH_SECONDS
from specdemo.server import metrics
from specdemo.server.page import model_menu
from specdemo.server.page.routes import PageGuard
from specdemo.server.page.service import Service, VisitorLimits
from specdemo.server.request_guard import PRIVATE_NETWORKS
from specdemo.server.server_options import Networks, Port, ServerOptions, key_from_environment
from specdemo.server.web_server import Server, bound_socket, url_of

ON_SPACE = "SPACE_ID" in os.environ


@dataclass(frozen=True, slots=True, config=CONFIG)
class PageOptions(ServerOptions):
    no_fetch: bool = option(
        False, "fetch no Dolly pair while the embedded pair answers, as is done without --pair"
    )
    host: Line = option("0.0.0.0" if ON_SPACE else "127.0.0.1", "address to listen on")
    port: Port = option(7860, "port to listen on")
    share: bool = option(False, "also print a public link through Gradio's tunnel")
    trusted_proxy: tuple[Networks, ...] = option(
        (),
        "a proxy in front, whose X-Forwarded-For says who asks",
        metavar="ADDRESS",
        unset="a Space's own",
    )
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = option(
        20, "how long answers that have begun may take to finish when the server is stopped"
    )
    visitors: Annotated[Whole, Field(ge=1, le=64)] = option(
        16, "requests that share the models at once; more wait"
    )
    race_seconds: Annotated[float, Field(ge=0, le=60)] = option(
        ENOUGH_SECONDS, "a race of fewer seconds is repeated until it has so many; 0: raced once"
    )
    max_new_tokens: Annotated[Whole, Field(ge=1, le=2000)] = option(
        100, "where the page's setting of that name starts"
    )


@sectioned(context_settings=CONTEXT)
@options_of(PageOptions, "options")
def page(options: PageOptions) -> None:
    """Serve the page: a question, both runs against the clock, the verdict."""
    key = key_from_environment()
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        message = "The page needs a folder for temporary files, and none can be written"
        raise RequestFailed(f"{message}; set TMPDIR to one that can.") from None
    listening = bound_socket(options.host, options.port)
    chosen_pair(options, default=lambda: EMBEDDED)  # raises InvalidOption
    metrics.log_requests(options.log_format)

    models = {field.name: getattr(options, field.name) for field in fields(ModelChoice)}
    if not (options.pair or options.model):
        models["pair"] = model_menu.AUTO
    capacity = {"cache_mb": options.cache_mb, "active": options.visitors}
    menu = model_menu.ModelMenu(ModelChoice(**models), options.strangers, **capacity)
    limits = VisitorLimits(race_seconds=options.race_seconds, fast_numerics=not options.strangers)
    service = Service(menu.first, menu.open_session, limits, menu.fetch)
    service.load(menu.first)

    gc.disable()  # garbage collections take 0.4 s of the 2.6 s in which Gradio is imported
    from specdemo.server.page.background_download import BackgroundDownload
    from specdemo.server.page.web_app import finish, page_app, public_name

    gc.enable()
    download = None
    if menu.later and not options.no_fetch and not constants.is_offline_mode():
        download = BackgroundDownload(service, menu)
        download.start()

    guard = PageGuard((options.host, *options.allowed_host), options.allow_origin, key)
    app = page_app(service, menu, guard, options.max_new_tokens, download)
    if options.share:
        guard.hosts.add(public_name(options.host, options.port))
    metrics.announce(f"The page is up: {url_of(options.host, options.port)}/")

    proxies = ",".join(options.trusted_proxy) or (PRIVATE_NETWORKS if ON_SPACE else "")
    end = partial(finish, app, service)
    server = Server(app, guard, options.drain_seconds, trusted_proxies=proxies, finish=end)
    server.run([listening])
