"""Bounds of the evidence, to train with and to evaluate by.

A trainer asks ``tensor_elbo`` for its loss, by ``tensor_loss(loss)``. The answer is a function of model, guide and
arguments that returns one tensor, without a look at a value on the host. An evaluation goes this way:

1. Pyro runs the guide, and the model at the draws of the guide. ``programs.checks`` checks the two traces where
   validation is on.
2. The terms of the traces are summed as the loss in question sums them: in ``tensor_elbo`` for Pyro's losses, and in
   ``enumeration`` where discrete sites are summed out, by the sums of products of ``log_einsum``.

A loss of another class, such as :class:`~pyro_hyperbolic.infer.DReG_ELBO`, is made known by ``register_loss``.

``marginal`` is the bound to evaluate by, not to train with. It takes thousands of samples for every datum, in chunks of
bounded memory, sums enumerated sites out, and gives an estimate for every datum with its standard error.

Imports point one way: ``tensor_elbo`` -> ``enumeration`` -> ``log_einsum``, and from here to ``programs``.
"""
