package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/go-relock/relock/internal/problem"
)

// maxKeyLen is the longest key of a client in bytes.
const maxKeyLen = 255

// request is a request that runs once.
type request struct {
	*http.Request
	key         string // in package once
	fingerprint string
	body        []byte
}

// with returns the request for the handler, which reads the body again.
func (r *request) with(ctx context.Context) *http.Request {
	c := r.WithContext(ctx)
	c.Body = io.NopCloser(bytes.NewReader(r.body))
	c.ContentLength, c.TransferEncoding = int64(len(r.body)), nil
	return c
}

// applies reports whether a request runs once. Other requests pass through.
func (m *middleware) applies(r *http.Request) bool {
	if !slices.Contains(m.methods, r.Method) {
		return false
	}
	return !m.optional || len(r.Header.Values(HeaderKey)) > 0
}

// read reads all of a request that runs once, or says why it is refused.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) (*request, *problem.Problem) {
	scope, err := m.scope(r)
	if err != nil || scope == "" {
		return nil, &unknownCaller
	}
	fields := r.Header.Values(HeaderKey)
	if len(fields) == 0 {
		return nil, &missingKey
	}
	key, err := parseKey(fields)
	if err != nil {
		return nil, malformedKey.Because(err)
	}
	body, refused := m.readBody(w, r)
	if refused != nil {
		return nil, refused
	}
	path := r.URL.EscapedPath()
	return &request{
		Request:     r,
		key:         Key(scope, path, key),
		fingerprint: digest(r.Method, path, r.URL.RawQuery, digest(string(body))),
		body:        body,
	}, nil
}

func (m *middleware) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem.Problem) {
	if r.Body == nil { // not from a server
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.maxBody))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return nil, &bodyTooLarge
	case err != nil:
		return nil, &unreadableBody
	default:
		return body, nil
	}
}

// parseKey returns the key in the values of the Idempotency-Key header: a string of RFC 8941, or
// visible ASCII characters without the quotes. The bare form has no comma, because a proxy may join
// two headers with a comma. The draft has no parameters after the string.
func parseKey(fields []string) (key string, err error) {
	if len(fields) != 1 {
		return "", errors.New("the request has the header more than once")
	}
	field := strings.Trim(fields[0], " \t")
	if quoted, ok := strings.CutPrefix(field, `"`); ok {
		key, err = parseString(quoted)
	} else {
		key, err = field, checkBare(field)
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > maxKeyLen:
		return "", errors.New("the key is longer than 255 bytes")
	}
	return key, nil
}

func checkBare(field string) error {
	isWrong := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == ',' }
	if strings.ContainsFunc(field, isWrong) {
		return errors.New("a key without quotes has visible ASCII characters only, and no quote or comma")
	}
	return nil
}

// parseString reads an sf-string of RFC 8941, section 4.2.5, after its first quote.
func parseString(rest string) (string, error) {
	var text strings.Builder
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"' && i == len(rest)-1:
			return text.String(), nil
		case c == '"':
			return "", errors.New("the header goes on after the closing quote")
		case c == '\\':
			i++
			if i == len(rest) || rest[i] != '"' && rest[i] != '\\' {
				return "", errors.New("a backslash stands before a quote or a backslash only")
			}
			text.WriteByte(rest[i])
		case c < ' ' || c > '~':
			return "", errors.New("the key has a character that is not printable ASCII")
		default:
			text.WriteByte(c)
		}
	}
	return "", errors.New("the closing quote is missing")
}
