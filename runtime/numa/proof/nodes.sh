#!/bin/sh
# Runs qtool in an emulated machine of four nodes with two CPUs each (Haswell), then in one whose last node has memory
# only, and checks where the kernel says its threads and its memory are. Exits with 0 where all is as it should be.
#
# Needs: go, qemu-system-x86_64, cpio, gzip, and either $PROOF_KERNEL, a Linux kernel, or apt-get of Debian and dpkg-deb to
# fetch one. The kernel is not installed. $PROOF_DIR keeps what is made (default: a temporary folder, removed at the end).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [ -n "${PROOF_DIR:-}" ]; then
	work=$PROOF_DIR
	mkdir -p "$work"
else
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
fi

kernel=${PROOF_KERNEL:-}
if [ -z "$kernel" ]; then
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
	(cd "$work" && apt-get download "$package" >&2 && dpkg-deb -x "$package"_*.deb kernel)
	kernel=$(ls "$work"/kernel/boot/vmlinuz-* | head -n 1)
fi

tree=$work/tree
rm -rf "$tree"
mkdir -p "$tree"
cd "$root"
CGO_ENABLED=0 go build -trimpath -o "$tree/qtool" ./cmd/qtool
CGO_ENABLED=0 go build -trimpath -o "$tree/init" ./runtime/numa/proof/guest
go run ./runtime/numa/proof/model testdata/grammar-lm "$work/model"
"$tree/qtool" quantize --scheme "${PROOF_SCHEME:-w4g32}" --scale-rule absmax --no-eval -q -o "$tree/model.qpk" "$work/model" >&2
(cd "$tree" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"
# All matrices but the embedding: 4 layers of 1024 · (2 · 1024 + 2 · 512 + 3 · 2816) weights in 4.5 bits, and the head of
# 512 · 1024 in 8 bits and a scale for every 128.
weights=$((4 * 1024 * (2 * 1024 + 2 * 512 + 3 * 2816) * 9 / 16 + 512 * 1024 * 65 / 64))

# boot NAME NODES: ID:CPUS of each, CPUs empty for a node that has memory only.
boot() {
	name=$1
	shift
	hardware= order= number=0
	for node in "$@"; do
		id=${node%%:*} cpus=${node#*:}
		hardware="$hardware -object memory-backend-ram,id=m$id,size=384M"
		if [ -n "$cpus" ]; then
			hardware="$hardware -numa node,nodeid=$id,memdev=m$id,cpus=$cpus"
			order="$order proof.node=$node"
		else
			hardware="$hardware -numa node,nodeid=$id,memdev=m$id"
		fi
		number=$((number + 1))
	done
	echo "=== $name"
	# shellcheck disable=SC2086
	timeout "${PROOF_SECONDS:-900}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu Haswell -smp "$smp" -m $((number * 384))M $hardware \
		-kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1$order proof.weights=$weights" \
		-display none -monitor none -serial stdio -no-reboot -nic none </dev/null 2>"$work/$name.err" | tr -d '\r' | tee "$work/$name.log"
	grep -qx 'PROOF: ok' "$work/$name.log" || {
		cat "$work/$name.err" >&2
		echo "$name: failed" >&2
		exit 1
	}
}

smp=8,sockets=4,cores=2
boot four-nodes 0:0-1 1:2-3 2:4-5 3:6-7
smp=6,sockets=3,cores=2
boot memory-only-node 0:0-1 1:2-3 2:4-5 3:
