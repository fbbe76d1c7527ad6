"""Real balancers with the configurations of `deploy/`, in front of replicas on this machine: names of replicas become
their addresses, and ports free ones. Nothing else of the files is changed, but for the lines that they leave to choose.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import ROOT, Programs, accepts, need

NGINX = ROOT / "deploy/compose/nginx.conf"
HAPROXY = ROOT / "deploy/haproxy/haproxy.cfg"


def executable(name: str) -> str:
    """Where a balancer is; Debian keeps them where only root looks."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    need(found is not None, f"{name} is")
    return str(found)


def _at(text: str, replicas: Sequence[str], port: int) -> str:
    for number, address in enumerate(replicas, start=1):
        text = text.replace(f"gateway-{number}:8080", address)
    # A replica fewer than the file has is one that is not there.
    text = re.sub(r"^.*\bserver .*gateway-\d:8080.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"(listen |bind :)8080\b", lambda found: f"{found[1].replace(':', '127.0.0.1:')}{port}", text)


def _chosen(text: str, choice: str) -> str:
    """With the lines that a comment leaves to choose, after the words that introduce them."""
    before, words, after = text.partition(choice)
    assert words, choice
    lines = after.split("\n")
    last = next(
        (number for number, line in enumerate(lines[1:], start=1) if not line.strip().startswith("#")), len(lines)
    )
    taken = [re.sub(r"# ", "", line, count=1) for line in lines[1:last]]
    return "\n".join([before + words + lines[0], *taken, *lines[last:]])


def nginx(programs: Programs, folder: Path, replicas: Sequence[str], *, hashed: bool = False) -> str:
    """The URL of an nginx in front of these addresses."""
    port = free_port()
    text = _at(NGINX.read_text(), replicas, port).replace("listen ", "listen 127.0.0.1:", 1)
    if hashed:
        text = text.replace("# hash $http", "hash $http")
        assert "\n    hash $http_mcp_session_id consistent;" in text
    text = text.replace("/tmp/", f"{folder}/").replace("/dev/stderr", f"{folder}/nginx.log")
    if os.geteuid() == 0:
        text = f"user root;\n{text}"
    shutil.copy(ROOT / "deploy/nginx/stagedoor.conf", folder)
    (folder / "nginx.conf").write_text(text)
    command = [executable("nginx"), "-g", "daemon off;", "-c", folder / "nginx.conf", "-p", folder]
    programs.start("nginx", command, ready=accepts(port))
    return f"http://127.0.0.1:{port}"


def haproxy(programs: Programs, folder: Path, replicas: Sequence[str], *, choice: str = "") -> str:
    """The same with HAProxy; `choice` is the beginning of the comment over the lines to take."""
    port = free_port()
    text = _at(HAPROXY.read_text(), replicas, port)
    if choice:
        text = _chosen(text, choice)
    if "\n  balance hdr" in text:
        text = text.replace("  balance roundrobin\n", "")
    (folder / "haproxy.cfg").write_text(text)
    programs.start("haproxy", [executable("haproxy"), "-db", "-f", folder / "haproxy.cfg"], ready=accepts(port))
    return f"http://127.0.0.1:{port}"
