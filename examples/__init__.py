"""Programs to run by their path, ``python examples/mnist_svi.py``; experiments and benchmarks import ``command``."""
