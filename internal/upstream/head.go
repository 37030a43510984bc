package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// maxHead bounds the status line and the headers of an answer, and its trailer.
const maxHead = 1 << 20

// Field is one header line of an answer.
type Field struct {
	Name  string // in canonical form
	Value string // without white space around it
}

var errMalformed = errors.New("malformed answer")

func malformed(what, text string) error {
	const most = 100
	return fmt.Errorf("%w: %s %.*q", errMalformed, what, most, text)
}

// head is the status line and the headers of an answer.
type head struct {
	status int
	fields []Field
	last   bool // no further answer will come over the connection
	length int64
	framing
}

// framing is how the end of a body is told.
type framing uint8

const (
	untilClose framing = iota
	byLength
	chunked
	bodyless // whatever the headers say
)

// parseHead reads a head, blank line included. What HTTP/1.1 forbids is refused
// where it touches the framing; the rest is the client's to judge.
func parseHead(text []byte, method string) (head, error) {
	h := head{length: -1}
	// One string for all, of which names and values are parts.
	line, rest, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	proto, status, _ := strings.Cut(line, " ")
	if proto != "HTTP/1.1" && proto != "HTTP/1.0" {
		return h, malformed("protocol", line)
	}
	h.last = proto == "HTTP/1.0"
	code, _, _ := strings.Cut(strings.TrimLeft(status, " "), " ")
	n, err := strconv.ParseUint(code, 10, 16)
	if err != nil || len(code) != 3 || n < 100 {
		return h, malformed("status", line)
	}
	h.status = int(n)
	if h.fields, err = parseFields(rest, bytes.Count(text, []byte("\n"))); err != nil {
		return h, err
	}
	if err := h.frame(); err != nil {
		return h, err
	}
	switch {
	case method == http.MethodHead:
		h.framing = bodyless
	case h.status < 200, h.status == http.StatusNoContent, h.status == http.StatusNotModified:
		h.framing, h.length = bodyless, 0
	}
	h.last = h.last || h.framing == untilClose
	return h, nil
}

// parseFields reads header lines, n at most, up to an empty one.
func parseFields(text string, n int) ([]Field, error) {
	fields := make([]Field, 0, n)
	for {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if line = strings.TrimSuffix(line, "\r"); line == "" {
			return fields, nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || !isValue(value) {
			return nil, malformed("header", line)
		}
		fields = append(fields, Field{textproto.CanonicalMIMEHeaderKey(name), strings.Trim(value, " \t")})
	}
}

// frame finds how the body ends, by RFC 9112, section 6.3.
func (h *head) frame() error {
	for _, f := range h.fields {
		switch f.Name {
		case "Transfer-Encoding":
			if h.framing == chunked || !strings.EqualFold(f.Value, "chunked") {
				return malformed("transfer encoding", f.Value)
			}
			h.framing = chunked
		case "Content-Length":
			n, err := strconv.ParseUint(f.Value, 10, 63)
			if err != nil || h.length >= 0 && h.length != int64(n) {
				return malformed("length", f.Value)
			}
			h.length = int64(n)
		case "Connection":
			for option := range strings.SplitSeq(f.Value, ",") {
				h.last = h.last || strings.EqualFold(strings.Trim(option, " \t"), "close")
			}
		}
	}
	switch {
	case h.framing == chunked:
		h.last = h.last || h.length >= 0 // it contradicts itself
		h.length = -1
	case h.length >= 0:
		h.framing = byLength
	}
	return nil
}

// isToken reports whether s may be the name of a header.
func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// isValue reports whether s may be the value of a header: no control characters.
func isValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
