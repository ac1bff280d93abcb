"""The losses as tensors against Pyro's own: values and gradients, given the same noise."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch.distributions import constraints

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.bounds.tensor_elbo import tensor_loss
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE
from tests.accelerate.pairs import PROGRAMS as TRAINED
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")

LOSSES = {
    "Trace": Trace_ELBO,
    "Trace of 3": lambda: Trace_ELBO(num_particles=3),
    "Trace of 3 at once": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True),
    "MeanField": TraceMeanField_ELBO,
    "MeanField of 3": lambda: TraceMeanField_ELBO(num_particles=3),
    "MeanField of 3 at once": lambda: TraceMeanField_ELBO(num_particles=3, vectorize_particles=True),
    "IWAE of 1": lambda: RenyiELBO(alpha=0, num_particles=1),
    "IWAE of 4": lambda: RenyiELBO(alpha=0, num_particles=4),
    "IWAE of 4 at once": lambda: RenyiELBO(alpha=0, num_particles=4, vectorize_particles=True),
    "Renyi of 4": lambda: RenyiELBO(alpha=0.5, num_particles=4),
    "Renyi of 4 at once": lambda: RenyiELBO(alpha=0.5, num_particles=4, vectorize_particles=True),
    "Renyi, alpha 2": lambda: RenyiELBO(alpha=2.0, num_particles=4),
}
ENUMERATING = {
    "Enum": lambda: TraceEnum_ELBO(max_plate_nesting=2),
    "Enum of 3": lambda: TraceEnum_ELBO(num_particles=3, max_plate_nesting=2),
    "Enum of 3 at once": lambda: TraceEnum_ELBO(num_particles=3, max_plate_nesting=2, vectorize_particles=True),
}
TOLERANCE = 1e-10


def wrapped():
    vae = HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=6, posterior_scale="diagonal")
    return vae.model, vae.guide, (torch.rand(7, 5),), {"data_size": 40}


def riemannian():
    vae = HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=6, prior="riemannian", posterior="riemannian")
    return vae.model, vae.guide, (torch.rand(7, 5),), {}


def euclidean():
    """Its divergence has a closed form, which the mean-field loss takes."""
    vae = EuclideanVAE(2, 5, hidden_dim=6)
    return vae.model, vae.guide, (torch.rand(7, 5),), {"data_size": 40}


def graph():
    edges = torch.tensor([[0, 1], [0, 2], [1, 3]])
    vgae = HyperbolicVGAE(PoincareBall(1.0), 4, edges, latent_dim=2, hidden_dim=3)
    return vgae.model, vgae.guide, (), {}


def hierarchy():
    """A global and a local latent, a scale, a mask, and an auxiliary site of the guide alone."""
    mask = torch.tensor([True, True, False, True])

    def model(x):
        mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", 4), pyro.poutine.scale(scale=2.5), pyro.poutine.mask(mask=mask):
            z = pyro.sample("z", dist.Normal(mu, pyro.param("width", torch.tensor(1.0))))
            pyro.sample("x", dist.StudentT(3.0, z), obs=x)

    def guide(x):
        pyro.sample("extra", dist.Normal(pyro.param("extra_loc", torch.tensor(0.5)), 1.0), infer={"is_auxiliary": True})
        pyro.sample("mu", dist.Normal(pyro.param("loc", torch.tensor(0.2)), 0.5))
        scale = pyro.param("scale", torch.ones(4), constraint=constraints.positive)
        with pyro.plate("data", 4), pyro.poutine.scale(scale=2.5), pyro.poutine.mask(mask=mask):
            pyro.sample("z", dist.Normal(pyro.param("z_loc", torch.zeros(4)), scale))

    return model, guide, (torch.randn(4),), {}


def missing():
    """Data of which some are not observed: the guide draws them."""
    seen = torch.tensor([True, False, False, True])

    def model(x):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(0.0, pyro.param("width", torch.tensor(1.0))))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x, obs_mask=seen)

    def guide(x):
        with pyro.plate("data", 4):
            z = pyro.sample("z", dist.Normal(pyro.param("z_loc", torch.zeros(4)), 1.0))
            with pyro.poutine.mask(mask=~seen):
                pyro.sample("x_unobserved", dist.Normal(z, pyro.param("x_scale", torch.tensor(1.5))))

    return model, guide, (torch.randn(4),), {}


def masked():
    """A latent whose every term is left out."""

    def model(x):
        pyro.sample("z", dist.Normal(0.0, 1.0).mask(False))
        pyro.sample("x", dist.Normal(pyro.sample("mu", dist.Normal(0.0, 3.0)), 1.0), obs=x)

    def guide(x):
        pyro.sample("z", dist.Normal(pyro.param("idle", torch.tensor(0.3)), 1.0).mask(False))
        pyro.sample("mu", dist.Normal(pyro.param("loc", torch.tensor(0.2)), 0.5))

    return model, guide, (torch.tensor(1.5),), {}


def chain():
    """Hidden states of several series, one after the other, and a latent that they share."""

    def model(x):
        moves = pyro.param("moves", torch.randn(3, 3)).softmax(-1)
        centre = pyro.sample("centre", dist.Normal(0.0, 2.0))
        places = pyro.param("places", torch.randn(3))
        with pyro.plate("series", x.shape[-1], dim=-1):
            state = 0
            for t in pyro.markov(range(len(x))):
                state = pyro.sample(f"state_{t}", dist.Categorical(moves[state]), infer={"enumerate": "parallel"})
                with pyro.plate(f"seen_{t}", 2, dim=-2):
                    pyro.sample(f"x_{t}", dist.Normal(centre + places[state], 1.0), obs=x[t].expand(2, -1))

    def guide(x):
        pyro.sample("centre", dist.Normal(pyro.param("loc", torch.tensor(0.2)), 0.5))

    return model, guide, (torch.randn(4, 5),), {}


def several_draws():
    """A few draws of a discrete latent, each of which goes through the rest of the model."""

    def model(x):
        k = pyro.sample("k", dist.Categorical(torch.ones(4)))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(pyro.param("places", torch.randn(4))[k], 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def guide(x):
        logits = pyro.param("logits", torch.zeros(4))
        pyro.sample("k", dist.Categorical(logits=logits), infer={"enumerate": "parallel", "num_samples": 3})
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(pyro.param("loc", torch.zeros(6)), 0.5))

    return model, guide, (torch.randn(6),), {}


def impossible():
    """A value of probability 0, whose term is not finite."""

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.tensor([-math.inf, 0.4, 0.6])))
        pyro.sample("x", dist.Normal(pyro.param("places", torch.randn(3))[k], 1.0), obs=x)

    def guide(x):
        logits = torch.cat([torch.tensor([-math.inf]), pyro.param("logits", torch.zeros(2))])
        pyro.sample("k", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})

    return model, guide, (torch.tensor(1.5),), {}


PROGRAMS = {f.__name__: f for f in (wrapped, riemannian, euclidean, graph, hierarchy, missing, masked)}
CASES = [(p, loss) for p in ("euclidean", "hierarchy") for loss in LOSSES]
CASES += [("missing", loss) for loss in LOSSES if "at once" in loss or loss == "IWAE of 4"]
CASES += [(p, loss) for p in ("wrapped", "riemannian", "graph") for loss in ("Trace", "MeanField", "IWAE of 4 at once")]
CASES += [("masked", loss) for loss in ("Trace", "MeanField", "IWAE of 4")]
PROGRAMS |= {f.__name__: f for f in (chain, several_draws, impossible)}
PROGRAMS |= {name: lambda make=make: make()[:4] for name, make in TRAINED.items() if "enumerated" in name}
CASES += [(p, loss) for p in PROGRAMS if p == "chain" or "enumerated" in p for loss in ENUMERATING]
CASES += [(p, loss) for p in ("several_draws", "impossible") for loss in ("Enum", "Enum of 3")]


def gradients():
    found = {name: p.grad for name, p in pyro.get_param_store().named_parameters()}
    for p in pyro.get_param_store().values():
        p.unconstrained().grad = None
    return found


@pytest.mark.parametrize(("programs", "loss"), CASES)
def test_value_and_gradient(programs, loss):
    model, guide, args, kwargs = PROGRAMS[programs]()
    stock = (LOSSES | ENUMERATING)[loss]()
    torch.manual_seed(1)
    expected = stock.loss_and_grads(model, guide, *args, **kwargs)
    slopes = gradients()
    torch.manual_seed(1)
    # Its own object: the first evaluation of particles at once counts the plates, and draws for it.
    value = tensor_loss((LOSSES | ENUMERATING)[loss]())(model, guide, *args, **kwargs)
    assert value.shape == ()
    same(value, expected, TOLERANCE)
    value.backward()
    for name, slope in gradients().items():
        if slopes[name] is None:
            assert slope is None, name
        else:
            same(slope, slopes[name], TOLERANCE)
    torch.manual_seed(2)
    expected = stock.loss(model, guide, *args, **kwargs)
    torch.manual_seed(2)
    with torch.no_grad():
        same(tensor_loss(stock)(model, guide, *args, **kwargs), expected, TOLERANCE)


def test_function_is_taken_as_it_is():
    value = torch.tensor([1.0], requires_grad=True)
    same(tensor_loss(lambda model, guide: 2 * value)(None, None), torch.tensor(2.0), 0.0)
