"""What is published holds what it should, and works: ``nox -s package`` runs this where the wheel is installed.

python tests/use_wheel.py SOURCE_DISTRIBUTION WHEEL
"""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path, PurePosixPath

import matplotlib
import torch

import pyro_hyperbolic
from pyro_hyperbolic import datasets, plotting

ROOT = Path(__file__).resolve().parents[1]


def sources(*folders: str) -> set[str]:
    """Files of the checkout in some folders."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    built = {"__pycache__", "_build"}
    return {p.relative_to(ROOT).as_posix() for p in files if not built & set(p.relative_to(ROOT).parts)}


def contents(source: str, wheel: str) -> None:
    """The wheel is the package and nothing else; the source distribution has all that the tests need."""
    about = re.compile(r"pyro_hyperbolic-[^/]+\.dist-info/")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not about.match(name)}
    assert held == sources("pyro_hyperbolic"), held ^ sources("pyro_hyperbolic")
    with tarfile.open(source) as archive:
        held = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    wanted = sources("pyro_hyperbolic", "tests", "examples", "experiments", "benchmarks", "docs")
    assert wanted <= held, wanted - held


def program_of_the_readme() -> None:
    """It runs, and its loss falls."""
    text = (ROOT / "README.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, list)
    assert losses[-1] < losses[0]


def bundled_data(folder: Path) -> None:
    """MNIST without a network, and the counts of cells."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        digits = datasets.mnist(root=folder / "data", download=False)
    assert any(issubclass(warning.category, datasets.BundledDataWarning) for warning in caught)
    assert digits.images.shape == (5000, 28, 28)
    assert datasets.paul15().counts.shape == (2660, 240)


def page_to_move_in(folder: Path) -> None:
    """Its scripts and its style are found."""
    points = pyro_hyperbolic.PoincareBall(1.0).expmap0(torch.randn(50, 2))
    plotting.explore(points, pyro_hyperbolic.PoincareBall(1.0), folder / "latent.html", labels=torch.arange(50) % 3)
    assert "<canvas" in (folder / "latent.html").read_text("utf-8")


def main(source: str, wheel: str) -> None:
    home = Path(pyro_hyperbolic.__file__).resolve().parent
    assert home != ROOT / "pyro_hyperbolic", "the package is that of the checkout, not of the wheel"
    matplotlib.use("agg")
    contents(source, wheel)
    program_of_the_readme()
    with tempfile.TemporaryDirectory() as folder:
        bundled_data(Path(folder))
        page_to_move_in(Path(folder))
    print(f"pyro_hyperbolic {pyro_hyperbolic.__version__} in {home} works")


if __name__ == "__main__":
    main(*sys.argv[1:])
