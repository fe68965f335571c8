package fence

import (
	"errors"
	"net/http"
	"strconv"
)

// Header is the HTTP header with the fencing token of a request.
const Header = "Relock-Token"

// SetToken puts the token into the header of a request.
func SetToken(h http.Header, token int64) { h.Set(Header, strconv.FormatInt(token, 10)) }

// Handler makes a handler of a function that serves a request with the request's token. serve
// compares the token, with [Table.Enter], [Memory.Enter] or by itself, and returns an error only as
// long as it has written no answer.
//
// Handler answers, each time with a short text:
//
//   - 428 Precondition Required to a request without a token;
//   - 400 Bad Request to more than one token, and to anything but a positive decimal number;
//   - 412 Precondition Failed if the error of serve matches [ErrStale];
//   - 500 Internal Server Error for another error of serve. The answer does not contain the error.
//     A service that wants to log the error does so in serve.
func Handler(serve func(w http.ResponseWriter, r *http.Request, token int64) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 {
			http.Error(w, "the header "+Header+" is missing: it has the fencing token of the lock",
				http.StatusPreconditionRequired)
			return
		}
		token, ok := parse(values)
		if !ok {
			http.Error(w, "the header "+Header+" must have one positive decimal number",
				http.StatusBadRequest)
			return
		}
		switch err := serve(w, r, token); {
		case errors.Is(err, ErrStale):
			http.Error(w, "the token is stale: a later holder of the lock has been here",
				http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, "the request failed", http.StatusInternalServerError)
		}
	})
}

// parse returns the token in the values of the header, if there is one that can write.
func parse(values []string) (token int64, ok bool) {
	if len(values) != 1 {
		return 0, false
	}
	// 63 bits: what fits into an int64. ParseUint takes no sign, not even a plus.
	n, err := strconv.ParseUint(values[0], 10, 63)
	return int64(n), err == nil && n > 0
}
