"""docker-compose.yml: what it says, and the same services with the same files, started from the programs of this
machine. (Grafana is in no system's packages; what it is given is looked at.)"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.deploy import compose
from tests.deploy.lab import Lab, possible
from tests.deploy.visitor import Visitor
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, STAGEDOOR, Program, Programs, need

LOOK_EVERY = 0.2


def test_every_file_that_is_mounted_is_in_the_tree() -> None:
    mounted = [volume for service in compose.services().values() for volume in compose.volumes(service)]
    files = [volume for volume in mounted if volume.file]
    assert len(files) > 10
    assert not [volume.source for volume in files if not volume.file.exists()]
    assert all(volume.mode == "ro" for volume in files), "a container could write into the tree"
    named = {volume.source for volume in mounted if not volume.file}
    assert named == compose.load()["volumes"].keys()


def test_three_replicas_run_our_image_and_serve_one_configuration() -> None:
    services = compose.services()
    assert len(compose.gateways()) == 3
    assert len({json.dumps(services[name], sort_keys=True) for name in compose.gateways()}) == 1
    for name, service in services.items():
        if service["image"] == "stagedoor":
            assert service["command"][0] == "serve", name
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name
            config = service["command"][service["command"].index("--config") + 1]
            assert config in [volume.target for volume in compose.volumes(service)], name
        else:
            assert re.search(r":[\w.-]*\d", service["image"]), f"{name} has an image without a version"


def test_only_this_machine_reaches_what_is_published() -> None:
    published = [port for service in compose.services().values() for port in service.get("ports", ())]
    assert sorted(published) == ["127.0.0.1:3000:3000", "127.0.0.1:8080:8080", "127.0.0.1:9090:9090"]


def test_a_replica_has_time_to_drain_before_it_is_killed() -> None:
    from gateway.config import load
    from gateway.lifecycle import longest_drain

    limits = load(ROOT / "deploy/compose/stagedoor.yaml").settings.limits
    for name in compose.gateways():
        assert int(compose.services()[name]["stop_grace_period"].rstrip("s")) > longest_drain(limits)


def test_grafana_is_given_prometheus_and_every_dashboard_of_the_tree() -> None:
    grafana = compose.services()["grafana"]
    at = {volume.target: volume.file for volume in compose.volumes(grafana) if volume.file}
    sources = yaml.safe_load((at["/etc/grafana/provisioning/datasources"] / "prometheus.yaml").read_text())
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((at["/etc/grafana/provisioning/dashboards"] / "stagedoor.yaml").read_text())
    assert at[provider["providers"][0]["options"]["path"]] == ROOT / "deploy/grafana"


def test_compose_itself_takes_the_file() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("no docker compose here")
    done = subprocess.run(["docker", "compose", "config", "--quiet"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PROGRAMS = {
    "stagedoor": ([str(STAGEDOOR)], "http://{address}:8080/healthz"),
    "nginx": ([], "http://{address}:8080/healthz"),
    "redis": ([], None),
    "prom/prometheus": (["prometheus"], "http://{address}:9090/-/ready"),
}
"""By the name of the image, what its entrypoint is here and where its service answers when it is ready."""


class Composed:
    """The services of the file, running."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.programs: dict[str, Program] = {}
        self._folder = folder
        services = compose.services()
        order = ["redis", "demo", "notes", *compose.gateways(), "nginx", "prometheus"]
        assert {*order} == {*services} - {"grafana"}
        answers = {name: self._start(name, services[name]) for name in order}  # each waits for what it needs
        for name, ready in answers.items():
            if ready is not None:
                self.programs[name].wait_ready(ready)

    def _start(self, name: str, service: dict[str, Any]) -> Callable[[], bool] | None:
        """Starts it; what says that it is ready."""
        entrypoint, ready = PROGRAMS[service["image"].partition(":")[0]]
        mounts = {}
        for volume in compose.volumes(service):
            mounts[volume.file or self._named(volume.source)] = volume.target
        url = ready and ready.format(address=self.lab.addresses[name])
        self.programs[name] = self.lab.start(
            name,
            [*entrypoint, *service["command"]],
            mounts,
            env={"XDG_STATE_HOME": "/var/lib"},
        )
        return self.lab.answers(url) if url else None

    def _named(self, volume: str) -> Path:
        folder = self._folder / f"volume-{volume}"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def url(self) -> str:
        """Where clients come: nginx."""
        return f"http://{self.lab.addresses['nginx']}:8080/mcp"

    def asks(self, query: str) -> dict[str, float]:
        """What Prometheus knows: values by instance."""
        url = f"http://{self.lab.addresses['prometheus']}:9090/api/v1/query?query={quote(query)}"
        found = json.loads(self.lab.get(url) or "{}")
        return {one["metric"].get("instance", ""): float(one["value"][1]) for one in found["data"]["result"]}

    def failures(self) -> list[str]:
        """Why Prometheus could not scrape."""
        url = f"http://{self.lab.addresses['prometheus']}:9090/api/v1/targets"
        return [one["lastError"] for one in json.loads(self.lab.get(url) or "")["data"]["activeTargets"]]

    def until(self, query: str, holds: Any) -> dict[str, float]:
        """Asks until it is so."""
        end = time.monotonic() + PATIENCE
        while not holds(found := self.asks(query)):
            assert time.monotonic() < end, f"{query} is {found}; {self.failures()}"
            time.sleep(LOOK_EVERY)
        return found


@pytest.fixture(scope="module")
def composed(shared_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Composed:
    possible()
    for program in ("redis-server", "prometheus"):
        need(shutil.which(program) is not None, f"{program} is")
    folder = tmp_path_factory.mktemp("compose")
    names = [name for name in compose.services() if name != "grafana"]
    return Composed(Lab(shared_programs, folder, names), folder)


def test_the_services_work_together_and_no_session_is_lost_with_a_replica(composed: Composed, tmp_path: Path) -> None:
    with Visitor(composed.url, tmp_path / "visitor.log", composed.lab.enter) as visitor:
        assert {name.partition("__")[0] for name in visitor.do("tools")} == {"demo", "notes"}
        assert visitor.do("calls") == 9
        assert visitor.do("progress") >= 1
        up = composed.until('up{job="stagedoor"}', lambda found: sum(found.values()) == 3)
        assert up.keys() == {f"{name}:8081" for name in compose.gateways()}
        # Each request goes to the next replica, so two of three were mailed to the one that has the session.
        composed.until('sum(stagedoor_letters_sent_total{kind="deliver"})', lambda found: found.get("", 0) >= 1)
        having = composed.until('sum by (instance) (stagedoor_sessions{era="legacy"}) > 0', bool)
        owner = max(having, key=having.__getitem__).partition(":")[0]
        composed.programs[owner].kill()
        assert visitor.do("call") == "hello"
        assert visitor.do("calls") == 9
        composed.until('up{job="stagedoor"}', lambda found: sum(found.values()) == 2)


def test_redis_writes_what_it_acknowledged_to_a_file_and_evicts_nothing(composed: Composed) -> None:
    address = composed.lab.addresses["redis"]
    for setting, value in {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}.items():
        assert composed.lab.run("redis-cli", "-h", address, "config", "get", setting).split() == [setting, value]


def test_prometheus_has_the_rules_of_the_tree(composed: Composed) -> None:
    address = composed.lab.addresses["prometheus"]
    told = json.loads(composed.lab.get(f"http://{address}:9090/api/v1/rules") or "")
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    assert [group["name"] for group in told["data"]["groups"]] == [group["name"] for group in rules["groups"]]
