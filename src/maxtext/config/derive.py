"""Settings that exclude each other, found from the config alone: no device, no file."""

from collections.abc import Iterator, Set

from maxtext.config import derive_data, derive_decode, derive_optimizer, derive_pipeline
from maxtext.config.errors import Clash, did_you_mean
from maxtext.config.flat import flatten
from maxtext.config.keys import RULES
from maxtext.config.numbers import divisors, listed
from maxtext.config.schema import DEGREES, ComputeConfig, Config, MeshConfig

_NOT_YET = {
    "expert": "expert parallelism (for mixture-of-experts models)",
}
_REMAT = (
    "query_proj",
    "key_proj",
    "value_proj",
    "attention_out",
    "out_proj",
    "mlpwi_0",
    "mlpwi_1",
    "mlpwo",
)
_ZERO_MEANS_NOTHING = {
    "num_slices": "-1 leaves it to the devices",
    "max_segments_per_seq": "-1 sets no limit",
    "num_pages": "-1 takes what max_num_seqs need",
    "num_epoch": "-1 goes on without end",
    "learning_rate_schedule_steps": "-1 takes steps",
    "checkpoint_keep_period": "-1 keeps none for good",
    "max_num_checkpoints_to_keep": "-1 keeps all; enable_checkpointing=false writes none",
    "num_pipeline_repeats": "-1 takes what pipeline_parallel_layers need",
    "pipeline_parallel_layers": "-1 takes all; ici_pipeline_parallelism=1 has no stages",
    "num_pipeline_microbatches": "-1 takes the fewest",
    "plan_num_devices": "-1 takes the product of the degrees",
    "eval_steps": "-1 takes all of the data; eval_interval=-1 turns evaluation off",
    "serve_max_tokens": "-1 leaves it to max_target_length",
}
_BYTES = 256


def clashes(config: Config, user_keys: Set[str], *, training: bool) -> Iterator[Clash]:
    """Everything wrong with `config` that only several keys together can show.

    Args:
        config: Valid by the schema.
        user_keys: The keys that the user set, rather than the defaults or a model file.
        training: False leaves out what only training needs.
    """
    yield from _tokens(config)
    yield from _run_name(config.run.run_name)
    yield from _zeros(config)
    yield from _degrees(config.mesh)
    yield from _slices(config.mesh)
    yield from _mesh_axes(config.mesh)
    yield from _rules(config.mesh)
    if training:
        yield from _types(config.compute)
        yield from _vocabulary_tiles(config)
        yield from _remat(config, user_keys)
        yield from derive_data.clashes(config, user_keys)
        yield from derive_optimizer.clashes(config, user_keys)
        yield from derive_pipeline.clashes(config, user_keys)
    else:
        yield from derive_decode.clashes(config, user_keys)


def _tokens(config: Config) -> Iterator[Clash]:
    model, data = config.model, config.data
    longer = data.max_target_length > model.max_position_embeddings
    if longer and not config.run.override_model_config:
        yield Clash(
            ("max_target_length", "max_position_embeddings"),
            "rows are longer than the model was made for",
            f"use at most max_target_length={model.max_position_embeddings}, or train it for more: "
            "raise max_position_embeddings, or add override_model_config=true",
        )
    if data.tokenizer_type == "byte" and model.vocab_size < _BYTES:
        yield Clash(
            ("vocab_size", "tokenizer_type"),
            f"the byte tokenizer needs a vocabulary of {_BYTES} or more",
            f"use vocab_size={_BYTES}",
        )


def _run_name(name: str) -> Iterator[Clash]:
    if "/" in name or name in (".", ".."):
        hint = "choose a name without a slash; base_output_directory is the folder of all runs"
        yield Clash(("run_name",), "must be the name of one folder", hint)
    elif not name.isprintable() or name != name.strip():
        message = "must not hold line breaks or begin or end with a space"
        yield Clash(("run_name",), message)


def _zeros(config: Config) -> Iterator[Clash]:
    values = flatten(config)
    for key, hint in _ZERO_MEANS_NOTHING.items():
        if values[key] == 0:
            yield Clash((key,), "must be -1 or at least 1", hint)


def _family(mesh: MeshConfig, family: str) -> dict[str, int]:
    """The degree of each mesh axis in the family `ici` or `dcn`."""
    return {axis: getattr(mesh, _degree_key(family, axis)) for axis in DEGREES}


def _degree_key(family: str, axis: str) -> str:
    return f"{family}_{DEGREES[axis]}_parallelism"


