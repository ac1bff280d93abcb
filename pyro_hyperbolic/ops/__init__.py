"""Special functions, quadrature and tolerances: pure torch, no geometry."""
