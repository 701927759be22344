"""The options that several commands share, so that they read and behave alike."""

from typing import Annotated

import typer

Dist = Annotated[
    str, typer.Option("--dist", help="Distribution: gaussian, laplace or student-t:DF.")
]
Dists = Annotated[
    list[str], typer.Option("--dist", help="Distribution; repeat for more: gaussian, student-t:5.")
]
P = Annotated[float, typer.Option("--p", "-p", help="Exponent of the power mean, above 0.")]
Ps = Annotated[list[float], typer.Option("--p", "-p", help="Exponent; repeat for more.")]
BlockSize = Annotated[int, typer.Option("--block-size", "-B", help="Elements that share a scale.")]
BlockSizes = Annotated[
    list[int], typer.Option("--block-size", "-B", help="Block size; repeat for more.")
]
HiddenSize = Annotated[int, typer.Option("--hidden-size", "-D", help="Elements a row.")]
MaybeHiddenSize = Annotated[
    int | None, typer.Option("--hidden-size", "-D", help="Elements a row.", show_default=False)
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that the model's folder holds."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]
