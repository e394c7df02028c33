import jax
import pytest

from maxtext.metrics.devices import MemoryUse, device_limits, memory_use, peak_flops


@pytest.mark.parametrize(
    ("kind", "dtype", "teraflops"),
    [
        ("TPU v4", "bfloat16", 275),
        ("TPU v5 lite", "bfloat16", 197),
        ("TPU v5", "bfloat16", 459),
        ("TPU v6 lite", "float32", 918),
        ("TPU7x", "bfloat16", 1153.5),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100-SXM4-80GB", "float32", 156),
        ("NVIDIA H100 80GB HBM3", "float16", 989.4),
    ],
)
def test_peaks_are_the_vendors_dense_figures(kind, dtype, teraflops) -> None:
    assert peak_flops(kind, dtype) == pytest.approx(teraflops * 1e12)


def test_nothing_is_claimed_about_unknown_devices() -> None:
    kind = jax.devices()[0].device_kind
    assert device_limits(kind) is None
    assert peak_flops(kind, "float32") is None


def test_cpu_devices_report_no_memory() -> None:
    assert memory_use() is None


def test_memory_is_that_of_the_fullest_device(monkeypatch) -> None:
    class Device:
        def __init__(self, in_use):
            self.in_use = in_use

        def memory_stats(self):
            return {"bytes_in_use": self.in_use, "bytes_limit": 9}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(3), Device(7), Device(5)])
    assert memory_use() == MemoryUse(in_use=7, limit=9)
