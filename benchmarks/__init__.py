"""What the package costs, as ratios to something known; ``make bench`` or ``python -m benchmarks.run``.

A ratio of two times measured side by side in one process says the same on a slow machine and on a
fast one, so it can have a bound. A group is a function from :class:`~benchmarks.timing.Settings` to an iterable of
:class:`~benchmarks.timing.Ratio`, in a file of its own, listed in ``benchmarks.run.GROUPS``.
"""
