package web

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// guard stands before every route. Nobody logs in on a loopback listener, so
// what keeps other web sites out of the operator's browser is here: requests
// that change something must not come from another site, and a request to a
// loopback address must be for a name that only this machine can mean (a
// hostile name may be made to resolve to 127.0.0.1: DNS rebinding).
func guard(hosts []string, next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusForbidden, "the request comes from another site; this API takes changes from its own pages and from programs")
	}))
	inner := origin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if host := hostName(r.Host); throughLoopback(r) && !local(host) && !slices.ContainsFunc(hosts, equalFold(host)) {
			writeError(w, http.StatusForbidden, "the console does not answer to the name %q; use 127.0.0.1 or localhost, or list the name in admin.hosts", host)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

// throughLoopback says whether a request arrived at a loopback address. One of
// which that is not known counts.
func throughLoopback(r *http.Request) bool {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return true
	}
	at, err := netip.ParseAddrPort(address.String())
	return err != nil || at.Addr().Unmap().IsLoopback()
}

// hostName is a Host header without its port and brackets.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// local says whether a name can mean this machine only.
func local(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func equalFold(a string) func(string) bool {
	return func(b string) bool { return strings.EqualFold(a, b) }
}
