package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"lmwarden/internal/access"
)

// oneLogin knows one password and one token.
type oneLogin struct{ closed, tooMany bool }

func (*oneLogin) Required() bool { return true }

func (l *oneLogin) Valid(_ time.Time, token string) bool { return token == "token" && !l.closed }

func (l *oneLogin) Open(now time.Time, password string) (string, error) {
	return "token", l.Check(now, password)
}

func (l *oneLogin) Check(_ time.Time, password string) error {
	switch {
	case l.tooMany:
		return access.ErrTooMany
	case password != "correct horse":
		return access.ErrWrong
	}
	return nil
}

func (l *oneLogin) Close(string) { l.closed = true }

func locked(t *testing.T) (*Handler, *oneLogin) {
	l := &oneLogin{}
	return newHandler(t, nil, []Pool{box()}, func(o *Options) { o.Logins = l }), l
}

func form(h http.Handler, path string, values url.Values, headers ...string) *httptest.ResponseRecorder {
	return call(h, "POST", path, values.Encode(), append(headers, "Content-Type", "application/x-www-form-urlencoded")...)
}

func TestWithoutALoginThereIsNothingToSee(t *testing.T) {
	h, _ := locked(t)
	for _, r := range h.table() {
		if r.path == loginPath || r.path == "/healthz" || r.path == "/readyz" {
			continue
		}
		path := strings.NewReplacer("{$}", "", "{name...}", "qwen3-4b-dp4", "{name}", "qwen3-4b-dp4", "{id}", "c-1", "{index}", "0", "{run}", "r", "{figure}", "f").Replace(r.path)
		for _, method := range r.methods {
			for _, headers := range [][]string{nil, {"Cookie", "warden_login=guess"}, {"Cookie", "warden_login="}} {
				w := call(h, method, path, "{}", headers...)
				toLogin := w.Code == http.StatusSeeOther && strings.HasPrefix(w.Header().Get("Location"), "/login?to=")
				if w.Code != http.StatusUnauthorized && !toLogin {
					t.Errorf("%s %s %v: %d", method, path, headers, w.Code)
				}
				if !toLogin && strings.Contains(w.Body.String(), "qwen3") {
					t.Errorf("%s %s tells a model's name", method, path)
				}
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/login", "/static/console.css"} {
		if w := call(h, "GET", path, ""); w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestLoggingInAndOut(t *testing.T) {
	h, l := locked(t)
	w := form(h, "/login", url.Values{"password": {"wrong"}, "to": {"/stats?range=6h"}})
	if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "The password is wrong.") || !strings.Contains(w.Body.String(), "/stats?range=6h") {
		t.Errorf("a wrong password: %d %s", w.Code, w.Body)
	}
	w = form(h, "/login", url.Values{"password": {"correct horse"}, "to": {"/stats?range=6h"}})
	cookie := w.Header().Get("Set-Cookie")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/stats?range=6h" || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") {
		t.Fatalf("the right one: %d to %s, %s", w.Code, w.Header().Get("Location"), cookie)
	}
	pair, _, _ := strings.Cut(cookie, ";")
	for _, path := range []string{"/", "/api/models", "/metrics"} {
		if w := call(h, "GET", path, "", "Cookie", pair); w.Code != http.StatusOK {
			t.Errorf("%s after the login: %d", path, w.Code)
		}
	}
	if w := form(h, "/logout", nil, "Cookie", pair, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"); w.Code != http.StatusForbidden || l.closed {
		t.Errorf("another site logs the operator out: %d", w.Code)
	}
	form(h, "/logout", nil, "Cookie", pair)
	if w := call(h, "GET", "/api/models", "", "Cookie", pair); w.Code != http.StatusUnauthorized {
		t.Errorf("after the logout: %d", w.Code)
	}
	l.tooMany = true
	if w := form(h, "/login", url.Values{"password": {"correct horse"}}); w.Code != http.StatusTooManyRequests {
		t.Errorf("after many wrong ones: %d", w.Code)
	}
}

func TestProgramsSendThePassword(t *testing.T) {
	h, _ := locked(t)
	for password, status := range map[string]int{"correct horse": 200, "wrong": 401, "": 401} {
		r := httptest.NewRequest("GET", "http://127.0.0.1:8101/metrics", nil)
		r.SetBasicAuth("prometheus", password)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("with %q: %d, want %d", password, w.Code, status)
		}
	}
	if w := call(h, "GET", "/metrics", ""); w.Header().Get("WWW-Authenticate") == "" {
		t.Error("a program is not told how")
	}
	if w := call(h, "GET", "/api/models", "", "Sec-Fetch-Mode", "cors"); w.Header().Get("WWW-Authenticate") != "" {
		t.Error("a page's script makes the browser ask")
	}
}

func TestTheLoginLeadsNowhereElse(t *testing.T) {
	for to, want := range map[string]string{
		"": "/", "/": "/", "/models/a?b=c": "/models/a?b=c",
		"https://evil.example/": "/", "//evil.example": "/", `/\evil.example`: "/", "javascript:alert(1)": "/", "/\r\nX: y": "/", "models": "/", "/\t/evil.example": "/",
	} {
		if got := localPath(to); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}
