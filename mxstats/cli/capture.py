"""``mxstats capture``: a model reads a text; what enters its norms goes into a store."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, progress

if TYPE_CHECKING:
    from mxstats.activations.record import Estimate


def run(
    # Not a Path, which would drop a slash of s3://bucket/store.
    out: Annotated[str, typer.Argument(help="Folder or URL of the new store.")],
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
    keep_rows: Annotated[
        int | None,
        typer.Option("--keep-rows", help="Most tokens whose rows are kept, a uniform sample; all."),
    ] = None,
    block_size: Annotated[
        int, typer.Option("--block-size", "-B", help="Block size of the statistics.")
    ] = 32,
    seed: Annotated[int, typer.Option("--seed", help="Which sample of the tokens.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted capture.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a store, or an interrupted capture.")
    ] = False,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = False,
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
            keep_rows=keep_rows,
            block_size=block_size,
            seed=seed,
            trust_remote_code=trust_remote_code,
            resume=resume,
            overwrite=overwrite,
            announce=announce,
            progress=lambda done, total: report(f"{done:,} of {total:,} tokens", done / total),
        )
    size = sum(shard.bytes for shard in store.manifest.shards)
    if json:
        about = store.manifest
        print_json(
            {
                "store": str(store.path),
                "model": about.model,
                "layers": len(about.layers),
                "rows": about.rows,
                "dtype": about.dtype,
                "bytes": size,
                "tokens": about.tokens,
                "tokens_read": about.tokens_read,
            }
        )
        return
    print(
        f"{out}: {len(store.layers)} layers, {store.manifest.rows:,} rows each, "
        f"{store.manifest.dtype}, {size / 1e6:.2f} MB, statistics of "
        f"{store.manifest.tokens_read:,} tokens"
    )


def announce(expected: "Estimate") -> None:
    """Say on stderr what a capture is going to take."""
    print(
        f"about {_short(expected.bytes / 1e6)} MB of rows and {_short(expected.seconds)} s",
        file=sys.stderr,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
