"""What the tests put into the cluster beside the chart, as Kubernetes objects."""

from rig import NODE, NODE_PORT


def dns():
    """Names of services for the pods."""
    corefile = ".:53 {\n  errors\n  ready\n  kubernetes cluster.local\n}\n"
    meta = {"name": "coredns", "namespace": "kube-system"}
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [{
            "name": "coredns", "image": "localhost/coredns:1", "imagePullPolicy": "Never",
            "args": ["-conf", "/etc/coredns/Corefile"], "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}},
        }],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    labels = {"k8s-app": "kube-dns"}
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "coredns"}, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "coredns"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": corefile}},
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {
                "clusterIP": "10.96.0.10", "selector": labels,
                "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
            },
        },
    ]


def volume():
    """In place of a provisioner: one volume for the controller's claim."""
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "store"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "", "hostPath": {"path": "/mnt/disk/store"},
        },
    }


def node_port(namespace, release):
    """The way to the API from outside the cluster."""
    selector = {
        "app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": release, "app.kubernetes.io/component": "controller",
    }
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "from-outside", "namespace": namespace},
        "spec": {"type": "NodePort", "selector": selector, "ports": [{"port": 7420, "targetPort": "grpc", "nodePort": NODE_PORT}]},
    }


def reader(name, requests=None):
    """A pod that reads its file on the NVMe disk, as fast as it may, past the page cache."""
    container = {
        "name": "reader", "image": "localhost/weir-load:1", "imagePullPolicy": "Never",
        "args": ["--file", f"/data/{name}", "--direct", "--seconds", "100000", "read"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    if requests:
        container["resources"] = {"requests": requests}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
            "volumes": [{"name": "data", "hostPath": {"path": "/mnt/disk/data"}}],
        },
    }


def crippled_agent(daemon_set, name, change):
    """The agent's pod with something taken from it, on its own and without a second attempt."""
    template = daemon_set["spec"]["template"]
    spec = {**template["spec"], "restartPolicy": "Never", "nodeName": NODE, "priorityClassName": None}
    container = {**spec["containers"][0]}
    container["volumeMounts"] = [mount for mount in (change(dict(mount)) for mount in container["volumeMounts"]) if mount]
    spec["containers"] = [container]
    metadata = {"name": name, "namespace": daemon_set["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def limit(name, cgroup, rate):
    """An intent that limits reads of cgroups on NVMe disks."""
    return {
        "kind": "Intent", "name": name,
        "spec": {
            "description": "Made by a test.",
            "nodes": {"anyOf": [{"all": True}]},
            "workloads": {"anyOf": [{"cgroupPath": cgroup}]},
            "devices": {"anyOf": [{"kinds": ["NVME"]}]},
            "controls": {"limits": {"rbps": rate}},
            "mode": "ENFORCE",
        },
    }
