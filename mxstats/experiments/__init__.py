"""One file a figure: ``compute(full)`` gives its table, ``draw(table)`` its figure."""

from mxstats.experiments.make import FIGURES, Made, make_figure

__all__ = ["FIGURES", "Made", "make_figure"]
