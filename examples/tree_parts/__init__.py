"""What ``examples/bayesian_tree.py`` needs besides its Pyro program: data, calibration and pictures."""
