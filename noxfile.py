"""The checks that want environments of their own: several Pythons, the oldest dependencies, the wheel.

    nox -s tests-3.12                       # one Python; options of pytest go after --
    nox -s oldest -- tests/distributions    # the oldest versions that pyproject.toml allows
    nox -s package                          # build, check and install what would be published

``make help`` lists the others, which run in ``.venv``.
"""

from __future__ import annotations

from pathlib import Path

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
# One thread per process, as `make test` has it; texts are UTF-8 on Windows too.
ENV = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONUTF8": "1"}
EXTRAS = "torchvision,anndata,test"

nox.needs_version = ">=2024.3.2"
nox.options.sessions = ["tests", "package"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The tests and the doctests."""
    session.install("--constraint", "constraints.txt", "--editable", f".[{EXTRAS}]")
    session.run("python", "-m", "pytest", "-n", "2", *session.posargs, env=ENV)


@nox.session(python="3.11", venv_backend="uv")
def oldest(session: nox.Session) -> None:
    """The tests with the oldest versions of what the package depends on. Needs uv, which can choose them.

    Without anndata: its oldest versions do not go with the newest pandas. Deprecations of old versions are not ours.
    """
    session.install("--resolution", "lowest-direct", "--editable", ".[torchvision,test]")
    session.run("python", "-m", "pytest", "-n", "2", "-o", "filterwarnings=ignore", *session.posargs, env=ENV)


@nox.session
def package(session: nox.Session) -> None:
    """Build the distributions, check them, and use the wheel as someone who has just installed it."""
    session.install("build", "twine")
    folder = Path(session.create_tmp(), "dist").resolve()
    for old in folder.glob("*"):
        old.unlink()
    session.run("python", "-m", "build", "--outdir", str(folder))
    source, wheel = sorted(map(str, folder.glob("*.tar.gz"))) + sorted(map(str, folder.glob("*.whl")))
    session.run("twine", "check", "--strict", source, wheel)
    session.install("--constraint", "constraints.txt", wheel)
    script = Path("tests", "use_wheel.py").resolve()
    session.chdir(folder.parent)  # where the package can only be the installed one
    session.run("python", str(script), source, wheel, env=ENV)
