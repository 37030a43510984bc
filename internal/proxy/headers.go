package proxy

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
	"lmwarden/internal/upstream"
)

// The gateway's headers, in canonical form.
const (
	headerReplica      = "X-Warden-Replica"
	headerDecision     = "X-Warden-Decision"
	headerConversation = "X-Warden-Conversation"
	headerError        = "X-Warden-Error"
	headerRequestID    = "X-Request-Id"
	headerRank         = "X-Data-Parallel-Rank"
	headerForwardedFor = "X-Forwarded-For"
)

// dropped reports whether a client's header stays here: what belongs to one
// connection, the client's credentials for us, and what we set ourselves. The
// name is canonical.
func dropped(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	case "Authorization", "X-Api-Key", "Api-Key", "Cookie":
		return true
	case "Expect": // would cost a round trip, or a second at an engine that ignores it
		return true
	case "Content-Length", headerRank, headerRequestID, headerForwardedFor:
		return true
	}
	return false
}

// appendHead appends the request line and the headers of an attempt.
func (x *exchange) appendHead(b []byte, t pool.Target, length int) []byte {
	r := x.r
	b = append(append(b, r.Method...), ' ')
	b = append(appendURI(b, t.Base, x.route.path, r.URL), " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", t.Base.Host)
	var hops []string
	for _, v := range r.Header["Connection"] {
		hops = append(hops, options(v)...)
	}
	for name, values := range r.Header {
		if dropped(name) || slices.Contains(hops, name) {
			continue
		}
		if name == "Accept-Encoding" && x.route.api != llmapi.RouteOther {
			continue // we read these answers; a compressed one would hide its usage
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	b = appendField(b, headerRequestID, x.rec.RequestID)
	if t.Key != "" {
		b = appendField(b, "Authorization", "Bearer "+t.Key)
	}
	if t.Rank != routing.None {
		b = appendField(b, headerRank, strconv.Itoa(t.Rank))
	}
	b = appendForwarded(b, r)
	if length > 0 || r.Method == http.MethodPost {
		b = appendField(b, "Content-Length", strconv.Itoa(length))
	}
	return append(b, "\r\n"...)
}

// appendURI appends what the engine is asked for. The client's query is passed
// on byte for byte.
func appendURI(b []byte, base *url.URL, path string, asked *url.URL) []byte {
	b = append(b, strings.TrimSuffix(base.EscapedPath(), "/")...)
	b = append(b, path...)
	mark := byte('?')
	for _, query := range []string{base.RawQuery, asked.RawQuery} {
		if query != "" {
			b = append(append(b, mark), query...)
			mark = '&'
		}
	}
	if asked.ForceQuery && mark == '?' {
		b = append(b, '?')
	}
	return b
}

// appendField appends a header. The server has refused names and values with
// line ends in them, and config such a key.
func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}

// appendForwarded adds the client's address to what an earlier proxy said.
func appendForwarded(b []byte, r *http.Request) []byte {
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if prior := r.Header[headerForwardedFor]; len(prior) > 0 {
			ip = strings.Join(prior, ", ") + ", " + ip
		}
		b = appendField(b, headerForwardedFor, ip)
	}
	if _, ok := r.Header["X-Forwarded-Host"]; !ok && r.Host != "" {
		b = appendField(b, "X-Forwarded-Host", r.Host)
	}
	if _, ok := r.Header["X-Forwarded-Proto"]; !ok {
		proto := "http"
		if r.TLS != nil {
			proto = "https"
		}
		b = appendField(b, "X-Forwarded-Proto", proto)
	}
	return b
}

// options are the headers that a Connection header declares to be of this
// connection only, in canonical form.
func options(connection string) []string {
	var names []string
	for name := range strings.SplitSeq(connection, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, http.CanonicalHeaderKey(name))
		}
	}
	return names
}

// copyAnswer puts an engine's headers on our answer. Content-Length is the
// caller's matter.
func copyAnswer(dst http.Header, src []upstream.Field) {
	var hops []string
	for _, f := range src {
		if f.Name == "Connection" {
			hops = append(hops, options(f.Value)...)
		}
	}
	values := make([]string, len(src))
	for i, f := range src {
		switch f.Name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer",
			"Transfer-Encoding", "Upgrade", "Content-Length", headerRequestID:
			continue
		}
		// An engine that is itself a gateway has its own decisions.
		if slices.Contains(hops, f.Name) || strings.HasPrefix(f.Name, "X-Warden-") {
			continue
		}
		if earlier := dst[f.Name]; earlier != nil {
			dst[f.Name] = append(earlier, f.Value)
			continue
		}
		values[i] = f.Value
		dst[f.Name] = values[i : i+1 : i+1]
	}
}

// requestID keeps a client's id when it is short and printable, and makes one
// otherwise. It stands in logs and in the engine's own ids.
func requestID(r *http.Request) string {
	if id := r.Header.Get(headerRequestID); saneID(id) {
		return id
	}
	var b [8]byte
	v := rand.Uint64()
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
	return "req-" + hex.EncodeToString(b[:])
}

func saneID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("-_.:/+=@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// pin reads the replica that the client asks for; routing.None when it asks for
// none. Engines ignore a rank they cannot parse and spread the request; a client
// that pins wants to know.
func pin(h http.Header) (int, error) {
	values := h[headerRank]
	if len(values) == 0 {
		return routing.None, nil
	}
	v := values[0]
	for _, other := range values[1:] {
		if other != v {
			return 0, fmt.Errorf("%s is given %d times with different values", headerRank, len(values))
		}
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not a replica", headerRank, clip(v))
	}
	return int(n), nil
}

// clip shortens what a client sent, for messages.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
