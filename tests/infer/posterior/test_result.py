"""The table, the last line, and the ways out of the process."""

from __future__ import annotations

import re
import sys
import warnings

import pytest
import torch

from docs.skeletons.manifold import FlatTorus
from pyro_hyperbolic import Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.geometry import Product, Stereographic, from_signature
from pyro_hyperbolic.infer import Posterior, save_checkpoint
from tests.infer.posterior.records import F64, autoregressive, posterior

SHAPE = CHAINS, DRAWS = 4, 500


def last_line(result: Posterior) -> str:
    return result.summary().splitlines()[-1]


def good(*shape: int) -> torch.Tensor:
    return torch.randn(*SHAPE, *shape, dtype=F64)


def test_a_good_posterior_is_believed():
    result = posterior({"loc": good()})
    assert result.converged
    assert last_line(result) == (
        "Believe it: every R-hat is at most 1.01 and every effective sample size at least 400."
    )
    few = torch.zeros(SHAPE, dtype=torch.bool)
    few[1, 3] = True
    assert last_line(posterior({"loc": good()}, divergences=few)).endswith("400. (1 of 2000 steps diverged.)")
    # Where every scale moves with what it scales, it is these moves that get into a funnel.
    often = posterior({"loc": good()}, divergences=diverged(), settings={"scale_moves": 0.4, "scales_moved": 0.2})
    assert last_line(often).endswith("400. (100 of 2000 steps diverged.)")
    assert repr(result) == "Posterior(4 chains of 500 draws: loc)"


def broken(place: tuple[int, ...], value: float, dtype: torch.dtype = F64) -> torch.Tensor:
    x = good().to(dtype)
    x[place] = value
    return x


def diverged() -> torch.Tensor:
    return torch.arange(CHAINS * DRAWS).reshape(SHAPE) % 20 == 0


