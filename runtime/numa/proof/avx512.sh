#!/bin/sh
# Runs the tests of the kernels with AVX-512 and VNNI in an emulated Ice Lake: in Bochs, as QEMU emulates neither. Exits with 0
# where all pass. Takes a quarter of an hour.
#
# Needs: go, cpio, xorriso, isolinux.bin and ldlinux.c32 (packages isolinux and syslinux-common), the BIOS images of Bochs in $BXSHARE
# (default: those of package bochsbios), and Bochs 3.0, $PROOF_BOCHS unless it is called bochs, built from its source after
#
#	./configure --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-all-optimizations --enable-pci --enable-cdrom --with-nogui
#
# Debian's own has a debugger in it, which is slow and asks what to do, and no display of that name. Also either $PROOF_KERNEL, a Linux
# kernel, or apt-get of Debian and dpkg-deb to fetch one. $PROOF_DIR keeps what is made (default: a temporary folder, removed at the end).
#
# $PROOF_PACKAGES are the packages below runtime whose tests run (default: kernel), $PROOF_RUN is which, a pattern of "go test -run" (default:
# all, but only avx512 of those that name their subtests after a level).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
bochs=${PROOF_BOCHS:-bochs}
export BXSHARE="${BXSHARE:-/usr/share/bochs}"
if [ -n "${PROOF_DIR:-}" ]; then
	mkdir -p "$PROOF_DIR"
	work=$(cd "$PROOF_DIR" && pwd)
else
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
fi

kernel=${PROOF_KERNEL:-}
if [ -z "$kernel" ]; then
	# The kernel for virtual machines is the one that unpacks fastest.
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
	(cd "$work" && apt-get download "$package" >&2 && dpkg-deb -x "$package"_*.deb kernel)
	kernel=$(ls "$work"/kernel/boot/vmlinuz-* | head -n 1)
fi

tree=$work/tree disk=$work/disk
rm -rf "$tree" "$disk"
mkdir -p "$tree" "$disk/isolinux"
cd "$root"
export CGO_ENABLED=0
go build -trimpath -o "$tree/init" ./runtime/numa/proof/tests
for package in ${PROOF_PACKAGES:-kernel}; do
	mkdir "$tree/$package"
	go test -c -o "$tree/$package/$package.test" "./runtime/$package"
	cp "runtime/$package"/*.s "$tree/$package/" 2>/dev/null || true # which a test reads
done
(cd "$tree" && find . | cpio -o -H newc 2>/dev/null) >"$disk/initrd"
cp "$kernel" "$disk/linux"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$disk/isolinux/"
# With PCID the kernel falls into faults without end in Bochs; what it saves by XSAVEC has in Bochs 2.7 another size than it expects.
cat >"$disk/isolinux/isolinux.cfg" <<EOF
default linux
prompt 0
label linux
 kernel /linux
 append initrd=/initrd console=ttyS0 quiet panic=-1 edd=off nowatchdog nosmp noapic lpj=4000000 mitigations=off clearcpuid=pcid,invpcid,xsavec,xsaves,umip,smap,smep,rdpid,fsrm,fsgsbase,la57 -- -test.run=${PROOF_RUN-Test/avx512}
EOF
xorriso -as mkisofs -quiet -o "$work/disk.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$disk" 2>/dev/null
# Nothing is logged but the end: Bochs reports its speed from a signal, which waits for ever where another message is being written.
cat >"$work/bochsrc" <<EOF
cpu: model=corei7_icelake_u, count=1, ips=100000000
memory: guest=1024, host=1024
romimage: file=\$BXSHARE/BIOS-bochs-latest
vgaromimage: file=\$BXSHARE/VGABIOS-lgpl-latest
display_library: nogui
ata0-master: type=cdrom, path=$work/disk.iso, status=inserted
boot: cdrom
clock: sync=none
com1: enabled=1, mode=file, dev=$work/serial.log
log: $work/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
EOF
rm -f "$work/serial.log"
# The end of the machine is a panic to Bochs: what counts is the verdict.
"$bochs" -q -f "$work/bochsrc" </dev/null >"$work/messages" 2>&1 || true
tr -d '\r' <"$work/serial.log"
tr -d '\r' <"$work/serial.log" | grep -qx 'PROOF: ok' || {
	tail -n 5 "$work/messages" >&2
	exit 1
}
