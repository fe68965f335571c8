package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A script that writes in its turn. The unit is the same script without a lock.

const (
	writeScript = "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"
	writeKept   = 10_000 // milliseconds

	bareScript = "bare script"
	inSection  = "with a script"
)

// bareWrite is the script alone. unlock has nothing to do, in all systems of the workload.
type bareWrite struct {
	rdb    *redis.Client
	script *redis.Script
	keys   []string
}

func (h bareWrite) lock(ctx context.Context) (context.Context, error) {
	return ctx, h.script.EvalSha(ctx, h.rdb, h.keys, "result", writeKept).Err()
}

func (bareWrite) unlock(context.Context) error { return nil }

// bareWriter is a process of its own kind, as it has no locks.
type bareWriter struct{ rdb *redis.Client }

func (p bareWriter) handle(lock string) handle {
	return bareWrite{p.rdb, redis.NewScript(writeScript), []string{"{" + lock + "}:value"}}
}

func (bareWriter) close() {}

// runHandle is relock with Lock.Run.
type runHandle struct{ relockHandle }

func (h runHandle) lock(ctx context.Context) (context.Context, error) {
	_, err := h.l.Run(ctx, writeScript, []string{h.l.Key() + ":value"}, "result", writeKept)
	return ctx, err
}

func (runHandle) unlock(context.Context) error { return nil }

// scriptHandle is a pair with one script in the section.
type scriptHandle struct{ relockHandle }

func (h scriptHandle) unlock(section context.Context) error {
	if _, err := h.l.Eval(section, writeScript, []string{h.l.Key() + ":value"}, "result", writeKept); err != nil {
		return err
	}
	return h.relockHandle.unlock(section)
}

// runProcess is relock with another handle.
type runProcess struct {
	*relockProcess
	make func(h relockHandle) handle
}

func (p runProcess) handle(lock string) handle { return p.make(relockHandle{p.client.NewLock(lock)}) }

func runAs(setting string, of func(h relockHandle) handle) *system {
	return &system{name: "relock", setting: setting, open: func(s setup) (process, error) {
		p, err := openRelock(nil)(s)
		if err != nil {
			return nil, err
		}
		return runProcess{p.(*relockProcess), of}, nil
	}}
}

var relockInSection = runAs(inSection, func(h relockHandle) handle { return scriptHandle{h} })

var scriptSystems = []*system{
	{name: bareScript, open: func(s setup) (process, error) {
		return bareWriter{s.rdb}, s.rdb.ScriptLoad(context.Background(), writeScript).Err()
	}},
	runAs(defaults, func(h relockHandle) handle { return runHandle{h} }),
	relockInSection,
}

// script is pair with scripts: a call is a pair.
func script(b *bench) error { return b.pairs(0) }
