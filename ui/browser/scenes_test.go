//go:build browser

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/ui"
)

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// lock takes a lock until the end of the test, and returns its section.
func lock(t *testing.T, l *relock.Lock) context.Context {
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Unlock(section) }) // the section is in use so long, and no leak
	return section
}

// waiter joins the queue of a lock. The channel has the section.
func waiter(t *testing.T, l *relock.Lock) <-chan context.Context {
	waiters := func() int {
		s, err := l.State(t.Context())
		require.NoError(t, err)
		return s.Waiters
	}
	before := waiters()
	defer redistest.Eventually(t, hang, func() bool { return waiters() > before }, "joined")
	got := make(chan context.Context, 1)
	go func() {
		section, err := l.Lock(t.Context())
		if err == nil {
			got <- section
		}
	}()
	return got
}

func TestALockAppearsAWaiterJoinsAndTheLockIsHandedOver(t *testing.T) {
	p := open(t)
	p.show()
	p.says("#none", "Nobody has a lock")

	first, second := p.client("orders@pod-7").NewLock("orders:42"), p.client("billing@pod-2").NewLock("orders:42")
	section := lock(t, first)
	p.says(`.row[data-name="orders:42"] .holder`, "orders@pod-7")
	p.until(`document.querySelector(".row .lease small").textContent.endsWith("\u00a0s")`)
	p.says("#sum", "1 lock in use · nobody waits")

	got := waiter(t, second)
	p.says(`.row .waiter`, "billing@pod-2")
	p.until(`document.querySelector(".row").classList.contains("longest")`)

	require.NoError(t, first.Unlock(section))
	section = <-got
	p.says(`.row .holder`, "billing@pod-2")
	p.until(`!document.querySelector(".row .waiter")`)

	require.NoError(t, second.Unlock(section))
	p.says("#none", "Nobody has a lock")
}

func TestALossIsShownWithItsReasonAndStaysInTheHistory(t *testing.T) {
	p := open(t)
	l := p.client("orders@pod-7").NewLock("orders:42")
	section := lock(t, l)
	p.show()
	p.says(".row .holder", "orders@pod-7")
	require.NoError(t, l.ForceUnlock(t.Context()))
	<-section.Done()
	p.says("#alerts .loss", "Lost orders:42 by orders@pod-7")
	p.click("#tab-history")
	p.until(`document.querySelector(".bar.lost")?.title.includes("the store does not have it any more")`)
}

func TestTheHistorySaysWhoHadTheLock(t *testing.T) {
	p := open(t)
	l := p.client("orders@pod-7", relock.WithTTL(time.Minute)).NewLock("orders:42")
	section := lock(t, l)
	got := waiter(t, p.client("billing@pod-2").NewLock("orders:42"))
	p.show()
	p.says(".row .waiter", "billing@pod-2")
	require.NoError(t, l.Unlock(section))
	section = <-got
	p.click("#tab-history")
	p.until(`document.querySelectorAll(".lane .bar.held").length === 1 && document.querySelectorAll(".bar.open").length === 1`)
	p.until(`document.querySelector(".bar.wait").title.includes("billing@pod-2 waited")`)
	p.until(`(() => {
		const at = $("lane-at"), end = past.find((e) => e.kind === "held");
		at.value = new Date(end.at - end.took).toISOString().slice(11, 19);
		at.dispatchEvent(new Event("change"));
		return $("lane-who").textContent.includes("orders@pod-7 had it for");
	})()`)
	_ = section
}

func TestACircleOfWaitsIsRed(t *testing.T) {
	p := open(t)
	a, b := p.client("orders@pod-7"), p.client("stock@pod-1")
	orders, stock := a.NewLock("orders:42"), b.NewLock("stock:9")
	lock(t, orders)
	lock(t, stock)
	waiter(t, p.client("third@pod-3").NewLock("stock:9")) // contended locks are looked at
	waiter(t, p.client("third@pod-3").NewLock("orders:42"))
	// The calls of a real circle give up within seconds: their waits are shown as they show them.
	graph := orders.Internal().Store.(store.WaitGraph)
	owner := func(l *relock.Lock) store.ID {
		s, err := graph.Look(t.Context(), l.Internal().Claim)
		require.NoError(t, err)
		return s.Owner
	}
	x, y := owner(orders), owner(stock)
	show := func(id store.ID, name string, holds, waitsFor store.ID) {
		w := store.Waiting{ID: id, Name: name, Holds: []store.ID{holds}, For: []store.ID{waitsFor}, Since: time.Now()}
		require.NoError(t, graph.Show(t.Context(), w, time.Hour))
	}
	show(store.ID(a.ID()+":1:100"), "stock:9", x, y)
	show(store.ID(b.ID()+":1:100"), "orders:42", y, x)
	p.show()
	p.says("#alerts .circle", "They wait for each other: ")
	p.says("#alerts .circle", "orders@pod-7 waits for stock:9")
	p.until(`document.querySelectorAll(".row.red").length === 2`)
	p.until(`document.title.startsWith("Circle!")`)
	p.run(chromedp.EmulateViewport(1180, 360))
	p.picture("ui-circle", "light")
}

