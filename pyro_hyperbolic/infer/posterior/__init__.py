"""Posteriors by many chains at once, and what they found.

``energy``, ``target``
    A program as the energy of a vector of numbers without bounds, and of many such vectors in one compiled function.
``gauge``
    What turns freely, and terms of the energy that hold it.
``fits``, ``start``
    Many fits at once, and where chains begin.
``moves``
    Metropolis steps to other arrangements of points.
``sampler``
    ``sample_posterior`` puts these together, around the trajectories of :mod:`pyro_hyperbolic.accelerate.hmc`.
``bridge``, ``haar``
    Integrals of posteriors by paths from normal distributions, and what the terms that hold add to them.
``evidence``, ``comparison``
    ``log_evidence``, and ``compare`` for several models.
``record``
    The fields that a sampler hands over.
``diagnostics``
    R-hat and effective sample sizes of many quantities at once.
``points``
    The quantities of a site of points.
``verdict``, ``summary``
    What they mean, in words and as a table.
``alignment``
    Draws of points, laid on each other by isometries.
``stored``
    Files.
``result``
    ``Posterior`` puts it together.
"""

from pyro_hyperbolic.infer.posterior.comparison import Comparison, compare
from pyro_hyperbolic.infer.posterior.evidence import Evidence, log_evidence
from pyro_hyperbolic.infer.posterior.result import Posterior
from pyro_hyperbolic.infer.posterior.sampler import sample_posterior

__all__ = ["Comparison", "Evidence", "Posterior", "compare", "log_evidence", "sample_posterior"]
