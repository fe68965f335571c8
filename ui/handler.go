package ui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock"
)

// Handler shows a page about the locks of a client, and of all other processes. The page is at each
// path that ends with a slash, and what belongs to the page is beside it, so the Handler can be
// mounted at any path with a slash at its end, with http.StripPrefix and without.
//
// The fields must not change after the first request. A Handler has no goroutine of its own. A
// Handler is safe for concurrent use.
type Handler struct {
	// Locks is the client that looks. The page shows the locks of its store, of all processes.
	Locks *relock.Client

	// History has what was before; nil: the page shows the present only.
	History *History

	// Every is the time between two looks at the store, 2 s if 0.
	Every time.Duration

	// Most is the number of locks that a look asks the store about, the first by name; 10,000 if 0.
	Most int

	// Actions logs each use of the buttons that ask for a lock, and take it from its holder; nil: the
	// page has no such buttons, and such requests are refused.
	Actions *slog.Logger

	// User returns who sends a request, for the lines of Actions. nil: nobody is named.
	User func(*http.Request) string

	looks   looks
	viewers atomic.Int64
}

const (
	// mostViewers bounds the open pages of a Handler.
	mostViewers = 100
	// cookie has the text that a request to act must repeat in tokenHeader.
	cookie      = "relock-ui"
	tokenHeader = "X-Relock-Token"
)

// streamLife is how long one answer with events lasts. The browser then asks again, and with it the
// login in front of the Handler. A server that shuts down waits no longer for an open page.
var streamLife = 15 * time.Second // longer in tests

//go:embed page.html page.css page.js
var assets embed.FS

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cache-Control", "no-store")
	_, name := path.Split(r.URL.Path)
	isAct := name == "act"
	switch {
	case h.Locks == nil:
		http.Error(w, "ui: Handler.Locks is nil", http.StatusInternalServerError)
	case isAct != (r.Method == http.MethodPost), !isAct && r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "the page is read with GET, and act takes POST", http.StatusMethodNotAllowed)
	case isAct:
		h.act(w, r)
	case name == "events":
		h.events(w, r)
	case name == "past":
		h.past(w, r)
	case name == "page.css", name == "page.js":
		http.ServeFileFS(w, r, assets, name)
	case name != "":
		http.NotFound(w, r)
	case r.URL.Path == "": // StripPrefix has left nothing
		asked, _, _ := strings.Cut(r.RequestURI, "?")
		head.Set("Location", path.Base(asked)+"/") // http.Redirect would make it one of the stripped path
		w.WriteHeader(http.StatusSeeOther)
	default:
		h.page(w, r)
	}
}

// page writes the page. With buttons it has the text of the cookie, which no other site can read.
func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	token := ""
	if h.Actions != nil {
		if token = tokenOf(r); token == "" {
			token = rand.Text()
			http.SetCookie(w, &http.Cookie{
				Name: cookie, Value: token, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
			})
		}
	}
	text, err := assets.ReadFile("page.html")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(bytes.Replace(text, []byte("{token}"), []byte(html.EscapeString(token)), 1))
}

func tokenOf(r *http.Request) string {
	c, err := r.Cookie(cookie)
	if err != nil {
		return ""
	}
	return c.Value
}

// events sends each look to one viewer, as what has changed since the one before.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	defer h.viewers.Add(-1)
	if h.viewers.Add(1) > mostViewers {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many people have the page open", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	out, end := http.NewResponseController(w), time.Now().Add(streamLife)
	sent, first := map[string]string{}, true
	for number := int64(0); time.Now().Before(end); first = false {
		l := h.next(r.Context(), number)
		if l == nil {
			return
		}
		number = l.number
		event := struct {
			*look
			Whole   bool              `json:"whole,omitempty"` // forget what was sent before
			Changed []json.RawMessage `json:"changed,omitempty"`
			Gone    []string          `json:"gone,omitempty"`
		}{look: l, Whole: first}
		for id, text := range l.locks {
			if sent[id] != text {
				event.Changed = append(event.Changed, json.RawMessage(text))
				sent[id] = text
			}
		}
		for id := range sent {
			if _, is := l.locks[id]; !is {
				event.Gone = append(event.Gone, id)
				delete(sent, id)
			}
		}
		text, err := json.Marshal(event)
		if err == nil {
			_, err = fmt.Fprintf(w, "retry: 500\ndata: %s\n\n", text)
		}
		if err != nil || out.Flush() != nil {
			return
		}
	}
}

// past writes a part of the history.
func (h *Handler) past(w http.ResponseWriter, r *http.Request) {
	if h.History == nil {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	part, err := h.History.read(ctx, r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, trouble(err), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(part) // the viewer may be gone
}

// act asks for a lock, or takes it from its holders.
func (h *Handler) act(w http.ResponseWriter, r *http.Request) {
	var wanted struct{ Lock, Typed, Do, Holder string }
	token := tokenOf(r)
	switch {
	case h.Actions == nil:
		http.Error(w, "this page only shows", http.StatusForbidden)
		return
	case new(http.CrossOriginProtection).Check(r) != nil,
		token == "", subtle.ConstantTimeCompare([]byte(token), []byte(r.Header.Get(tokenHeader))) == 0:
		http.Error(w, "the request is not from this page; load the page again", http.StatusForbidden)
		return
	case json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10)).Decode(&wanted) != nil || wanted.Do != "ask" && wanted.Do != "unlock":
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	case wanted.Typed != wanted.Lock:
		http.Error(w, "the typed name is not the name of the lock", http.StatusBadRequest)
		return
	}
	lock := h.looks.find(h.Locks, wanted.Lock)
	if lock == nil {
		http.Error(w, "nobody had this lock at the last look", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if state, err := lock.State(ctx); err == nil && !has(state, wanted.Holder) {
		http.Error(w, "the holder has changed meanwhile; look again", http.StatusConflict)
		return
	}
	do, done := lock.Ask, "asked"
	if wanted.Do == "unlock" {
		do, done = lock.ForceUnlock, "taken"
	}
	user := ""
	if h.User != nil {
		user = h.User(r)
	}
	h.Actions.Warn("relock ui: "+wanted.Do+" begins", "lock", lock.Name(), "holder", wanted.Holder, "user", user, "from", r.RemoteAddr)
	err := do(ctx)
	h.Actions.Warn("relock ui: "+wanted.Do+" has ended", "lock", lock.Name(), "user", user, "error", err)
	if err != nil {
		http.Error(w, trouble(err), http.StatusBadGateway)
		return
	}
	_, _ = fmt.Fprintln(w, done)
}

// has says whether a holder has a lock.
func has(s relock.State, holder string) bool {
	is := func(h relock.Held) bool { return h.Holder.String() == holder }
	return s.Locked() && s.Holder.String() == holder || slices.ContainsFunc(s.Others, is)
}

// trouble returns an error for people, which is not too long for a line.
func trouble(err error) string {
	text := strings.TrimPrefix(strings.ToValidUTF8(err.Error(), "?"), "relock: ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// OnLoopback refuses requests for other hosts than localhost and loopback addresses. A page of
// another site can make its own host name one of this machine, and would read the answers of a
// server without a login.
func OnLoopback(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if ip := net.ParseIP(cmp.Or(host, "-")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "this page is for localhost only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
