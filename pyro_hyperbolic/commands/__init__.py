"""Command lines: options that are checked, errors of one line, runs that go on.

A program is a docstring, a function ``run(args)`` and its options::

    def parser():
        p = Parser(__doc__, __file__)
        p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data")
        p.add_device()
        p.add_output_dir(checkpoint="checkpoint.pt")
        return p

    main = command(parser, run)

    if __name__ == "__main__":
        main()

``main(["--num-epochs", "3"])`` returns what ``run`` returns. What a user got wrong ends the program with one line
and exit code 2, Ctrl-C with one line and exit code 130; a bug keeps its traceback.
"""

from pyro_hyperbolic.commands.errors import explained
from pyro_hyperbolic.commands.parser import Parser
from pyro_hyperbolic.commands.program import command
from pyro_hyperbolic.commands.runs import load_run, record, save_run
from pyro_hyperbolic.commands.values import (
    at_least,
    curvature,
    data_folder,
    device,
    folder,
    fraction,
    input_file,
    natural,
    picture_file,
    positive,
    seed,
    seeds,
    signature,
)

__all__ = [
    "Parser",
    "at_least",
    "command",
    "curvature",
    "data_folder",
    "device",
    "explained",
    "folder",
    "fraction",
    "input_file",
    "load_run",
    "natural",
    "picture_file",
    "positive",
    "record",
    "save_run",
    "seed",
    "seeds",
    "signature",
]
