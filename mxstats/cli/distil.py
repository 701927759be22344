"""``mxstats distil``: weights of blocks trained on what a model says."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records

# One window of so many says when to stop, and is not trained on.
_HELD_OUT = 5


def run(
    constants: Annotated[
        Path,
        typer.Option("--constants", help="Where to begin: what calibrate --per block wrote."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write the weights to.")],
    model: Annotated[
        str, typer.Argument(help="smollm2, or a folder that transformers can load.")
    ] = "smollm2",
    text: Annotated[
        str | None, typer.Option("--text", help="File or folder to read; GPL-3 when not given.")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens to read, the BOS of each window included.")
    ] = 8192,
    window: Annotated[
        int, typer.Option("--window", help="Tokens the model sees at once, BOS included.")
    ] = 512,
    own_windows: Annotated[
        int, typer.Option("--own-windows", help="Windows that the model writes itself, besides.")
    ] = 0,
    passes: Annotated[int, typer.Option("--passes", help="How often each window is read.")] = 2,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="Largest step of Adam on ln w.")
    ] = 0.03,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the windows' order and of what the model writes.")
    ] = 0,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = False,
) -> None:
    """Train a calibration's weights on the model's own predictions; every fifth window judges."""
    from mxstats.activations.models import load_model
    from mxstats.activations.own_text import write_windows
    from mxstats.activations.record import text_windows
    from mxstats.activations.text import read_text, text_name
    from mxstats.measure import distil, read_calibration
    from mxstats.measure.calibrated import check_file

    check_file(out)
    start = read_calibration(constants)
    if own_windows < 0:
        raise ValueError(f"--own-windows {own_windows}: must be at least 0")
    content = read_text(text)
    with progress("distil") as report:
        report("loading the model", 0.0)
        network, tokenizer = load_model(model, trust_remote_code=trust_remote_code)
        read = text_windows(tokenizer, content, max_tokens=tokens, window=window)
        report("the model writes", 0.0)
        written = write_windows(
            network, bos=read[0][0], windows=own_windows, length=window, seed=seed
        )
        kinds = (read, written)
        found = distil(
            network,
            [one for kind in kinds for at, one in enumerate(kind) if (at + 1) % _HELD_OUT],
            start,
            held_out=[one for kind in kinds for one in kind[_HELD_OUT - 1 :: _HELD_OUT]],
            passes=passes,
            learning_rate=learning_rate,
            seed=seed,
            progress=report,
        )
    said = text_name(text) + (", and text that the model wrote" if written else "")
    replace(found.calibration, text=said).save(out)
    if json:
        print_json(
            {"held_out": records(found.held_out), "layers": records(found.calibration.table)}
        )
        return
    title = (
        f"{model}: {sum(map(len, read)) + sum(map(len, written)):,} tokens, p = 2, "
        f"B = {start.block_size}"
    )
    if len(found.held_out):
        print_table(found.held_out.to_dict("records"), {"passes": "d", "kl": ".5f"}, title=title)
        print("KL of MXNorm's predictions from RMSNorm's on windows held out, nats a token; the")
        print("weights are those of the smallest.")
    else:
        print(
            f"{title}. Fewer than {_HELD_OUT} windows: none was held out, the last weights count."
        )
    moved = found.calibration.table["moved"]
    print(f"ln w moved by {moved.median():.3f} (median of the layers' RMS). Written to {out}.")
