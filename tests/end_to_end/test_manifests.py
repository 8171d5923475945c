"""Kubernetes manifests and the Helm chart: rendered by the real tools, valid for every version, and within our own policy."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from exporter import __version__, config
from tests.manifests import (
    CHART,
    KUSTOMIZE,
    OVERLAYS,
    ROOT,
    Object,
    exporter,
    helmed,
    kinds,
    kustomized,
    objects,
    one,
    pod_spec,
    run,
    templated,
)
from tests.tools import require

pytestmark = pytest.mark.end_to_end
VERSIONS = [v for v in kubernetes_validate.utils.all_versions() if int(v.split(".")[1]) >= 28]
CRDS = {
    kind: json.loads((ROOT / "tests" / "fixtures" / "crd" / f"{kind}.schema.json").read_text())
    for kind in ("PodMonitor", "PrometheusRule")
}
EVERYTHING = {"podMonitor.enabled": "true", "prometheusRule.enabled": "true", "dashboards.enabled": "true"}
# Overlay of kustomize -> values of the chart that mean the same.
TWINS = {
    "base": {"gpu.access": "environment"},
    "runtime-class": {"gpu.access": "runtimeClass"},
    "cdi": {"gpu.access": "cdi"},
    "host-library": {"gpu.access": "hostLibrary"},
    "pod-mapping": {"gpu.access": "environment", "podMapping.enabled": "true"},
    "host-network": {"gpu.access": "environment", "hostNetwork": "true"},
    "monitoring": {"gpu.access": "environment", **EVERYTHING},
    "complete": {"gpu.access": "runtimeClass", "podMapping.enabled": "true", **EVERYTHING},
}


@pytest.fixture(params=sorted(TWINS))
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["kustomize", "helm"])
def found(request: pytest.FixtureRequest, overlay: str) -> tuple[Object, ...]:
    return kustomized(overlay) if request.param == "kustomize" else helmed(TWINS[overlay])


def test_every_overlay_has_its_twin_in_the_chart() -> None:
    assert {*OVERLAYS, "base"} == set(TWINS)


def validate(document: Object, version: str) -> None:
    if document["kind"] in CRDS:
        jsonschema.Draft7Validator(CRDS[document["kind"]]).validate(document)
    else:
        kubernetes_validate.validate(document, version, strict=True)


def test_objects_are_valid_for_every_kubernetes_from_1_28_on(found: tuple[Object, ...]) -> None:
    assert len(VERSIONS) >= 4
    for version in (VERSIONS[0], VERSIONS[-1]):
        for document in found:
            validate(document, version)


def test_everything_at_once_is_valid_for_the_versions_between() -> None:
    for document in kustomized("complete"):
        for version in VERSIONS[1:-1]:
            validate(document, version)


@pytest.mark.parametrize(
    ("kind", "path", "key", "value"),
    [
        ("DaemonSet", ("spec", "template", "spec"), "tolerationz", []),
        ("DaemonSet", ("spec", "template", "spec"), "hostNetwork", "yes"),
        ("Service", ("spec",), "clusterIp", "None"),
        ("PodMonitor", ("spec",), "podMetricsEndpoint", []),
        ("PrometheusRule", ("spec", "groups", 0), "rulez", []),
    ],
)
def test_the_validation_finds_a_slip_of_the_pen(kind: str, path: tuple[str | int, ...], key: str, value: object) -> None:
    document = copy.deepcopy(next(o for o in kustomized("complete") if o["kind"] == kind))
    place = document
    for step in path:
        place = place[step]
    place[key] = value
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        validate(document, VERSIONS[-1])


def test_the_rules_are_those_of_deploy_prometheus_and_promtool_takes_them(
    found: tuple[Object, ...], overlay: str, tmp_path: Path
) -> None:
    rules = [o for o in found if o["kind"] == "PrometheusRule"]
    if overlay not in ("monitoring", "complete"):
        assert rules == []
        return
    shipped = [yaml.safe_load(p.read_text()) for p in sorted((ROOT / "deploy" / "prometheus").glob("overlap-*.yml"))]
    assert sorted((o["spec"] for o in rules), key=str) == sorted(shipped, key=str)
    for number, rule in enumerate(rules):
        path = tmp_path / f"{number}.yml"
        path.write_text(yaml.safe_dump(rule["spec"]))
        subprocess.run([require("promtool"), "check", "rules", str(path)], check=True, capture_output=True)


def test_dashboards_are_config_maps_for_grafanas_sidecar(found: tuple[Object, ...], overlay: str) -> None:
    maps = [o for o in found if o["kind"] == "ConfigMap" and "grafana_dashboard" in o["metadata"].get("labels", {})]
    files = sorted((ROOT / "dashboards").glob("*.json")) if overlay in ("monitoring", "complete") else []
    assert {k: json.loads(v) for o in maps for k, v in o["data"].items()} == {p.name: json.loads(p.read_text()) for p in files}
    assert all(o["metadata"]["labels"]["grafana_dashboard"] == "1" for o in maps)
    assert all(o["metadata"]["annotations"] == {"grafana_folder": "Overlap"} for o in maps)
    assert sum(len(v) for o in maps for v in o["data"].values()) < 900_000, "a release of Helm holds one megabyte at most"


def test_no_file_of_rules_is_forgotten() -> None:
    folder = ROOT / "deploy" / "prometheus"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert listed == sorted(p.name for p in folder.glob("prometheusrule-*.yml"))


# --- policy ------------------------------------------------------------------------------------------------------------

def test_the_container_has_no_right_that_its_purpose_does_not_need(found: tuple[Object, ...], overlay: str) -> None:
    spec, container = pod_spec(found), exporter(found)
    security = container["securityContext"]
    root = overlay in ("pod-mapping", "complete")
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security.get("privileged", False) is (overlay == "host-library")
    assert security["allowPrivilegeEscalation"] is (overlay == "host-library")
    assert spec["securityContext"]["runAsUser"] == (0 if root else 10001)
    assert spec["securityContext"]["runAsNonRoot"] is not root
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec.get("hostNetwork", False) is (overlay == "host-network")
    assert not {"hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    assert not [o for o in found if o["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret")]


def test_everything_of_the_node_is_mounted_read_only(found: tuple[Object, ...], overlay: str) -> None:
    spec, container = pod_spec(found), exporter(found)
    assert all(m["readOnly"] for m in container["volumeMounts"])
    wanted = {"/sys"}
    wanted |= {"/var/lib/kubelet/pod-resources"} if overlay in ("pod-mapping", "complete") else set()
    wanted |= {"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"} if overlay == "host-library" else set()
    assert {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v} == wanted
    assert {v["name"] for v in spec["volumes"]} == {m["name"] for m in container["volumeMounts"]}
    assert "--path.sysfs=/host/sys" in container["args"]


def test_all_gpus_are_shown_and_none_is_taken(found: tuple[Object, ...], overlay: str) -> None:
    container = exporter(found)
    for resources in container["resources"].values():
        assert set(resources) == {"cpu", "memory"}
    shown = {e["name"]: e["value"] for e in container["env"]}
    assert shown["NVIDIA_VISIBLE_DEVICES"] == ("void" if overlay in ("cdi", "host-library") else "all")
    annotations = one(found, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations.get("cdi.k8s.io/overlap-exporter") == ("nvidia.com/gpu=all" if overlay == "cdi" else None)
    assert pod_spec(found).get("runtimeClassName") == ("nvidia" if overlay in ("runtime-class", "complete") else None)
    assert ("--nvml.library=/host/nvml/libnvidia-ml.so.1" in container["args"]) is (overlay == "host-library")


def test_pods_are_probed_and_replaced_a_few_at_a_time(found: tuple[Object, ...]) -> None:
    container = exporter(found)
    assert container["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": "metrics"}
    assert one(found, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    priority = one(found, "PriorityClass")
    assert priority["preemptionPolicy"] == "Never", "a monitor must not be the reason that a job is evicted"
    assert pod_spec(found)["priorityClassName"] == priority["metadata"]["name"]
    assert pod_spec(found)["terminationGracePeriodSeconds"] > 5


def test_scrapes_name_the_node_and_a_fixed_job(found: tuple[Object, ...], overlay: str) -> None:
    if "PodMonitor" not in kinds(found):
        assert overlay not in ("monitoring", "complete")
        return
    monitor = one(found, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
        {"targetLabel": "job", "replacement": "overlap-exporter"},
        {"action": "labeldrop", "regex": "pod|container|endpoint"},
    ]
    for key in ("interval", "scrapeTimeout"):
        assert re.fullmatch(r"\d+s", endpoint[key])
    assert int(endpoint["scrapeTimeout"][:-1]) <= int(endpoint["interval"][:-1])
    labels = one(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    for selector in (monitor["selector"]["matchLabels"], one(found, "Service")["spec"]["selector"],
                     one(found, "DaemonSet")["spec"]["selector"]["matchLabels"],
                     one(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]):  # fmt: skip
        assert selector.items() <= labels.items()
    assert endpoint["port"] in {p["name"] for p in exporter(found)["ports"]}


def test_only_prometheus_may_ask_and_nothing_is_asked(found: tuple[Object, ...]) -> None:
    policy = one(found, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]


def test_the_settings_in_the_config_map_are_good_settings(found: tuple[Object, ...], overlay: str) -> None:
    (settings,) = (o["data"]["overlap-exporter.yml"] for o in found
                   if o["kind"] == "ConfigMap" and "overlap-exporter.yml" in o["data"])  # fmt: skip
    values = config.parse(yaml.safe_load(settings), "the config map")
    assert values.get("pods_socket") == ("/host/pod-resources/kubelet.sock" if overlay in ("pod-mapping", "complete") else None)


# --- the two ways are one ----------------------------------------------------------------------------------------------

def bare(document: Object) -> Object:
    """An object without what the two ways name or order differently: labels, selectors, namespaces, hashes, volumes."""
    document = copy.deepcopy(document)
    if document["kind"] == "DaemonSet":
        pod = document["spec"]["template"]["spec"]
        pod["volumes"].sort(key=lambda v: v["name"])
        for container in pod["containers"]:
            container["volumeMounts"].sort(key=lambda v: v["name"])
    for meta in (document["metadata"], document.get("spec", {}).get("template", {}).get("metadata", {})):
        meta.pop("labels", None)
        meta.pop("namespace", None)
        (meta.get("annotations") or {}).pop("checksum/settings", None)
    text = json.dumps(document, sort_keys=True)
    text = re.sub(r'"(selector|podSelector)": \{[^{}]*(\{[^{}]*\})?[^{}]*\}', r'"\1": {}', text)
    return dict(json.loads(re.sub(r"overlap-exporter-[a-z0-9]{10}\b", "overlap-exporter", text)))


def test_kustomize_and_helm_make_the_same_objects(overlay: str) -> None:
    ours = [bare(o) for o in kustomized(overlay) if o["kind"] not in ("Namespace", "ConfigMap", "PrometheusRule")]
    theirs = [bare(o) for o in helmed(TWINS[overlay]) if o["kind"] not in ("ConfigMap", "PrometheusRule")]
    assert sorted(ours, key=lambda o: o["kind"]) == sorted(theirs, key=lambda o: o["kind"])


def test_the_version_is_that_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert exporter(kustomized("base"))["image"] == f"registry.example.com/overlap-exporter:{__version__}"


def test_the_overlay_of_the_document_names_another_image(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"cat >kustomization.yaml <<END\n(.*?)END\n", page, re.DOTALL)
    shutil.copytree(KUSTOMIZE, tmp_path / "deploy" / "kubernetes")
    shutil.copytree(ROOT / "deploy" / "prometheus", tmp_path / "deploy" / "prometheus")
    shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(text)
    done = run("kubectl", "kustomize", str(tmp_path / "mine"))
    assert done.returncode == 0, done.stderr
    assert exporter(tuple(objects(done.stdout)))["image"] == f"REGISTRY/overlap-exporter:{__version__}"


# --- the chart by itself -----------------------------------------------------------------------------------------------

def test_the_chart_lints_and_says_what_to_do_next() -> None:
    assert run("helm", "lint", "--strict", str(CHART), "--set", "image.repository=r/x").returncode == 0
    notes = run("helm", "install", "overlap-exporter", str(CHART), "--dry-run=client", "--set", "image.repository=r/x",
                "--set", "podMapping.enabled=true")  # fmt: skip
    assert notes.returncode == 0, notes.stderr
    for expected in ("overlap-exporter doctor", "Nothing scrapes it yet", "user 0 without any capability", "gpu.access"):
        assert expected in notes.stdout


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "/image/repository"),
        ({"image.repository": "r/x", "image.digest": "latest"}, "/image/digest"),
        ({"image.repository": "r/x", "gpu.access": "magic"}, "/gpu/access"),
        ({"image.repository": "r/x", "port": "99999"}, "/port"),
        ({"image.repository": "r/x", "podMaping.enabled": "true"}, "podMaping"),
        ({"image.repository": "r/x", "podMonitor.interval": "often"}, "/podMonitor/interval"),
        ({"image.repository": "r/x", "config.path.sysfs": "/sys"}, "/config/path"),
        ({"image.repository": "r/x", "resources.limits.memory": "much"}, "/resources/limits/memory"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, str], told: str) -> None:
    done = templated(values)
    assert done.returncode != 0
    assert told in done.stderr


def test_another_release_another_port_and_a_digest_are_carried_through() -> None:
    digest = "sha256:" + "0" * 64
    done = templated({"image.repository": "r/x", "image.digest": digest, "port": "9000", "priorityClass.create": "false",
                      "priorityClass.name": "mine", "networkPolicy.enabled": "false"}, release="gpu")  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = tuple(objects(done.stdout))
    assert kinds(made) == ["ConfigMap", "DaemonSet", "Service", "ServiceAccount"]
    container = exporter(made)
    assert container["image"] == f"r/x@{digest}"
    assert "--web.listen-address=:9000" in container["args"]
    assert container["ports"][0]["containerPort"] == 9000
    assert pod_spec(made)["priorityClassName"] == "mine"
    assert {o["metadata"]["name"] for o in made} == {"gpu-overlap-exporter"}


def test_the_packaged_chart_holds_rules_and_dashboards_and_no_program(tmp_path: Path) -> None:
    assert run("helm", "package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (package,) = tmp_path.glob("*.tgz")
    names = subprocess.run(["tar", "tzf", str(package)], capture_output=True, text=True, check=True).stdout.split()
    assert {"overlap-exporter/rules/overlap-alerts.yml", "overlap-exporter/values.schema.json"} <= set(names)
    assert {Path(n).name for n in names if "/dashboards/" in n} == {p.name for p in (ROOT / "dashboards").glob("*.json")}
    assert not [n for n in names if n.endswith((".py", ".pyc"))]
