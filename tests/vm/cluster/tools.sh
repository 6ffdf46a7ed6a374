#!/usr/bin/env bash
# Builds what the cluster is made of into a directory, where it is not there yet: tools.sh BIN_DIR
# Through the Go module proxy; needs Go 1.26 or newer. From nothing some 15 minutes on two cores, and 5 GB of Go's cache.
set -euo pipefail
kubernetes=1.36.3 helm=3.22.0 etcd=3.7.3 coredns=1.15.0 jaeger=1.76.0
bin=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0

# A program in a module of its own, so that what it requires is what it gets: NAME PACKAGE VERSION
program() {
    [ -x "$bin/$1" ] && return
    echo "building $1 $3"
    mkdir -p "$work/$1"
    (cd "$work/$1" && go mod init tool && go get -tool "$2@$3" && go build -ldflags '-s -w' -o "$bin/$1" "$2") 2>"$work/$1.log" ||
        { tail -n 20 "$work/$1.log" >&2; return 1; }
}

# helm takes `go install` as it is.
[ -x "$bin/helm" ] || GOBIN=$bin go install "helm.sh/helm/v3/cmd/helm@v$helm"
program etcd go.etcd.io/etcd/server/v3 "v$etcd"
program coredns github.com/coredns/coredns "v$coredns"
program jaeger github.com/jaegertracing/jaeger/cmd/jaeger "v$jaeger"

# Kubernetes' own module replaces its staging modules by directories that the proxy does not serve; they are published apart,
# under v0 with the same minor and patch.
parts=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
missing=()
for part in "${parts[@]}"; do [ -x "$bin/$part" ] || missing+=("$part"); done
if [ ${#missing[@]} -gt 0 ]; then
    echo "building Kubernetes $kubernetes: ${missing[*]}"
    mkdir -p "$work/kubernetes"
    cd "$work/kubernetes"
    source=$(go mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    staged=v0.${kubernetes#1.}
    {
        printf 'module tool\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$kubernetes"
        sed -n "s|^\t\(k8s.io/[a-z-]*\) => ./staging.*|\t\1 => \1 $staged|p" "$source/go.mod"
        printf ')\n'
    } >go.mod
    version=k8s.io/component-base/version
    flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
    for part in "${missing[@]}"; do
        go build -ldflags "$flags" -o "$bin/$part" "k8s.io/kubernetes/cmd/$part"
    done
fi
