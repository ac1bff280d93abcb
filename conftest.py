"""Fixtures for the tests and for the doctests of the package."""

import gc
import importlib.util
import sys
from pathlib import Path

import pyro
import pytest
import torch

# A file that only those who have Triton can import.
collect_ignore = [] if importlib.util.find_spec("triton") else ["pyro_hyperbolic/accelerate/trainers/adam_kernel.py"]
# What forks, is signalled or speaks through pipes as POSIX has it.
collect_ignore_glob = (
    ["tests/browser/*", "tests/*/test_*distributed.py", "tests/accelerate/*test_processes.py"]
    if sys.platform == "win32"
    else []
)

# A seed for a kind of device that is not there would be kept, with a stack trace: that takes longer than all else here.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _reproducible(doctest_namespace):
    # torch.compile switches the validation of arguments off for the rest of the process.
    pyro.enable_validation(True)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    doctest_namespace["torch"] = torch
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def coarse_pictures(monkeypatch):
    """Pictures of few pixels, which take a third of the time: for tests of programs that draw among other things."""
    from matplotlib.figure import Figure  # late: many tests draw nothing

    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: save(self, path, **options | {"dpi": 30}))


@pytest.fixture
def blank_pictures(monkeypatch):
    """Files in the place of pictures: for tests of what is written beside them."""
    from matplotlib.figure import Figure  # late: many tests draw nothing

    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: Path(path).touch())


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Modules and tests stay until the end: the garbage collector need not look at them again and again.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
