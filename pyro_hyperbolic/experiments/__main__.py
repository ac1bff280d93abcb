"""``python -m pyro_hyperbolic.experiments``."""

from pyro_hyperbolic.experiments.cli import main

if __name__ == "__main__":
    main()
