"""What attention data parallelism cannot do, found from the config alone."""

from collections.abc import Iterator, Set

from maxtext.config.attention_dp import attention_dp, derived_degree
from maxtext.config.errors import Clash
from maxtext.config.keys import RULES
from maxtext.config.numbers import divisors, listed
from maxtext.config.schema import Config, MeshConfig, ModelConfig

_ENABLE, _DEGREE = "enable_dp_attention", "ici_attn_dp_parallelism"
_WEIGHTS, _TENSOR = "attn_dp_weights", "ici_tensor_parallelism"
# The mesh of attention data parallelism has no such axes.
_ABSENT = (
    "ici_pipeline_parallelism",
    "ici_fsdp_parallelism",
    "ici_context_parallelism",
    "ici_tensor_sequence_parallelism",
    "dcn_pipeline_parallelism",
    "dcn_fsdp_parallelism",
    "dcn_context_parallelism",
    "dcn_expert_parallelism",
    "dcn_tensor_parallelism",
    "dcn_tensor_sequence_parallelism",
)


def clashes(config: Config, user_keys: Set[str], *, training: bool) -> Iterator[Clash]:
    """Everything wrong with what is asked of attention data parallelism, as `derive.clashes`."""
    mesh, model = config.mesh, config.model
    asked = mesh.ici_attn_dp_parallelism
    switches = list(_switches(mesh, user_keys))
    yield from switches
    if switches or not (mesh.enable_dp_attention or asked > 1):
        return
    key = _DEGREE if asked > 1 else _ENABLE
    if mesh.ici_tensor_parallelism < 1:
        message = "attention data parallelism needs to know the devices that it divides"
        yield Clash((_TENSOR, key), message, "give their number, such as 8")
        return
    derived = derived_degree(mesh.ici_tensor_parallelism, model.num_kv_heads)
    degree = derived if asked == -1 else asked
    if degree > 1 and training:
        message = f"{degree} groups of devices would serve requests, and training has none"
        hint = f"leave it to maxtext.decode and maxtext.serve, or set {_DEGREE}=1"
        yield Clash((key,), message, hint)
    elif degree > 1:
        divisions = list(_divisions(mesh, model, degree, key))
        yield from divisions
        yield from _other_meshes(mesh, user_keys, key)
        apart = not divisions and attention_dp(mesh, model).variant == "Q only"
        if apart and config.compute.fused_qkv:
            message = "keeps each key with its queries, which would be split over more devices"
            hint = f"use {_WEIGHTS}=replicated, or fused_qkv=false"
            yield Clash(("fused_qkv", _WEIGHTS, key), message, hint)


def _switches(mesh: MeshConfig, user_keys: Set[str]) -> Iterator[Clash]:
    asked, enabled = mesh.ici_attn_dp_parallelism, mesh.enable_dp_attention
    if asked == 0:
        yield Clash((_DEGREE,), "must be -1 or at least 1", "1 turns it off, -1 derives it")
    elif asked > 1 and not enabled and _ENABLE in user_keys:
        yield Clash((_DEGREE, _ENABLE), "one turns off what the other asks for", "keep one")
    elif asked <= 1 and not enabled and _WEIGHTS in user_keys:
        message = "would be ignored: attention data parallelism is off"
        yield Clash((_WEIGHTS, _ENABLE), message, f"set {_ENABLE}=true, or leave it out")


def _divisions(mesh: MeshConfig, model: ModelConfig, degree: int, key: str) -> Iterator[Clash]:
    tensor, split = mesh.ici_tensor_parallelism, mesh.ici_tensor_parallelism // degree
    heads = {
        "base_num_kv_heads": ("key and value heads", model.num_kv_heads),
        "base_num_query_heads": ("query heads", model.num_query_heads),
    }
    work = [n for n in divisors(tensor) if not any(c % (tensor // n) for _, c in heads.values())]
    hint = f"{_DEGREE} may be {listed(work, near=degree)}"
    if tensor % degree:
        message = f"{tensor} devices do not divide over {degree} groups"
        yield Clash((key, _TENSOR), message, hint)
        return
    for name, (what, count) in heads.items():
        if count % split:
            message = f"{count} {what} do not divide over the {split} devices of a group"
            yield Clash((key, _TENSOR, name), message, hint)
    if mesh.attn_dp_weights == "sharded" and model.num_query_heads % tensor:
        fit = listed(divisors(model.num_query_heads), near=tensor)
        message = f"{model.num_query_heads} query heads do not divide over {tensor} devices"
        hint = f"use {_WEIGHTS}=replicated or auto, or {_TENSOR} of {fit}"
        yield Clash((_WEIGHTS, _TENSOR, "base_num_query_heads"), message, hint)
    for name, size in (
        ("base_emb_dim", model.emb_dim),
        ("base_mlp_dim", model.mlp_dim),
        ("vocab_size", model.vocab_size),
    ):
        if size % tensor:
            fit = listed(divisors(size), near=tensor)
            message = f"{size} does not divide over {tensor} devices"
            yield Clash((_TENSOR, name), message, f"{_TENSOR} may be {fit}")


def _other_meshes(mesh: MeshConfig, user_keys: Set[str], key: str) -> Iterator[Clash]:
    """Attention data parallelism brings its mesh and its rules."""
    for name in _ABSENT:
        # The -1 of one of them that the user left alone takes copies, as `data` does.
        if getattr(mesh, name) > 1 or (getattr(mesh, name) == -1 and name in user_keys):
            message = "the mesh of attention data parallelism has no such axis"
            hint = f"set {name}=1; requests split over ici_data_parallelism too"
            yield Clash((name, key), message, hint)
    own = {"custom_mesh_and_rule", "mesh_axes"}
    named = sorted(n for n in user_keys if n in own or n.startswith(f"{RULES}."))
    if named:
        message = "would be ignored: attention data parallelism has a mesh and rules of its own"
        yield Clash((*named, key), message, "leave it out")
