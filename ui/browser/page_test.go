//go:build browser

package browser

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ui"
)

var update = flag.Bool("update", false, "take the pictures of docs/pictures anew")

// hang bounds each wait for the browser.
const hang = time.Minute

// The browser of all tests.
var browser struct {
	once sync.Once
	ctx  context.Context
	end  context.CancelFunc
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.end != nil {
		browser.end()
	}
	os.Exit(code)
}

// program returns the path of a Chromium.
func program(t *testing.T) string {
	names := []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"}
	for _, name := range names {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	t.Fatalf("no browser: none of %s is here; sh tools/install-deps.sh browser installs one", strings.Join(names, ", "))
	return ""
}

// page is a tab with the page, and the world that the page shows.
type page struct {
	t       *testing.T
	ctx     context.Context // of the tab
	server  *httptest.Server
	rdb     *redis.Client
	handler *ui.Handler
	history *ui.History
	denied  atomic.Bool // the login lets nobody in

	mu   sync.Mutex
	urls []string // of all requests
}

// open makes the world, and a tab that shows nothing yet.
func open(t *testing.T, change ...func(*ui.Handler)) *page {
	path := program(t)
	browser.once.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
			chromedp.WSURLReadTimeout(hang), chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("lang", "en-GB"))
		browser.ctx, browser.end = chromedp.NewExecAllocator(context.Background(), options...)
		browser.ctx, _ = chromedp.NewContext(browser.ctx)
		require.NoError(t, chromedp.Do(browser.ctx))
	})
	server := redistest.Start(t)
	p := &page{t: t, rdb: redis.NewClient(&redis.Options{Addr: server.Addr()})}
	t.Cleanup(func() { _ = p.rdb.Close() })
	p.history = &ui.History{Redis: p.rdb, Wait: time.Millisecond}
	p.handler = &ui.Handler{Locks: p.client(""), History: p.history, Every: 20 * time.Millisecond}
	for _, f := range change {
		f(p.handler)
	}
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.denied.Load() {
			http.Error(w, "log in first", http.StatusForbidden)
			return
		}
		p.handler.ServeHTTP(w, r)
	})
	mux := http.NewServeMux()
	mux.Handle("/locks/", login)
	p.server = httptest.NewServer(mux)
	t.Cleanup(p.server.Close)
	t.Cleanup(p.server.CloseClientConnections)
	ctx, cancel := chromedp.NewContext(browser.ctx)
	t.Cleanup(cancel)
	p.ctx = ctx
	require.NoError(t, chromedp.Do(ctx)) // makes the tab
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		if sent, is := event.(*network.EventRequestWillBeSent); is {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.urls = append(p.urls, sent.Request.URL)
		}
	}))
	call(p, network.Enable, network.EnableParams{})
	call(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	p.run(chromedp.EmulateViewport(1180, 720))
	t.Cleanup(p.asksNobodyElse)
	return p
}

func (p *page) asksNobodyElse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, url := range p.urls {
		if !strings.HasPrefix(url, "data:") {
			require.True(p.t, strings.HasPrefix(url, p.server.URL+"/locks/"), "asked %s", url)
		}
	}
}

// show opens the page.
func (p *page) show() { p.run(chromedp.Navigate(p.server.URL + "/locks/")) }

// client makes a client of a process with an owner, which writes the history.
func (p *page) client(owner string, options ...relock.Option) *relock.Client {
	options = append([]relock.Option{relock.WithHooks(p.history.Hooks())}, options...)
	if owner != "" {
		options = append(options, relock.WithOwner(owner))
	}
	c, err := relock.New(p.rdb, options...)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// run carries out what a person does.
func (p *page) run(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hang)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.fail(err)
	}
}

func (p *page) click(selector string) { p.t.Helper(); p.run(chromedp.Click(chromedp.CSS(selector))) }
func (p *page) send(selector, text string) {
	p.t.Helper()
	p.run(chromedp.SendKeys(chromedp.CSS(selector), text))
}
func (p *page) keys(keys string) { p.t.Helper(); p.run(chromedp.KeyEvent(keys)) }
func (p *page) fail(err error) {
	p.t.Helper()
	text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string](`document.body.innerText`))
	p.t.Fatalf("%v; the page says:\n%s", err, text)
}

// call calls a command of the browser.
func call[P, R any](p *page, command cdp.Command[P, R], params P) R {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hang)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	require.NoError(p.t, err)
	return result
}

// value returns the value of an expression in the page.
func value[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hang)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.fail(fmt.Errorf("%s: %w", expression, err))
	}
	return v
}

// until waits for an expression in the page to be true. (The policy of the page allows no code in
// texts, so nothing in the page can wait.)
func (p *page) until(expression string) {
	p.t.Helper()
	for end := time.Now().Add(hang); !value[bool](p, `!!(`+expression+`)`); {
		if time.Now().After(end) {
			p.fail(fmt.Errorf("not true: %s", expression))
		}
	}
}

// says waits for a text in the elements of a selector.
func (p *page) says(selector, text string) {
	p.t.Helper()
	p.until(`[...document.querySelectorAll(` + quoted(selector) + `)].some((e) => e.textContent.includes(` + quoted(text) + `))`)
}

// picture takes a picture for the documentation.
func (p *page) picture(name, scheme string) {
	p.t.Helper()
	if !*update {
		return
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	value[bool](p, `document.activeElement.blur(), true`)
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	require.Less(p.t, len(png), 150_000)
	require.NoError(p.t, os.WriteFile(filepath.Join("../../docs/pictures", name+".png"), png, 0o644))
}
