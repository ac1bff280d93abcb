"""The losses as tensors against Pyro's own: values and gradients, given the same noise."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import constraints

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer.bounds.tensor_elbo import tensor_loss
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE
from tests.helpers import same

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
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


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


def masked():
    """A latent whose every term is left out."""

    def model(x):
        pyro.sample("z", dist.Normal(0.0, 1.0).mask(False))
        pyro.sample("x", dist.Normal(pyro.sample("mu", dist.Normal(0.0, 3.0)), 1.0), obs=x)

    def guide(x):
        pyro.sample("z", dist.Normal(pyro.param("idle", torch.tensor(0.3)), 1.0).mask(False))
        pyro.sample("mu", dist.Normal(pyro.param("loc", torch.tensor(0.2)), 0.5))

    return model, guide, (torch.tensor(1.5),), {}


PROGRAMS = {f.__name__: f for f in (wrapped, riemannian, euclidean, graph, hierarchy, masked)}
CASES = [(p, loss) for p in ("wrapped", "euclidean", "hierarchy") for loss in LOSSES]
CASES += [(p, loss) for p in ("riemannian", "graph") for loss in ("Trace", "MeanField", "IWAE of 4 at once")]
CASES += [("masked", loss) for loss in ("Trace", "MeanField", "IWAE of 4")]


def gradients():
    found = {name: p.grad for name, p in pyro.get_param_store().named_parameters()}
    for p in pyro.get_param_store().values():
        p.unconstrained().grad = None
    return found


@pytest.mark.parametrize(("programs", "loss"), CASES)
def test_value_and_gradient(programs, loss):
    model, guide, args, kwargs = PROGRAMS[programs]()
    stock = LOSSES[loss]()
    torch.manual_seed(1)
    expected = stock.loss_and_grads(model, guide, *args, **kwargs)
    slopes = gradients()
    torch.manual_seed(1)
    # Its own object: the first evaluation of particles at once counts the plates, and draws for it.
    value = tensor_loss(LOSSES[loss]())(model, guide, *args, **kwargs)
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
