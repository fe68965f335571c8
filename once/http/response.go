package oncehttp

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// response is what is stored of a response.
type response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
}

// replay sends a stored response.
func (r response) replay(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.Header)
	w.Header().Set(HeaderReplayed, "true")
	write(w, r.Status, r.Body)
}

// write sends a status and a whole body.
func write(w http.ResponseWriter, status int, body []byte) {
	if len(body) > 0 && w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// recorder is the ResponseWriter of a handler. It keeps the response in memory.
type recorder struct {
	header http.Header // for the handler
	sent   http.Header // as it was at the first WriteHeader or Write
	status int         // 0: not written
	body   bytes.Buffer
}

// newRecorder makes a recorder. Its headers begin with those that outer middleware has set.
func newRecorder(outer http.Header) *recorder { return &recorder{header: outer.Clone()} }

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter]. Like the server of net/http it panics on a status
// that is none, because such a response could be stored but not sent. Interim responses are
// dropped.
func (r *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("oncehttp: invalid WriteHeader code %d", status))
	case status < 200 || r.status != 0:
		return
	}
	r.status, r.sent = status, r.header.Clone()
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	r.finish()
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	return r.body.Write(p)
}

// finish ends the header of a handler that did not, with status 200.
func (r *recorder) finish() {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
}

// isRepeatable reports whether the response tells the client to repeat the request.
func (r *recorder) isRepeatable() bool {
	return r.status >= 500 || r.status == http.StatusTooManyRequests
}

// response returns what is stored, with the headers of these canonical names.
func (r *recorder) response(names []string) response {
	stored := response{Status: r.status, Header: make(http.Header), Body: r.body.Bytes()}
	for _, name := range names {
		if values, ok := r.sent[name]; ok {
			stored.Header[name] = slices.Clone(values)
		}
	}
	return stored
}

// send sends the response to the client of the first request.
func (r *recorder) send(w http.ResponseWriter) {
	clear(w.Header()) // the handler may have removed headers
	maps.Copy(w.Header(), r.sent)
	write(w, r.status, r.body.Bytes())
}
