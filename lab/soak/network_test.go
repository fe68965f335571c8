package soak

import (
	"math/rand/v2"
	"time"

	"github.com/go-relock/relock/internal/test/tcptest"
)

// network is the ways of all peers to some servers that are reached over TCP, with a proxy for each
// peer and server.
type network struct {
	*soak
	servers []string // their addresses
}

// cable is the way of one peer.
type cable struct {
	proxies []*tcptest.Proxy
	closing []func() // what ends behind the client, the last one first
}

func (n *network) cable() *cable {
	y := &cable{}
	for _, server := range n.servers {
		p := tcptest.NewProxy(n.t, server)
		y.proxies, y.closing = append(y.proxies, p), append(y.closing, p.Close)
	}
	return y
}

// addresses are those of the servers for the peer.
func (y *cable) addresses() (all []string) {
	for _, p := range y.proxies {
		all = append(all, p.Address())
	}
	return all
}

func (y *cable) heal() {
	for _, p := range y.proxies {
		p.Resume()
	}
}

func (y *cable) near() {}
func (y *cable) last() { y.heal() }

func (y *cable) end() {
	for i := len(y.closing) - 1; i >= 0; i-- {
		y.closing[i]()
	}
}

// onCables is trouble with the connections of one peer, to one server or to all of them.
func (n *network) onCables(random *rand.Rand) []fault {
	some := func() []*tcptest.Proxy {
		all := n.anyone(random).way.(*cable).proxies
		if at := random.IntN(len(all) + 1); at < len(all) {
			return all[at : at+1]
		}
		return all
	}
	// spell makes trouble for a while. Connections that were mute are broken as often as not.
	spell := func(longest time.Duration, begin func(*tcptest.Proxy), cuts bool) func() {
		return func() {
			proxies, cut := some(), cuts || random.IntN(2) == 0
			for _, p := range proxies {
				begin(p)
			}
			n.pause(upTo(random, longest))
			for _, p := range proxies {
				if cut {
					p.Cut()
				}
				p.Resume()
			}
		}
	}
	long := 3 * n.ttl / 2
	return []fault{
		{"connections cut", 4, func() {
			for _, p := range some() {
				p.Cut()
			}
		}},
		{"network mute", 3, spell(long, func(p *tcptest.Proxy) { p.Stall() }, false)},
		{"answers lost", 4, func() {
			proxies := some()
			for _, p := range proxies {
				p.LoseAnswersAfter(random.IntN(4))
			}
			n.pause(upTo(random, n.ttl/2))
			for _, p := range proxies {
				p.Cut()
			}
		}},
		{"one side cut", 2, spell(long, (*tcptest.Proxy).CutClients, true)},
		{"network slow", 3, spell(n.ttl/4, func(p *tcptest.Proxy) { p.Delay(upTo(random, 30*time.Millisecond)) }, false)},
	}
}
