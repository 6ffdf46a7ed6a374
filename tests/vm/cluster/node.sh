#!/usr/bin/env bash
# Inside the guest: a Kubernetes node. node.sh BIN_DIR STATE_DIR NODE IMAGE.tar...
# containerd, kubelet and kube-proxy, a bridge for pods, all data on the NVMe disk (overlayfs cannot lie on the guest's own root).
# Then it runs the scripts that the host puts into STATE_DIR/todo, one after the other, until there is STATE_DIR/stop.
set -uo pipefail
bin=$1 state=$2 node=$3
shift 3
export PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "node: $*"
    echo "$*" >"$state/failed"
    exit 1
}

ip link set lo up
interface=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
ip link set "$interface" up
ip addr add 10.0.2.15/24 dev "$interface"
ip route add default via 10.0.2.2
for module in nvme overlay ext4 bridge veth br_netfilter ip_tables iptable_nat iptable_filter xt_comment xt_mark xt_conntrack nf_nat nft_compat; do
    modprobe $module || fail "the module $module cannot be loaded"
done
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
for _ in $(seq 50); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done
mkfs.ext4 -q /dev/nvme0n1 || fail "mkfs.ext4"
mount -t tmpfs none /mnt
disk=/mnt/disk
mkdir $disk
mount /dev/nvme0n1 $disk || fail "mount"
mkdir -p $disk/containerd $disk/kubelet $disk/data $disk/store /tmp/cni /run/containerd
# The controller's volume: whoever it runs as must be able to write there.
chmod 0777 $disk/store
for reader in limited neighbour; do
    dd if=/dev/zero of=$disk/data/$reader bs=1M count=64 conv=fsync status=none
done
hostname "$node"

cat >/tmp/cni/10-pods.conflist <<'JSON'
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] }
    }
  ]
}
JSON
cat >/tmp/containerd.toml <<TOML
version = 2
root = "$disk/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/tmp/cni"
TOML
cat >/tmp/kubelet.yaml <<'YAML'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
enableControllerAttachDetach: false
evictionHard: {}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
YAML

containerd -c /tmp/containerd.toml >"$state/containerd.log" 2>&1 &
for _ in $(seq 120); do ctr version >/dev/null 2>&1 && break; sleep 0.5; done
for image in "$@"; do
    ctr -n k8s.io image import "$image" || fail "containerd cannot import $image"
done
"$bin/kube-proxy" --kubeconfig "$state/kubeconfig.node" --hostname-override "$node" --proxy-mode iptables \
    --cluster-cidr 10.244.0.0/16 >"$state/kube-proxy.log" 2>&1 &
"$bin/kubelet" --config /tmp/kubelet.yaml --kubeconfig "$state/kubeconfig.node" --root-dir $disk/kubelet \
    --hostname-override "$node" --node-ip 10.0.2.15 >"$state/kubelet.log" 2>&1 &
echo "node: started"

mkdir -p "$state/todo" "$state/done"
until [ -e "$state/stop" ]; do
    for script in "$state"/todo/*.sh; do
        [ -e "$script" ] || continue
        name=$(basename "$script" .sh)
        bash "$script" >"$state/done/$name.out" 2>&1
        echo $? >"$state/done/$name.part"
        mv "$state/done/$name.part" "$state/done/$name.code"
        rm "$script"
    done
    sleep 0.2
done
cp -r /var/log/pods "$state/pods" 2>/dev/null
sync
