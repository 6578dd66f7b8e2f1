"""`specdemo export`: makes IR of a PyTorch checkpoint or a GGUF file."""

from pathlib import Path

import click

from specdemo.errors import naming
from specdemo.host.terminal import progress_bar


@click.command()
@click.argument(
    "source",
    metavar="SOURCE",
    help="A PyTorch checkpoint (a folder or a Hub repository) or a GGUF file (FILE.gguf or "
    "OWNER/NAME:FILE.gguf).",
)
@click.argument("out", type=click.Path(path_type=Path), help="The folder to make.")
@click.option("--weight-format", type=click.Choice(("int8", "int4", "fp16")), default="int8")
@click.option(
    "--calibrate",
    is_flag=True,
    help="Round to int4 so that the model's products change least along text that it writes: "
    "closer to the source, as fast, in minutes. An interrupted run continues.",
)
def export(source: str, out: Path, weight_format: str, calibrate: bool) -> None:
    from specdemo.convert.exporting import export
    from specdemo.pairs import sources
    from specdemo.pairs.loading import load_pair
    from specdemo.pairs.registry import own_pair

    with naming(lambda field: "SOURCE"):
        model = sources.source_of(source, "model", sources.AS_IT_IS)

    def own_text() -> list[list[int]]:
        from specdemo.training import data

        pair = own_pair(sources.source_of(source, "model", weight_format))
        return data.own_text(load_pair(pair, bar))

    with progress_bar() as bar:
        [fetched] = sources.fetch([model], bar, to_run=False)
        text = own_text if calibrate else None
        export(fetched.folder, out, weight_format, bar, name=model.name, own_text=text)
    click.echo(f"{out} holds the IR of {model.name} ({weight_format})")
