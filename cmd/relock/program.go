package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
)

// lookUp finds the program as a shell would.
func lookUp(program string) (path string, err error) {
	path, err = exec.LookPath(program)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil // in the current directory, because PATH says so: as a shell
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", &exitError{code: codeNotFound, err: fmt.Errorf("%s: command not found", program)}
	}
	for cause := err; cause != nil; cause = errors.Unwrap(cause) { // what is around it repeats the name
		err = cause
	}
	return "", &exitError{code: codeCannotRun, err: fmt.Errorf("%s: %w", program, err)}
}

// cannotStart is the error of a program that is there, and that the system has not started.
func cannotStart(program string, err error) error {
	code := codeCannotRun
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) { // too many processes: it would start no other either
		code = codeInternal
	}
	return &exitError{code: code, err: fmt.Errorf("%s: %w", program, err)}
}
