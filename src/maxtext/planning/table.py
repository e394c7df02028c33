"""A plan as a table for people, alone or beside another."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from maxtext.planning.answer import Plan
from maxtext.planning.exchanges import Exchange, Exchanges
from maxtext.planning.roofline import Seconds
from maxtext.planning.serving import EngineStep, ServingPlan
from maxtext.planning.training import TrainingPlan
from maxtext.planning.weights import WeightGroup

type Row = tuple[str, str]
type Part = tuple[str, list[Row]]

_UNKNOWN = "not counted"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def as_text(plans: Mapping[str, Plan], *, as_json: bool) -> str:
    """A plan alone, or several beside each other."""
    if as_json:
        found = {name: as_dict(plan) for name, plan in plans.items()}
        one = next(iter(found.values())) if len(found) == 1 else found
        return json.dumps(one, indent=2) + "\n"
    return table(next(iter(plans.values()))) if len(plans) == 1 else comparison(plans)


def as_dict(plan: Plan) -> dict[str, Any]:
    """All numbers of a plan, and those that follow from them."""
    made = dataclasses.asdict(plan)
    for part, step in (("serving", "decode"), ("serving", "prefill"), ("training", None)):
        own = getattr(plan, part)
        source = own if step is None or own is None else getattr(own, step)
        if source is None:
            continue
        target = made[part] if step is None else made[part][step]
        if source.exchanges is not None:
            target["exchanges"]["bytes_sent"] = source.exchanges.bytes_sent
            target["exchanges"]["bytes_per_layer"] = source.exchanges.bytes_per_layer
        if source.seconds is not None:
            target["seconds"]["step"] = source.seconds.step
    if plan.serving is not None:
        made["serving"]["weight_bytes"] = plan.serving.weight_bytes
    if plan.training is not None:
        made["training"]["memory"]["total"] = plan.training.memory.total
    return made


def table(plan: Plan) -> str:
    """The plan, a number a line."""
    return _text(
        [(title, [(name, (value,)) for name, value in rows]) for title, rows in parts(plan)]
    )


def comparison(plans: Mapping[str, Plan]) -> str:
    """Several plans beside each other, each under its name."""
    columns = [dict(parts(plan)) for plan in plans.values()]
    lines: list[tuple[str, list[tuple[str, tuple[str, ...]]]]] = [("", [("", tuple(plans))])]
    for title in _in_order(columns):
        rows = [dict(column.get(title, [])) for column in columns]
        names = _in_order(rows)
        lines.append((title, [(n, tuple(row.get(n, "-") for row in rows)) for n in names]))
    return _text(lines)


def parts(plan: Plan) -> list[Part]:
    """The table's rows under their titles."""
    found = [("", _head(plan))]
    if plan.serving is not None:
        found += _serving(plan, plan.serving)
    elif "serving" in plan.problems:
        found.append(("serving", [("impossible", plan.problems["serving"])]))
    if plan.training is not None:
        found += _training(plan, plan.training)
    elif "training" in plan.problems:
        found.append(("training", [("impossible", plan.problems["training"])]))
    return found


def _head(plan: Plan) -> list[Row]:
    kind = plan.device.name if plan.device else "devices of unknown kind"
    rows = [
        ("model", f"{plan.model}: {plan.num_params:,} parameters"),
        ("devices", f"{plan.num_devices} x {kind}, {_bytes(plan.hbm_bytes)} each"),
    ]
    if plan.device:
        device = plan.device
        rows.append(
            (
                "a device",
                f"{device.bfloat16_flops / 1e12:.4g} TFLOP/s in bfloat16, memory "
                f"{device.hbm_bandwidth / 1e9:.4g} GB/s, links {device.link_bandwidth / 1e9:.4g} "
                "GB/s each way",
            )
        )
        rows.append(("source", device.source))
    return rows


def _serving(plan: Plan, serving: ServingPlan) -> Iterator[Part]:
    dp, heads, fit = plan.attention, serving.heads, serving.fit
    rows = [
        ("mesh", _mesh(serving.mesh)),
        ("attention data parallelism", dp.text),
        ("groups with requests of their own", f"{serving.ranks}"),
        ("types", f"{serving.dtype}, cache {serving.cache_dtype}"),
        *_weights(serving.weights),
        (
            "heads a device",
            f"projects {heads.projected} query and {heads.kv} key and value heads, attends with "
            f"{heads.attending}, caches {heads.cached}",
        ),
        ("cache a token and device", f"{serving.cache_bytes_per_token:,.10g} B"),
        ("free beside the weights", _bytes(fit.free_bytes)),
        ("pages that fit a group", f"{fit.pages:,}"),
        (f"sequences of {fit.length} that fit", f"{fit.sequences:,}"),
    ]
    if plan.instead.get("serving") is not None:
        rows.append(("does not fit; what would", _either(plan.instead["serving"])))
    rows.append(("not counted", "; ".join(serving.not_counted)))
    yield "serving", rows
    for name, step in (("decode step", serving.decode), ("prefill step", serving.prefill)):
        if step is not None:
            yield name, list(_step(step))


