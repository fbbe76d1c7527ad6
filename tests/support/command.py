"""`stagedoor`, for `forks.py`: a program that official clients may start as a server, at once."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway import cli
from tests.support import imported  # noqa: F401  (it is all that a start takes long for)

if __name__ == "__main__":
    cli.main()
