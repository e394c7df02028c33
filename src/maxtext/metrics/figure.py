"""The curves of runs as one picture."""

import dataclasses
import io
import math
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from maxtext.metrics.curves import Curve, pieces

_RAW_POINTS = 100
_WINDOWS = 60
_LOG_SPAN = 30.0
_MOST = 0.97
_WIDTH, _HEIGHT, _LEGEND = 6.0, 3.4, 0.28


@dataclasses.dataclass(frozen=True)
class _Panel:
    title: str
    tag: str
    points: bool = False
    from_zero: bool = False


_PANELS = (
    _Panel("training loss (nats a token)", "learning/loss"),
    _Panel("evaluation loss (nats a token)", "eval/avg_loss", points=True),
    _Panel("gradient norm, before clipping", "learning/grad_norm"),
    _Panel("tokens a second and device", "perf/per_device_tokens_per_sec", from_zero=True),
)


def draw(runs: Mapping[str, Mapping[str, Curve]], out: Path) -> None:
    """Draws loss, evaluation loss, gradient norm and throughput of each run by its name.

    Raises:
        ValueError: None of them is there.
        OSError: The picture cannot be written.
    """
    panels = [one for one in _PANELS if any(one.tag in run for run in runs.values())]
    if not panels:
        tags = ", ".join(one.tag for one in _PANELS)
        raise ValueError(f"{', '.join(runs)}: nothing to draw; what is drawn are {tags}")
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    top = _LEGEND * (0.4 + math.ceil(len(runs) / 3))
    height = rows * _HEIGHT + top
    figure = Figure(figsize=(columns * _WIDTH, height), layout="constrained", dpi=130)
    below = (0, 0, 1, 1 - top / height)
    figure.get_layout_engine().set(rect=below, hspace=0.06, wspace=0.03)  # pyright: ignore
    for number, panel in enumerate(panels, start=1):
        shared = figure.axes[0] if figure.axes else None
        axes = figure.add_subplot(rows, columns, number, sharex=shared)
        _draw_panel(axes, panel, runs)
        if number > len(panels) - columns:
            axes.set_xlabel("step")
    colors = [f"C{n % 10}" for n in range(len(runs))]
    handles = [figure.axes[0].plot([], [], color=color, linewidth=2)[0] for color in colors]
    # A label may hide what begins with an underscore, and take dollars for mathematics.
    hidden = ["run"] * len(handles)
    legend = figure.legend(handles, hidden, loc="upper center", ncols=3, frameon=False)
    for label, name in zip(legend.get_texts(), runs, strict=True):
        label.set_parse_math(False)
        label.set_text(name)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that no font has becomes a box.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(picture, format=out.suffix[1:])
    out.write_bytes(picture.getvalue())


def _draw_panel(axes: Axes, panel: _Panel, runs: Mapping[str, Mapping[str, Curve]]) -> None:
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    shown: list[float] = []
    for number, run in enumerate(runs.values()):
        curve = run.get(panel.tag, {})
        shown += [value for value in curve.values() if math.isfinite(value)]
        for steps, values in pieces(curve):
            _draw_piece(axes, steps, values, color=f"C{number % 10}", points=panel.points)
    if panel.from_zero:
        # A few quick steps must not press the others down.
        top = sorted(shown)[int(_MOST * len(shown))] if shown else 1.0
        axes.set_ylim(0, 1.25 * top)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    elif shown and min(shown) > 0 and max(shown) / min(shown) > _LOG_SPAN:
        axes.set_yscale("log")


def _draw_piece(
    axes: Axes, steps: list[int], values: list[float], *, color: str, points: bool
) -> None:
    marker = "o" if points or len(steps) == 1 else ""
    if points or len(steps) <= _RAW_POINTS:
        axes.plot(steps, values, color=color, linewidth=1.4, marker=marker, markersize=3.5)
        return
    axes.plot(steps, values, color=color, linewidth=0.6, alpha=0.3)
    axes.plot(steps, _running_median(values), color=color, linewidth=1.6)


def _running_median(values: list[float]) -> list[float]:
    """Medians of the finite values around each; NaN where the value itself is not finite."""
    half = max(2, len(values) // _WINDOWS // 2)
    medians: list[float] = []
    for n, value in enumerate(values):
        near = [one for one in values[max(0, n - half) : n + half + 1] if math.isfinite(one)]
        medians.append(statistics.median(near) if math.isfinite(value) else math.nan)
    return medians
