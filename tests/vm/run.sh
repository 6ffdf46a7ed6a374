#!/usr/bin/env bash
# Boots a guest (Debian's 6.12 kernel under software emulation, cgroup v2, an NVMe disk) and runs a script in it, with this
# machine's file system shared read-only: run.sh OUT_DIR SCRIPT [ARG...]
# The script's output goes to OUT_DIR/console.log, its exit code to OUT_DIR/exit-code. Needs qemu-system-x86, a 6.12 kernel
# image in /boot and virtme-ng (VNG names it). Bounded by GUEST_TIMEOUT seconds (900).
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
script=$2
shift 2
kernel=$(ls -1 /boot/vmlinuz-6.12.*-amd64 2>/dev/null | sort -V | tail -n 1)
[ -n "$kernel" ] || { echo "run.sh: no /boot/vmlinuz-6.12.*-amd64" >&2; exit 1; }
rm -f "$out/exit-code" "$out/console.log"
truncate -s 1G "$out/nvme0.img"
trap 'rm -f "$out/nvme0.img"' EXIT

printf '%q ' "$script" "$@" >"$out/command"
cat >"$out/guest-main.sh" <<GUEST
#!/bin/bash
cd $(printf '%q' "$PWD")
bash -c "\$(cat $(printf '%q' "$out/command"))" >$(printf '%q' "$out/console.log") 2>&1
echo \$? >$(printf '%q' "$out/exit-code")
sync
GUEST

# vng looks for its own virtme-run in PATH.
vng=$(command -v "${VNG:-vng}") || { echo "run.sh: no ${VNG:-vng}" >&2; exit 1; }
PATH=$(dirname "$(realpath "$vng")"):$PATH timeout --kill-after=10 "${GUEST_TIMEOUT:-900}" "$vng" --run "$kernel" --disable-kvm --user root --cpus 2 --memory 2G \
    --quiet --rwdir="$out" \
    --qemu-opts="-drive file=$out/nvme0.img,if=none,id=nv,format=raw,cache=unsafe -device nvme,drive=nv,serial=weir0" \
    -- "bash $out/guest-main.sh" </dev/null >"$out/vng.log" 2>&1 || true

[ -f "$out/exit-code" ] || { echo "run.sh: the guest did not finish; see $out/vng.log and $out/console.log" >&2; tail -n 20 "$out/vng.log" "$out/console.log" >&2 2>/dev/null; exit 1; }
exit "$(cat "$out/exit-code")"
