"""What large messages leave free is used by the next ones (`gateway.lifecycle.keep_free_memory`)."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import resource
{before}
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for rounds in (10, 100):  # by the first ones the heap becomes as large as it must be
    before = used()
    for _ in range(rounds):
        messages = [b"x" * (1 << 20) for _ in range(6)]
        del messages
print((used() - before) // rounds)
"""
KEEP = "from gateway.lifecycle import keep_free_memory; keep_free_memory()"

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of other C libraries nothing is asked")


def faults(before: str, **environment: str) -> int:
    """Pages that the system had to give anew for six messages of a MiB that came and went."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command, top = [sys.executable, "-c", FAULTS.format(before=before)], Path(__file__).parents[2]
    done = subprocess.run(command, env=inherited | environment, cwd=top, capture_output=True, check=True, timeout=120)
    return int(done.stdout)


def test_large_messages_use_the_memory_of_those_before() -> None:
    kept = faults(KEEP)
    assert kept < 10
    assert kept * 10 <= faults("")


def test_what_the_environment_says_of_memory_holds() -> None:
    assert faults(KEEP, MALLOC_TRIM_THRESHOLD_="131072") * 2 > faults("")
