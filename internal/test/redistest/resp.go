package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// encodeCommand writes a command as clients send commands.
func encodeCommand(args []string) []byte {
	var b []byte
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

var errNotRESP = errors.New("redistest: not a RESP command")

// parseCommand takes the first command from the bytes of a client. n is the length of the command,
// 0 if the command is not complete yet.
func parseCommand(b []byte) (args []string, n int, err error) {
	count, n, err := parseLength(b, '*')
	if n == 0 || err != nil {
		return nil, 0, err
	}
	args = make([]string, 0, count)
	for range count {
		size, head, err := parseLength(b[n:], '$')
		if head == 0 || err != nil {
			return nil, 0, err
		}
		n += head
		if len(b) < n+size+2 {
			return nil, 0, nil
		}
		args = append(args, string(b[n:n+size]))
		n += size + 2
	}
	return args, n, nil
}

// parseLength parses "*3\r\n" or "$5\r\n". n is the length of the text, 0 if not complete.
func parseLength(b []byte, kind byte) (length, n int, err error) {
	if len(b) == 0 {
		return 0, 0, nil
	}
	if b[0] != kind {
		return 0, 0, errNotRESP
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return 0, 0, nil
	}
	length, err = strconv.Atoi(string(bytes.TrimSuffix(b[1:end], []byte("\r"))))
	if err != nil || length < 0 {
		return 0, 0, errNotRESP
	}
	return length, end + 1, nil
}

// replyReader reads whole replies, RESP2 or RESP3, without a change.
type replyReader struct{ r *bufio.Reader }

func newReplyReader(r io.Reader) replyReader { return replyReader{bufio.NewReader(r)} }

func (rr replyReader) read() ([]byte, error) { return rr.append(nil) }

// append reads one value, with all values inside, to the end of buf.
func (rr replyReader) append(buf []byte) ([]byte, error) {
	start := len(buf)
	for {
		part, err := rr.r.ReadSlice('\n')
		buf = append(buf, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
	line := bytes.TrimRight(buf[start:], "\r\n")
	if len(line) == 0 {
		return nil, errors.New("redistest: empty line in a reply")
	}
	kind := line[0]
	switch kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return buf, nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
	default:
		return nil, fmt.Errorf("redistest: reply of unknown type %q", kind)
	}
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil {
		return nil, fmt.Errorf("redistest: length of a reply: %w", err)
	}
	if n < 0 {
		return buf, nil // RESP2's null
	}
	switch kind {
	case '$', '=', '!':
		at := len(buf)
		buf = append(buf, make([]byte, n+2)...)
		_, err := io.ReadFull(rr.r, buf[at:])
		return buf, err
	case '%':
		n *= 2
	case '|':
		n = 2*n + 1 // an attribute, and the value behind the attribute
	}
	for range n {
		if buf, err = rr.append(buf); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// replyText returns a status, number, error or bulk as text, and any other reply unchanged.
func replyText(raw []byte) string {
	line, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	switch raw[0] {
	case '+', '-', ':', '#', ',', '(':
		return string(line[1:])
	case '$':
		return strings.TrimSuffix(string(rest), "\r\n")
	}
	return string(raw)
}

// pushKind returns the kind of a message outside of replies: the first word of a RESP3 push, or, on
// a connection with a subscription, of a RESP2 pub/sub array.
func pushKind(raw []byte, subscriber bool) string {
	if raw[0] != '>' && (raw[0] != '*' || !subscriber) {
		return ""
	}
	_, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	if len(rest) == 0 || rest[0] != '$' {
		return ""
	}
	_, rest, _ = bytes.Cut(rest, []byte("\r\n"))
	word, _, _ := bytes.Cut(rest, []byte("\r\n"))
	kind := strings.ToLower(string(word))
	if raw[0] == '>' {
		return kind
	}
	switch kind {
	case "message", "pmessage", "smessage":
		return kind
	}
	if isPubSub(strings.ToUpper(kind)) {
		return kind
	}
	return "" // "pong": the reply to PING
}

// isPubSub reports whether a command is answered by one message a channel instead of a reply.
func isPubSub(name string) bool {
	return strings.HasSuffix(name, "SUBSCRIBE")
}
