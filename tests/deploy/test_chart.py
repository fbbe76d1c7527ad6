"""helm/stagedoor, rendered by the real helm over the sets of values in `ci/`."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import load
from gateway.lifecycle import longest_drain
from gateway.version import VERSION
from gateway.working import ends_within
from tests.deploy.chart import CHART, NAMESPACE, RELEASE, SETS, Rendered, named, of_set, rendered, run_helm, template
from tests.deploy.kubernetes import open_kubernetes
from tests.support.processes import NODE_PACKAGES, ROOT, need

TO_SPARE = 2
"""Seconds of terminationGracePeriodSeconds beyond what the gateway may need."""
KEY = "a" * 64


def settings_of(found: Rendered, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the gateway makes of the configuration in the Secret, with variables as the pod has them."""
    for name, value in {
        "STAGEDOOR_KEY_1": KEY,
        "STAGEDOOR_KEY_2": "b" * 64,
        "STAGEDOOR_STORE": "redis://127.0.0.1:6379/0",
        "GITHUB_TOKEN": "x",
        "ANN_TOKEN": "a" * 32,
        "CI_TOKEN": "c" * 32,
        "STAGEDOOR_POD": "rel-stagedoor-7d9f",
    }.items():
        monkeypatch.setenv(name, value)
    file = folder / "stagedoor.json"
    file.write_text(json.dumps(found.config))
    if lock := found.one("Secret", "-config")["stringData"].get("stagedoor.lock"):
        (folder / "stagedoor.lock").write_text(lock)
    return load(file).settings


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    for path in SETS:
        done = run_helm("lint", "--strict", str(CHART), "--values", str(path), "--kube-version", "1.34.0")
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_manifest_is_one_by_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    validate = ROOT / ".venv-deploy" / "bin" / "kubernetes-validate"
    need(validate.exists(), "the tools of tests/deploy are")
    custom = ("monitoring.coreos.com", "gateway.networking.k8s.io")
    files = []
    for path in SETS:
        plain = [one for one in of_set(path).manifests if not one["apiVersion"].startswith(custom)]
        assert len(plain) >= 6
        files.append(tmp_path / path.name)
        files[-1].write_text(yaml.safe_dump_all(plain))
    for version in ("1.30", "1.34"):
        command = [validate, "--strict", "--quiet", "--kubernetes-version", version, *files]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def validated(manifests: list[dict[str, Any]]) -> dict[str, str]:
    """What the schemas of custom resources say, by kind."""
    node, models = NODE_PACKAGES / ".bin" / "node", ROOT / "tests/deploy/models"
    need(node.exists() and (models / "node_modules").exists(), "the packages of tests/deploy/models are")
    command = [node, models / "validate.mjs"]
    done = subprocess.run(command, input=json.dumps(manifests), capture_output=True, text=True, check=True)
    return {one["kind"]: one["said"] for one in map(json.loads, done.stdout.splitlines())}


def test_custom_resources_are_ones_by_the_schemas_of_their_makers() -> None:
    manifests = [one for path in SETS for one in of_set(path).manifests]
    said = validated(manifests)
    assert said == {"ServiceMonitor": "ok", "PrometheusRule": "ok", "HTTPRoute": "ok"}
    monitor = named("cluster").one("ServiceMonitor")
    broken = {**monitor, "spec": {**monitor["spec"], "endpoints": "none"}}
    assert validated([broken])["ServiceMonitor"] != "ok", "the schemas let anything through"


def test_values_that_the_chart_does_not_know_are_refused() -> None:
    for wrong in ("replicas=3", "config.gateway.listen=0.0.0.0:1", "image.pullPolicy=Sometimes", "service.port=0"):
        done = template("--set", wrong)
        assert done.returncode != 0, wrong
        assert wrong.partition("=")[0].rpartition(".")[2] in done.stderr or "gateway" in done.stderr, done.stderr


def test_servers_that_anybody_could_use_are_refused_unless_that_is_said() -> None:
    servers = ("--set", "config.mcpServers.a.url=http://a/mcp")
    assert "config.gateway.auth is missing" in template(*servers).stderr
    for said in ("auth.anonymous=true", "auth.tokens.ann=$${ANN}"):
        assert template(*servers, "--set", f"config.gateway.{said}").returncode == 0


