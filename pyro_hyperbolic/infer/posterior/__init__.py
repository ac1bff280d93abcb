"""What a sampler found, as :class:`Posterior`.

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

from pyro_hyperbolic.infer.posterior.result import Posterior

__all__ = ["Posterior"]
