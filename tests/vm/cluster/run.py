#!/usr/bin/env python3
"""The chart on a real Kubernetes node: `./test --kubernetes`.

    run.py --tools DIR --target DIR --images DIR --vng PROGRAM --out DIR

A control plane on loopback, a node in a guest with an NVMe disk and cgroup v2, and Weir installed there by helm from the images
that are given. Each step is a check of what a user would see; the first that fails ends the run. Everything said and done lies in
--out. Bounded: 25 minutes.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import manifests  # noqa: E402
from faults import CHART, MIB, NAMESPACE, RELEASE, Faults
from rig import API_PORT, HOST, NODE, Cluster, Failed, until

LIMIT, LATER = 5 * MIB, 6 * MIB
BUDGET = 25 * 60


class Run(Faults):
    def __init__(self, cluster, out):
        self.cluster, self.out = cluster, out
        self.passed = 0
        self.before = self.after = ""

    # Asking Weir.

    def weirctl(self, *arguments, check=True, stdin=None, token="admin", seconds=120):
        command = [
            self.cluster.target / "weirctl", "--server", f"https://localhost:{API_PORT}", "--tls-ca", self.out / "ca.crt",
            "--token-file", self.out / f"{token}.token", *arguments,
        ]
        return self.cluster.run(*command, check=check, stdin=stdin, seconds=seconds)

    def token(self, name, account="weir-admin"):
        kubectl = self.cluster.kubectl
        (self.out / f"{name}.token").write_text(kubectl("-n", NAMESPACE, "create", "token", account, "--audience", "weir"))

    def limit(self, name, cgroup, rate):
        intent = json.dumps(manifests.limit(name, cgroup, f"{rate // MIB}MiB"))
        said = self.weirctl("apply", "-f", "-", "--wait", "--timeout", "60s", stdin=intent).stdout
        if "applied" not in said:
            raise Failed(f"apply said: {said}")

    # Asking the node.

    def directory(self, pod, qos):
        uid = self.cluster.get("pod", pod)["metadata"]["uid"]
        return f"/kubepods/{qos}/pod{uid}"

    def io_max(self, cgroup):
        return self.cluster.in_guest(f"cat /sys/fs/cgroup{cgroup}/io.max").strip()

    def rate(self, cgroup, seconds=20):
        """Bytes per second that the kernel counted for a cgroup's reads of the NVMe disk."""
        read = f"sed -n 's/^259:0 .*rbytes=\\([0-9]*\\).*/\\1/p' /sys/fs/cgroup{cgroup}/io.stat"
        clock = "cut -d' ' -f1 /proc/uptime"
        said = self.cluster.in_guest(f"{clock}; {read}; sleep {seconds}; {clock}; {read}", seconds + 60).split()
        return (int(said[3]) - int(said[1])) / (float(said[2]) - float(said[0]))

    # The steps, in the order of main.

    def node_ready(self):
        def ready():
            self.cluster.alive()
            conditions = self.cluster.get("node", NODE)["status"]["conditions"]
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        until("the node is Ready", 300, ready, 3)
        self.cluster.apply([*manifests.dns(), manifests.volume()])
        self.cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s", seconds=200)
        return f"{NODE}, cgroup v2, an NVMe disk"

    def install(self):
        values = ["--set", "controller.store.embedded.storageClass=-", "--set", f"telemetry.otlpEndpoint=http://{HOST}:4317"]
        for part, image in (("controller", "weir-controller"), ("agent", "weir-agent"), ("weirctl", "weirctl")):
            values += ["--set", f"images.{part}.repository=localhost/{image}", "--set", f"images.{part}.pullPolicy=Never"]
        said = self.cluster.helm(
            "install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "6m", *values,
            seconds=400,
        ).stdout
        (self.out / "helm-install.txt").write_text(said)
        self.cluster.apply([manifests.node_port(NAMESPACE, RELEASE)])
        ca = self.cluster.get("-n", NAMESPACE, "configmap", f"{RELEASE}-ca")["data"]["ca.crt"]
        (self.out / "ca.crt").write_text(ca)
        self.token("admin")

        def ready():
            # helm waits for all but those that an update may take away, which of one agent is all.
            daemon_set = self.cluster.get("-n", NAMESPACE, "daemonset", f"{RELEASE}-agent")["status"]
            stateful_set = self.cluster.get("-n", NAMESPACE, "statefulset", f"{RELEASE}-controller")["status"]
            if (daemon_set["numberReady"], stateful_set.get("readyReplicas")) != (1, 1):
                raise Failed(f"agents {daemon_set}, controllers {stateful_set}")
            return True

        until("both workloads are ready", 180, ready, 2)
        return "agent 1/1, controller 1/1 ready"

    def helm_test(self):
        said = self.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "3m", seconds=240).stdout
        if "Phase:          Succeeded" not in said:
            raise Failed(said)
        return "Phase: Succeeded, so a pod resolved the service's name, verified its certificate and was admitted by its token"

    def sees_the_host(self):
        node = json.loads(self.weirctl("-o", "json", "get", "nodes", NODE).stdout)
        names = [device["kernelName"] for device in node["facts"]["devices"]]
        if node["phase"] != "NODE_PHASE_CONNECTED" or "nvme0n1" not in names:
            raise Failed(f"{node['phase']}, devices {names}")
        workloads = self.weirctl("-o", "json", "get", "workloads", NODE, "--cgroup", "/kubepods/**").stdout
        if "/kubepods/besteffort" not in workloads:
            raise Failed(f"workloads: {workloads[:500]}")
        return f"devices {', '.join(names)}; the host's cgroups below /kubepods"

    def rights(self):
        def can(account):
            user = f"system:serviceaccount:{NAMESPACE}:{account}"
            lines = self.cluster.kubectl("auth", "can-i", "--list", "--as", user, "-n", NAMESPACE).splitlines()[1:]
            return {" ".join(line.split()) for line in lines}

        everybody = can("default")
        lines = []
        for account in ("controller", "agent", "hooks", "admin"):
            more = can(f"{RELEASE}-{account}") - everybody
            wanted = {"tokenreviews.authentication.k8s.io [] [] [create]"} if account == "controller" else set()
            if more != wanted:
                raise Failed(f"{account} may {more}, and needs {wanted}")
            lines.append(f"{account}: {', '.join(sorted(more)) or 'nothing'}")
        return "beyond every account's: " + "; ".join(lines)

    def limited(self):
        self.cluster.apply([manifests.reader("limited"), manifests.reader("neighbour", {"cpu": "10m"})])
        self.cluster.kubectl("wait", "--for=condition=Ready", "pod/limited", "pod/neighbour", "--timeout=120s", seconds=150)
        self.pod, self.other = self.directory("limited", "besteffort"), self.directory("neighbour", "burstable")
        self.before = self.io_max(self.pod)
        if self.before:
            raise Failed(f"io.max before: {self.before}")
        free = self.rate(self.pod, 5)
        if free < 2 * LIMIT:
            raise Failed(f"unlimited it reads {free:.0f} B/s: too little to limit")
        self.limit("reader", self.pod, LIMIT)
        self.while_limited = self.io_max(self.pod)
        if f"rbps={LIMIT} " not in self.while_limited + " ":
            raise Failed(f"io.max: {self.while_limited}")
        # The first slices' burst is over then.
        time.sleep(3)
        achieved, others = self.rate(self.pod), self.rate(self.other, 5)
        error = achieved / LIMIT - 1
        if abs(error) > 0.05:
            raise Failed(f"achieved {achieved:.0f} of {LIMIT} B/s")
        if self.io_max(self.other) or others < 2 * LIMIT:
            raise Failed(f"the neighbour: {self.io_max(self.other)!r}, {others:.0f} B/s")
        (self.out / "watch.txt").write_text(self.weirctl("watch", "--for", "3s", check=False).stdout)
        return (
            f"io.max {self.while_limited!r}; {free:.0f} B/s before, {achieved:.0f} B/s of {LIMIT} ({error:+.2%}) by io.stat; "
            f"the neighbour has no limit and reads {others:.0f} B/s"
        )

    def upgrade(self):
        # Looks at io.max until told to end: there must be no moment without a limit.
        looks = f"(until [ -e /tmp/looked ]; do cat /sys/fs/cgroup{self.pod}/io.max; echo; done | sort | uniq -c >/tmp/looks) &"
        self.cluster.in_guest(f"rm -f /tmp/looked; {looks}")
        args = ["upgrade", RELEASE, CHART, "--namespace", NAMESPACE, "--reuse-values", "--set", "agent.labels.upgraded=yes"]
        env_args = [self.cluster.tools / "helm", *args, "--wait", "--timeout", "5m", "--kubeconfig", self.out / "kubeconfig"]
        upgrade = self.cluster.start("helm-upgrade", *env_args)
        time.sleep(1)
        self.limit("reader", self.pod, LATER)
        if upgrade.wait(320):
            raise Failed((self.out / "helm-upgrade.log").read_text())
        until("the new agent", 120, lambda: "upgraded" in self.weirctl("-o", "json", "get", "nodes", NODE).stdout, 2)
        until("the new limit", 60, lambda: f"rbps={LATER} " in self.io_max(self.pod) + " ", 2)
        said = self.cluster.in_guest("touch /tmp/looked; sleep 2; cat /tmp/looks; echo -- ; cat /tmp/looks | wc -l")
        seen = {line.split(None, 1)[1].strip() for line in said.split("--")[0].splitlines() if len(line.split(None, 1)) == 2}
        wanted = {f"259:0 rbps={rate} wbps=max riops=max wiops=max" for rate in (LIMIT, LATER)}
        if not seen <= wanted or not seen:
            raise Failed(f"io.max was {seen}")
        return f"an intent changed meanwhile; io.max was never anything but {sorted(seen)}"

    def trace(self):
        text, spans = self.jaeger_tree()
        (self.out / "trace.txt").write_text(text)
        return f"{spans} spans, one trace over controller and agent; it is in trace.txt:\n{text}"

    def uninstall(self):
        self.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "5m", seconds=400)
        self.after = self.io_max(self.pod)
        anywhere = self.cluster.in_guest("cat $(find /sys/fs/cgroup -name io.max)").strip()
        if anywhere:
            raise Failed(f"limits are left: {anywhere}")

        def gone():
            left = self.cluster.kubectl("get", "all,configmap,secret,serviceaccount,role,rolebinding,poddisruptionbudget", "-n", NAMESPACE, "-o", "name")
            # The pod of `helm test` is kept for its log.
            ours = ("serviceaccount/default", "service/from-outside", f"pod/{RELEASE}-test")
            left = [name for name in left.split() if "kube-root-ca" not in name and name not in ours]
            if left:
                raise Failed(f"objects are left: {left}")
            return True

        # helm waits for what it made, not for the pods that these had made.
        until("nothing is left", 90, gone, 2)
        return f"io.max {self.after!r}, no limit anywhere, no object of the chart left but its volume's claim"

    def evidence(self):
        """What it looks like, for whoever reads the logs later."""
        for name, arguments in {
            "objects.yaml": ["get", "all,configmap,serviceaccount,pvc,pv", "-A", "-o", "yaml"],
            "events.txt": ["get", "events", "-A"],
        }.items():
            (self.out / name).write_text(self.cluster.run(self.cluster.tools / "kubectl", "--request-timeout=10s", *arguments, check=False).stdout)

    def step(self, name, do, began):
        start = time.monotonic()
        said = do()
        now = time.monotonic()
        self.passed += 1
        print(f"{now - began:6.0f} s  {name} ({now - start:.0f} s): {said}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("--tools", "--target", "--images", "--vng", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--keep-going", action="store_true", help="leave the cluster up after a failure until Ctrl-C, to look at it")
    options = parser.parse_args()
    out = options.out.resolve()
    cluster = Cluster(options.tools.resolve(), options.target.resolve(), out, options.vng.absolute())
    run = Run(cluster, out)
    began, failed = time.monotonic(), ""

    def out_of_time(*_):
        # Nothing that waits and tries again takes this for a reason to.
        raise SystemExit(f"the whole run took more than {BUDGET} s")

    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.alarm(BUDGET)
    try:
        cluster.start("jaeger", cluster.tools / "jaeger")
        cluster.control_plane()
        cluster.node(sorted(options.images.resolve().glob("*.tar")))
        for name, do in (
            ("node", run.node_ready),
            ("helm install", run.install),
            ("helm test", run.helm_test),
            ("the agent sees its host", run.sees_the_host),
            ("rights", run.rights),
            ("a limited pod", run.limited),
            ("trace", run.trace),
            ("helm upgrade", run.upgrade),
            ("an agent without its mounts", run.agent_without_mounts),
            ("an image that is missing", run.missing_image),
            ("the API server is away", run.api_server_away),
            ("a drained node", run.drained),
            ("helm uninstall", run.uninstall),
        ):
            run.step(name, do, began)
    except (Failed, SystemExit, KeyboardInterrupt, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        failed = str(error) or type(error).__name__
        print(f"FAILED: {failed}", flush=True)
        if options.keep_going:
            signal.alarm(0)
            print(f"KUBECONFIG={out}/kubeconfig; Ctrl-C ends it", flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                pass
    finally:
        signal.alarm(0)
        try:
            run.evidence()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no evidence of the objects: {error}", flush=True)
        finally:
            cluster.close()
    print(f"io.max before={run.before!r} limited={getattr(run, 'while_limited', '')!r} after={run.after!r}")
    print(f"test result: {'FAILED' if failed else 'ok'}. {run.passed} passed; {1 if failed else 0} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