def _degrees(mesh: MeshConfig) -> Iterator[Clash]:
    for family in ("ici", "dcn"):
        degrees = _family(mesh, family)
        free = [axis for axis, degree in degrees.items() if degree == -1 and axis not in _NOT_YET]
        if len(free) > 1:
            names = tuple(_degree_key(family, axis) for axis in free)
            message = f"only one {family} degree can be -1, which takes what the others leave"
            yield Clash(names, message, f"set {' or '.join(f'{name}=1' for name in names)}")
        for axis, degree in degrees.items():
            key = _degree_key(family, axis)
            if degree == 0:
                hint = "1 leaves the axis unused, -1 takes all devices that are left"
                yield Clash((key,), "must be -1 or at least 1", hint)
            elif degree != 1 and axis in _NOT_YET:
                yield Clash((key,), f"{_NOT_YET[axis]} is not implemented yet", f"set {key}=1")


def _slices(mesh: MeshConfig) -> Iterator[Clash]:
    degrees = _family(mesh, "dcn")
    product = 1
    for degree in degrees.values():
        product *= max(1, degree)
    if mesh.num_slices < 1 or 0 in degrees.values():
        return
    free = -1 in degrees.values()
    if mesh.num_slices % product or (not free and mesh.num_slices != product):
        keys = [_degree_key("dcn", axis) for axis, degree in degrees.items() if degree > 1]
        how = "divide it" if free else "multiply to it"
        yield Clash(
            ("num_slices", *keys),
            f"the dcn degrees multiply to {product}; they must {how}",
            f"use num_slices={product}, or -1 to take the slices from the devices",
        )


def _mesh_axes(mesh: MeshConfig) -> Iterator[Clash]:
    key = "mesh_axes"
    for axis in dict.fromkeys(mesh.mesh_axes):
        if axis not in DEGREES:
            hint = did_you_mean(axis, DEGREES) or f"there are {', '.join(DEGREES)}"
            yield Clash((key,), f"there is no mesh axis {axis!r}", hint)
        elif mesh.mesh_axes.count(axis) > 1:
            yield Clash((key,), f"names {axis!r} twice", "keep one")
    for axis in DEGREES:
        if axis in mesh.mesh_axes:
            continue
        for family in ("ici", "dcn"):
            degree_key = _degree_key(family, axis)
            if _family(mesh, family)[axis] != 1 and axis not in _NOT_YET:
                message = f"mesh_axes has no axis {axis!r} for it to split"
                yield Clash((degree_key, key), message, f"set {degree_key}=1, or add the axis")


def _rules(mesh: MeshConfig) -> Iterator[Clash]:
    absent: dict[str, None] = {}
    for name, axes in mesh.logical_axis_rules:
        key = f"{RULES}.{name}"
        for axis in dict.fromkeys(axes):
            if axis not in mesh.mesh_axes and axis in DEGREES:
                absent[axis] = None
            elif axis not in mesh.mesh_axes:
                hint = did_you_mean(axis, mesh.mesh_axes) or f"use {', '.join(mesh.mesh_axes)}"
                yield Clash((key,), f"there is no mesh axis {axis!r}", hint)
            elif axes.count(axis) > 1:
                yield Clash((key,), f"names {axis!r} twice", "keep one")
    if absent:
        message = f"{RULES} name {', '.join(absent)}, which it lacks"
        hint = "add it, or replace the mesh and the rules together: custom_mesh_and_rule=FILE.yml"
        yield Clash(("mesh_axes",), message, hint)


def _types(compute: ComputeConfig) -> Iterator[Clash]:
    for key in ("dtype", "weight_dtype"):
        if getattr(compute, key) == "float16":
            message = "is for decoding: gradients of a large batch are too small for its range"
            yield Clash((key,), message, f"use {key}=bfloat16 or {key}=float32")


def _vocabulary_tiles(config: Config) -> Iterator[Clash]:
    size, tiles = config.model.vocab_size, config.compute.num_vocab_tiling
    if size % tiles:
        yield Clash(
            ("num_vocab_tiling", "vocab_size"),
            "the vocabulary must be a multiple of its tiles",
            f"num_vocab_tiling may be {listed(divisors(size), near=tiles)}",
        )


def _remat(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    if config.compute.remat_policy == "custom":
        return
    for key in _REMAT:
        if key in user_keys:
            message = "would be ignored: it counts with remat_policy=custom only"
            hint = "set remat_policy=custom, or leave it out"
            yield Clash((key, "remat_policy"), message, hint)
