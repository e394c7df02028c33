"""Eight virtual CPU devices, a compilation cache and a clean environment for every test."""

import os
import signal
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# One order of collectives, as `initialize` sees to: else a test may hang until XLA aborts.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_cpu_enable_concurrency_optimized_scheduler=false"
)
# Threads for all of them, as `initialize` sees to too: a device in a collective blocks one.
os.environ["NPROC"] = "32"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
# A shell that starts tests in the background has them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in [name for name in os.environ if name.startswith("M_")]:
    del os.environ[name]
