from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pyro_hyperbolic.datasets import BundledDataWarning, Digits, mnist
from pyro_hyperbolic.datasets._torchvision import import_torchvision
from tests.datasets.make_subset import PER_CLASS, spread_over_each_class

mnist_module = importlib.import_module("pyro_hyperbolic.datasets.mnist")
Idx = Callable[..., bytes]
Writer = Callable[..., None]


@pytest.fixture
def write(idx: Idx) -> Writer:
    """Write a small MNIST: all pixels of image ``i`` are ``i``, its label is ``i % 10``."""

    def make(folder: Path, prefix: str, count: int = 12, *, gz: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        suffix = ".gz" if gz else ""
        pixels = b"".join(bytes([i]) * 784 for i in range(count))
        images = idx(count, 28, 28, payload=pixels, gz=gz)
        labels = idx(count, payload=bytes(i % 10 for i in range(count)), gz=gz)
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(images)
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(labels)

    return make


def check(digits: Digits, count: int = 12) -> None:
    assert digits.images.shape == (count, 28, 28)
    assert digits.images.dtype == torch.float32
    assert digits.labels.dtype == torch.int64
    expected = (torch.arange(count) / 255).view(-1, 1, 1).expand_as(digits.images)
    torch.testing.assert_close(digits.images, expected)
    assert digits.labels.tolist() == [i % 10 for i in range(count)]


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("folder", ["", "MNIST/raw", "mnist"])
def test_reads_files_on_disk(tmp_path: Path, write: Writer, folder: str, gz: bool) -> None:
    write(tmp_path / folder, "train", gz=gz)
    write(tmp_path / folder, "t10k", 7, gz=gz)
    digits = mnist(tmp_path)
    check(digits)
    check(mnist(tmp_path, train=False), 7)
    assert digits.source == str(tmp_path / folder)


def test_root_defaults_to_the_environment(tmp_path: Path, write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train")
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", str(tmp_path))
    check(mnist())


def test_complete_files_win_over_a_half_set_elsewhere(tmp_path: Path, write: Writer) -> None:
    write(tmp_path / "mnist", "train")
    (tmp_path / "train-images-idx3-ubyte").touch()
    check(mnist(tmp_path))


@pytest.mark.parametrize(("removed", "missing"), [("labels-idx1", "labels-idx1"), ("images-idx3", "images-idx3")])
def test_half_a_set_is_an_error(tmp_path: Path, write: Writer, removed: str, missing: str) -> None:
    write(tmp_path, "train")
    (tmp_path / f"train-{removed}-ubyte").unlink()
    with pytest.raises(ValueError, match=f"train-{missing}-ubyte.* is not"):
        mnist(tmp_path)


def test_the_other_half_is_never_the_subset(tmp_path: Path, write: Writer) -> None:
    write(tmp_path, "t10k")
    with pytest.raises(ValueError, match="holds the t10k files but not the train files"):
        mnist(tmp_path)


def test_truncated_file_is_an_error(tmp_path: Path, write: Writer) -> None:
    write(tmp_path, "train")
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{path.name}: expected 9424 bytes .*, found 9324.*delete"):
        mnist(tmp_path)


def test_counts_that_disagree_are_an_error(tmp_path: Path, write: Writer, idx: Idx) -> None:
    write(tmp_path, "train")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(11, payload=bytes(11)))
    with pytest.raises(ValueError, match=r"12 images but .* 11 labels"):
        mnist(tmp_path)


def test_labels_beyond_nine_are_an_error(tmp_path: Path, write: Writer, idx: Idx) -> None:
    write(tmp_path, "train")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(12, payload=bytes(11) + b"\x0a"))
    with pytest.raises(ValueError, match="labels 0 to 9, found 10"):
        mnist(tmp_path)


