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
def export(source: str, out: Path, weight_format: str) -> None:
    from specdemo.convert.exporting import export
    from specdemo.pairs import sources

    with naming(lambda field: "SOURCE"):
        model = sources.source_of(source, "model", sources.AS_IT_IS)
    with progress_bar() as bar:
        [fetched] = sources.fetch([model], bar, to_run=False)
        export(fetched.folder, out, weight_format, bar, name=model.name)
    click.echo(f"{out} holds the IR of {model.name} ({weight_format})")
