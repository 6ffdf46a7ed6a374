"""The cluster: a control plane on loopback, a node in a guest, and how to ask and tell them things.

Starts processes of its own alone, and ends them by their pids. Everything lies in one directory, which is the evidence.
"""

import json
import os
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

NODE = "weir-node"
# Where the guest sees this machine's loopback, and where its ports are seen from here.
HOST = "10.0.2.2"
API_PORT = 15742
NODE_PORT = 30742


class Failed(Exception):
    """A step did not come out as it must."""


def until(what, seconds, look, every=1.0):
    """Looks until something true comes back; the last exception is the reason where nothing does."""
    deadline, reason = time.monotonic() + seconds, "it is not so"
    while time.monotonic() < deadline:
        try:
            found = look()
            if found:
                return found
        except (subprocess.SubprocessError, OSError, ValueError, LookupError, Failed) as error:
            reason = getattr(error, "stderr", None) or error
        time.sleep(every)
    raise Failed(f"{what}: not within {seconds} s: {reason}")


class Cluster:
    def __init__(self, tools, target, directory, vng):
        self.tools, self.target, self.dir, self.vng = tools, target, directory, vng
        self.processes = {}
        self.guest = None
        self.asked = 0

    # Processes of this machine.

    def start(self, name, *command, wait_for=None, env=None):
        log = open(self.dir / f"{name}.log", "ab")
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir,
            env={**os.environ, **(env or {})}, start_new_session=True,
        )
        self.processes[name] = process
        if wait_for:
            def ready():
                # Another one of an earlier run may answer in its place.
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended: {(self.dir / f'{name}.log').read_text()[-800:]}")
                return wait_for()

            until(name, 60, ready, 0.3)
        return process

    def stop(self, name, patience=20):
        process = self.processes.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # The control plane.

    def control_plane(self):
        run = lambda *command: subprocess.run(command, cwd=self.dir, check=True, capture_output=True)
        run("openssl", "genrsa", "-out", "sa.key", "2048")
        run("openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        (self.dir / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n')
        for name, host in (("kubeconfig", "127.0.0.1"), ("kubeconfig.node", HOST)):
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"https://{host}:6443", "insecure-skip-tls-verify": True}}],
                "users": [{"name": "a", "user": {"token": "admin-token"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "a"}}],
            }
            (self.dir / name).write_text(json.dumps(config))
        self.start(
            "etcd", self.tools / "etcd", "--data-dir", "etcd",
            "--listen-client-urls", "http://127.0.0.1:23790", "--advertise-client-urls", "http://127.0.0.1:23790",
            "--listen-peer-urls", "http://127.0.0.1:23800", "--initial-advertise-peer-urls", "http://127.0.0.1:23800",
            "--initial-cluster", "default=http://127.0.0.1:23800",
        )
        self.api_server()
        common = ["--kubeconfig", "kubeconfig", "--leader-elect=false", "--bind-address", "127.0.0.1"]
        self.start(
            "controller-manager", self.tools / "kube-controller-manager", *common,
            "--service-account-private-key-file", "sa.key", "--root-ca-file", "certs/apiserver.crt",
        )
        self.start("scheduler", self.tools / "kube-scheduler", *common)

    def api_server(self):
        """Starts it, and waits until it is ready. Advertised as the guest reaches it."""
        self.start(
            "apiserver", self.tools / "kube-apiserver", "--etcd-servers", "http://127.0.0.1:23790",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", "sa.pub", "--service-account-signing-key-file", "sa.key",
            "--service-cluster-ip-range", "10.96.0.0/16", "--bind-address", "127.0.0.1", "--advertise-address", HOST,
            "--secure-port", "6443", "--cert-dir", "certs", "--token-auth-file", "tokens.csv",
            "--authorization-mode", "Node,RBAC", "--allow-privileged",
            wait_for=self.api_ready,
        )

    def api_ready(self):
        context = ssl._create_unverified_context()
        request = urllib.request.Request("https://127.0.0.1:6443/readyz", headers={"Authorization": "Bearer admin-token"})
        with urllib.request.urlopen(request, context=context, timeout=2) as answer:
            return answer.read() == b"ok"

    # The node.

    def node(self, images):
        """Boots it; 4 GiB, two emulated CPUs, an NVMe disk, one port that leads to the controllers' node port."""
        kernels = sorted(Path("/boot").glob("vmlinuz-6.12.*-amd64"))
        if not kernels:
            raise Failed("no 6.12 kernel in /boot")
        disk = self.dir / "nvme0.img"
        with open(disk, "wb") as file:
            file.truncate(6 << 30)
        state = self.dir / "node"
        state.mkdir()
        (state / "kubeconfig.node").write_text((self.dir / "kubeconfig.node").read_text())
        here = Path(__file__).resolve().parent
        command = " ".join(str(part) for part in ("bash", here / "node.sh", self.tools, state, NODE, *images))
        (state / "main.sh").write_text(f"{command} >{state}/console.log 2>&1\n")
        forward = f"hostfwd=tcp:127.0.0.1:{API_PORT}-:{NODE_PORT}"
        devices = [
            f"-drive file={disk},if=none,id=nv,format=raw,cache=unsafe", "-device nvme,drive=nv,serial=weir0",
            f"-netdev user,id=n0,{forward}", "-device virtio-net-pci,netdev=n0",
        ]
        self.guest = state
        self.start(
            "guest", self.vng, "--run", kernels[-1], "--disable-kvm", "--user", "root", "--cpus", "2", "--memory", "4G", "--quiet",
            f"--rwdir={state}", f"--qemu-opts={' '.join(devices)}", "--", f"bash {state}/main.sh",
            # It looks for its other programs there.
            env={"PATH": f"{self.vng.parent}:{os.environ['PATH']}"},
        )

    def alive(self):
        """Nothing else can come out well where the guest is gone."""
        if (self.guest / "failed").exists():
            raise SystemExit(f"the node: {(self.guest / 'failed').read_text()}")
        if self.processes["guest"].poll() is not None:
            raise SystemExit(f"the guest ended: {(self.dir / 'guest.log').read_text()[-800:]}")

    def in_guest(self, script, seconds=60):
        """Runs a script as root of the node; what it said."""
        self.asked += 1
        name = f"{self.asked:03}"
        part = self.guest / "todo" / f"{name}.part"
        part.write_text(script)
        part.rename(part.with_suffix(".sh"))
        code = self.guest / "done" / f"{name}.code"
        until(f"the guest's answer {name}", seconds, code.exists, 0.1)
        said = (self.guest / "done" / f"{name}.out").read_text()
        if code.read_text().strip() != "0":
            raise Failed(f"in the guest: {said[-800:]}")
        return said

    # Its tools.

    def run(self, *command, check=True, seconds=120, stdin=None):
        env = {**os.environ, "KUBECONFIG": str(self.dir / "kubeconfig")}
        done = subprocess.run(
            [str(part) for part in command], env=env, capture_output=True, text=True, check=False, timeout=seconds, input=stdin
        )
        if check and done.returncode:
            raise Failed(f"{' '.join(str(part) for part in command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def kubectl(self, *arguments, **more):
        return self.run(self.tools / "kubectl", *arguments, **more).stdout

    def get(self, *arguments):
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, manifests):
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def helm(self, *arguments, **more):
        return self.run(self.tools / "helm", *arguments, **more)

    def close(self):
        """Ends everything, the guest in order, etcd last: an API server without it would not end."""
        if self.guest and self.processes.get("guest") and self.processes["guest"].poll() is None:
            (self.guest / "stop").write_text("")
            try:
                self.processes["guest"].wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.processes["guest"].pid, signal.SIGKILL)
        for name in [name for name in self.processes if name != "etcd"] + ["etcd"]:
            self.stop(name)
        (self.dir / "nvme0.img").unlink(missing_ok=True)
