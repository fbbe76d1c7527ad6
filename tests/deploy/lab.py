"""The services of a docker-compose.yml without containers: the programs of this machine, each with a network and a file
system of its own by the kernel's name spaces, under its name in compose and with the files that are mounted there.

Linux, as root. Nothing of it is left when the test ends: name spaces end with their last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import LOOK_EVERY, ROOT, Program, Programs

NETWORK = "10.213.7"

ROOM = """
set -e
ip link set lo up
ip link add bridge type bridge
ip address add "$1/24" dev bridge
ip link set bridge up
exec sleep infinity
"""
"""What holds the network; it has an address there too, so that a test can be a client in it."""

SERVICE = """
set -e
address=$1 top=$2 hosts=$3; shift 3
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
mount -t tmpfs none "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay none -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"
for shared in proc dev; do mount --rbind "/$shared" "$top/root/$shared"; done
mount --bind "$hosts" "$top/root/etc/hosts"
while [ "$1" != -- ]; do
  mkdir -p "$(dirname "$top/root$2")"
  if [ -d "$1" ]; then mkdir -p "$top/root$2"; else touch "$top/root$2"; fi
  mount --bind "$1" "$top/root$2"
  shift 2
done
shift
exec chroot "$top/root" "$@"
"""
"""What a container engine does: a network of its own, a file system of its own over the one of the image (that is this
machine's), the mounted files, then the command."""


def possible() -> None:
    """Skips a test where there can be no lab."""
    tools = ("unshare", "nsenter", "ip", "mount", "chroot")
    if sys.platform != "linux" or os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip("networks of its own need Linux, root, util-linux and iproute2")


class Lab:
    """Services by name, each at an address of its own."""

    def __init__(self, programs: Programs, folder: Path, services: Sequence[str]) -> None:
        self._programs = programs
        self._folder = folder
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(services, start=10)}
        self._hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.addresses.items())]
        self._hosts.write_text("\n".join(lines) + "\n")
        self._room = programs.start("network", ["unshare", "--net", "--mount", "sh", "-c", ROOM, "sh", f"{NETWORK}.1"])
        _until(lambda: self._inside("ip", "link", "show", "bridge").returncode == 0, "the network was never there")
        _until(lambda: f"{NETWORK}.1" in self._inside("ip", "address").stdout, "the network was never there")
        assert f"{NETWORK}.1" not in subprocess.run(["ip", "address"], capture_output=True, text=True).stdout

    def start(
        self,
        name: str,
        command: Sequence[str],
        volumes: Mapping[Path, str],
        env: Mapping[str, str] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> Program:
        """Starts a service; `volumes` are files and folders of this machine by where the service finds them."""
        top = self._folder / f"root-{name}"
        top.mkdir()
        mounts = [part for source, target in volumes.items() for part in (str(source), target)]
        setup = [self.addresses[name], str(top), str(self._hosts), *mounts, "--", *command]
        program = self._programs.start(
            name, ["unshare", "--net", "--mount", "sh", "-c", SERVICE, "sh", *setup], env=env
        )
        _until(lambda: _network(program.pid) != _network(os.getpid()), f"{name} got no network of its own")
        number = self.addresses[name].rpartition(".")[2]
        cable = ["ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", str(program.pid)]
        for step in (cable, ["ip", "link", "set", f"to{number}", "master", "bridge", "up"]):
            done = self._inside(*step)
            assert done.returncode == 0, done.stderr
        if ready is not None:
            program.wait_ready(ready)
        return program

    def answers(self, url: str) -> Callable[[], bool]:
        """Readiness: GET url has status 200, as seen by a service."""
        return lambda: self.get(url) is not None

    def get(self, url: str) -> str | None:
        """What is there; None if nothing is, or it is refused."""
        script = f"from urllib.request import urlopen; print(urlopen({url!r}, timeout=30).read().decode())"
        done = self._inside(sys.executable, "-c", script)
        return done.stdout if done.returncode == 0 else None

    def run(self, *command: str, **options: Any) -> str:
        """Runs a program as another service of the network; what it printed."""
        done = self._inside(*command, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _inside(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        full = [*self.enter, *command]
        return subprocess.run(full, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)

    @property
    def enter(self) -> list[str]:
        """What stands before a command so that it runs in the network."""
        return ["nsenter", "--target", str(self._room.pid), "--net", "--mount", f"--wd={ROOT}"]


def _network(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(LOOK_EVERY)
