"""What of the vLLM integration runs without vLLM."""

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from maxtext import vllm_decode
from maxtext.config.errors import ConfigError
from maxtext.config.flat import flatten
from maxtext.config.load import load
from maxtext.config.schema import Config
from maxtext.integrations.vllm.attend import attention
from maxtext.integrations.vllm.environment import installed
from maxtext.integrations.vllm.layout import engine_layout
from maxtext.integrations.vllm.load import engine_arguments, load_vllm_engine
from maxtext.integrations.vllm.model import read_model
from maxtext.integrations.vllm.sizes import model_json, require_same_model, require_sizes
from maxtext.ops.attention import AttentionPattern
from maxtext.ops.paged_attention import Cache, Ragged, paged_attention
from tiny import T0

AXES = ("data", "attn_dp", "attn_dp_expert", "expert", "model", "dcp", "pcp")


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Callable[..., Config]:
    """The config of a command line that decodes with T0, whose weights nobody reads."""
    step = tmp_path_factory.mktemp("run") / "0"
    (step / "config").mkdir(parents=True)
    (step / "config" / "metadata").write_text(json.dumps(flatten(load(T0, {}).config)))

    def made(*argv: str) -> Config:
        path = f"load_parameters_path={step}"
        return load([path, *argv], {}, model_from_checkpoint=True).config

    return made


def mesh(**sizes: int) -> Mesh:
    shape = [sizes.get(name, 1) for name in AXES]
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


# Heads, width of one, and the rows, numbers of a word and lanes that the engine keeps for them.
@pytest.mark.parametrize(
    ("dtype", "kv_heads", "width", "kept"),
    [
        ("float32", 2, 8, (4, 1, 128)),
        ("bfloat16", 1, 8, (1, 2, 128)),
        ("bfloat16", 3, 64, (2, 2, 128)),
        ("float32", 3, 64, (3, 1, 128)),
        ("bfloat16", 2, 160, (2, 2, 256)),
    ],
)
def test_the_engines_cache_holds_what_ours_holds(
    dtype: str, kv_heads: int, width: int, kept: Sequence[int]
) -> None:
    random = np.random.default_rng(0)
    pages, page_size, tokens = 7, 4, 9
    draw = lambda *shape: jnp.asarray(random.standard_normal(shape), dtype)  # noqa: E731
    # A sequence that goes on after five tokens, and a prompt of eight.
    ragged = Ragged(
        starts=jnp.array([0, 1, 9, 9]),
        lengths=jnp.array([6, 8, 0]),
        page_table=jnp.array([[3, 5, 0], [1, 2, 0], [0, 0, 0]]),
        counts=jnp.array([1, 1, 2]),
    )
    old = draw(pages, page_size, kv_heads, 2, width)
    ours = Cache(values=old, scales=None)
    theirs = np.zeros((pages, page_size, *kept), dtype)
    wide = theirs.size // (
        pages * page_size * 2 * kept[2] if width != 64 else pages * page_size * 128
    )
    lanes = 64 if width == 64 else kept[2]
    view = theirs.reshape(pages, page_size, wide, 2, lanes)
    view[:, :, :kv_heads, :, :width] = old
    q, k, v = (draw(tokens, heads, width) for heads in (2 * kv_heads, kv_heads, kv_heads))
    pattern = AttentionPattern(scale=width**-0.5, window=5, soft_cap=4.0)
    want, kept_ours = jax.jit(paged_attention, static_argnames="pattern")(
        q, k, v, ours, ragged, pattern=pattern
    )
    got, kept_theirs = jax.jit(attention, static_argnames="pattern")(
        q, k, v, jnp.asarray(theirs), ragged, pattern=pattern
    )
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(
        got.astype(np.float32), want.astype(np.float32), atol=tolerance, rtol=tolerance
    )
    found = np.asarray(kept_theirs).reshape(view.shape)
    np.testing.assert_array_equal(found[:, :, :kv_heads, :, :width], kept_ours.values)


