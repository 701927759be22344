"""What is written in a figure, and where: for tests of legibility."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

# Smaller text does not survive print at the column's width.
SMALLEST = 6.5


def check_texts(figure):
    """Assert that every text is inside the figure, large enough, and on no other text."""
    FigureCanvasAgg(figure).draw()
    paper = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in drawn_texts(figure)]
    assert boxes
    for text in drawn_texts(figure):
        assert text.get_fontsize() >= SMALLEST, text.get_text()
    for name, box in boxes:
        # Half a pixel at 100 dpi: what the extents are rounded to.
        assert box.x0 >= paper.x0 - 0.5, name
        assert box.x1 <= paper.x1 + 0.5, name
        assert box.y0 >= paper.y0 - 0.5, name
        assert box.y1 <= paper.y1 + 0.5, name
    for (one, a), (other, b) in combinations(boxes, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        # Extents hold the line's full height; letters that touch share more than a point (1.4
        # pixels at 100 dpi) of both.
        assert width <= 1.4 or height <= 1.4, f"{one!r} is on {other!r}"


def drawn_texts(figure):
    """The texts of a drawn figure that are visible, without tick labels beyond the axes' ends."""
    hidden = set()
    for panel in figure.get_axes():
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            # Rounding in log axes' transforms moves a tick at the very end by some 1e-9.
            margin = 1e-6 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - margin <= tick.get_loc() <= high + margin:
                    hidden |= {tick.label1, tick.label2}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]
