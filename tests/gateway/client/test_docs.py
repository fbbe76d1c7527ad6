"""The code in docs/client.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE

DOCS = (Path(__file__).parents[3] / "docs" / "client.md").read_text()


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["order ['id']", "Ordered 1. False", "text", "7", "r"]
