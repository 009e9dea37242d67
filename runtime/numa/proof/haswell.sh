#!/bin/sh
# Runs the tests of the kernels and of the engine, and an evaluation, on an emulated Haswell: a processor with AVX2 and
# nothing later, which ends a program that uses more by SIGILL. Exits with 0 where all pass and the evaluation prints the
# figures that it prints here.
#
# Needs: go, and qemu-x86_64 of version 7.2 or later (package qemu-user).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
export CGO_ENABLED=0
go build -o "$work/qtool" ./cmd/qtool
for package in kernel llama; do
	go test -c -o "$work/$package.test" "./runtime/$package"
done
"$work/qtool" quantize --bits 4 --no-eval -q -o "$work/model.qpk" testdata/grammar-lm >/dev/null
# What the emulator says of features that it lacks, it says of each process.
haswell() {
	qemu-x86_64 -cpu Haswell "$@" 2>"$work/messages" || {
		cat "$work/messages" >&2
		return 1
	}
}

for package in kernel llama; do
	for level in avx2 ""; do
		echo "== tests of $package, QTOOL_CPU=$level"
		# Left out: tokens generated to count allocations, which takes too long here and no other instruction; and what gathers
		# (VGATHERDPS, of AVX2), for which version 7.2 gives zeros to a C program of that one instruction too.
		(cd "runtime/$package" && QTOOL_CPU=$level haswell "$work/$package.test" -test.short -test.skip 'TestDecodeAllocatesNothing|TestQuantizersGiveTheSameBits|TestTablesStayWithinTheirBuffers' -test.timeout 30m)
	done
done
# figures MODEL: what was measured, without what depends on the run.
figures() { sed -n 's/^ *"\(perplexity\|kl_mean\|kl_max\|same_top1\|cpu\)": *\(.*[^,]\),\{0,1\}$/\1 \2/p' "$1"; }
evaluate() { "$@" eval "$work/model.qpk" --baseline testdata/grammar-lm --max-tokens 2048 -q --json; }
echo "== evaluation of grammar-lm in w4g32"
QTOOL_CPU=avx2 evaluate "$work/qtool" >"$work/here.json"
for level in avx2 ""; do
	QTOOL_CPU=$level evaluate haswell "$work/qtool" >"$work/there.json"
	figures "$work/there.json"
	[ -n "$(figures "$work/here.json")" ]
	[ "$(figures "$work/here.json")" = "$(figures "$work/there.json")" ] || {
		echo "the figures here are others:" >&2
		figures "$work/here.json" >&2
		exit 1
	}
done
echo "PROOF: ok"
