"""A training step that is compiled and looked into, and not run: `compile_only=true`."""

import json
import logging
from typing import Any

import jax
from jax.stages import Compiled

from maxtext.config.schema import Config
from maxtext.metrics.devices import memory_use
from maxtext.metrics.step_log import Workload
from maxtext.models.backend import config_errors
from maxtext.parallel import program
from maxtext.parallel.distributed import initialize, together
from maxtext.parallel.layout import use_layout
from maxtext.training.setup import Setup, prepare
from maxtext.training.start import GIB, compile_step, log_start, trace_step, workload

_logger = logging.getLogger(__name__)
_MIB = 2**20


def compile_only(config: Config) -> None:
    """Compiles the training step of a run, and reports on it; no weights and no data are needed.

    The report goes to the log and to `<run>/compiled/program.json`, the program itself to
    `<run>/compiled/train_step.hlo.txt`.

    Raises:
        ConfigError: Something does not fit the devices.
    """
    with config_errors():
        initialize(config.run)
        setup = prepare(config)
    if jax.process_index() > 0:
        logging.getLogger("maxtext").setLevel(logging.WARNING)
    with use_layout(setup.layout):
        work = workload(setup)
        log_start(setup, work)
        with config_errors():
            traced = trace_step(setup)
        compiled = compile_step(setup, traced)
    report = _report(setup, compiled, work)
    _log(report)
    with config_errors(), together():
        if jax.process_index() == 0:
            _write(setup, compiled, report)


def _report(setup: Setup, compiled: Compiled, work: Workload) -> dict[str, Any]:
    """All figures, as they are written."""
    mesh = setup.layout.mesh
    memory, use = program.memory(compiled), memory_use()
    found = program.totals(program.collectives(compiled, mesh))
    return {
        "model_name": setup.config.run.model_name,
        "devices": mesh.size,
        "device_kind": mesh.devices.flat[0].device_kind,
        "mesh": {axis: size for axis, size in mesh.shape.items() if size > 1},
        "memory_bytes": None
        if memory is None
        else {
            "arguments": memory.arguments,
            "outputs": memory.outputs,
            "aliased": memory.aliased,
            "temporaries": memory.temporaries,
            "peak": memory.peak,
        },
        "memory_limit_bytes": use and use.limit,
        "model_flops": work.flops_per_device,
        "product_flops": program.flops(compiled),
        "collectives": [
            {"kind": kind, "axes": list(axes), "count": count, "bytes": moved}
            for (kind, axes), (count, moved) in found.items()
        ],
    }


def _log(report: dict[str, Any]) -> None:
    memory, limit = report["memory_bytes"], report["memory_limit_bytes"]
    if memory is not None:
        parts = ", ".join(f"{name} {size / GIB:.4g}" for name, size in memory.items())
        _logger.info("memory a device, GiB: %s%s", parts, _fit(memory["peak"], limit))
    _logger.info("FLOPs a device and step: %s", _flops(report))
    rows = [("collective", "over", "a step", "MiB sent a device")]
    for one in report["collectives"]:
        count, moved = one["count"], one["bytes"]
        over = " x ".join(one["axes"]) or "none"
        sent = "?" if moved is None else f"{moved / _MIB:,.1f}"
        rows.append((one["kind"], over, "?" if count is None else f"{count:,}", sent))
    if len(rows) == 1:
        _logger.info("the step has no collectives")
        return
    first, second, *_ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for kind, over, count, sent in rows:
        _logger.info("%s", f"{kind:<{first}}  {over:<{second}}  {count:>7}  {sent:>17}")


def _fit(peak: int, limit: int | None) -> str:
    if limit is None:
        return ""
    verb = "fits" if peak <= limit else "does not fit"
    return f"; it {verb}: a device has {limit / GIB:.4g}"


def _flops(report: dict[str, Any]) -> str:
    model, products = report["model_flops"], report["product_flops"]
    text = f"{model / 1e12:.4g} T of the model"
    if products is None:
        return f"{text}; those of the program's products are not known"
    return f"{text}, {products / 1e12:.4g} T in the program's products: {products / model:.3f} x"


def _write(setup: Setup, compiled: Compiled, report: dict[str, Any]) -> None:
    folder = setup.directory / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    text = compiled.as_text() or ""
    (folder / "train_step.hlo.txt").write_text(text)
    (folder / "program.json").write_text(json.dumps(report, indent=2) + "\n")
    _logger.info("program and figures in %s", folder)
