"""``mxstats capture``: a model reads a text; what enters its norms goes into a store."""

from pathlib import Path
from typing import Annotated

import typer

from mxstats.cli.output import progress


def run(
    out: Annotated[Path, typer.Argument(help="Folder of the new store.")],
    model: Annotated[
        str, typer.Option("--model", help="smollm2, or a folder that transformers can load.")
    ] = "smollm2",
    text: Annotated[
        str | None, typer.Option("--text", help="File or folder to read; GPL-3 when not given.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to read, BOS included.")] = 64,
    window: Annotated[
        int, typer.Option("--window", help="Tokens the model sees at once, BOS included.")
    ] = 512,
    modules: Annotated[
        str | None, typer.Option("--modules", help="Glob over module names; every RMSNorm else.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store.")] = False,
) -> None:
    """Capture the inputs of every RMSNorm of a model into a store."""
    from mxstats.activations import capture_to_store

    with progress("capture") as report:
        store = capture_to_store(
            out,
            model=model,
            text=text,
            tokens=tokens,
            modules=modules,
            window=window,
            overwrite=overwrite,
            progress=lambda done, total: report(f"{done:,} of {total:,} tokens", done / total),
        )
    size = sum(shard.bytes for shard in store.manifest.shards)
    print(
        f"{out}: {len(store.layers)} layers, {store.manifest.rows:,} rows each, "
        f"{store.manifest.dtype}, {size / 1e6:.2f} MB"
    )
