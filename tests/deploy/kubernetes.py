"""As much of a Kubernetes API as helm needs to install and upgrade a release: discovery, and objects that are created,
read, listed by label, patched, replaced and deleted, and its own records. It checks nothing and runs nothing."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {
    "v1": ["Secret", "Service", "ConfigMap", "ServiceAccount", "Pod"],
    "apps/v1": ["Deployment", "StatefulSet"],
    "networking.k8s.io/v1": ["Ingress", "NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
}
PATH = re.compile(r"/(?:api|apis)/(?P<group>.+?)/namespaces/[^/]+/(?P<resource>[a-z]+)(?:/(?P<name>[^/?]+))?$")


def plural(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386); of a strategic one it does what matters here, since all lists come whole."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    done = dict(old)
    for key, value in patch.items():
        if value is None:
            done.pop(key, None)
        elif not key.startswith("$"):
            done[key] = merged(old.get(key), value)
    return done


PROTOBUF = b"k8s\0"
"""What messages in protocol buffers begin with: helm writes its own records so, each as a Secret."""


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The numbers and values of a message's fields that have a length; the others are passed over."""

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    at = 0
    while at < len(data):
        key = number()
        if key & 7 == 2:
            length = number()
            yield key >> 3, data[at : at + length]
            at += length
        else:
            assert key & 7 == 0, "no number of fixed length is expected"
            number()


def secret_of(data: bytes) -> dict[str, Any]:
    """A Secret from protocol buffers, as JSON has it (k8s.io/api/core/v1/generated.proto)."""
    raw = dict(_fields(data.removeprefix(PROTOBUF)))[2]
    metadata: dict[str, Any] = {}
    values: dict[str, str] = {}
    kind = "Opaque"
    for field, content in _fields(raw):
        if field == 1:
            for number, value in _fields(content):
                if number in (1, 3):
                    metadata["name" if number == 1 else "namespace"] = value.decode()
                elif number == 11:
                    entry = dict(_fields(value))
                    metadata.setdefault("labels", {})[entry[1].decode()] = entry[2].decode()
        elif field == 2:
            entry = dict(_fields(content))
            values[entry[1].decode()] = base64.b64encode(entry[2]).decode()
        elif field == 3:
            kind = content.decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": values, "type": kind}


class Objects:
    """What the cluster holds."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str], dict[str, Any]] = {}

    def secret(self, name: str) -> dict[str, str]:
        """A Secret's values."""
        data = self.by_place["secrets", name].get("data", {})
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def names(self, resource: str) -> set[str]:
        return {name for kind, name in self.by_place if kind == resource}


class _Handler(BaseHTTPRequestHandler):
    objects: Objects
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/version":
            self._answer({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path == "/api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": [*map(_group, KINDS)][1:]})
        elif (version := re.sub(r"^/apis?/", "", path)) in KINDS:
            resources = [
                {"name": plural(kind), "kind": kind, "namespaced": True, "verbs": ["get", "list", "create", "patch"]}
                for kind in KINDS[version]
            ]
            self._answer(
                {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
            )
        elif found := PATH.match(path):
            self._read(found["resource"], found["name"])
        else:
            self._missing(path)

    def _read(self, resource: str, name: str | None) -> None:
        if name is not None:
            held = self.objects.by_place.get((resource, name))
            self._answer(held) if held else self._missing(name)
            return
        wanted = parse_qs(urlsplit(self.path).query).get("labelSelector", [""])[0]
        pairs = dict(pair.split("=", 1) for pair in wanted.split(",") if "=" in pair)
        items = [
            held
            for (kind, _), held in self.objects.by_place.items()
            if kind == resource and pairs.items() <= held["metadata"].get("labels", {}).items()
        ]
        (kind,) = [kind for kinds in KINDS.values() for kind in kinds if plural(kind) == resource]
        self._answer({"kind": f"{kind}List", "apiVersion": "v1", "items": items})

    def do_POST(self) -> None:
        given = self._body()
        found = PATH.match(urlsplit(self.path).path)
        assert found is not None
        self._keep(found["resource"], given, 201)

    def do_PUT(self) -> None:
        found = PATH.match(urlsplit(self.path).path)
        assert found is not None
        self._keep(found["resource"], self._body(), 200)

    def do_PATCH(self) -> None:
        found = PATH.match(urlsplit(self.path).path)
        assert found is not None
        patch = self._body()
        held = self.objects.by_place.get((found["resource"], found["name"]))
        if held is None:
            self._missing(found["name"])
        else:
            self._keep(found["resource"], merged(held, patch), 200)

    def do_DELETE(self) -> None:
        self._body()
        found = PATH.match(urlsplit(self.path).path)
        assert found is not None
        held = self.objects.by_place.pop((found["resource"], found["name"]), None)
        self._answer({"kind": "Status", "status": "Success"}) if held else self._missing(found["name"])

    def _keep(self, resource: str, given: dict[str, Any], status: int) -> None:
        for key, value in given.pop("stringData", {}).items():
            given.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
        given["metadata"].setdefault("uid", given["metadata"]["name"])
        given["metadata"]["resourceVersion"] = str(int(given["metadata"].get("resourceVersion", "0")) + 1)
        self.objects.by_place[resource, given["metadata"]["name"]] = given
        self._answer(given, status)

    def _body(self) -> dict[str, Any]:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if data.startswith(PROTOBUF):
            return secret_of(data)
        given: dict[str, Any] = json.loads(data) if data else {}
        return given

    def _missing(self, what: str) -> None:
        said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        self._answer({**said, "message": f"{what} not found"}, 404)

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _group(version: str) -> dict[str, Any]:
    entry = {"groupVersion": version, "version": version.rpartition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [entry], "preferredVersion": entry}


@contextmanager
def open_kubernetes(folder: Path) -> Iterator[Objects]:
    """A cluster with nothing in it; `kubeconfig` in the folder is how clients find it."""
    objects = Objects()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": objects}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kubeconfig = folder / "kubeconfig"
    cluster = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
    users = [{"name": "test", "user": {"token": "of-a-test"}}]
    whole = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
    kubeconfig.write_text(json.dumps({**whole, "clusters": [cluster], "contexts": [context], "users": users}))
    kubeconfig.chmod(0o600)
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