def _step(step: EngineStep) -> Iterator[Row]:
    yield "tokens, sequences", f"{step.tokens:,}, {step.sequences:,}"
    yield "given to the program a device", _bytes(step.argument_bytes)
    yield "reads weights, cache", f"{_bytes(step.weight_bytes)}, {_bytes(step.cache_bytes)}"
    yield "products", f"{step.flops / 1e9:.4g} GFLOPs"
    yield from _exchanges(step.exchanges)
    if step.seconds is not None:
        yield from _roofline(step.seconds)
        yield "tokens a second at best", f"{step.tokens / step.seconds.step:,.4g}"


def _training(plan: Plan, training: TrainingPlan) -> Iterator[Part]:
    memory = training.memory
    kept = f"activations kept, {training.remat_policy}"
    rows = [
        ("mesh", _mesh(training.mesh)),
        ("types", f"{training.dtype}, weights {training.weight_dtype}"),
        ("step", f"{training.rows:,} rows of {training.length:,} tokens"),
        *_weights(training.weights),
        ("optimizer", _bytes(memory.optimizer)),
        ("batch", _bytes(memory.batch)),
        ("gradients", _bytes(memory.gradients)),
        (kept, _known(memory.activations)),
        ("logits", _known(memory.logits)),
        ("in all, at least", _bytes(memory.total)),
        ("free, at most", _bytes(training.free_bytes)),
        ("model FLOPs a device", f"{training.flops / 1e12:.4g} TFLOPs"),
        *_exchanges(training.exchanges),
        ("not counted", "; ".join(training.not_counted)),
    ]
    if memory.host:
        rows.insert(-1, ("activations in the host's memory", _bytes(memory.host)))
    if plan.instead.get("training") is not None:
        rows.append(("does not fit; what would", _either(plan.instead["training"])))
    if training.seconds is not None:
        rows += _roofline(training.seconds)
        tokens = training.rows * training.length
        rows.append(("tokens a second at best", f"{tokens / training.seconds.step:,.4g}"))
    yield "training", rows


def _weights(groups: Iterable[WeightGroup]) -> Iterator[Row]:
    groups = list(groups)
    for group in groups:
        copies = f"{group.copies:.3g} {'copy' if group.copies == 1 else 'copies'}"
        yield f"weights: {group.name}", f"{_bytes(group.bytes_per_device)}, {copies}"
    yield "weights a device", _bytes(sum(group.bytes_per_device for group in groups))


def _exchanges(exchanges: Exchanges | None) -> Iterator[Row]:
    if exchanges is None:
        yield "sent a device", _UNKNOWN
        return
    kinds = sorted(exchanges.layer, key=_kind)
    for (kind, axes), found in itertools.groupby(kinds, key=_kind):
        listed = list(found)
        times = sum(one.times for one in listed)
        sent = sum(one.bytes_sent for one in listed)
        yield f"a layer: {times} {kind}", f"{_bytes(sent)} sent over {' x '.join(axes)}"
    yield "sent a device", _bytes(exchanges.bytes_sent)


def _kind(one: Exchange) -> tuple[str, tuple[str, ...]]:
    return one.kind, one.axes


def _roofline(seconds: Seconds) -> Iterator[Row]:
    each = f"memory {_time(seconds.memory)}, products {_time(seconds.products)}"
    yield "at best", f"{_time(seconds.step)}: {each}, links {_time(seconds.links)}"


def _mesh(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items()) or "no split"


def _either(texts: Iterable[str]) -> str:
    return "; or ".join(texts) or "nothing that was tried"


def _bytes(count: float) -> str:
    power = 0
    while abs(count) >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.4g} {_UNITS[power]}"


def _known(count: int | None) -> str:
    return _UNKNOWN if count is None else _bytes(count)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def _in_order(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of all, each after the one that it follows in its own."""
    found: list[str] = []
    for mapping in mappings:
        place = 0
        for key in mapping:
            if key not in found:
                found.insert(place, key)
            place = found.index(key) + 1
    return found


def _text(lines: Iterable[tuple[str, list[tuple[str, tuple[str, ...]]]]]) -> str:
    lines = list(lines)
    rows = [row for _, rows in lines for row in rows]
    first = max(len(name) for name, _ in rows)
    count = max(len(values) for _, values in rows)
    widths = [max(len(v[place]) for _, v in rows) for place in range(count)]
    made: list[str] = []
    for title, own in lines:
        made += ["", title] if title else []
        for name, values in own:
            cells = (f"{value:<{width}}" for value, width in zip(values, widths, strict=True))
            made.append("  ".join((f"  {name:<{first}}", *cells)).rstrip())
    return "\n".join(made) + "\n"