func TestALockedOutUserSeesNothing(t *testing.T) {
	p := open(t)
	lock(t, p.client("orders@pod-7").NewLock("orders:42"))
	p.show()
	p.says(".row .holder", "orders@pod-7")

	p.denied.Store(true) // the session has ended, and the stream of events with it
	p.server.CloseClientConnections()
	p.says("body", "You may not see the locks")
	require.NotContains(t, value[string](p, `document.documentElement.outerHTML`), "orders")

	p.show() // and a page that is opened anew
	p.says("body", "log in first")
	require.NotContains(t, value[string](p, `document.documentElement.outerHTML`), "orders")
}

func TestNamesWithMarkupAreText(t *testing.T) {
	p := open(t)
	evil := `<script>hacked = 1</script>"'><img src=x onerror=hacked=1>&amp;`
	l := p.client("orders@pod-7").NewLock(evil)
	section := lock(t, l)
	waiter(t, p.client("billing@pod-2").NewLock(evil))
	foreign := `<img src=x onerror=hacked=1>"':1:1` // a holder that relock would not make
	require.NoError(t, p.rdb.HSet(t.Context(), "relock:{foreign\u202e}", foreign, 1).Err())
	require.NoError(t, p.rdb.PExpire(t.Context(), "relock:{foreign\u202e}", time.Hour).Err())
	p.show()
	p.says(".row .lock .name", evil)
	p.says(".row .holder .name", `<img src=`[:8])
	p.says(".row .lock .name", `foreign\u{202e}`)
	p.click(`.row .holder`)
	p.until(`!$("panel").hidden`)
	require.NoError(t, l.Unlock(section))
	for _, view := range []string{"hot", "history", "leaders", "now"} {
		p.click("#tab-" + view)
	}
	p.click("#tab-history")
	p.until(`[...document.querySelectorAll("#names option")].some((o) => o.value === ` + quoted(evil) + `)`)
	require.Equal(t, "undefined", value[string](p, `typeof hacked`))
	require.Zero(t, value[int](p, `document.querySelectorAll("img, script:not([src])").length`))
}

func TestTenThousandLocksAreAListThatDrawsWhatIsSeen(t *testing.T) {
	p := open(t, func(h *ui.Handler) { h.History = nil })
	_, err := p.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range 10_000 {
			key := fmt.Sprintf("relock:{job:%05d}", i)
			pipe.HSet(t.Context(), key, fmt.Sprintf("11111111-1111-4111-8111-111111111111:%d:%d", i+1, i+1), 1)
			pipe.PExpire(t.Context(), key, time.Hour)
		}
		return nil
	})
	require.NoError(t, err)
	p.show()
	p.says("#sum", "10,000 locks in use")
	require.Less(t, value[int](p, `document.querySelectorAll(".row").length`), 40)
	value[bool](p, `scrollTo(0, document.body.scrollHeight), true`)
	p.says(".row .lock .name", "job:09999")
	require.Less(t, value[int](p, `document.querySelectorAll(".row").length`), 40)
	p.send("#find", "job:04242")
	p.until(`document.querySelectorAll(".row").length === 1 && document.querySelector(".row .name") !== null`)
}

func TestTheKeyboardReachesEverything(t *testing.T) {
	p := open(t)
	c := p.client("orders@pod-7")
	for _, name := range []string{"alpha", "beta", "gamma"} {
		lock(t, c.NewLock(name))
	}
	p.show()
	p.until(`document.querySelectorAll(".row").length === 3`)
	p.keys(kb.ArrowDown + kb.ArrowDown)
	p.until(`document.activeElement.closest(".row")?.dataset.name === "beta"`)
	p.keys(kb.Enter)
	p.says("#panel h2", "beta")
	p.says("#panel dd", "pod-7")
	p.until(`document.activeElement.className === "close"`)
	p.keys(kb.Escape)
	p.until(`$("panel").hidden && document.activeElement.closest(".row")?.dataset.name === "beta"`)
	p.keys("/")
	p.until(`document.activeElement.id === "find"`)
	value[bool](p, `$("find").value = "", true`) // the keys of the protocol type a / that a person's do not
	p.keys("gam")
	p.until(`document.querySelectorAll(".row").length === 1`)
	p.run(chromedp.Focus(chromedp.CSS("#tab-now")))
	p.keys(kb.ArrowRight)
	p.until(`!$("hot").hidden && document.activeElement.id === "tab-hot"`)
}

