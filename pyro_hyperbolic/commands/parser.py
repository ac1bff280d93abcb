"""The parser of a program, with the options that programs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import torch

from pyro_hyperbolic.commands.values import data_folder, device, folder, positive, seed, signature

OUTPUTS = Path("outputs")
"""Where results go if the user does not say where."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose help shows every default, and whose errors are one line.

    :param documentation: of the program. The first paragraph is the description; indented lines that call ``python``
        or ``torchrun`` are the examples at the end of the help.
    :param program: its file, ``__file__``, or how else it is called.
    :param go_on: what to do after an interruption, where there is no ``--resume``.
    """

    def __init__(
        self, documentation: str | None, program: str, go_on: str = "nothing is saved yet; start again"
    ) -> None:
        documentation = documentation or ""  # there is none under python -OO
        lines = [line for line in documentation.splitlines() if line.strip().startswith(("python ", "torchrun "))]
        super().__init__(
            prog=Path(program).name,
            description=documentation.strip().partition("\n\n")[0],
            epilog="\n".join(["examples:", *lines]) if lines else None,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self._go_on = go_on
        self._checkpoint: str | None = None
        self._folder: Path | None = None

    def error(self, message: str) -> NoReturn:
        """End the program with one line, without the list of all options."""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")

    def add_seed(self) -> None:
        """``--seed``"""
        self.add_argument("--seed", type=seed, default=0, help="random seed")

    def add_device(self) -> None:
        """``--device``: one that is there, by default a GPU if there is one."""
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.add_argument("--device", type=device, default=default, help="where to compute: cpu, cuda or cuda:1")

    def add_threads(self) -> None:
        """``--threads``, which :func:`command` obeys."""
        self.add_argument("--threads", type=positive(int), help="CPU threads (default: torch's choice)")

    def add_data_dir(self, what: str) -> None:
        """``--data-dir``

        :param what: is in the folder.
        """
        text = f"folder of {what} (default: PYRO_HYPERBOLIC_DATA, then a per-user cache)"
        self.add_argument("--data-dir", type=data_folder, help=text)

    def add_space(self, default: str | None = None) -> None:
        """``--space``, a signature."""
        text = "latent space by its signature, such as h2,s2,e2: h hyperboloid, p ball, s sphere, e flat, u either sign"
        if default is None:
            text += " (default: by the other options)"
        self.add_argument("--space", type=signature, default=default, metavar="SIGNATURE", help=text)

    def add_output_dir(self, checkpoint: str | None = None, *, required: bool = False) -> None:
        """``--output-dir``, by default a new folder in ``outputs/``, and ``--resume`` where there are checkpoints.

        :param checkpoint: name or pattern of the files that a run leaves to go on from.
        :param required: there is no default, for programs of several processes that have to share a folder.
        """
        default = OUTPUTS / f"{Path(self.prog).stem}-DATE"
        text = "folder for the results, created if necessary"
        text += "" if required else f" (default: a new one, {default})"
        self.add_argument("--output-dir", type=folder, required=required, help=text)
        if checkpoint is not None:
            self.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
        self._checkpoint = checkpoint

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options; ``output_dir`` is settled, and fits ``--resume``."""
        options = super().parse_args(args, namespace)
        if hasattr(options, "output_dir"):
            self._settle(options)
        return options

    def _settle(self, options: argparse.Namespace) -> None:
        resume = getattr(options, "resume", False)
        if options.output_dir is None:
            if resume:
                self.error("--resume needs --output-dir, the folder of the run to continue")
            options.output_dir = OUTPUTS / f"{Path(self.prog).stem}-{datetime.now():%Y%m%d-%H%M%S}"
        self._folder = options.output_dir
        begun = self._begun()
        if resume and not begun:
            self.error(
                f"--resume: there is no run to continue in {self._folder} (no {self._checkpoint}); check"
                " --output-dir, or leave out --resume to start a new run"
            )
        if begun and not resume:
            self.error(f"{begun[0]} exists; continue that run with --resume, or choose another --output-dir")

    def _begun(self) -> list[Path]:
        """What a run has left to go on from."""
        if self._folder is None or self._checkpoint is None:
            return []
        return sorted(self._folder.glob(self._checkpoint))

    def how_to_go_on(self) -> str:
        """What to do after an interruption."""
        if self._checkpoint is None:
            return self._go_on
        if self._begun():
            return f"go on with the same options and --resume --output-dir {self._folder}"
        return "there is no checkpoint yet; start again"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that ends with the default, where the text itself does not name it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default == argparse.SUPPRESS or action.required or "(default" in text:
            return text
        value = action.default
        if isinstance(value, bool):
            shown = "on" if value else "off"
        else:
            shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return f"{text} (default: {shown.replace('%', '%%')})"