def test_the_schema_knows_every_value_and_its_defaults_pass() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in schema["properties"][name] and name not in ("redis", "config"):
            assert value.keys() == schema["properties"][name]["properties"].keys(), name


def test_the_chart_is_for_this_version_of_the_gateway() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION


@pytest.mark.parametrize("path", [path for path in SETS if "secrets" not in path.name], ids=lambda path: path.stem)
def test_a_pod_has_the_time_that_the_gateway_may_need_to_drain(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_set(path)
    settings = settings_of(found, tmp_path, monkeypatch)
    drain = ends_within(settings.limits) if settings.workers > 1 else longest_drain(settings.limits)
    pre_stop = int(found.container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert found.pod["terminationGracePeriodSeconds"] == math.ceil(pre_stop + drain + TO_SPARE)


def test_replicas_are_left_to_the_autoscaler_where_there_is_one() -> None:
    found = named("autoscaling")
    assert "replicas" not in found.deployment["spec"]
    scaler = found.one("HorizontalPodAutoscaler")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 12)
    assert scaler["scaleTargetRef"]["name"] == found.deployment["metadata"]["name"]
    cpu, sessions = scaler["metrics"]
    assert cpu["resource"]["target"]["averageUtilization"] == 70
    assert sessions["pods"] == {
        "metric": {"name": "stagedoor_sessions"},
        "target": {"type": "AverageValue", "averageValue": "2000"},
    }
    assert named("cluster").deployment["spec"]["replicas"] == 3
    assert not named("cluster").of("HorizontalPodAutoscaler")


def test_metrics_that_the_autoscaler_asks_for_exist() -> None:
    from actors.protocol.instruments import INSTRUMENTS

    metrics = named("autoscaling").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    names = {metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods"}
    assert names
    assert names <= INSTRUMENTS.keys()


def test_disruptions_are_bounded_above_one_replica() -> None:
    assert not named("default").of("PodDisruptionBudget")
    assert not named("external").of("PodDisruptionBudget"), "it was turned off"
    for several in ("cluster", "autoscaling", "secrets"):
        found = named(several)
        budget = found.one("PodDisruptionBudget")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == found.deployment["spec"]["selector"]


def test_several_replicas_without_a_store_are_refused() -> None:
    for several in (["replicaCount=2"], ["autoscaling.enabled=true"]):
        options = [word for value in (*several, "redis.enabled=false") for word in ("--set", value)]
        done = template(*options)
        assert done.returncode != 0
        assert "several replicas need a store" in done.stderr
    assert "exclude each other" in template("--set", "externalRedis.url=redis://x").stderr


def test_the_store_is_the_charts_redis_or_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(found: Rendered) -> Any:
        (variable,) = [one for one in found.container["env"] if one["name"] == "STAGEDOOR_STORE"]
        return variable.get("value") or variable["valueFrom"]["secretKeyRef"]

    own = named("default")
    assert (
        store(own) == f"redis://:$(STAGEDOOR_REDIS_PASSWORD)@{own.one('Service', '-redis')['metadata']['name']}:6379/0"
    )
    assert own.config["gateway"]["store"] == "${STAGEDOOR_STORE}"
    names = [variable["name"] for variable in own.container["env"]]
    assert names.index("STAGEDOOR_REDIS_PASSWORD") < names.index("STAGEDOOR_STORE"), "it can't refer to a later one"
    assert store(named("autoscaling")) == {"name": "redis-url", "key": "url"}
    external = named("external")
    assert store(external) == {"name": "rel-stagedoor-store", "key": "url"}
    assert external.one("Secret", "-store")["stringData"]["url"].startswith("rediss://user:secret@")
    for without in ("autoscaling", "external", "memory"):
        assert not named(without).of("StatefulSet")
    assert "STAGEDOOR_STORE" not in json.dumps(named("memory").manifests)
    assert settings_of(named("memory"), tmp_path, monkeypatch).store == "memory://"
    assert named("memory").deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_charts_redis_keeps_a_file_and_asks_for_a_password() -> None:
    found = named("default")
    redis = found.one("StatefulSet")["spec"]
    args = redis["template"]["spec"]["containers"][0]["args"]
    options = dict(zip(args[1::2], args[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--requirepass"] == "$(REDIS_PASSWORD)"
    assert redis["volumeClaimTemplates"]
    password = base64.b64decode(found.one("Secret", "-redis")["data"]["password"]).decode()
    assert password.isalnum(), "it stands in a URL"
    assert len(password) == 32
    assert ("my-redis", "password") in set(named("secrets").secret_references())


def test_what_is_configured_is_a_secret_that_the_gateway_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = named("cluster")
    settings = settings_of(found, tmp_path, monkeypatch)
    assert [*settings.table.backends] == ["github"]
    assert settings.auth.hosts == (
        "mcp.internal",
        "rel-stagedoor",
        "rel-stagedoor.prod",
        "rel-stagedoor.prod.svc",
        "rel-stagedoor.prod.svc.cluster.local",
        "mcp.example.com",
    )
    assert not found.of("ConfigMap") or "stagedoor.json" not in json.dumps(found.of("ConfigMap"))
    volumes = {volume["name"]: volume for volume in found.pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in found.container["volumeMounts"]}
    assert volumes["config"]["secret"]["secretName"] == "rel-stagedoor-config"
    assert f"--config={mounts['config']}/stagedoor.json" in found.container["args"]
    demo = settings_of(named("default"), tmp_path, monkeypatch)
    assert [*demo.table.backends] == ["demo", "notes"]
    assert "mcp.example.org" in settings_of(named("autoscaling"), tmp_path, monkeypatch).auth.hosts


def test_a_changed_configuration_is_rolled_out() -> None:
    sums = {
        rendered(*options).deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for options in ((), ("--set", "config.gateway.log.level=debug"))
    }
    assert len(sums) == 2


def test_what_was_accepted_lies_beside_the_configuration_and_is_rolled_out_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = named("cluster")
    settings = settings_of(found, tmp_path, monkeypatch)
    pins = settings.table.backends["github"].pins
    assert pins is not None
    assert pins.mode == "warn"
    assert pins.known
    (tmp_path / "other.lock").write_text('{"version": 2, "servers": {}}')
    other = rendered(
        "--values", str(CHART / "ci/cluster-values.yaml"), "--set-file", f"pins.lock={tmp_path}/other.lock"
    )
    sums = {one.deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for one in (found, other)}
    assert len(sums) == 2
    assert "into that Secret" in template("--set", "existingSecret=mine", "--set", "pins.lock=x").stderr


def test_each_pod_has_a_file_of_the_audit_trail_on_the_claim_or_for_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, volume in (
        ("cluster", {"persistentVolumeClaim": {"claimName": "audit-trail"}}),
        ("external", {"emptyDir": {}}),
    ):
        found = named(name)
        mounts = {mount["name"]: mount["mountPath"] for mount in found.container["volumeMounts"]}
        assert found.config["gateway"]["audit"]["file"] == mounts["audit"] + "/${STAGEDOOR_POD}.jsonl"
        assert {"name": "audit", **volume} in found.pod["volumes"]
        pod = {"name": "STAGEDOOR_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        assert pod in found.container["env"]
    settings = settings_of(named("cluster"), tmp_path, monkeypatch)
    assert str(settings.audit.file) == "/var/log/stagedoor/rel-stagedoor-7d9f.jsonl"
    assert "audit" not in named("default").config["gateway"]
    both = template("--set", "audit.enabled=true", "--set", "config.gateway.audit.file=/x")
    assert "exclude each other" in both.stderr
    assert "audit.enabled" in template("--set", "audit.existingClaim=x").stderr
    kept = rendered("--set", "audit.enabled=true", "--set", "config.gateway.audit.arguments=none")
    assert kept.config["gateway"]["audit"]["arguments"] == "none"


def test_secrets_of_ones_own_take_the_place_of_the_charts() -> None:
    found = named("secrets")
    assert not found.of("Secret")
    assert {volume.get("secret", {}).get("secretName") for volume in found.pod["volumes"]} >= {"my-config"}
    assert ("my-keys", "key-1") in set(found.secret_references())
    scaled = named("autoscaling")
    assert [*scaled.secret_references()][:2] == [("keys", "new"), ("keys", "old")]
    assert scaled.config["gateway"]["keys"] == ["${STAGEDOOR_KEY_1}", "${STAGEDOOR_KEY_2}"]


def test_pods_run_as_nobody_and_can_write_nowhere_but_in_their_own_volumes() -> None:
    for path in SETS:
        found = of_set(path)
        pods = [one["spec"]["template"]["spec"] for one in (*found.of("Deployment"), *found.of("StatefulSet"))]
        for pod in (*pods, *(one["spec"] for one in found.of("Pod"))):
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }
    user = named("default").pod["securityContext"]["runAsUser"]
    assert f"USER {user}:" in (ROOT / "Dockerfile").read_text()


def test_probes_ask_the_admin_listener_which_is_never_published() -> None:
    for path in SETS:
        found = of_set(path)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert found.container[probe]["httpGet"]["port"] == "admin"
        name = found.deployment["metadata"]["name"]
        public, admin = found.one("Service", name), found.one("Service", f"{name}-admin")
        assert [port["targetPort"] for port in public["spec"]["ports"]] == ["http"]
        assert admin["spec"]["type"] == "ClusterIP"
        ports = {port["name"]: port["containerPort"] for port in found.container["ports"]}
        assert {f"--listen=0.0.0.0:{ports['http']}", f"--admin=0.0.0.0:{ports['admin']}"} <= {*found.container["args"]}
    assert named("external").one("Service", "stagedoor")["spec"]["type"] == "LoadBalancer"


def test_pods_are_found_by_all_that_select_them() -> None:
    found = named("cluster")
    labels = found.deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found.deployment["spec"]["selector"]["matchLabels"],
        *(found.one("Service", name)["spec"]["selector"] for name in ("rel-stagedoor", "-admin")),
        found.one("NetworkPolicy", "-stagedoor")["spec"]["podSelector"]["matchLabels"],
        *(one["labelSelector"]["matchLabels"] for one in found.pod["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    tested = found.one("Pod")["metadata"]["labels"]
    assert not any(selector.items() <= tested.items() for selector in selectors), "requests would come to `helm test`"
    admin = found.one("Service", "-admin")["metadata"]["labels"]
    monitor = found.one("ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= admin.items()
    assert admin[monitor["jobLabel"]] == "stagedoor", "alerts look for a job of this name"
    assert (
        not monitor["selector"]["matchLabels"].items()
        <= found.one("Service", "rel-stagedoor")["metadata"]["labels"].items()
    )


def test_who_may_come_in_and_what_may_be_reached() -> None:
    policy = named("cluster").one("NetworkPolicy", "-stagedoor")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    http, admin = policy["ingress"]
    assert (http["ports"][0]["port"], admin["ports"][0]["port"]) == ("http", "admin")
    assert "ingress-nginx" in json.dumps(http["from"])
    assert "test" in json.dumps(http["from"]), "`helm test` could not come in"
    assert "monitoring" in json.dumps(admin["from"])
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 6379, 443]
    redis = named("cluster").one("NetworkPolicy", "-redis")["spec"]
    assert redis["ingress"][0]["from"][0]["podSelector"] == {
        "matchLabels": named("cluster").deployment["spec"]["selector"]["matchLabels"]
    }
    assert not named("default").of("NetworkPolicy")


def test_routes_lead_to_the_public_port_and_have_no_time_limit() -> None:
    ingress = named("cluster").one("Ingress")["spec"]
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": "rel-stagedoor", "port": {"name": "http"}}
    assert ingress["ingressClassName"] == "nginx"
    route = named("autoscaling").one("HTTPRoute")["spec"]
    assert route["hostnames"] == ["mcp.example.com", "mcp.example.org"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "rel-stagedoor", "port": 8080}]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}


def test_alerts_and_dashboards_are_those_of_the_tree() -> None:
    found = named("cluster")
    assert found.one("PrometheusRule")["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    maps = {name: text for one in found.of("ConfigMap") for name, text in one["data"].items()}
    boards = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in maps.items()} == boards
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in found.of("ConfigMap"))
    assert not named("default").of("ConfigMap")


def test_alerts_lead_to_where_their_paragraphs_are_read() -> None:
    page = "https://example.com/docs/operations.md"
    found = rendered("--set", f"prometheusRule.enabled=true,prometheusRule.runbookUrl={page}")
    rules = [rule for group in found.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    links = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert links == [f"{page}#{rule['alert'].lower()}" for rule in rules if "alert" in rule]
    assert template("--set", "prometheusRule.runbookUrl=operations").returncode != 0


@pytest.mark.parametrize("name", ["", "mcp", "my-stagedoor"])
def test_that_a_pod_is_down_is_noticed_by_whatever_name_it_is_scraped(name: str) -> None:
    found = rendered("--set", f"nameOverride={name},prometheusRule.enabled=true,serviceMonitor.enabled=true")
    monitor = found.one("ServiceMonitor")["spec"]
    (admin,) = [one for one in found.of("Service") if one["metadata"]["name"].endswith("-admin")]
    job = admin["metadata"]["labels"][monitor["jobLabel"]]
    rules = {rule["alert"]: rule["expr"] for rule in found.one("PrometheusRule")["spec"]["groups"][0]["rules"]}
    (jobs,) = re.findall(r'job=~"([^"]+)"', rules["StagedoorDown"])
    assert re.fullmatch(jobs, job)


def test_pods_are_spread_unless_one_says_how() -> None:
    spread = named("default").pod["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    (own,) = named("autoscaling").pod["topologySpreadConstraints"]
    assert own["whenUnsatisfiable"] == "DoNotSchedule"


def test_what_is_said_of_pods_comes_to_them() -> None:
    found = named("autoscaling")
    assert found.container["image"] == "registry.example.com/stagedoor:full"
    assert found.pod["imagePullSecrets"] == [{"name": "registry"}]
    assert found.pod["serviceAccountName"] == found.one("ServiceAccount")["metadata"]["name"] == "mcp"
    assert found.pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert found.pod["tolerations"][0]["key"] == "mcp"
    assert {"name": "data", "mountPath": "/data"} in found.container["volumeMounts"]
    about = found.deployment["spec"]["template"]["metadata"]
    assert about["labels"]["team"] == "platform"
    assert about["annotations"]["example.com/scrape"] == "no"
    assert named("secrets").pod["serviceAccountName"] == "shared"
    assert not named("secrets").of("ServiceAccount")


def test_helm_test_lists_the_tools_with_a_token_where_one_is_needed() -> None:
    def command(name: str) -> list[str]:
        (container,) = named(name).one("Pod")["spec"]["containers"]
        return list(container["command"])

    assert command("default") == ["stagedoor", "ls", "tools", "--url", "http://rel-stagedoor:8080/mcp"]
    assert command("cluster") == command("default")
    token = named("cluster").one("Pod")["spec"]["containers"][0]["env"][0]
    assert token["name"] == "STAGEDOOR_TOKEN"
    assert token["valueFrom"]["secretKeyRef"] == {"name": "tokens", "key": "ANN_TOKEN"}
    assert "/healthz" in command("autoscaling")[-1], "without a token there is nothing else to ask"
    assert "/healthz" in command("secrets")[-1], "nobody knows whether it needs one"
    assert named("default").one("Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_keys_and_passwords_are_made_once_and_kept_over_upgrades(tmp_path: Path) -> None:
    """By the real helm against an API that holds what it is given."""
    homes = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    where = {"KUBECONFIG": str(tmp_path / "kubeconfig"), **dict.fromkeys(homes, str(tmp_path))}

    def helm(*words: str) -> str:
        done = run_helm(*words, "--namespace", NAMESPACE, env=where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with open_kubernetes(tmp_path) as objects:
        said = helm("install", RELEASE, str(CHART), "--disable-openapi-validation")
        assert "demo servers" in said
        key, password = objects.secret("rel-stagedoor-sealing"), objects.secret("rel-redis")
        assert len(base64.b64decode(key["key-1"], validate=True)) == 32
        changes = ("--set", "replicaCount=2", "--set", "config.gateway.log.level=debug")
        helm("upgrade", RELEASE, str(CHART), "--disable-openapi-validation", *changes)
        assert objects.by_place["deployments", "rel-stagedoor"]["spec"]["replicas"] == 2
        assert '"level": "debug"' in objects.secret("rel-stagedoor-config")["stagedoor.json"]
        assert objects.secret("rel-stagedoor-sealing") == key
        assert objects.secret("rel-redis") == password
        helm("uninstall", RELEASE)
        assert "rel-stagedoor-config" not in objects.names("secrets")
        assert objects.secret("rel-stagedoor-sealing") == key, "what was sealed by a removed release is lost"