func TestEveryControlHasAName(t *testing.T) {
	p := open(t, func(h *ui.Handler) { h.Actions = slog.New(slog.DiscardHandler) })
	lock(t, p.client("orders@pod-7").NewLock("orders:42"))
	waiter(t, p.client("billing@pod-2").NewLock("orders:42"))
	p.show()
	p.says(".row .waiter", "billing@pod-2")
	p.click(".row .holder")
	for _, view := range []string{"now", "hot", "history", "leaders"} {
		value[bool](p, `go(`+quoted(view)+`), true`)
		controls := 0
		for _, n := range call(p, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			switch role := strings.Trim(string(n.Role.Value), `"`); role {
			case "button", "tab", "textbox", "searchbox", "combobox", "InputTime", "slider", "link":
				controls++
				require.NotNil(t, n.Name, role)
				require.NotEqual(t, `""`, string(n.Name.Value), "a %s of %s", role, view)
			}
		}
		require.Greater(t, controls, 4)
	}
}

func TestThePageFitsIntoThreeHundredAndSixtyPixels(t *testing.T) {
	p := open(t)
	c := p.client("orders-with-a-long-name@pod-7.eu-central.example")
	l := c.NewLock("orders:" + strings.Repeat("long-", 30))
	section := lock(t, l)
	got := waiter(t, p.client("billing@pod-2").NewLock(l.Name()))
	p.run(chromedp.EmulateViewport(360, 640, chromedp.EmulateScale(2), chromedp.EmulateMobile))
	p.show()
	p.says(".row .waiter", "billing@pod-2")
	fits := func() {
		t.Helper()
		require.LessOrEqual(t, value[int](p, `document.documentElement.scrollWidth`), 360)
	}
	fits()
	p.click(".row .holder")
	p.until(`!$("panel").hidden`)
	fits()
	p.click("#panel .close")
	require.NoError(t, l.Unlock(section))
	<-got
	for _, view := range []string{"hot", "history", "leaders"} {
		p.click("#tab-" + view)
		if view == "history" {
			p.until(`document.querySelector(".bar.held") !== null`)
		}
		fits()
	}
}

func TestForceUnlockNeedsTheNameTypedInAndIsLogged(t *testing.T) {
	var mu sync.Mutex
	var log strings.Builder
	p := open(t, func(h *ui.Handler) {
		h.Actions = slog.New(slog.NewTextHandler(writer(func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			log.Write(b)
		}), nil))
	})
	section := lock(t, p.client("orders@pod-7").NewLock("orders:42"))
	p.show()
	p.says(".row .holder", "orders@pod-7")
	p.click(".row .lock")
	p.until(`document.querySelector(".unlock").disabled`)
	p.send("#typed", "orders:4")
	p.until(`document.querySelector(".unlock").disabled`)
	p.send("#typed", "2")
	p.until(`!document.querySelector(".unlock").disabled`)
	p.click(".unlock")
	<-section.Done()
	require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, log.String(), `lock=orders:42`)
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

var _ io.Writer = writer(nil)

func TestARunThatHasNoEndIsInterrupted(t *testing.T) {
	p := open(t)
	began := func(name, holder string) written {
		return written{time.Now().Add(-time.Minute), map[string]any{"kind": "began", "name": name, "holder": holder, "ttl": 30_000}}
	}
	c := p.client("cron@pod-1")
	running := c.NewLock("once:invoices@1h0m0s#2")
	lock(t, running)
	state, err := running.State(t.Context())
	require.NoError(t, err)
	p.write([]written{began("once:invoices@1h0m0s#1", "cron@pod-9/11111111-1111-4111-8111-111111111111:1")})
	p.write([]written{began(running.Name(), state.Holder.String())})
	p.show()
	p.click("#tab-leaders")
	p.until(`document.querySelectorAll("#calendar .lane .bar").length >= 2`)
	p.until(`document.querySelector("#calendar .bar.lost")?.title.includes("cron@pod-9 began at ")`)
	p.until(`document.querySelector("#calendar .bar.open")?.title.includes("cron@pod-1 ran since ")`)
}
