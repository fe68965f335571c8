package relockk8s_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// wire counts the requests of a client, loses replies, answers itself, and delivers requests late.
type wire struct {
	next     http.RoundTripper
	requests atomic.Int64
	lose     atomic.Pointer[string] // the method whose next reply is lost
	held     atomic.Pointer[late]
	answer   atomic.Int64 // the status of the answer to the next request, which is not sent
	silent   atomic.Bool  // watches deliver nothing
}

// late is a request of a method that the client gives up before it is sent.
type late struct {
	method string
	goOn   chan struct{} // sends the request
	status chan int      // of the answer
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
		status := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`,
			strings.ReplaceAll(http.StatusText(int(code)), " ", ""), code)
		return &http.Response{
			StatusCode: int(code), Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(status)),
		}, nil
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
