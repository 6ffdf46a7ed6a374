"""The steps that take something away: each must end in a clear error, or in nothing lost."""

import json
import time
import urllib.request
from pathlib import Path

import manifests
from rig import NODE, Failed, until

NAMESPACE, RELEASE = "weir", "weir"
CHART = Path(__file__).resolve().parents[3] / "helm" / "weir"
MIB = 1 << 20
AWAY = 60


class Faults:
    def agent_without_mounts(self):
        daemon_set = self.cluster.get("-n", NAMESPACE, "daemonset", f"{RELEASE}-agent")
        path = "/sys/fs/cgroup"

        def without(mount):
            return None if mount["mountPath"] == path else mount

        def read_only(mount):
            return {**mount, "readOnly": True} if mount["mountPath"] == path else mount

        said = []
        for name, change, says in (
            ("no-cgroups", without, "mount the host's /sys/fs/cgroup"),
            ("read-only-cgroups", read_only, "mounted read-write"),
        ):
            self.cluster.apply([manifests.crippled_agent(daemon_set, name, change)])

            def ended(name=name):
                status = self.cluster.get("-n", NAMESPACE, "pod", name)["status"]["containerStatuses"][0]
                return status if status["state"].get("terminated") else None

            status = until(f"the agent {name} ends", 120, ended, 2)
            message = status["state"]["terminated"].get("message", "")
            if says not in message or status["ready"]:
                raise Failed(f"{name}: ready={status['ready']}, said {message!r}")
            self.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")
            said.append(f"{name}: not ready, its pod's status says {json.loads(message.strip().splitlines()[-1])['fields']['message']!r}")
        return "; ".join(said)

    def missing_image(self):
        before = self.io_max(self.pod)
        # helm lets as many agents be missing as an update may take away, here the only one: it is the pod that tells.
        upgrade = ["upgrade", RELEASE, CHART, "--namespace", NAMESPACE, "--reuse-values"]
        self.cluster.helm(*upgrade, "--set", "images.agent.tag=missing")

        def waiting():
            pods = self.cluster.get("-n", NAMESPACE, "pods", "-l", "app.kubernetes.io/component=agent")["items"]
            for status in (status for pod in pods for status in pod["status"].get("containerStatuses", [])):
                reason = status["state"].get("waiting", {}).get("reason", "")
                if "Image" in reason:
                    return reason
            return None

        reason = until("the pod says that its image is missing", 60, waiting, 2)
        # Nobody enforces now; the kernel still does.
        kept = self.io_max(self.pod)
        if kept != before:
            raise Failed(f"io.max {before} -> {kept}")
        self.cluster.helm("rollback", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "3m", seconds=240)
        until("the agent is back", 120, self.connected, 2)
        return f"the pod says {reason}, io.max stayed {kept!r}; rolled back"

    def connected(self):
        node = json.loads(self.weirctl("-o", "json", "get", "nodes", NODE).stdout)
        return node["phase"] == "NODE_PHASE_CONNECTED"

    def api_server_away(self):
        self.token("later")
        self.cluster.stop("apiserver", 60)
        began = time.monotonic()
        if not self.connected():
            raise Failed("the agent's session ended")
        # Who was known is still admitted; changes reach the kernel without the API server.
        self.limit("reader", self.pod, 4 * MIB)
        kept = self.io_max(self.pod)
        if f"rbps={4 * MIB} " not in kept + " ":
            raise Failed(f"io.max {kept}")
        turned_away = self.weirctl("nodes", token="later", check=False)
        if turned_away.returncode != 6 or "API server" not in turned_away.stderr:
            raise Failed(f"a new token: {turned_away.returncode}, {turned_away.stderr}")
        time.sleep(max(0.0, AWAY - (time.monotonic() - began)))
        if not self.connected():
            raise Failed("the agent's session ended")
        self.cluster.api_server()
        until("the new token is admitted", 60, lambda: self.weirctl("nodes", token="later").returncode == 0, 2)
        away = time.monotonic() - began
        return f"{away:.0f} s: the session went on, an intent reached the kernel, a new token was told to wait and admitted after"

    def drained(self):
        self.cluster.kubectl(
            "drain", NODE, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=180s", seconds=240
        )
        held = self.cluster.in_guest("cat $(find /sys/fs/cgroup -name io.max)").strip()
        if held:
            raise Failed(f"limits of pods that are gone: {held}")
        self.cluster.kubectl("uncordon", NODE)
        self.cluster.apply([manifests.reader("limited"), manifests.reader("neighbour", {"cpu": "10m"})])
        self.cluster.kubectl("wait", "--for=condition=Ready", "pod/limited", "pod/neighbour", "--timeout=180s", seconds=240)
        wait = ["wait", "--for=condition=Ready", "pod", "-l", "app.kubernetes.io/part-of=weir", "--timeout=240s"]
        self.cluster.kubectl("-n", NAMESPACE, *wait, "--field-selector=status.phase!=Succeeded", seconds=260)
        until("the agent is back", 180, self.connected, 2)
        self.pod, self.other = self.directory("limited", "besteffort"), self.directory("neighbour", "burstable")
        # This time by QoS class.
        self.limit("best-effort", "/kubepods/besteffort/pod*", 5 * MIB)
        there, none = self.io_max(self.pod), self.io_max(self.other)
        if f"rbps={5 * MIB} " not in there + " " or none:
            raise Failed(f"io.max {there!r}, of the neighbour {none!r}")
        return f"intents are still there; a limit by QoS class: io.max {there!r}, of a burstable pod {none!r}"

    # Traces.

    def jaeger(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:16686/api/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def jaeger_tree(self):
        """The trace by which the intent came, from Jaeger, as text; and its number of spans."""

        def found():
            for trace in self.jaeger("traces?service=weir-controller&limit=200"):
                names = {span["operationName"] for span in trace["spans"]}
                if any("CreateIntent" in name for name in names) and "kernel.write" in names:
                    return trace
            return None

        trace = until("a trace from the call to the kernel's write", 60, found, 2)
        spans = {span["spanID"]: span for span in trace["spans"]}
        children, roots = {}, []
        for span in sorted(spans.values(), key=lambda span: span["startTime"]):
            parents = [reference["spanID"] for reference in span["references"] if reference["refType"] == "CHILD_OF"]
            if parents and parents[0] not in spans:
                raise Failed(f"{span['operationName']} is an orphan")
            (children.setdefault(parents[0], []) if parents else roots).append(span)
        services = {key: process["serviceName"] for key, process in trace["processes"].items()}
        if set(services.values()) != {"weir-controller", "weir-agent"} or len(roots) != 1:
            raise Failed(f"{services}, {len(roots)} roots")
        lines = []

        def tell(span, depth):
            tags = {tag["key"]: tag["value"] for tag in span["tags"]}
            told = [f"{key}={tags[key]}" for key in ("weir.node", "weir.fence", "weir.answer", "file.path", "weir.value", "weir.read_back") if key in tags]
            lines.append(f"  {'  ' * depth}{services[span['processID']]}: {span['operationName']} {span['duration'] / 1000:.1f} ms {' '.join(told)}".rstrip())
            for child in children.get(span["spanID"], []):
                tell(child, depth + 1)

        tell(roots[0], 0)
        return "\n".join(lines), len(spans)
