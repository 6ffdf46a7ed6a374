#!/usr/bin/env python3
"""Tests of the chart: lint, a matrix of values against golden manifests and against the schemas of two Kubernetes versions,
and values that must be refused. `./test helm` runs it.

    helm/test.py HELM          WEIR_UPDATE=1 writes the golden manifests anew

Needs kubernetes-validate and PyYAML (./test installs them). Writes nothing but helm/golden, and that only when told to.
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "weir"
# The oldest whose schemas are at hand, and the one that the real cluster of the tests runs.
VERSIONS = ("1.33", "1.36")
# Of operators, not of Kubernetes: there is no schema for them here, so they are only held against the golden manifests.
FOREIGN = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}

ETCD = {"type": "etcd", "etcd": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]}}
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

# Name of the golden manifest -> values.
MATRIX = {
    "default": {},
    "etcd": {"controller": {"replicas": 3, "store": ETCD}, "telemetry": {"otlpEndpoint": "http://otel:4317"}},
    "etcd-secured": {
        "controller": {
            "replicas": 2,
            "store": {
                "type": "etcd",
                "etcd": {
                    **ETCD["etcd"],
                    "prefix": "/fleet/weir",
                    "tlsSecret": "etcd-client",
                    "clientCertificate": True,
                    "user": "weir",
                    "passwordSecret": "etcd-password",
                },
            },
            "podDisruptionBudget": {"enabled": False},
        }
    },
    "existing-secret": {
        "tls": {"mode": "existingSecret", "existingSecret": "weir-cert"},
        "access": {
            "adminServiceAccount": False,
            "bindings": [{"client": "serviceaccount:ci/deployer", "role": "EDITOR", "projects": ["default"]}],
        },
    },
    "cert-manager": {
        "tls": {"mode": "certManager", "certManager": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}, "ca": CA},
    },
    "everything": {
        "fullnameOverride": "io-qos",
        "imagePullSecrets": [{"name": "registry"}],
        "images": {part: {"repository": f"registry.example/{part}", "tag": "1.2.3"} for part in ("controller", "agent", "weirctl")},
        "controller": {
            "store": {"embedded": {"size": "5Gi", "storageClass": "-"}},
            "extraArgs": ["--keep-revisions=500"],
            "env": [{"name": "RUST_LOG", "value": "debug"}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "control-plane", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "podAnnotations": {"a": "b"},
            "service": {"type": "NodePort", "annotations": {"c": "d"}},
            "logFormat": "text",
        },
        "agent": {
            "host": "all",
            "capabilities": ["DAC_OVERRIDE"],
            "seLinuxOptions": {"type": "spc_t"},
            "labels": {"pool": "nvme"},
            "extraArgs": ["--period-ms=500"],
            "env": [{"name": "RUST_LOG", "value": "debug"}],
            "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"a": "b"},
            "maxUnavailable": 2,
            "logFormat": "text",
        },
        "networkPolicy": {"enabled": True, "apiFrom": [{"namespaceSelector": {}}], "metricsFrom": [{"namespaceSelector": {}}]},
        "monitoring": {
            "serviceMonitors": {"enabled": True, "labels": {"release": "prom"}},
            "rules": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    },
    "least": {
        "agent": {"host": "none", "priorityClassName": "", "tolerations": [], "nodeSelector": {}},
        "releaseHook": {"enabled": False},
        "networkPolicy": {"enabled": True},
    },
}

# What is wrong -> values, and a part of what is said.
REFUSED = {
    "replicas on the embedded store": ({"controller": {"replicas": 2}}, "controller.store.type=etcd"),
    "etcd without endpoints": ({"controller": {"store": {"type": "etcd"}}}, "store.etcd.endpoints"),
    "etcd's user without a password": (
        {"controller": {"store": {"type": "etcd", "etcd": {"endpoints": ["e:2379"], "user": "u"}}}},
        "go together",
    ),
    "a client certificate from nowhere": (
        {"controller": {"store": {"type": "etcd", "etcd": {"endpoints": ["e"], "clientCertificate": True}}}},
        "tlsSecret",
    ),
    "an endpoint with a scheme": (
        {"controller": {"store": {"type": "etcd", "etcd": {"endpoints": ["http://e:2379"]}}}},
        "endpoints",
    ),
    "no secret": ({"tls": {"mode": "existingSecret"}}, "tls.existingSecret"),
    "no issuer": ({"tls": {"mode": "certManager"}}, "issuerRef.name"),
    "an unknown mode": ({"tls": {"mode": "none"}}, "tls"),
    "an authority that is no PEM": ({"tls": {"ca": "xyz"}}, "ca"),
    "a name that is not there": ({"controler": {"replicas": 1}}, "controler"),
    "a name that is not there, deeper": ({"agent": {"stateDirectory": "/x"}}, "stateDirectory"),
    "a number as text": ({"controller": {"replicas": "3"}}, "replicas"),
    "no replica": ({"controller": {"replicas": 0}}, "replicas"),
    "a relative directory": ({"agent": {"stateDir": "var"}}, "stateDir"),
    "an unknown role": ({"access": {"bindings": [{"client": "a", "role": "OWNER"}]}}, "role"),
    "a binding of nobody": ({"access": {"bindings": [{"role": "ADMIN"}]}}, "client"),
    "an empty audience": ({"tokenAudience": ""}, "tokenAudience"),
    "a time without meaning": ({"releaseHook": {"timeout": "soon"}}, "timeout"),
    "an unknown pull policy": ({"images": {"agent": {"repository": "a", "pullPolicy": "Sometimes"}}}, "pullPolicy"),
    "no repository": ({"images": {"agent": {"repository": ""}}}, "repository"),
    "an endpoint of traces without a scheme": ({"telemetry": {"otlpEndpoint": "otel:4317"}}, "otlpEndpoint"),
}


class Tests:
    def __init__(self, helm):
        self.helm, self.passed, self.failed = helm, 0, 0

    def check(self, name, problem):
        """`problem` is empty where all is well."""
        if problem:
            self.failed += 1
            print(f"test {name} ... FAILED\n{problem}")
        else:
            self.passed += 1
            print(f"test {name} ... ok")

    def template(self, values, version=VERSIONS[-1]):
        """Exit code, manifests, and what was said."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values, file)
            file.flush()
            command = [self.helm, "template", "weir", CHART, "--namespace", "weir-system", "--kube-version", version, "-f", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def masked(text):
    """What differs each time is made at install: keys and certificates."""
    text = re.sub(r"((?:tls\.crt|tls\.key|ca\.crt): )LS0[A-Za-z0-9+/=]+", r"\1GENERATED", text)
    return re.sub(r"-----BEGIN CERTIFICATE-----\n(?:\s+[A-Za-z0-9+/=]{20,}\n)+\s+-----END CERTIFICATE-----", "GENERATED", text)


def against_golden(name, text):
    path = HERE / "golden" / f"{name}.yaml"
    text = masked(text)
    if os.environ.get("WEIR_UPDATE"):
        path.write_text(text)
        return ""
    if not path.exists():
        return f"{path} is not there: WEIR_UPDATE=1 writes it"
    lines = difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), str(path), "now", lineterm="")
    return "\n".join(lines)


