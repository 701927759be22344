"""``mxstats evaluate``: what MXNorm costs a model, in nats of its loss."""

from pathlib import Path
from typing import Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records


def run(
    model: Annotated[
        str, typer.Argument(help="smollm2, or a folder that transformers can load.")
    ] = "smollm2",
    text: Annotated[
        str | None, typer.Option("--text", help="File or folder to read; GPL-3 when not given.")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens to read, the BOS of each window included.")
    ] = 2048,
    window: Annotated[
        int, typer.Option("--window", help="Tokens the model sees at once, BOS included.")
    ] = 512,
    constants: Annotated[
        list[Path] | None,
        typer.Option("--constants", help="A file that calibrate wrote; may be given again."),
    ] = None,
    p: options.P = 2.0,
    fmt: Annotated[
        str | None, typer.Option("--fmt", help="Round all operands to it; nothing when not given.")
    ] = None,
    scale_rule: Annotated[
        str | None, typer.Option("--scale-rule", help="floor, ceil, even or rceil; E8M0 only.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", "-B", help="Instead of the format's.", show_default=False),
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = False,
) -> None:
    """Loss of a model with RMSNorm, with MXNorm, and with pure noise of the size of √(V/K)."""
    from mxstats.activations.models import load_model
    from mxstats.activations.record import text_windows
    from mxstats.activations.text import read_text
    from mxstats.measure.evaluation import evaluate

    content = read_text(text)
    with progress("evaluate") as report:
        report("loading the model", 0.0)
        network, tokenizer = load_model(model, trust_remote_code=trust_remote_code)
        windows = text_windows(tokenizer, content, max_tokens=tokens, window=window)
        found = evaluate(
            network,
            windows,
            {path.name: path for path in constants or []},
            p=p,
            fmt=fmt,
            scale_rule=scale_rule,
            block_size=block_size,
            progress=report,
        )
    if json:
        print_json(records(found))
        return
    line = found.iloc[-1]
    scored = int(line["tokens"])
    title = f"{model}: {scored:,} tokens scored, p = {p:g}, B = {line['block_size']}"
    shown = found.rename(columns={"penalty_error": "±"})[["variant", "loss", "penalty", "±"]]
    formats = {"variant": "", "loss": ".4f", "penalty": "+.4f", "±": ".4f"}
    print_table(shown.to_dict("records"), formats, title=title)
    print("Loss in nats a token; the penalty, ± one standard error, is over RMSNorm unrounded.")
