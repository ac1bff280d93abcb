"""Which errors are the user's, and what to say about them."""

from __future__ import annotations

import dis
import errno
from pathlib import Path
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOSPC: "free some space, or choose another place",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "give a folder",
}


def explained(error: BaseException, program: str = "__main__", folder: Path | None = None) -> str | None:
    """What to tell the user about an error of input; ``None`` for any other, which is a bug and keeps its traceback.

    An error of input is a ``ValueError``, ``ImportError`` or ``OSError`` that this package, the program or a module
    beside it raised on purpose, by a ``raise`` of their own; or an ``OSError`` of the operating system. A
    ``ValueError`` that comes from torch, or from ``int(...)``, is none.

    :param program: name of the module that is the program.
    :param folder: where it lies; other modules there are shared by programs.

    >>> explained(FileNotFoundError(2, "No such file or directory", "data.csv"))
    'data.csv: No such file or directory; check the path'
    >>> explained(ValueError("math domain error"))
    """
    if isinstance(error, (ValueError, ImportError, OSError)) and _on_purpose(error.__traceback__, program, folder):
        return " ".join(str(error).split()).rstrip(".")
    if isinstance(error, OSError) and error.errno is not None:
        where = "" if error.filename is None else f"{error.filename}: "
        remedy = _REMEDIES.get(error.errno)
        return f"{where}{error.strerror}" + ("" if remedy is None else f"; {remedy}")
    return None


def _on_purpose(traceback: TracebackType | None, program: str, folder: Path | None) -> bool:
    """Whether the innermost frame is ours and stopped at a ``raise``."""
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    module = frame.f_globals.get("__name__", "")
    beside = folder is not None and Path(frame.f_code.co_filename).resolve().parent == folder
    ours = beside or module == program or module.partition(".")[0] == _PACKAGE
    return ours and dis.opname[frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
