"""R-hat and effective sample sizes, against ArviZ."""

from __future__ import annotations

import warnings

import pytest
import torch

from pyro_hyperbolic.infer.posterior.diagnostics import diagnose, elements
from tests.helpers import in_turns
from tests.infer.posterior.records import F64, autoregressive

SHAPES = [(4, 50), (2, 4), (3, 5), (2, 6), (4, 7), (5, 101), (64, 40), (2, 400)]
SLOWNESS = [0.0, 0.95, -0.9, 0.5, 0.999]


def draws():
    """Many kinds of draws, ``(chains, draws, 2)``."""
    for (chains, count), slowness in in_turns(SHAPES, SLOWNESS):
        yield autoregressive(chains, count, slowness, 2)
    x = autoregressive(4, 120, 0.5, 2)
    yield x.round()  # many equal values
    yield x[:, torch.arange(120) // 3]  # steps that were rejected
    yield (x > 1.8).to(F64)
    yield x + 10 * torch.arange(4)[:, None, None]  # chains in different places
    yield x * (1 + 9 * torch.arange(4)[:, None, None])  # of different widths


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_figures_are_those_of_arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
    for x in draws():
        found = diagnose(elements(x), 2)
        for own, figure in (
            (found.r_hats, arviz.rhat),
            (found.bulks, lambda a: arviz.ess(a, method="bulk")),
            (found.tails, lambda a: arviz.ess(a, method="tail")),
        ):
            expected = torch.tensor([float(figure(a.numpy())) for a in x.unbind(-1)], dtype=F64)
            torch.testing.assert_close(own, expected, rtol=1e-6, atol=0)


def test_blocks_make_no_difference(monkeypatch):
    x = autoregressive(4, 30, 0.5, 7)
    whole = diagnose([x], 7)
    monkeypatch.setattr("pyro_hyperbolic.infer.posterior.diagnostics._BLOCK", 250)
    assert len(elements(x)) == 4
    parts = diagnose(elements(x), 7)
    torch.testing.assert_close(parts.r_hats, whole.r_hats)
    torch.testing.assert_close(parts.tails, whole.tails)


def test_constants_and_what_is_not_finite_have_no_figures():
    x = autoregressive(4, 30, 0.0, 5)
    x[..., 1] = 3.0
    x[..., 2] = 0.1 + 2.0**-54 * torch.randn(4, 30)  # but for rounding
    x[2, 7, 3] = torch.nan
    x[1, 1, 4] = -torch.inf
    found = diagnose(elements(x), 5)
    assert found.constant.tolist() == [False, True, True, False, False]
    assert found.finite.tolist() == [True, True, True, False, False]
    assert found.r_hats.isnan().tolist() == found.bulks.isnan().tolist() == [False, True, True, True, True]
    assert found.r_hat != found.r_hat  # one that is not finite is not left out ...
    assert diagnose(elements(x[..., :3]), 3).r_hat == found.r_hats[0]  # ... but constants are
    assert diagnose(elements(x[..., 1:3]), 2).is_constant


def test_three_draws_are_too_few_and_integers_are_numbers():
    assert diagnose(elements(torch.randn(4, 3, 1)), 1).r_hats.isnan().all()
    counts = torch.randint(5, (4, 60))
    torch.testing.assert_close(diagnose(elements(counts), 1).bulks, diagnose(elements(counts.double()), 1).bulks)


def test_chains_that_never_move_but_differ_are_worst():
    stuck = torch.arange(4.0)[:, None].expand(4, 20)
    assert diagnose(elements(stuck), 1).r_hat == torch.inf
