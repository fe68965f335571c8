//go:build !linux

package relocketcd_test

import "os/exec"

func killWithParent(*exec.Cmd) {}

func stopped(int) bool { return true }
