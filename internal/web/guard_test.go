package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOtherSitesChangeNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"a program", nil, 200},
		{"the console", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8101"}, 200},
		{"an old browser on the console", []string{"Origin", "http://127.0.0.1:8101"}, 200},
		{"another site", []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 403},
		{"another port of this machine", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:3000"}, 403},
		{"an old browser on another site", []string{"Origin", "https://evil.example"}, 403},
		{"a sandboxed frame", []string{"Origin", "null"}, 403},
	} {
		p := box()
		h := newHandler(t, nil, []Pool{p})
		w := call(h, "PATCH", "/api/models/qwen3-4b-dp4", `{"affinity": "off"}`, c.headers...)
		if w.Code != c.status || (len(p.asked) > 0) != (c.status == 200) {
			t.Errorf("%s: %d, asked %v", c.name, w.Code, p.asked)
		}
		if w := call(h, "POST", "/api/models/qwen3-4b-dp4/replicas/0/drain", "", c.headers...); w.Code != c.status {
			t.Errorf("%s: drain %d", c.name, w.Code)
		}
		if w := call(h, "GET", "/models/qwen3-4b-dp4", "", c.headers...); w.Code != 200 {
			t.Errorf("%s: reading %d", c.name, w.Code)
		}
	}
}

func TestHostOnLoopback(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()}, func(o *Options) { o.Hosts = []string{"warden.lan"} })
	for host, status := range map[string]int{
		"127.0.0.1:8101": 200, "localhost:8101": 200, "LocalHost": 200, "[::1]:8101": 200, "[::1]": 200, "127.0.0.2": 200,
		"warden.lan": 200, "WARDEN.lan:8101": 200,
		"evil.example": 403, "evil.example:8101": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example:8101": 403, "10.0.0.1:8101": 403, "": 403,
	} {
		for _, path := range []string{"/", "/api/models", "/metrics", "/healthz"} {
			if w := call(h, "GET", path, "", "Host", host); w.Code != status {
				t.Errorf("%s of %q: %d, want %d", path, host, w.Code, status)
			}
		}
	}
}

// Behind another address people ask by names that nobody listed.
func TestHostElsewhereIsFree(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()})
	for at, status := range map[string]int{"10.0.0.1:8101": 200, "127.0.0.1:8101": 403, "[::1]:8101": 403, "[::ffff:127.0.0.1]:8101": 403} {
		address, err := net.ResolveTCPAddr("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "http://gpu-box:8101/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(address)))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("at %s: %d, want %d", at, w.Code, status)
		}
	}
}

func TestSecurityHeaders(t *testing.T) {
	h := newHandler(t, nil, []Pool{box()})
	for _, path := range []string{"/", "/models/qwen3-4b-dp4", "/api/models", "/static/console.js", "/none"} {
		got := call(h, "GET", path, "").Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'self';", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if !strings.HasPrefix(got.Get(name), want) {
				t.Errorf("%s: %s is %q", path, name, got.Get(name))
			}
		}
	}
}
