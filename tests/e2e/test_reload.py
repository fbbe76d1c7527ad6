"""The configuration is read anew while real processes run: on SIGHUP, by every worker, and when the file changes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, Programs, stagedoor
from tests.support.raw import RawSession

pytestmark = pytest.mark.e2e

SERVERS = """
from stagedoor import Server

def made(version):
    server = Server("versions", version=version)

    @server.tool
    def version_of() -> str:
        return version

    if version == "2":
        @server.tool
        def more() -> str:
            return "more"

    return server

one, two = made("1"), made("2")
"""


class Site:
    """A folder with a configuration, and what is said to whoever runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "stagedoor.json"
        self.audited: Path | None = None
        (folder / "servers.py").write_text(SERVERS)
        (folder / "token").write_text("first-token\n")

    def write(self, version: str = "one", *, tokens: bool = False, **gateway: Any) -> None:
        """As an editor does it: whole, under another name first."""
        if self.audited is not None:
            gateway["audit"] = {"file": str(self.audited)}
        if tokens:
            gateway["auth"] = {"tokens": {"ann": "${file:token}"}}
        config = {"mcpServers": {"versions": {"native": f"servers.py:{version}"}}, "gateway": gateway}
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(config))
        os.replace(fresh, self.file)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    found = Site(folder)
    found.write()
    return found


def version_at(session: RawSession, tool: str = "version_of") -> str:
    return str(session.ask(5, "tools/call", {"name": tool})["result"]["content"][0]["text"])


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)
    return value


def metric(gateway: Gateway, name: str) -> float:
    text = urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=PATIENCE).read().decode()
    return float(next((line.split()[-1] for line in text.splitlines() if line.startswith(name)), 0.0))


def outcome(name: str) -> str:
    return f'stagedoor_reloads_total{{outcome="{name}"}}'


def test_a_hangup_has_the_file_read_anew_and_a_bad_one_is_refused(programs: Programs, site: Site) -> None:
    gateway = programs.gateway(site.file)
    held = RawSession(gateway.endpoint("versions"))
    assert version_at(held) == "1"
    site.write("two", limits={"messageBytes": 1000000})
    where = ["--against", gateway.endpoint(), "--admin", gateway.admin]
    told = stagedoor("check", site.file, *where, check=True)
    assert "  changed: versions (native)\n" in told.stdout
    assert "  needs a restart: gateway.limits.messageBytes\n" in told.stdout
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    gateway.program.wait_output("gateway.limits.messageBytes")
    assert "needs_restart" in gateway.program.output()
    assert version_at(held) == "1"
    fresh = RawSession(gateway.endpoint("versions"))
    assert (version_at(fresh), fresh.tools()) == ("2", ["version_of", "more"])
    site.file.write_text('{"mcpServers": {"versions": {"command": "x", "args": "secret-not-to-be-told"}}}')
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_refused")
    assert "mcpServers.versions.args" in gateway.program.output()
    assert "secret-not-to-be-told" not in gateway.program.output()
    assert version_at(fresh) == "2"
    assert metric(gateway, outcome("reloaded")) == metric(gateway, outcome("refused")) == 1.0
    assert metric(gateway, "stagedoor_reload_success_timestamp_seconds") > 1.7e9
    site.write("two", limits={"messageBytes": 1000000})
    for _ in range(3):
        gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_unchanged")
    assert gateway.program.stop() == 0


def test_one_process_that_is_told_to_roll_goes_on(programs: Programs, site: Site) -> None:
    gateway = programs.gateway(site.file)
    held = RawSession(gateway.endpoint("versions"))
    gateway.program.send(signal.SIGUSR2)
    gateway.program.wait_output("rolling_restart_ignored")
    assert version_at(held) == "1"
    assert gateway.program.stop() == 0