def against_schema(text, version):
    problems, seen = [], 0
    for document in yaml.safe_load_all(text):
        if not document or document["apiVersion"] in FOREIGN:
            continue
        seen += 1
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{document['kind']} {document['metadata']['name']}: {error.message} at {list(error.path)}")
    return "\n".join(problems) or ("" if seen > 10 else f"only {seen} manifests")


def rights(text):
    """Where the chart gives away more than it says: the rules that a reviewer would look for first."""
    problems = []
    for document in filter(None, yaml.safe_load_all(text)):
        kind, name = document["kind"], document["metadata"]["name"]
        if kind in ("ClusterRole", "Role"):
            for rule in document["rules"]:
                if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]:
                    problems.append(f"{kind} {name} has a wildcard")
        spec = document.get("spec", {})
        pod = spec if kind == "Pod" else spec.get("template", {}).get("spec", {})
        if not pod:
            continue
        if pod.get("automountServiceAccountToken") is not False:
            problems.append(f"{kind} {name} mounts the account's token")
        if any(pod.get(flag) for flag in ("hostNetwork", "hostPID", "hostIPC")):
            problems.append(f"{kind} {name} shares a namespace of the node")
        for container in pod["containers"]:
            security = container["securityContext"]
            if security.get("privileged") or security["allowPrivilegeEscalation"] is not False:
                problems.append(f"{kind} {name} may gain privileges")
            if security["capabilities"]["drop"] != ["ALL"] or not security["readOnlyRootFilesystem"]:
                problems.append(f"{kind} {name} keeps capabilities or writes its own files")
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        if kind == "DaemonSet" and any("tls.key" in str(secret) or not secret.get("items") for secret in secrets):
            problems.append("agents get the controllers' key")
    return "\n".join(problems)


def main():
    tests = Tests(sys.argv[1])
    lint = subprocess.run([tests.helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    tests.check("lint", "" if lint.returncode == 0 else lint.stdout + lint.stderr)
    for name, source in (("alerts.yaml", "monitoring"), ("dashboard.json", "monitoring")):
        same = (CHART / "files" / name).read_bytes() == (HERE.parent / source / name).read_bytes()
        tests.check(f"files/{name} is the one of {source}/", "" if same else f"cp {source}/{name} helm/weir/files/")
    rust = re.search(r'rust-version = "([^"]+)"', (HERE.parent / "Cargo.toml").read_text())[1]
    version = re.search(r'\nversion = "([^"]+)"', (HERE.parent / "Cargo.toml").read_text())[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    tests.check("the chart's versions are the programs'", "" if {chart["version"], chart["appVersion"]} == {version} else str(chart))
    for part in ("controller", "agent", "weirctl"):
        text = (HERE / "images" / f"Dockerfile.{part}").read_text()
        tests.check(f"Dockerfile.{part} builds with the toolchain", "" if f"FROM rust:{rust}-" in text else f"not {rust}")
    for name, values in MATRIX.items():
        code, text, said = tests.template(values)
        tests.check(f"{name}: rendered", said if code else "")
        if code:
            continue
        tests.check(f"{name}: as golden/{name}.yaml", against_golden(name, text))
        tests.check(f"{name}: rights", rights(text))
        for version in VERSIONS:
            _, text, _ = tests.template(values, version)
            tests.check(f"{name}: schemas of Kubernetes {version}", against_schema(text, version))
    _, old, _ = tests.template({}, "1.29")
    reads_pods = "resources: [pods]" in old
    tests.check("before 1.30 the controller may look up pods", "" if reads_pods else "it may not")
    _, new, _ = tests.template({})
    tests.check("from 1.30 on it may not", "it may" if "resources: [pods]" in new else "")
    for name, (values, says) in REFUSED.items():
        code, _, said = tests.template(values)
        tests.check(f"refused: {name}", "" if code and says in said else f"code {code}, said: {said}")
    word = "ok" if tests.failed == 0 else "FAILED"
    print(f"test result: {word}. {tests.passed} passed; {tests.failed} failed")
    sys.exit(1 if tests.failed else 0)


if __name__ == "__main__":
    main()
