"""The grid integrals that the methods are compared with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pyro.infer
import pyro.infer.autoguide
import pytest
import torch

from tests.infer.posterior_models import (
    BALL,
    DENSITIES,
    PRIOR_LOC,
    PRIOR_SCALE,
    Mixture,
    Triangulation,
    distance,
    grid,
)

PROGRAMS = {
    "wrapped": Triangulation(),
    "riemannian": Triangulation("riemannian"),
    "mixture": Mixture(),
}
every_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.mark.parametrize("distribution", DENSITIES)
def test_priors_have_mass_one(distribution):
    nodes, log_volume = grid()
    log_mass = (DENSITIES[distribution](distance(nodes, PRIOR_LOC), PRIOR_SCALE) + log_volume).logsumexp(0)
    assert log_mass.item() == pytest.approx(0, abs=1e-8)


@every_program
def test_another_grid_gives_the_same_evidence(name):
    # Squares of the coordinates themselves, whose volume is that of the metric lambda^2 dx^2.
    exact = PROGRAMS[name].exact()
    side = 400
    steps = ((torch.arange(side, dtype=torch.float64) + 0.5) / side * 2 - 1) / math.sqrt(BALL.c)
    z = torch.cartesian_prod(steps, steps)
    z = z[BALL.c * z.square().sum(-1) < 1 - 1e-6]
    log_volume = 2 * torch.log(2 / (1 - BALL.c * z.square().sum(-1))) + 2 * math.log(2 / math.sqrt(BALL.c) / side)
    assert (exact.log_joint(z) + log_volume).logsumexp(0).item() == pytest.approx(exact.log_evidence, abs=1e-5)


@every_program
def test_mean_is_where_the_coordinates_vanish(name):
    mean, sd = PROGRAMS[name].exact().moments
    assert (mean[:2].abs() < 1e-9 * sd[:2]).all()


@every_program
def test_forgotten_jacobian_is_another_posterior(name):
    # What the tables owe their power to: they check that they would see this.
    exact, wrong = PROGRAMS[name].exact(), PROGRAMS[name].exact(volume=False)
    assert abs(exact.log_evidence - wrong.log_evidence) > 0.2
    mean, sd = exact.moments
    assert ((wrong.expectation(exact.statistics) - mean).abs() > 0.2 * sd).any()


# What Pyro exports beside methods for a posterior, and the methods that have no row.
NOT_HERE = {
    "CSIS": "its step finds no gradient of a parameter that has a constraint, on any space",
    "ELBO": "base class",
    "EnergyDistance": "trains on predictions; its optimum is not the posterior",
    "IMQSteinKernel": "a kernel of SVGD, beside RBFSteinKernel",
    "TracePosterior": "base class",
    "TracePredictive": "predictions of a TracePosterior, superseded by Predictive",
    "Trace_MMD": "replaces the divergence by another distance; its optimum is not the posterior",
    "AutoCallable": "names a guide written by hand",
    "AutoContinuous": "base class",
    "AutoDiscreteParallel": "a guide of discrete sites",
    "AutoGuide": "base class",
    "AutoGuideList": "joins guides of several sites",
    "AutoHierarchicalNormalMessenger": "a form of AutoNormalMessenger",
    "AutoMessenger": "base class",
    "AutoNormalizingFlow": "base class of AutoIAFNormal",
    "AutoRegressiveMessenger": "a form of AutoNormalMessenger for sites in sequence",
}


def test_every_method_of_pyro_has_a_row():
    here = Path(__file__).parent
    tested = {word for path in here.glob("test_posteriors_*.py") for word in re.findall(r"\w+", path.read_text())}
    names = {
        name
        for module in (pyro.infer, pyro.infer.autoguide)
        for name in module.__all__
        if isinstance(getattr(module, name), type) or name in ("infer_discrete", "config_enumerate")
    }
    assert names - set(NOT_HERE) <= tested, f"no row for {sorted(names - set(NOT_HERE) - tested)}"
