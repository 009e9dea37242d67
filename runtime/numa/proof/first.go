//go:build linux

package proof

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// First is the main of a virtual machine's first process: it mounts what the kernel tells, calls prove, prints a verdict, and turns
// the machine off.
func First(prove func() error) {
	err := mount()
	if err == nil {
		err = prove()
	}
	if err != nil {
		fmt.Println("PROOF: failed:", err)
	} else {
		fmt.Println("PROOF: ok")
	}
	unix.Sync()
	_ = unix.IoctlSetInt(1, unix.TCSBRK, 1) // what was printed leaves the serial line first
	time.Sleep(time.Second)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func mount() error {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && m[1] != "/dev" {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	return nil
}
