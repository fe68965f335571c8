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

// child is this program in another process with a task.
type child struct {
	cmd   *exec.Cmd
	input io.Closer // closed by the end of the parent, and ends the child
}

// task has one field that is not nil.
type task struct {
	Hold  *heldLock `json:",omitempty"`
	Proxy *link     `json:",omitempty"`
}

// childEnv gives a child its task.
const childEnv = "RELOCK_BENCH_TASK"

// startChild starts a child, and returns the text of its [ready].
func startChild(t task) (c *child, says string, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	spec, err := json.Marshal(t)
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
		return nil, "", errors.Join(fmt.Errorf("a process did not begin the task %s (%w)", spec, err), c.kill())
	}
	return c, says, nil
}

const readyPrefix = "ready: "

// ready sends a text to the parent, and returns when the parent ends.
func ready(says string) error {
	fmt.Println(readyPrefix + says)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// kill ends the process with SIGKILL and returns when the process is gone. More calls do nothing.
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

// runChild runs the task of this process, if this process is a child.
func runChild() (is bool) {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return false
	}
	var t task
	err := json.Unmarshal([]byte(spec), &t)
	switch {
	case err != nil:
	case t.Hold != nil:
		err = t.Hold.run()
	case t.Proxy != nil:
		err = t.Proxy.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", spec, err)
	}
	return true
}
