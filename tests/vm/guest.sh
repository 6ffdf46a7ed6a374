#!/usr/bin/env bash
# Inside the guest: the tests that throttle real disks, on the NVMe disk under cgroup v2, then the quickstart itself.
# guest.sh EXECUTABLES_FILE TARGET_DIR
set -uo pipefail
executables=$1 target=$2
# Emulated CPUs are slow: fewer crash cycles than on the machine itself.
export WEIR_CRASH_CYCLES=6
export CI=true PATH=$PATH:/usr/sbin:/sbin WEIR_TEST_DISK=/dev/nvme0n1
for module in nvme loop ext4; do modprobe $module || exit 1; done
# Sockets on loopback need the interface.
ip link set lo up || exit 1
for _ in $(seq 50); do [ -b "$WEIR_TEST_DISK" ] && break; sleep 0.1; done
[ -b "$WEIR_TEST_DISK" ] || { echo "no $WEIR_TEST_DISK in the guest"; exit 1; }
uname -r

status=0
while read -r executable; do
    case ${executable##*/} in native_*) ;; *) continue ;; esac
    echo "--- ${executable##*/}"
    "$executable" --test-threads=1 --nocapture || status=1
done <"$executables"

# A line of its own: whoever counts tells the two apart.
echo "guest: tests exit=$status"

# The quickstart makes its own disk, as on a newcomer's machine.
unset WEIR_TEST_DISK
CARGO_TARGET_DIR=$target ./quickstart --no-build --work-dir /tmp/weir-quickstart
quickstart=$?
echo "guest: quickstart exit=$quickstart"
[ $quickstart = 0 ] || status=1
exit $status
