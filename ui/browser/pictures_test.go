//go:build browser

package browser

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/ui"
)

// written is an entry of the history.
type written struct {
	end    time.Time
	fields map[string]any
}

// write writes entries of the history as if they had been written when they ended.
func (p *page) write(all []written) {
	slices.SortFunc(all, func(a, b written) int { return a.end.Compare(b.end) })
	for _, w := range all {
		text, err := json.Marshal(w.fields)
		require.NoError(p.t, err)
		id := fmt.Sprintf("%d-*", w.end.UnixMilli())
		require.NoError(p.t, p.rdb.XAdd(p.t.Context(), &redis.XAddArgs{Stream: "relock:history", ID: id, Values: []any{"e", text}}).Err())
	}
}

// ofADay writes what a shop with a few processes may have done.
func ofADay(now time.Time, clients []*relock.Client) (all []written) {
	write := func(end time.Time, fields map[string]any) { all = append(all, written{end, fields}) }
	random := rand.New(rand.NewPCG(1, 2))
	holder := func(c *relock.Client, n int) string { return fmt.Sprintf("%s:%d", c.ID(), n) }
	for hour := 23; hour >= 0; hour-- {
		end := now.Add(-time.Duration(hour) * time.Hour).Truncate(time.Hour)
		if hour%8 == 0 && end.Before(now) {
			write(end, map[string]any{"kind": "held", "name": "leader:reports", "holder": holder(clients[hour/8], hour), "took": (7*time.Hour + 58*time.Minute).Milliseconds(), "ttl": 30_000, "leader": true})
		}
		name := fmt.Sprintf("once:invoices@1h0m0s#%d", end.Unix()/3600)
		entry := map[string]any{"kind": "held", "name": name, "holder": holder(clients[hour%4], hour), "took": 240_000 + random.IntN(600_000), "ttl": 30_000}
		if hour == 9 {
			entry["kind"], entry["why"] = "lost", "expired"
		}
		write(end.Add(15*time.Minute-time.Hour), entry)
	}
	at := now.Add(-9*time.Minute - 30*time.Second)
	for i := 0; at.Before(now.Add(-20 * time.Second)); i++ {
		owner := clients[i%3]
		took := time.Duration(4+random.IntN(22)) * time.Second
		entry := map[string]any{"kind": "held", "name": "orders:42", "holder": holder(owner, i), "took": took.Milliseconds(), "ttl": 14_000, "token": 900 + i}
		switch i {
		case 9:
			took = 38 * time.Second
			entry["took"] = took.Milliseconds()
		case 14:
			entry["kind"], entry["why"] = "lost", "expired"
		}
		write(at.Add(took), entry)
		write(at.Add(took), map[string]any{"kind": "wait", "name": "orders:42", "holder": holder(clients[(i+1)%3], i+1), "took": took.Milliseconds() * 8 / 10, "why": "acquired"})
		at = at.Add(took + time.Duration(random.IntN(1500))*time.Millisecond)
	}
	return all
}

func TestThePictureOfABusyShop(t *testing.T) {
	p := open(t, func(h *ui.Handler) { h.Every = 100 * time.Millisecond })
	orders, billing, stock, second := p.client("orders@pod-7"), p.client("billing@pod-2"), p.client("stock@pod-1"), p.client("orders@pod-8")
	p.write(ofADay(time.Now(), []*relock.Client{orders, billing, stock, second}))
	lock(t, orders.NewLock("orders:42"))
	for _, c := range []*relock.Client{billing, stock, second, p.client("orders@pod-9"), billing} {
		waiter(t, c.NewLock("orders:42"))
	}
	token := lock(t, stock.NewLock("stock:item-1881"))
	_, err := stock.NewLock("stock:item-1881").Token(token)
	require.NoError(t, err)
	waiter(t, p.client("returns@pod-3").NewLock("stock:item-1881"))
	prices := []*relock.RWLock{orders.NewRWLock("prices"), billing.NewRWLock("prices"), stock.NewRWLock("prices")}
	for _, r := range prices {
		lock(t, r.RLocker())
	}
	for _, name := range []string{"invoice:2207", "invoice:2208", "customer:17", "customer:18"} {
		lock(t, billing.NewLock(name))
	}
	lock(t, stock.NewSemaphore("label-printer", 2))
	t.Cleanup(leader.Campaign(t.Context(), orders.NewLock("leader:reports")).Resign)
	p.show()
	p.says(".row .waiter", "stock@pod-1")
	p.says(".row .waiter", "returns@pod-3")
	p.until(`document.querySelectorAll(".row").length === 9`)
	if *update {
		time.Sleep(6 * time.Second) // so that the waits in the picture are some seconds
	}
	p.picture("ui-now", "light")
	p.run(chromedp.Click(chromedp.CSS(`.row[data-name="orders:42"] .holder`)))
	p.until(`!$("panel").hidden`)
	p.picture("ui-now-dark", "dark")
	p.keys("\x1b")
	p.click("#tab-hot")
	p.until(`document.querySelectorAll(".hot").length === 2`)
	p.click("#tab-history")
	p.until(`past.length > 60`)
	value[bool](p, `$("lane-lock").value = "orders:42", $("lane-lock").dispatchEvent(new Event("change"))`)
	p.until(`document.querySelector(".bar.lost") && document.querySelector(".bar.long") && document.querySelectorAll(".bar.held").length > 20`)
	p.run(chromedp.EmulateViewport(1180, 440))
	p.picture("ui-history", "light")
	p.click("#tab-leaders")
	p.until(`document.querySelectorAll("#calendar .lane").length === 3 && document.querySelector("#calendar .bar.lost")`)
	p.picture("ui-leaders", "dark")
	require.Empty(t, strings.TrimSpace(value[string](p, `$("status").className`)))
}
