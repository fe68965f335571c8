//go:build !linux

package dbtest

import "os/exec"

// killWithParent does nothing here: only Linux can tie a program to its parent. A test binary that
// is killed leaves its servers behind.
func killWithParent(*exec.Cmd) {}
