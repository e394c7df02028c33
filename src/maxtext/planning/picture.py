"""A picture of the devices: who holds which heads, which requests, which slice of the MLP."""

import itertools
from collections.abc import Iterator
from html import escape
from pathlib import Path

from maxtext.planning.answer import Plan
from maxtext.planning.holdings import Holding, Span

# Of more devices the first are drawn; the rest are like them.
_MOST = 64
_COLUMNS = 8
_WIDTH, _HEIGHT, _GAP, _TOP, _LINE = 150, 92, 8, 44, 15
# Pixels of a letter at most, on average.
_CHARACTER = 7
_COLORS = ("#dbe9f6", "#fde3cf", "#dcf0dc", "#f6dbe6", "#e8e0f5", "#fbf3c9", "#d5f0f0", "#eadfd3")


def write_picture(plan: Plan, file: Path) -> None:
    """Writes `draw(plan)`.

    Raises:
        ValueError: As `draw`, or the file is no .svg or cannot be written.
    """
    if file.suffix != ".svg":
        raise ValueError(f"--picture {file}: must end in .svg")
    try:
        file.write_text(draw(plan))
    except OSError as error:
        raise ValueError(f"--picture {file}: cannot be written: {error.strerror}") from error


def draw(plan: Plan) -> str:
    """The picture, SVG.

    Raises:
        ValueError: There is no serving to draw.
    """
    if plan.serving is None:
        raise ValueError(f"--picture draws serving, which cannot be: {plan.problems['serving']}")
    holdings = plan.serving.holdings
    shown = holdings[:_MOST]
    rows = list(_rows(shown))
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.serving.mesh.items()) or "no split"
    more = f", the first {len(shown)} drawn" if len(shown) < len(holdings) else ""
    dp = plan.attention
    titles = (
        f"{plan.model} on {plan.num_devices} devices: {mesh}{more}",
        f"attention data parallelism {dp.variant}: {dp.why}",
    )
    width = max(
        _GAP + (_WIDTH + _GAP) * max(map(len, rows)),
        2 * _GAP + _CHARACTER * max(map(len, titles)),
    )
    height = _TOP + (_HEIGHT + _GAP) * len(rows) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *(_text(_GAP, 18 + 16 * line, title) for line, title in enumerate(titles)),
    ]
    for y, row in enumerate(rows):
        for x, holding in enumerate(row):
            lines += _box(holding, left=_GAP + x * (_WIDTH + _GAP), top=_TOP + y * (_HEIGHT + _GAP))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rows(holdings: tuple[Holding, ...]) -> Iterator[tuple[Holding, ...]]:
    """Devices of a group in a row, or in several."""
    ordered = sorted(holdings, key=lambda one: one.group)
    groups = itertools.groupby(ordered, key=lambda one: one.group)
    if len({one.group for one in holdings}) == len(holdings):
        return itertools.batched(ordered, _COLUMNS)
    return itertools.chain.from_iterable(itertools.batched(group, _COLUMNS) for _, group in groups)


def _box(holding: Holding, *, left: int, top: int) -> list[str]:
    color = _COLORS[holding.group % len(_COLORS)]
    texts = (
        f"device {holding.device}: requests {holding.group}",
        f"attends: heads {_span(holding.attending)}",
        f"cache: kv heads {_span(holding.cached)}",
        f"Q, O: heads {_span(holding.projected)}",
        f"MLP: {_span(holding.mlp)}",
    )
    return [
        f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="4" '
        f'fill="{color}" stroke="#888"/>',
        *(_text(left + 8, top + 18 + line * _LINE, text) for line, text in enumerate(texts)),
    ]


def _span(span: Span) -> str:
    first, end = span
    return f"{first}" if end == first + 1 else f"{first}-{end - 1}"


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
