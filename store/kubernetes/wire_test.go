package relockk8s_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// wire counts the requests of a client, loses replies, answers itself, and delivers requests late.
type wire struct {
	next     http.RoundTripper
	requests atomic.Int64
	lose     atomic.Pointer[string] // the method whose next reply is lost
	held     atomic.Pointer[late]
	answer   atomic.Int64 // the status of the answer to the next request, which is not sent
	refuse   atomic.Pointer[refusal]
	silent   atomic.Bool // watches deliver nothing
}

// late is a request of a method that the client gives up before it is sent.
type late struct {
	method string
	goOn   chan struct{} // sends the request
	status chan int      // of the answer
}

// refusal is the answer to all requests with a verb, which are not sent.
type refusal struct {
	verb string // a method, "WATCH" or "": all
	code int
	body string // the text of a Status, or of a proxy if it begins with "<"
}

func (f *refusal) isFor(r *http.Request) bool {
	verb := r.Method
	if r.URL.Query().Has("watch") {
		verb = "WATCH"
	}
	return f.verb == "" || f.verb == verb
}

func (f *refusal) response(r *http.Request) *http.Response {
	body, form := f.body, "text/html"
	if !strings.HasPrefix(body, "<") {
		status := meta.Status{
			TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Message: f.body, Code: int32(f.code),
			Reason: meta.StatusReason(strings.ReplaceAll(http.StatusText(f.code), " ", "")),
		}
		text, err := json.Marshal(status)
		if err != nil {
			panic(err)
		}
		body, form = string(text), "application/json"
	}
	return &http.Response{
		StatusCode: f.code, Header: http.Header{"Content-Type": {form}}, Request: r, Body: io.NopCloser(strings.NewReader(body)),
	}
}

var errLost = errors.New("the reply is lost")

func (w *wire) loseReply(method string) { w.lose.Store(&method) }

// delay lets the next request of a method come late.
func (w *wire) delay(method string) *late {
	l := &late{method: method, goOn: make(chan struct{}), status: make(chan int, 1)}
	w.held.Store(l)
	return l
}

// deliver sends the request, and returns the status of the answer.
func (l *late) deliver() int {
	close(l.goOn)
	return <-l.status
}

// silent is a body that delivers nothing.
type silent struct {
	io.ReadCloser
	ctx context.Context
}

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.requests.Add(1)
	if l := w.held.Load(); l != nil && l.method == r.Method && w.held.CompareAndSwap(l, nil) {
		go func() {
			<-l.goOn
			resp, err := w.next.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
			if err != nil {
				l.status <- 0
				return
			}
			_ = resp.Body.Close()
			l.status <- resp.StatusCode
		}()
		return nil, errLost
	}
	if code := w.answer.Swap(0); code != 0 {
		return (&refusal{code: int(code)}).response(r), nil
	}
	if f := w.refuse.Load(); f != nil && f.isFor(r) {
		return f.response(r), nil
	}
	resp, err := w.next.RoundTrip(r)
	if err == nil && r.URL.Query().Has("watch") && w.silent.Load() {
		resp.Body = silent{resp.Body, r.Context()}
	}
	if lost := w.lose.Load(); err == nil && lost != nil && *lost == r.Method && w.lose.CompareAndSwap(lost, nil) {
		_ = resp.Body.Close()
		return nil, errLost
	}
	return resp, err
}
