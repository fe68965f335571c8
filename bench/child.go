package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// child is this program in another process, which does one task.
type child struct {
	cmd   *exec.Cmd
	input io.Closer // the process ends when this one does
}

// task is what a child does: one of these.
type task struct {
	Hold  *heldLock `json:",omitempty"`
	Proxy *link     `json:",omitempty"`
}

// childEnv tells this program that it is a child, and its task.
const childEnv = "RELOCK_BENCH_TASK"

// startChild starts one, and returns what it says when it is ready.
func startChild(what task) (c *child, says string, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	spec, err := json.Marshal(what)
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(context.Background(), program)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	c = &child{cmd, input}
	line, err := bufio.NewReader(output).ReadString('\n')
	says, isReady := strings.CutPrefix(strings.TrimSuffix(line, "\n"), readyPrefix)
	if !isReady {
		return nil, "", errors.Join(fmt.Errorf("a process with the task %s did not begin it (%w)", spec, err), c.kill())
	}
	return c, says, nil
}

const readyPrefix = "ready: "

// ready tells the parent, and returns when that ends.
func ready(says string) error {
	fmt.Println(readyPrefix + says)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// kill ends the process with SIGKILL and returns when it is gone. It can be called again.
func (c *child) kill() error {
	if c.cmd.ProcessState != nil {
		return nil
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	var exit *exec.ExitError
	if err := c.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// runChild is the other side: it does the task of this process, if it has one.
func runChild() (is bool) {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return false
	}
	var what task
	err := json.Unmarshal([]byte(spec), &what)
	switch {
	case err != nil:
	case what.Hold != nil:
		err = what.Hold.run()
	case what.Proxy != nil:
		err = what.Proxy.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", spec, err)
	}
	return true
}
