//go:build amd64 && !noasm

package kernel

// cpuid1 gives ECX of CPUID leaf 1.
func cpuid1() (ecx uint32)

// hasF16C reports whether the machine converts half precision, which x/sys/cpu does not tell. That the
// system keeps the wide registers is part of what cpu.X86.HasAVX2 says.
func hasF16C() bool { return cpuid1()&(1<<29) != 0 }
