"""What DReG_ELBO refuses."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import DReG_ELBO, EnsembleSVI, FastSVI
from tests.infer.dreg_models import losses, small_vae

pytestmark = pytest.mark.usefixtures("double")


class TestRefusals:
    def latent(self, distribution):
        def program():
            pyro.sample("k", distribution)

        return program

    def test_a_site_that_is_not_reparametrised(self):
        program = self.latent(dist.Bernoulli(0.3))
        with pytest.raises(ValueError, match="site 'k' is drawn from Bernoulli, which is not reparametrised"):
            DReG_ELBO().loss(program, program)

    def test_a_discrete_latent_of_the_model_alone(self):
        def model():
            pyro.sample("k", dist.Categorical(torch.ones(3)), infer={"enumerate": "parallel"})

        with pytest.warns(UserWarning, match="not guide"), pytest.raises(ValueError, match=r"'k' .*TraceEnum_ELBO"):
            DReG_ELBO().loss(model, lambda: None)

    def test_a_euclidean_guide_for_a_point_of_the_ball(self):
        model = self.latent(hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(0.7)))
        guide = self.latent(dist.Normal(torch.zeros(2), 0.01).to_event(1))
        with pytest.raises(ValueError, match="'k' is a point of PoincareBall"):
            DReG_ELBO().loss(model, guide)

    def test_dropout_in_the_guide(self):
        dropout = nn.Dropout(0.5)

        def model():
            with pyro.plate("data", 4):
                pyro.sample("z", dist.Normal(0.0, 1.0))

        def guide():
            with pyro.plate("data", 4):
                pyro.sample("z", dist.Normal(dropout(pyro.param("loc", torch.ones(4))), 1.0))

        with pytest.raises(ValueError, match="draws random numbers apart from its sample sites"):
            DReG_ELBO().loss_and_grads(model, guide)
        dropout.eval()
        assert math.isfinite(DReG_ELBO().loss_and_grads(model, guide))

    @pytest.mark.parametrize("fast", [FastSVI, EnsembleSVI])
    def test_dropout_in_the_guide_of_a_fast_step(self, fast):
        vaes = [small_vae() for _ in range(2)]
        for vae in vaes:
            vae.encoder.register_forward_pre_hook(lambda module, inputs: (nn.functional.dropout(inputs[0]),))
        pairs = [(vae.model, vae.guide) for vae in vaes]
        first = [pairs] if fast is EnsembleSVI else pairs[0]
        svi = fast(*first, pyro.optim.Adam({"lr": 0.01}), losses(4, True)[1])
        with pytest.raises(ValueError, match="draws random numbers apart from its sample sites"):
            svi.step(torch.randn(7, 5), **({"shared": True} if fast is EnsembleSVI else {}))

    def test_no_sample_sites(self):
        with pytest.raises(ValueError, match="have no sample sites"):
            DReG_ELBO().loss(lambda: None, lambda: None)

    def test_a_guide_messenger(self):
        from pyro.infer.autoguide import AutoNormalMessenger

        model = self.latent(dist.Normal(0.0, 1.0))
        with pytest.raises(ValueError, match="GuideMessenger"):
            DReG_ELBO().loss(model, AutoNormalMessenger(model))

    @pytest.mark.parametrize("count", [0, -1, 2.5, True])
    def test_number_of_particles(self, count):
        with pytest.raises(ValueError, match="num_particles must be a positive integer"):
            DReG_ELBO(num_particles=count)
