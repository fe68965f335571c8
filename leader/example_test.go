package leader_test

import (
	"context"
	"fmt"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/store/mem"
)

// inMemory returns a client as a process of its own has it. With Redis it is
// relock.New(redis.NewClient(…)).
func inMemory(s *mem.Store, address string) *relock.Client {
	client, err := relock.Open(s, relock.WithOwner(address))
	if err != nil {
		panic(err)
	}
	return client
}

// One process leads at a time. When it goes, the next one does.
func ExampleRun() {
	client := inMemory(mem.New(), "10.0.0.7:80")
	defer client.Close()
	reports := client.NewLock("leader:reports")

	ctx, stop := context.WithCancel(context.Background())
	err := leader.Run(ctx, reports, func(ctx context.Context) error {
		fmt.Println("leading")
		stop() // the process is told to end
		<-ctx.Done()
		fmt.Println("not any more")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leading
	// not any more
	// context canceled; the caller's context has ended
}

// A service asks whether it leads. When one process ends, the next one leads.
func ExampleCampaign() {
	store := mem.New()
	one, two := inMemory(store, "10.0.0.7:80"), inMemory(store, "10.0.0.8:80")
	defer one.Close()
	defer two.Close()
	untilItLeads := func(c *leader.Candidacy) {
		for changes := c.Changes(); !c.IsLeader(); changes = c.Changes() {
			<-changes
		}
	}

	ctx, stop := context.WithCancel(context.Background())
	first := leader.Campaign(ctx, one.NewLock("leader"))
	untilItLeads(first)
	second := leader.Campaign(context.Background(), two.NewLock("leader"))
	fmt.Println(first.IsLeader(), second.IsLeader())

	stop()
	<-first.Done()
	untilItLeads(second)
	fmt.Println(first.IsLeader(), second.IsLeader())
	fmt.Println(first.Err())
	// Output:
	// true false
	// false true
	// context canceled; the caller's context has ended
}

// A leader that resigns is a candidate again, behind those that wait already.
func ExampleCandidacy_Resign() {
	client := inMemory(mem.New(), "10.0.0.7:80")
	defer client.Close()
	c := leader.Campaign(context.Background(), client.NewLock("leader"))
	for changes := c.Changes(); !c.IsLeader(); changes = c.Changes() {
		<-changes
	}
	term := c.Context()
	c.Resign()
	<-term.Done()
	fmt.Println(context.Cause(term))
	fmt.Println(c.Err())
	// Output:
	// leader: resigned
	// <nil>
}

// Everybody hears who leads.
func ExampleFollow() {
	store := mem.New()
	process, other := inMemory(store, "10.0.0.7:80"), inMemory(store, "10.0.0.8:80")
	defer process.Close()
	defer other.Close()

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for holder, err := range leader.Follow(ctx, other.NewLock("leader")) {
		switch {
		case err != nil:
			fmt.Println(err)
		case holder == "":
			fmt.Println("nobody leads")
			leader.Campaign(ctx, process.NewLock("leader"))
		default:
			fmt.Println(holder.Owner(), "leads")
			return
		}
	}
	// Output:
	// nobody leads
	// 10.0.0.7:80 leads
}
