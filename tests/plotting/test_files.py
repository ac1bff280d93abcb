from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes

from pyro_hyperbolic import plotting


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_save(suffix: str, ax: Axes, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"figure.{suffix}"
    assert plotting.save(ax.figure, str(path), dpi=20) == path
    assert path.stat().st_size > 0
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(ax: Axes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")

    def fail(partial: Path, **options: object) -> None:
        Path(partial).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(ax.figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plotting.save(ax.figure, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_figure(ax: Axes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"figure must be a matplotlib Figure, got Axes; of axes pass ax.figure"):
        plotting.save(ax, tmp_path / "figure.png")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["figure", "figure.txt"])
def test_unknown_format(name: str, ax: Axes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in one of .*pdf.*svg"):
        plotting.save(ax.figure, tmp_path / name)
