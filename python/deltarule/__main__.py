"""``python -m deltarule ARGS`` and the console script: the library's command, as if it had been called itself."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def _command() -> str:
    named = os.environ.get("DELTARULE_COMMAND")
    if named:
        return named
    import deltarule
    for folder in deltarule.__path__:
        file = os.path.join(folder, "bin", "deltarule")
        if os.access(file, os.X_OK):
            return file
    sys.exit("deltarule: the command is not in this package: install the wheel, or name the file in DELTARULE_COMMAND")


def main() -> NoReturn:
    file = _command()
    try:
        os.execv(file, ["deltarule", *sys.argv[1:]])
    except OSError as reason:
        sys.exit(f"deltarule: {file} cannot be run: {reason.strerror}")


if __name__ == "__main__":
    main()
