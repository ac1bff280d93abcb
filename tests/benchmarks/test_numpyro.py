"""``benchmarks.numpyro``: its options, its table and, where NumPyro is installed, that both sides do the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

from benchmarks import numpyro, numpyro_nuts
from benchmarks.numpyro_nuts import BALL, POSTERIORS, PRIOR_SCALE
from pyro_hyperbolic.distributions import WrappedNormal

VERSIONS = {"torch": "2", "numpyro": "0"}
needs_numpyro = pytest.mark.skipif(importlib.util.find_spec("numpyro") is None, reason="needs the extra numpyro")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rows that take no time; the names of those that were measured."""
    names: list[str] = []
    original = numpyro.rows

    def rows(args: Any) -> dict[str, Any]:
        def measure(name: str) -> dict[str, float]:
            names.append(name)
            return {"wrapped": 2.0, "euclidean": 1.0, "numpyro": 4.0}

        return {name: lambda name=name: measure(name) for name in original(args)}

    monkeypatch.setattr(numpyro, "rows", rows)
    monkeypatch.setattr(numpyro, "_versions", lambda: VERSIONS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("JAX_PLATFORMS", "")
    return names


def test_the_table_and_going_on(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rival.json"
    numpyro.main(["--members", "1", "360", "--json", str(file)])
    assert measured == [
        *(f"one model, 80 epochs in a new process, {cache}" for cache in numpyro.CACHES),
        "one model, one call per step",
        "one model, many steps per call",
        "ensemble of 1, per member and step",
        "ensemble of 360, per member and step",
        "IWAE-5000 of 10000 images",
        *(f"NUTS, {name}, per {share}" for name in POSTERIORS for share in ("leapfrog", "effective sample")),
        *(f"sample_posterior, {name}, per effective sample" for name in POSTERIORS),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(measured)
    assert all("ratio  0.500, Euclidean 1.00 us" in line for line in lines)

    result = json.loads(file.read_text())
    first = measured[0]
    del result["rows"][first]
    file.write_text(json.dumps(result))
    measured.clear()
    numpyro.main(["--members", "1", "360", "--json", str(file), "--resume"])
    assert measured == [first]
    assert len(capsys.readouterr().out.splitlines()) == len(lines)

    numpyro.main(["--json", str(file), "--rst"])
    table = capsys.readouterr().out
    assert table.startswith(".. list-table:: Microseconds, medians; CPU")
    assert "torch 2, numpyro 0\n   :header-rows: 1\n\n   * - measured\n     - this package" in table
    assert f"   * - {first}\n     - 2\n     - 4\n     - 0.5\n     - 1" in table

    monkeypatch.setattr(numpyro, "_versions", lambda: VERSIONS | {"numpyro": "9"})
    with pytest.raises(SystemExit, match="2"):
        numpyro.main(["--json", str(file), "--resume"])
    assert "has the versions" in capsys.readouterr().err


def test_without_numpyro(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        numpyro.main([])
    assert "there is no NumPyro: pip install 'pyro_hyperbolic[numpyro]'" in capsys.readouterr().err


@pytest.mark.slow
def test_our_chain_is_counted() -> None:
    """Every leapfrog after the warm-up, and none before."""
    found = numpyro_nuts.ours(POSTERIORS["three points"](), warmup=5, samples=8, seed=0)
    assert 8 <= found.leapfrogs <= 8 * 2**numpyro_nuts.MAX_TREE_DEPTH
    assert 0 < found.per_leapfrog() < found.seconds * 1e6
    assert found.effective > 0


@needs_numpyro
@pytest.mark.parametrize("name", POSTERIORS)
def test_both_sides_have_one_posterior(name: str) -> None:
    """The joint density at the same coordinates."""
    import jax.numpy as jnp
    from numpyro.infer.util import log_density

    posterior = POSTERIORS[name]()
    pyro.set_rng_seed(3)
    v = torch.randn(*((60, 2) if name != "three points" else (2,)))
    values = {"length": torch.tensor(0.8), "noise": torch.tensor(0.4), "z": BALL.from_normal_coords(None, v)}
    trace = pyro.poutine.trace(pyro.condition(posterior.model, values)).get_trace()
    # The density of a point and that of its coordinates: Gaussian in these.
    gaussian = torch.distributions.Normal(0.0, PRIOR_SCALE).log_prob(v).sum()
    ours = trace.log_prob_sum() - WrappedNormal(torch.zeros(2), PRIOR_SCALE, BALL).log_prob(values["z"]).sum()
    theirs, _ = log_density(
        posterior.rival, (), {}, {key: jnp.asarray(value.numpy()) for key, value in (values | {"z": v}).items()}
    )
    assert float(ours + gaussian) == pytest.approx(float(theirs), rel=1e-4)


@needs_numpyro
@pytest.mark.slow
def test_every_row_runs(tmp_path: Path) -> None:
    file = tmp_path / "rival.json"
    sizes = ["--train", "256", "--test", "128", "--samples", "4", "--members", "1", "2", "--hidden", "8", "--dim", "2"]
    numpyro.main([*sizes, "--epochs", "2", "--warmup", "5", "--draws", "8", "--chains", "1", "--json", str(file)])
    for row in json.loads(file.read_text())["rows"].values():
        assert row["wrapped"] > 0
        assert row["numpyro"] > 0