def test_a_step_writes_into_the_engines_cache_and_copies_none_of_it() -> None:
    starts, table = jnp.zeros(9, jnp.int32), jnp.zeros((8, 2), jnp.int32)
    ragged = Ragged(starts=starts, lengths=starts[1:], page_table=table, counts=starts[:3])
    q, new, cache = jnp.zeros((16, 8, 8)), jnp.zeros((16, 2, 8)), jnp.zeros((500, 16, 4, 1, 128))
    step = jax.jit(attention, static_argnames="pattern", donate_argnums=3)
    compiled = step.lower(q, new, new, cache, ragged, pattern=AttentionPattern(scale=1.0)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == cache.nbytes > 10 * memory.temp_size_in_bytes


@pytest.mark.skipif(installed(), reason="vLLM is installed here")
def test_without_vllm_the_command_that_installs_it_is_named(config, capfd) -> None:
    path = config().checkpoint.load_parameters_path
    assert vllm_decode.main([f"load_parameters_path={path}", "prompt=x"]) == 2
    assert "`make install-vllm` makes an environment with it" in capfd.readouterr().err


def test_a_mesh_that_is_not_the_one_asked_for_is_told_with_both(config) -> None:
    asked = config("ici_tensor_parallelism=8", "enable_dp_attention=true")
    layout = engine_layout(asked, mesh(attn_dp=4, model=2))
    assert layout.ways("pages") == 4
    assert layout.ways("heads") == 8
    says = "asks for a mesh of data 1 x attn_dp 4 x expert 1 x model 2 .* vLLM made .* attn_dp 2 x"
    with pytest.raises(ValueError, match=says):
        engine_layout(asked, mesh(attn_dp=2, model=4))
    plain = engine_layout(config("ici_tensor_parallelism=8"), mesh(model=8))
    assert plain.ways("heads") == plain.ways("cache_heads") == 8
    assert plain.ways("kv_heads") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["decode_sampling_min_p=0.1"], "decode_sampling_min_p=0.1"),
        (["decode_repetition_penalty=1.5"], "decode_repetition_penalty=1.5"),
        (["kv_cache_dtype=int8"], "kv_cache_dtype=int8"),
        (["ici_context_parallelism=2"], "ici_context_parallelism=2.*no axis context"),
        (
            ["ici_tensor_parallelism=3"],
            "8 query heads to divide over 3 devices; it may be 1, 2, 4, 8",
        ),
    ],
)
def test_what_vllm_does_not_do_is_told_before_it_starts(config, argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_vllm_engine(config(*argv), tokenizer=None, arguments=())  # type: ignore[arg-type]


def test_more_of_a_config_json_is_passed_on_and_other_sizes_are_refused(config, tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MaxTextForCausalLM"], "more": 1}')
    made = model_json(config(f"hf_config_path={tmp_path}"))
    assert (made["more"], made["num_key_value_heads"]) == (1, 2)
    (tmp_path / "config.json").write_text('{"num_key_value_heads": 8}')
    with pytest.raises(ConfigError, match="num_key_value_heads=8, but the model has 2"):
        model_json(config(f"hf_config_path={tmp_path}"))


def test_weights_of_another_model_are_refused(config) -> None:
    require_sizes(config(), SimpleNamespace(num_hidden_layers=2, num_key_value_heads=2))
    with pytest.raises(
        ConfigError, match=r"the folder that .*: num_key_value_heads=2 instead of 1"
    ):
        require_sizes(config(), SimpleNamespace(num_hidden_layers=2, num_key_value_heads=1))
    require_same_model(config(), config())
    other = config("rope_max_timescale=500", "override_model_config=true")
    with pytest.raises(ConfigError, match=r"another model: rope_max_timescale=500.* instead of 1"):
        require_same_model(other, config())


def test_asynchronous_scheduling_is_refused_by_its_flag() -> None:
    asked = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=True))
    with pytest.raises(ConfigError, match="start vLLM with --no-async-scheduling"):
        read_model(asked, mesh())


@pytest.mark.parametrize(("asked", "each"), [(4, 3), (9, 3), (10, 4)])
def test_three_ranks_share_what_vllm_has_room_for(config, asked: int, each: int) -> None:
    three = config(f"max_num_seqs={asked}", "ici_data_parallelism=3")
    assert engine_arguments(three, (), "folder")["max_num_seqs"] == each
    two = config(f"max_num_seqs={asked}", "ici_data_parallelism=2")
    assert engine_arguments(two, (), "folder")["max_num_seqs"] == -(-asked // 2)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["vllm_additional_config=[1]"], "must be a JSON object"),
        (
            ["hbm_utilization_vllm=0.5", "gpu_memory_utilization=0.5"],
            "are two names of one setting",
        ),
    ],
)
def test_settings_of_vllm_that_are_none_are_told(config, argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(*argv)
