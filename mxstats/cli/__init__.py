"""The command line: one file a command; here they are put together and errors made one line."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper

import typer
from typer.exceptions import TyperException

from mxstats.cli import (
    bench,
    bounds,
    calibrate,
    capture,
    constant,
    distil,
    error,
    evaluate,
    figures,
    formats,
    info,
    quantize,
    simulate,
    table,
    validate,
)
from mxstats.errors import MxstatsError

app = typer.Typer(
    name="mxstats",
    help="The numerics of block-scaled formats: MXNorm's constant, its error, its bounds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    constant,
    table,
    error,
    bounds,
    simulate,
    formats,
    quantize,
    calibrate,
    capture,
    validate,
    distil,
    evaluate,
    figures,
    bench,
    info,
)
for command in _COMMANDS:
    app.command(name=command.__name__.rpartition(".")[2])(command.run)


_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, 2 after an error in one line on stderr, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no ρ shows a question mark, not an error.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(args=arguments, prog_name="mxstats", standalone_mode=False)
    except TyperException as problem:
        return _fail(problem.format_message())
    except (ValueError, TypeError, MxstatsError, OSError) as problem:
        return _fail(str(problem))
    # Ctrl-C: typer turns the exception into this code.
    if code == _INTERRUPTED:
        print("mxstats: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    # Without arguments the help has been printed, and there is nothing to add.
    if message.strip():
        print(f"mxstats: {' '.join(message.split())}", file=sys.stderr)
    return 2
