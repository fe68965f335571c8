package fence

import (
	"context"
	"fmt"
	"sync"
)

// Memory is a fence for resources that live in one process, such as a file or a device. Memory lets
// one entry at a time into a resource. The zero value is ready, and a Memory must not be copied.
//
// Memory keeps one number for each resource that was ever entered, and never drops it. It forgets
// all of them when the process ends: a token that was stale before a restart is accepted after it,
// until a newer token comes.
type Memory struct {
	mu    sync.Mutex
	gates map[string]*gate
}

// gate is the way into one resource.
type gate struct {
	inside chan struct{} // holds one value while an entry is in
	newest int64         // the largest token so far; only the entry that is in touches it
}

// Enter lets the caller into the resource until it calls leave, which may be called again without
// effect. While another entry is in, Enter waits. No entry with an older token gets in after an
// entry with a newer one. The same token may enter many times.
//
// Errors: [ErrStale] if a larger token has entered before; [ErrToken]; the error of ctx, if ctx
// ends first; an error for a name that does not have 1 to 255 bytes. The caller is not in, and
// leave is nil.
func (m *Memory) Enter(ctx context.Context, resource string, token int64) (leave func(), err error) {
	if err := check(resource, token); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, waiting(resource, err)
	}
	g := m.gate(resource)
	select {
	case g.inside <- struct{}{}:
	case <-ctx.Done():
		return nil, waiting(resource, ctx.Err())
	}
	leave = sync.OnceFunc(func() { <-g.inside })
	if token < g.newest {
		leave()
		return nil, stale(resource, token)
	}
	g.newest = token
	return leave, nil
}

// gate returns the gate of the resource.
func (m *Memory) gate(resource string) *gate {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.gates[resource]
	if g == nil {
		g = &gate{inside: make(chan struct{}, 1)}
		if m.gates == nil {
			m.gates = map[string]*gate{}
		}
		m.gates[resource] = g
	}
	return g
}

func waiting(resource string, err error) error {
	return fmt.Errorf("fence: waiting for resource %q: %w", resource, err)
}
