//go:build !linux

package relocketcd_test

import "os/exec"

func killWithParent(*exec.Cmd) {}
