"""The version of this release; what is installed says the same."""

from typing import Final

VERSION: Final = "0.2.0"
