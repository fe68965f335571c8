//go:build !linux

package process

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
)

// killWithParent does nothing here: only Linux can tie a program to its parent. A test binary that
// is killed leaves its servers behind; Ctrl-C does not, as it reaches the whole process group.
func killWithParent(*exec.Cmd) {}

// stopped reports whether the process is stopped.
func stopped(pid int) bool {
	out, err := exec.CommandContext(context.Background(), "ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(out)), "T")
}
