//go:build !linux

package main

import "os/exec"

// killWithParent does nothing here: only Linux can tie a program to its parent.
func killWithParent(*exec.Cmd) {}
