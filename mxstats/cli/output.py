"""How results are shown: tables on a terminal, JSON for a script, progress on stderr."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

# Below this many blocks a row the sampling noise of the estimate is large enough to warn of.
FEW_BLOCKS = 16


def print_json(value: Any) -> None:
    """Print ``value`` as strict JSON: NaN and infinities, which JSON lacks, become null."""
    print(json.dumps(_strict(value), indent=2))


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return a table's lines as dictionaries of Python values."""
    return json.loads(table.to_json(orient="records", double_precision=15))


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns under a title."""
    # Text, not markup: names come from files and arguments.
    grid = Table(title=Text(title, style="bold"), title_justify="left", box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, Text(value))
    Console(highlight=False).print(grid)


def print_table(
    lines: Sequence[Mapping[Any, Any]], formats: Mapping[str, str], *, title: str | None = None
) -> None:
    """Print lines as a table; ``formats`` gives the columns and their number format."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name, how in formats.items():
        shown.add_column(name, justify="right" if how else "left", no_wrap=name != "note")
    for line in lines:
        shown.add_row(*(_cell(line[name], how) for name, how in formats.items()))
    console = Console(highlight=False)
    if title is not None:
        # Not the table's own, which wraps at the table's width.
        console.print(Text(title, style="bold"))
    console.print(shown)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[yellow]warning:[/] {message}")


def warn_few_blocks(blocks: int, std: float) -> None:
    """Warn of the noise √(V/K) where a row has fewer than 16 blocks."""
    if blocks < FEW_BLOCKS:
        noise = "infinite" if math.isinf(std) else f"{100 * std:.1f} %"
        warn(f"only K = {blocks} blocks a row: sampling noise √(V/K) of the estimate is {noise}")


@contextmanager
def progress(what: str) -> Iterator[Callable[[str, float], None]]:
    """Show a bar with the time left on stderr; yields report(description, share done)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Where stderr is a file or a pipe a bar would be noise, and an error shares the stream.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=1.0)

        def report(description: str, share: float) -> None:
            bar.update(task, description=f"{what}: {description}", completed=share)

        yield report


def _cell(value: Any, how: str) -> str | Text:
    if isinstance(value, float) and math.isnan(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return format(value, how) if how else Text(str(value))


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
