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

// Add adds a text.
func (n *Texts) Add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, text)
}

// Check adds an error, if there is one.
func (n *Texts) Check(err error) {
	if err != nil {
		n.Add(err.Error())
	}
}

// All returns the texts so far.
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

// Add counts one more.
func (c *Tally) Add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

// Of returns how often it happened.
func (c *Tally) Of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

// String lists the counts, by name.
func (c *Tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}
