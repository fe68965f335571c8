package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
)

// lookUp finds the program as a shell does.
func lookUp(program string) (path string, err error) {
	path, err = exec.LookPath(program)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil // PATH may name the current directory, as for a shell
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", &exitError{code: codeNotFound, err: fmt.Errorf("%s: command not found", program)}
	}
	for cause := err; cause != nil; cause = errors.Unwrap(cause) { // the others repeat the name
		err = cause
	}
	return "", &exitError{code: codeCannotRun, err: fmt.Errorf("%s: %w", program, err)}
}

// cannotStart is the error of a program that exists and that the system has not started.
func cannotStart(program string, err error) error {
	code := codeCannotRun
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) { // for any program
		code = codeInternal
	}
	return &exitError{code: code, err: fmt.Errorf("%s: %w", program, err)}
}
