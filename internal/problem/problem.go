// Package problem sends the problems of RFC 9457 in place of a handler's response.
package problem

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Problem says why a request was refused.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	RetryAfter int `json:"-"` // in seconds; 0: the client is not invited to send the request again
}

// Because returns the problem with an error as its detail.
func (p Problem) Because(err error) *Problem {
	p.Detail = err.Error()
	return &p
}

// Write sends the problem.
func (p *Problem) Write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // strings and a number
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client may be gone
}