def test_tokens_from_a_file_are_read_anew(programs: Programs, site: Site) -> None:
    site.write(tokens=True)
    gateway = programs.gateway(site.file)
    session = RawSession(gateway.endpoint("versions"), "first-token")
    (site.folder / "token").write_text("second-token\n")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    response, _ = session.post({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert response.status == 401
    session.headers["Authorization"] = "Bearer second-token"
    assert version_at(session) == "1"
    assert "second-token" not in gateway.program.output()


def test_16_a_page_knows_nobody_whose_token_was_taken_out_of_the_file(programs: Programs, site: Site) -> None:
    def write(**tokens: str) -> None:
        auth = {"tokens": tokens, "browser": {"mode": "token"}}
        server = {"url": "http://127.0.0.1:9/mcp", "auth": {"mode": "key", "header": "X-Key: {key}"}}
        site.file.write_text(json.dumps({"mcpServers": {"a": server}, "gateway": {"auth": auth}}))

    write(ann="token-of-ann", bob="token-of-bob", cid="token-of-cid")
    gateway = programs.gateway(site.file)
    page = gateway.endpoint().removesuffix("/mcp") + "/connect"
    with httpx2.Client() as ann, httpx2.Client() as bob, httpx2.Client() as cid:
        for browser, user in ((ann, "ann"), (bob, "bob"), (cid, "cid")):
            fields = dict(re.findall('type="hidden" name="([^"]*)" value="([^"]*)"', browser.get(page).text))
            browser.post(page, data=fields | {"token": f"token-of-{user}"})
            assert "Connect: a" in browser.get(page).text
        write(bob="token-of-bob", cid="another-token-of-cid")
        gateway.program.send(signal.SIGHUP)
        gateway.program.wait_output("configuration_reloaded")
        assert "Who are you?" in ann.get(page).text
        assert "Who are you?" in cid.get(page).text
        assert "Connect: a" in bob.get(page).text


def test_16_a_page_knows_nobody_whose_issuer_was_taken_out_of_the_file(programs: Programs, site: Site) -> None:
    def write(*issuers: str) -> None:
        proxy = {"mode": "proxy", "header": "X-User", "from": ["127.0.0.1"]}
        auth = {"issuers": [{"issuer": issuer} for issuer in issuers], "browser": proxy}
        server = {"url": "http://127.0.0.1:9/mcp", "auth": {"mode": "key", "header": "X-Key: {key}"}}
        site.file.write_text(json.dumps({"mcpServers": {"a": server}, "gateway": {"auth": auth}}))

    write("https://one.test", "https://two.test")
    gateway = programs.gateway(site.file)
    page = gateway.endpoint().removesuffix("/mcp") + "/connect"
    ann, bob = ({"X-User": f"https://{user}"} for user in ("one.test#ann", "two.test#bob"))
    assert all("Connect: a" in httpx2.get(page, headers=who).text for who in (ann, bob))
    write("https://two.test")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    assert "Not for you" in httpx2.get(page, headers=ann).text
    assert "Connect: a" in httpx2.get(page, headers=bob).text


def test_a_page_goes_by_the_issuers_and_the_groups_of_tokens_that_a_reload_has_named(
    programs: Programs, site: Site
) -> None:
    def write(group: str, issuer: str) -> None:
        proxy = {"mode": "proxy", "header": "X-User", "from": ["127.0.0.1"]}
        tokens = {"ann": {"token": "token-of-ann", "groups": [group]}}
        whom = ({"groups": ["dev"]}, {"principals": [f"{issuer}#bob"]})
        policy = [{"who": who, "allow": ["*:*"]} for who in whom]
        auth = {"issuers": [{"issuer": issuer}], "tokens": tokens, "browser": proxy}
        server = {"url": "http://127.0.0.1:9/mcp", "auth": {"mode": "key", "header": "X-Key: {key}"}}
        config = {"mcpServers": {"a": server}, "gateway": {"auth": auth, "policy": policy}}
        site.file.write_text(json.dumps(config))

    def shown() -> list[bool]:
        users = ("ann", "https://one.test#bob", "https://two.test#bob")
        return ["Connect: a" in httpx2.get(page, headers={"X-User": user}).text for user in users]

    write("ops", "https://one.test")
    gateway = programs.gateway(site.file)
    page = gateway.endpoint().removesuffix("/mcp") + "/connect"
    assert shown() == [False, True, False]
    write("dev", "https://two.test")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    assert shown() == [True, False, True]


def test_whoever_signs_in_to_a_page_is_sent_to_an_issuer_that_is_in_force(programs: Programs, site: Site) -> None:
    def write(issuer: str) -> None:
        auth = {"issuers": [{"issuer": issuer}], "browser": {"mode": "oidc", "clientId": "pages"}}
        server = {"url": "http://127.0.0.1:9/mcp", "auth": {"mode": "key", "header": "X-Key: {key}"}}
        said = {"auth": auth, "publicUrl": issuer.replace("://", "://mcp.")}
        site.file.write_text(json.dumps({"mcpServers": {"a": server}, "gateway": said}))

    def shown(issuer: str) -> None:
        assert f"who you are at {issuer}" in httpx2.get(page).text
        assert httpx2.get(f"{page}/client-metadata.json").json()["client_id"].startswith(f"https://mcp.{issuer}/")

    write("https://one.test")
    gateway = programs.gateway(site.file)
    page = gateway.endpoint().removesuffix("/mcp") + "/connect"
    shown("one.test")
    write("https://two.test")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    shown("two.test")


def test_the_first_server_with_accounts_of_users_needs_no_restart(programs: Programs, site: Site) -> None:
    def write(**servers: Any) -> None:
        auth = {"tokens": {"ann": "token-of-ann"}}
        servers["versions"] = {"native": "servers.py:one"}
        site.file.write_text(json.dumps({"mcpServers": servers, "gateway": {"auth": auth}}))

    write()
    gateway = programs.gateway(site.file)
    page = gateway.endpoint().removesuffix("/mcp") + "/connect"
    assert httpx2.get(page).status_code == 404
    done = [0.0]

    def reloaded(**servers: Any) -> None:
        write(**servers)
        gateway.program.send(signal.SIGHUP)
        done[0] += 1
        until(lambda: metric(gateway, outcome("reloaded")) == done[0])

    reloaded(a={"command": "true", "auth": {"mode": "key", "variable": "KEY"}})
    assert "Who are you?" in httpx2.get(page).text
    session = RawSession(gateway.endpoint(), "token-of-ann")
    listed = session.ask(1, "tools/list")["result"]["tools"]
    (ours,) = (tool["name"] for tool in listed if tool["name"].endswith("__connect"))
    assert page in json.dumps(session.ask(2, "tools/call", {"name": ours}))
    reloaded()
    assert httpx2.get(page).status_code == 404


def test_a_file_that_is_watched_is_read_anew_when_it_is_whole(programs: Programs, site: Site) -> None:
    # As Kubernetes mounts it: the file is a link into a folder that is a link, and that one is swapped.
    for name, version in (("a", "one"), ("b", "two")):
        (site.folder / name).mkdir()
        (site.folder / name / "servers.py").symlink_to(site.folder / "servers.py")
        site.write(version)
        os.replace(site.file, site.folder / name / "stagedoor.json")
    (site.folder / "..data").symlink_to("a")
    site.file.symlink_to("..data/stagedoor.json")
    gateway = programs.gateway(site.file, "--watch-config")
    held = RawSession(gateway.endpoint("versions"))
    assert version_at(held) == "1"
    (site.folder / "..new").symlink_to("b")
    os.replace(site.folder / "..new", site.folder / "..data")
    gateway.program.wait_output("configuration_reloaded")
    assert version_at(RawSession(gateway.endpoint("versions"))) == "2"
    assert version_at(held) == "1"
    (site.folder / "b" / "stagedoor.json").write_text("{ half of it")
    gateway.program.wait_output("configuration_refused")
    assert version_at(RawSession(gateway.endpoint("versions"))) == "2"


@pytest.mark.redis
def test_every_worker_has_the_same_whatever_becomes_of_it(programs: Programs, site: Site, redis_url: str) -> None:
    site.audited = site.folder / "audit.jsonl"
    site.write()
    gateway = programs.gateway(site.file, "--store", redis_url, "--workers", "2")
    pids = {worker["pid"] for worker in until(lambda: ready(gateway))}
    held = [RawSession(gateway.endpoint("versions")) for _ in range(4)]
    assert {version_at(session) for session in held} == {"1"}
    stagedoor("pin", site.file, check=True)
    site.write("two", pins={"mode": "block"})
    where = ["--against", gateway.endpoint(), "--admin", gateway.admin]
    told = stagedoor("check", site.file, *where, check=True)
    assert "  changed: versions (native)\n" in told.stdout
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_reloaded")
    assert {version_at(RawSession(gateway.endpoint("versions"))) for _ in range(8)} == {"2"}
    assert tools_at(gateway) == {("version_of",)}, "what is new is held back by every worker"
    stagedoor("pin", "--accept", site.file, check=True)
    gateway.program.send(signal.SIGHUP)
    until(lambda: metric(gateway, outcome("reloaded")) == 2.0)
    assert tools_at(gateway) == {("version_of", "more")}
    assert {worker["pid"] for worker in until(lambda: ready(gateway))} == pids
    site.file.write_text("{ half of it")
    gateway.program.send(signal.SIGHUP)
    gateway.program.wait_output("configuration_refused")
    # What stands in the file is nobody's while it is not in force: also of one that is started now. (A killed process
    # takes the last lines of its trail along: those of the reloads are waited for.)
    until(lambda: reloads_told(site.audited).count(("supervisor", "reloaded")) == 4)
    os.kill(min(pids), signal.SIGKILL)
    until(lambda: (now := ready(gateway)) and len({worker["pid"] for worker in now} - pids) == 1)
    assert {version_at(RawSession(gateway.endpoint("versions"))) for _ in range(8)} == {"2"}
    gateway.program.send(signal.SIGUSR2)
    gateway.program.wait_output("rolling_restart_failed")
    assert metric(gateway, outcome("reloaded")) == 2.0
    assert gateway.program.stop() == 0
    # Each process has a chain. That of the supervisor says by what a reload came, and what no worker has heard of.
    told = [json.loads(line) for line in site.audited.read_bytes().splitlines()]
    reloads = reloads_told(site.audited)
    assert reloads.count(("supervisor", "reloaded")) == 4
    assert [of[1] for of in reloads if of[0] == "signal"] == ["reloaded", "reloaded", "refused", "refused"]
    assert len({line["id"].partition(".")[0] for line in told}) == 4
    # Of several processes in one file only each one's own lines are in order.
    of_processes: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for line in told:
        if line["event"] == "process":
            said = (line["action"], line.get("outcome"), line.get("reason"))
            of_processes.setdefault(line["id"].partition(".")[0], []).append(said)
    drain = ("drain", None, "SIGTERM")
    supervisors = [("died", None, "signal 9"), ("roll", "refused", None), drain]
    assert sorted(of_processes.values(), key=len) == [[drain], [drain], supervisors]
    assert {line["pid"] for line in told if line.get("action") == "died"} <= pids


def reloads_told(trail: Path | None) -> list[tuple[str, str]]:
    """By what reloads came, and what became of them."""
    assert trail is not None
    lines = map(json.loads, trail.read_bytes().split(b"\n")[:-1])
    return [(line["by"], line["outcome"]) for line in lines if line["event"] == "policy.reload"]


def tools_at(gateway: Gateway) -> set[tuple[str, ...]]:
    """What sessions are shown, of which either worker has some."""
    return {tuple(RawSession(gateway.endpoint("versions")).tools()) for _ in range(8)}


def ready(gateway: Gateway) -> list[dict[str, Any]]:
    """The workers, if both are ready."""
    with urllib.request.urlopen(f"{gateway.admin}/readyz?verbose", timeout=PATIENCE) as answer:
        workers = json.load(answer)["workers"]
    return [worker for worker in workers if worker["ready"]] if sum(w["ready"] for w in workers) == 2 else []
