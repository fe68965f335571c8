package stage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Texts collects texts of many goroutines, such as errors.
type Texts struct {
	mu   sync.Mutex
	list []string
}

func (n *Texts) Add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

// Check adds an error, if there is one.
func (n *Texts) Check(err error) {
	if err != nil {
		n.Add(err.Error())
	}
}

func (n *Texts) All() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// Tally counts what happened, by name.
type Tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *Tally) Add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *Tally) Of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *Tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}