MODES = [{"energy": -3.0, "weight": 0.8, "chains": 1}, {"energy": -1.0, "weight": 0.2, "chains": 3}]
ELSEWHERE = torch.tensor([0.0, 5.0, 5.0, 5.0], dtype=F64)[:, None]
# What is wrong: draws, other fields, and what the last line says of it.
COMPLAINTS = {
    "not finite": (lambda: broken((1, 2), torch.nan), {}, r"draws of x are not finite in chain 1 \(remedy: a check"),
    "not finite, float32": (
        lambda: broken((slice(2), 0), torch.inf, torch.float32),
        {},
        r"not finite in 2 chains \(0, 1\) \(remedy: float64\)",
    ),
    "failed": (good, {"failed": {2: "stuck"}}, r"chain 2 failed \(remedy: more warmup or start="),
    "constant": (lambda: torch.ones(SHAPE, dtype=F64), {}, r"x is the same in all draws \(remedy: another start="),
    "constant, float32": (
        lambda: torch.ones(SHAPE, dtype=torch.float32),
        {},
        r"x is the same in all draws \(remedy: float64, or another start=",
    ),
    "divergences": (
        good,
        {"divergences": diverged()},
        r"5\.0% of the steps diverged \(remedy: another parametrisation",
    ),
    "divergences, where some scales do not move": (
        good,
        {"divergences": diverged(), "settings": {"scale_moves": 0.4}},
        r"5\.0% of the steps diverged \(remedy: another parametrisation",
    ),
    "few draws": (
        lambda: good()[:, :50],
        {},
        r"effective sample size of x is (\d+)( in its tails)? \(remedy: num_samples=(\d+) or so\)",
    ),
    "slow": (
        lambda: autoregressive(CHAINS, DRAWS, 0.99).squeeze(-1),
        {},
        r"R-hat of x is 1\.\d+, the effective .*num_samples=(\d+) or so, or more warmup for a better metric",
    ),
    "elsewhere": (
        lambda: good() + ELSEWHERE,
        {},
        r"R-hat of x is 1\.\d+, .* different places, so more warmup, hottest=4 in sample_posterior .*, or start=",
    ),
    "modes": (lambda: good() + ELSEWHERE, {"modes": MODES}, "the chains are in 2 modes, so take their weights"),
    "three draws": (lambda: good()[:, :3], {}, "3 draws of each chain are too few"),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_what_is_wrong_is_said_with_its_remedy(name):
    draws, fields, message = COMPLAINTS[name]
    result = posterior({"x": draws()}, **fields)
    assert not result.converged
    assert re.search(rf"^Do not believe it yet: .*{message}", last_line(result)), last_line(result)


def test_points_that_do_not_move_or_leave_their_space_are_noticed():
    ball = PoincareBall(1.0)
    still = torch.full((3, 2), 0.5, dtype=F64).expand(*SHAPE, 3, 2)
    assert "z is the same in all draws" in last_line(posterior({"z": still}, manifolds={"z": ball}))
    outside = 0.1 * good(3, 2)
    outside[1, 2, 0] = 1.0
    assert not ball.contains(outside).all()
    assert "distances of z are not finite" in last_line(posterior({"z": outside}, manifolds={"z": ball}))


def test_points_where_coordinates_end_are_noticed():
    """Which hold no more than a distance; what is farther lies there too."""
    ball = PoincareBall(torch.full((CHAINS, DRAWS, 1), 4.0))
    v = good(3, 2).float()
    v[:, ::40] *= 100
    for space, words in (
        (ball, r"^Do not .*: \d\.\d% of the points of z lie where coordinates of float32 end \(remedy: Lorentz in"),
        (Lorentz(torch.full((CHAINS, DRAWS, 1), 0.01)), "^Believe it"),
    ):
        draws = space.from_unconstrained(v)
        assert re.search(words, last_line(posterior({"z": draws}, manifolds={"z": space})))


def test_constants_among_the_elements_do_not_hide_the_others():
    stuck = torch.stack([torch.ones(SHAPE, dtype=F64), good() + ELSEWHERE, ELSEWHERE.expand(SHAPE)], -1)
    for draws, r_hat in ((stuck[..., :2], r"1\.\d+"), (stuck[..., ::2], "inf")):
        assert re.search(rf"R-hat of x is {r_hat}, .* in different places", last_line(posterior({"x": draws})))


def test_the_remedy_of_few_draws_is_about_as_many_as_are_needed():
    """R-hat of 4 x 50 independent draws is above 1.01 by chance; that of as many as are advised is not."""
    for slowness, few in ((0.0, 50), (0.9, 500)):
        line = last_line(posterior({"x": autoregressive(CHAINS, few, slowness, 3)}))
        advised = int(re.search(r"num_samples=(\d+)", line)[1])
        assert 1.5 * few < advised < 30 * few
        assert posterior({"x": autoregressive(CHAINS, 2 * advised, slowness, 3)}).converged


def test_the_table_has_every_site_and_the_run():
    c = good().exp() + 0.1
    ball = PoincareBall(c.unsqueeze(-1))
    result = posterior(
        {
            "c": c,
            "z": ball.from_normal_coords(None, good(4, 2)),
            "y": good(2, 2),
            "many": good(10),
            "one": torch.ones(SHAPE),
            "eye": torch.eye(3).expand(*SHAPE, 3, 3),
            "p": Sphere(1.0).from_normal_coords(None, good(2)),
        },
        manifolds={"z": ball, "p": Sphere(1.0)},
        gauges=[["z", "p"]],
        deterministic={"one", "eye"},
        failed={3: "it did not move"},
        modes=MODES,
        energy=torch.cumsum(torch.randn(SHAPE), 1),
    )
    lines = result.summary().splitlines()
    expected = [
        r"\s+mean\s+sd\s+5%\s+50%\s+95%\s+R-hat\s+bulk ESS\s+tail ESS",
        rf"c\s+{c.mean():.4g}\s+{c.std():.4g}(\s+[\d.]+){{6}}",
        r"z: 4 points of PoincareBall, orientation free",
        r"  distances \(6\)\s+means [\d.]+ to [\d.]+(\s+[\d.]+){3}",
        r"  radii \(4\)\s+means .*",
        *[rf"y\[{i},{j}\](\s+-?[\d.e-]+){{8}}" for i in range(2) for j in range(2)],
        r"many \(10\)\s+means .*",
        r"one, deterministic\s+1\s+constant",
        r"eye, deterministic \(9\)\s+means 0 to 1, constant",
        r"p: 1 point of Sphere, orientation free",
        r"  radii \(1\)\s+means .*",
        r"inner products of z and p \(4\)\s+means .*",
        "",
        r"4 chains of 500 draws, warm-up 100, seed 0, step size 0.2, steps of a trajectory 8.0",
        r"divergences: 0 of 2000 \(0.00%\)",
        r"mean acceptance: 0.80, of moves of scales 0.05",
        r"E-BFMI: 0\.0\d or more, below 0.3 in 4 chains \(0, 1, 2, 3\): the tails are explored slowly",
        r"time: 5.5 s \(compile 2.0 s, sampling 3.5 s\)",
        r"chain 3 failed: it did not move",
        r"2 modes:",
        r"  weight 0.8, energy -3.00, chains 1",
        r"  weight 0.2, energy -1.00, chains 3",
        "",
        r"Do not believe it yet: chain 3 failed .*",
    ]
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


def test_shapes_and_names_are_checked():
    with pytest.raises(ValueError, match=r"must begin with \(chains, draws\), got \(4, 500\) of div.* \(4, 3\) of y"):
        posterior({"x": good(), "y": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match=r"manifolds must name sites of samples, \['x'\], got \['z'\]"):
        posterior({"x": good(1)}, manifolds={"z": PoincareBall(1.0)})


SPACES = {
    "z": lambda c: PoincareBall(c),
    "k": lambda c: Stereographic(c - 1.5),
    "p": lambda c: Product((from_signature("h2,s2", [c, 2.0]), 4), (from_signature("e1"), 1)),
}
DIMS = {"z": 2, "k": 2, "p": 5}


def test_a_file_holds_everything(tmp_path):
    spaces = {name: make(good(1).exp()[:, :20]) for name, make in SPACES.items()}
    draws = {n: s.from_normal_coords(None, 0.25 * good(4, DIMS[n])[:, :20]) for n, s in spaces.items()}
    result = posterior(
        draws | {"n": torch.arange(80).reshape(4, 20)},
        manifolds=spaces,
        deterministic={"n"},
        failed={1: "stuck"},
        gauges=[("z", "k")],
        modes=MODES,
    )
    result.save(tmp_path / "folder" / "posterior.pt")
    loaded = Posterior.load(tmp_path / "folder" / "posterior.pt")
    assert loaded.summary() == result.summary()
    assert loaded.samples.keys() == result.samples.keys()
    for name, space in spaces.items():
        assert torch.equal(loaded.samples[name], draws[name])
        torch.testing.assert_close(loaded.manifolds[name].dist0(draws[name]), space.dist0(draws[name]))
    assert (loaded.deterministic, loaded.failed, loaded.gauges) == ({"n"}, {1: "stuck"}, [["z", "k"]])
    assert (loaded.settings, loaded.modes) == (result.settings, MODES)
    assert torch.equal(loaded.aligned("k").points, result.aligned("k").points)


def test_files_that_are_none_and_spaces_that_are_not_ours_are_refused(tmp_path):
    save_checkpoint({}, tmp_path / "checkpoint.pt")
    (tmp_path / "text.pt").write_text("nothing")
    for name in ("checkpoint.pt", "text.pt"):
        with pytest.raises(ValueError, match="is not a posterior of this package, or is damaged"):
            Posterior.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"spaces of this package, got FlatTorus.*torch\.save"):
        posterior({"z": good(2)}, manifolds={"z": FlatTorus(1.0)}).save(tmp_path / "torus.pt")
    assert not (tmp_path / "torus.pt").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_export_to_arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
    result = posterior({"x": good(), "z": good(3, 2)}, divergences=diverged())
    exported = result.to_arviz()
    for name, draws in result.samples.items():
        assert torch.equal(torch.as_tensor(exported.posterior[name].values), draws)
    assert exported.sample_stats["diverging"].sum() == 100
    assert {"energy", "acceptance_rate"} <= set(exported.sample_stats)
    torch.testing.assert_close(torch.as_tensor(arviz.bfmi(exported)).double(), result.bfmi(), rtol=1e-5, atol=0)


def test_without_arviz_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro_hyperbolic\[arviz\]'"):
        posterior({"x": good()}).to_arviz()


@pytest.mark.gpu
def test_draws_may_stay_on_their_device(tmp_path):
    c = good(1).exp()
    draws = {"c": c.squeeze(-1), "z": PoincareBall(c).from_normal_coords(None, good(4, 2)), "y": good(2, 2)}
    results = []
    for device in ("cpu", "cuda"):
        space = PoincareBall(c.to(device))
        fields = {name: x.to(device) for name, x in vars(posterior(draws)).items() if isinstance(x, torch.Tensor)}
        fields |= {"manifolds": {"z": space}, "gauges": [["z", "y"]], "energy": draws["c"].to(device)}
        results.append(posterior({name: x.to(device) for name, x in draws.items()}, **fields))
    host, device = results
    assert device.summary() == host.summary()
    for isometries in ("gauge", "all"):
        found = device.aligned("z", isometries).points
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), host.aligned("z", isometries).points)
    device.save(tmp_path / "posterior.pt")
    assert not Posterior.load(tmp_path / "posterior.pt").samples["z"].is_cuda
    assert Posterior.load(tmp_path / "posterior.pt", "cuda").summary() == host.summary()
