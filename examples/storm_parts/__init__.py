"""What ``examples/storms.py`` needs besides its Pyro program: data, densities and pictures."""