def test_images_of_another_size_are_an_error(tmp_path: Path, write: Writer, idx: Idx) -> None:
    write(tmp_path, "train")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(12, 4, 5, payload=bytes(240)))
    with pytest.raises(ValueError, match="28 x 28 pixels, found 4 x 5"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("train", "per_class", "mean", "shift"),  # mean pixel and its change: those of all of MNIST
    [(True, 500, 0.1307, -0.002), (False, 100, 0.1325, 0.0209)],
)
def test_bundled_subset(train: bool, per_class: int, mean: float, shift: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        digits = mnist(train=train, bundled=True)
    images, labels = digits
    assert images.shape == (10 * per_class, 28, 28)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [per_class] * 10
    assert images.min() == 0
    assert images.max() == 1
    assert abs(images.mean().item() - mean) < 0.003
    # The halves of the whole test set differ by 0.02: the subset must show both.
    first, second = (half.mean().item() for half in images.chunk(2))
    assert abs(second - first - shift) < 0.005
    assert len(torch.unique(images.flatten(1), dim=0)) == len(images)
    assert digits.source == "bundled subset"


def test_subset_is_spread_over_each_class_in_order() -> None:
    labels = torch.tensor([2, 0, 2, 0, 0, 2, 2, 0, 2, 2])  # 0: 1 3 4 7, 2: 0 2 5 6 8 9
    assert spread_over_each_class(labels, 2).tolist() == [0, 1, 4, 6]
    with pytest.raises(ValueError, match="class 0 has 4 items, fewer than the 5 wanted"):
        spread_over_each_class(labels, 5)


@pytest.mark.parametrize("train", [True, False])
def test_bundled_subset_is_what_its_script_makes(train: bool) -> None:
    root = os.environ.get("PYRO_HYPERBOLIC_DATA")
    files = mnist_module._locate(Path(root), train) if root else None
    if files is None:
        pytest.skip("needs the full MNIST in PYRO_HYPERBOLIC_DATA")
    full, subset = mnist(root, train=train), mnist(train=train, bundled=True)
    chosen = spread_over_each_class(full.labels, PER_CLASS[train])
    assert torch.equal(full.images[chosen], subset.images)
    assert torch.equal(full.labels[chosen], subset.labels)


def test_fallback_gives_one_notice_per_process(tmp_path: Path) -> None:
    with pytest.warns(BundledDataWarning, match=r"out of reach.*PYRO_HYPERBOLIC_DATA") as record:
        digits = mnist(tmp_path)
    assert len(record) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(mnist(tmp_path, train=False).images) == 1000
    assert record[0].filename == __file__
    assert digits.source == "bundled subset"
    assert list(tmp_path.iterdir()) == []


def test_download_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_module, "_download", lambda root: pytest.fail("downloaded"))
    with pytest.warns(BundledDataWarning, match="download=False forbids fetching it"):
        mnist(tmp_path, download=False)


def test_missing_torchvision_leads_to_the_subset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'torchvision'")

    monkeypatch.setattr(mnist_module, "import_torchvision", absent)
    with pytest.warns(BundledDataWarning, match="No module named 'torchvision'"):
        mnist(tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, write: Writer) -> SimpleNamespace:
    """A torchvision whose download writes a small MNIST, and then fails if told to."""
    state = SimpleNamespace(failure=None, timeout=None)

    class Source:
        mirrors = ("https://first/", "https://second/")

        def __init__(self, root: str, train: bool, download: bool) -> None:
            state.timeout = socket.getdefaulttimeout()
            write(Path(root) / "MNIST" / "raw", "train")
            if state.failure is not None:
                raise state.failure
            write(Path(root) / "MNIST" / "raw", "t10k", 7)

    module = SimpleNamespace(datasets=SimpleNamespace(MNIST=Source))
    monkeypatch.setattr(mnist_module, "import_torchvision", lambda: module)
    monkeypatch.setattr(mnist_module, "reachable", lambda url: "second" in url)
    return state


def test_download_fills_the_root(tmp_path: Path, server: SimpleNamespace) -> None:
    root = tmp_path / "new" / "folder"
    digits = mnist(root)
    check(digits)
    assert digits.source == str(root / "MNIST" / "raw")
    check(mnist(root, train=False, download=False), 7)
    assert [path.name for path in root.iterdir()] == ["MNIST"]
    assert server.timeout is not None
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("failure", [RuntimeError("md5 mismatch"), ConnectionResetError("reset")])
def test_failed_download_leaves_nothing_and_leads_to_the_subset(
    tmp_path: Path, server: SimpleNamespace, failure: Exception
) -> None:
    server.failure = failure
    with pytest.warns(BundledDataWarning, match=str(failure)):
        digits = mnist(tmp_path)
    assert digits.source == "bundled subset"
    assert list(tmp_path.iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_torchvision_can_be_imported() -> None:
    pytest.importorskip("PIL")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    module = import_torchvision()
    assert module is import_torchvision()
    assert module.datasets.MNIST.mirrors


def test_other_errors_of_the_torchvision_import_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_torchvision()
