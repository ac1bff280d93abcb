"""Latents on a manifold in other coordinates, and curvatures that are drawn.

A chain or an autoguide moves the latents of a program. Points of a curved space have densities with respect to the
volume of that space. If the curvature is a latent too, the volume moves with it, and the point has to be drawn as a
function of something that does not. This is how a site of the program becomes such a function:

``point_reparam``
    ``PointReparam`` replaces the site ``"z"`` by a site in flat space, ``"z_coords"`` or ``"z_base"``, and a
    deterministic ``"z"``. What the others share is here: ``to_event``, masks and initial values.
``manifold_reparam``
    ``ManifoldReparam`` takes normal coordinates at the origin. It suits every distribution of points, since the new
    site keeps the density and adds the volume of the exponential map.
``noise_reparam``
    ``NoiseReparam`` takes the white noise that a point is made of.
``drawn_curvature``
    ``with_drawn_curvature`` puts it together: as a program runs it notes the points whose space depends on a latent
    (``accelerate.programs.sources``), and reparametrises these by the strategy ``DrawnCurvature``.
"""

from pyro_hyperbolic.infer.reparam.drawn_curvature import DrawnCurvature, with_drawn_curvature
from pyro_hyperbolic.infer.reparam.manifold_reparam import ManifoldReparam
from pyro_hyperbolic.infer.reparam.noise_reparam import NoiseReparam

__all__ = ["DrawnCurvature", "ManifoldReparam", "NoiseReparam", "with_drawn_curvature"]
