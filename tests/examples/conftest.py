"""Examples as modules, a small MNIST, and one thread: sums of one thread have one order, and so the same bits."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
import torch

matplotlib.use("agg")

from pyro_hyperbolic import datasets
from pyro_hyperbolic.datasets.idx import write_idx

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _coarse(coarse_pictures: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _one_thread_and_dtype() -> Iterator[None]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="session")
def load_example() -> Callable[[str], ModuleType]:
    def load(name: str) -> ModuleType:
        if "." in name:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a program says in the one line with which it refuses to work."""

    def line(main: Callable[[list[str]], Any], arguments: list[str]) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        said = capsys.readouterr().err
        assert (stop.value.code, said.count("\n")) == (2, 1), said
        return said

    return line


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 300 training and 100 test images, as the IDX files of MNIST."""
    folder = tmp_path_factory.mktemp("mnist")
    for train, prefix, count in ((True, "train", 300), (False, "t10k", 100)):
        images, labels = datasets.mnist(train=train, bundled=True)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", (images[:count] * 255).round().to(torch.uint8))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels[:count].to(torch.uint8))
    return folder
