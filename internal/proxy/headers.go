package proxy

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"lmwarden/internal/llmapi"
	"lmwarden/internal/pool"
	"lmwarden/internal/routing"
)

// The gateway's headers, in canonical form.
const (
	headerReplica      = "X-Warden-Replica"
	headerDecision     = "X-Warden-Decision"
	headerConversation = "X-Warden-Conversation"
	headerError        = "X-Warden-Error"
	headerRequestID    = "X-Request-Id"
	headerRank         = "X-Data-Parallel-Rank"
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
	case "Content-Length", headerRank, headerRequestID:
		return true
	}
	return false
}

// outbound makes the headers of one attempt. The values are shared with the
// client's request, which nobody changes.
func outbound(r *http.Request, api llmapi.Route, id string, t pool.Target) http.Header {
	h := make(http.Header, len(r.Header)+6)
	for name, values := range r.Header {
		if !dropped(name) {
			h[name] = values
		}
	}
	for _, name := range connectionOptions(r.Header) {
		delete(h, name)
	}
	if api != llmapi.RouteOther {
		// We read these answers; a compressed one would hide its usage.
		delete(h, "Accept-Encoding")
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // else the transport adds its own
	}
	h[headerRequestID] = []string{id}
	if t.Key != "" {
		h["Authorization"] = []string{"Bearer " + t.Key}
	}
	if t.Rank != routing.None {
		h[headerRank] = []string{strconv.Itoa(t.Rank)}
	}
	forwarded(h, r)
	return h
}

// forwarded adds the client's address to what an earlier proxy said.
func forwarded(h http.Header, r *http.Request) {
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if prior := r.Header["X-Forwarded-For"]; len(prior) > 0 {
			ip = strings.Join(prior, ", ") + ", " + ip
		}
		h["X-Forwarded-For"] = []string{ip}
	}
	if _, ok := h["X-Forwarded-Host"]; !ok && r.Host != "" {
		h["X-Forwarded-Host"] = []string{r.Host}
	}
	if _, ok := h["X-Forwarded-Proto"]; !ok {
		proto := "http"
		if r.TLS != nil {
			proto = "https"
		}
		h["X-Forwarded-Proto"] = []string{proto}
	}
}

// connectionOptions lists the headers that Connection declares to be of this
// connection only, in canonical form.
func connectionOptions(h http.Header) []string {
	var names []string
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, http.CanonicalHeaderKey(name))
			}
		}
	}
	return names
}

// copyAnswer puts an engine's headers on our answer. Content-Length is the
// caller's matter.
func copyAnswer(dst, src http.Header) {
	hops := connectionOptions(src)
	for name, values := range src {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer",
			"Transfer-Encoding", "Upgrade", "Content-Length", headerRequestID:
			continue
		}
		// An engine that is itself a gateway has its own decisions.
		if !slices.Contains(hops, name) && !strings.HasPrefix(name, "X-Warden-") {
			dst[name] = values
		}
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
